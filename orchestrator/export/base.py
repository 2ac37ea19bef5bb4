"""Exporter: the base class of all formats, and what those with an own library share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar, Literal

from orchestrator.errors import InputError, output_error
from orchestrator.export.contents import ExportedSweep, read_contents
from orchestrator.report.formats import JOIN, count
from orchestrator.results.store import SweepPaths, check_no_link, write_atomic
from trainer.core.regular_files import read_regular

Change = Literal["added", "replaced", "unchanged"]


@dataclass(frozen=True)
class Exported:
    """A run or a file of an export. change: what the export did to it at its place."""

    name: str
    change: Change


@dataclass(frozen=True)
class Options:
    """Options of some formats; the others refuse them.

    Attributes:
        sets: `key=value` for all runs.
        nodes: node counts that replace the file's.
        gloo_for_mpi: export the gloo twins of runs over mpi.
        image: name of the trainer image.
        results_claim, data_claim: names of PersistentVolumeClaims.
    """

    sets: tuple[str, ...] = ()
    nodes: str | None = None
    gloo_for_mpi: bool = False
    image: str | None = None
    results_claim: str | None = None
    data_claim: str | None = None

    def given(self) -> list[str]:
        """The names of those that are not the default."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


def option(name: str) -> str:
    """An option's name as typed."""
    return "--set" if name == "sets" else f"--{name.replace('_', '-')}"


class Exporter(ABC):
    """A format to export to.

    takes: what is exported. name: its name in the registry. modules: the optional libraries that it
    imports; the extra of the package that installs them has the name of the format. uses: the options
    that it uses.
    """

    takes: ClassVar[Literal["results directory", "sweep file"]]
    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def check_options(self, options: Options) -> None:
        """Raise InputError for an option that the format does not use."""
        if unused := [option(name) for name in options.given() if name not in self.uses]:
            allowed = ", ".join(map(option, self.uses)) or "none"
            raise InputError(f"{unused[0]} has no effect with --to {self.name}; options of it: {allowed}")

    @abstractmethod
    def export(self, source: Path, out: Path | None, options: Options) -> Iterator[Exported | str]:
        """Export, and yield what was done as it happens: each run or file, and remarks.

        Args:
            source: what `takes` says.
            out: where to export to; None: the default of the format.
            options: those that the format uses.

        Raises:
            InputError: the source is not what `takes` says, a library is missing, or `out` is unusable.
        """


class ResultsExporter(Exporter):
    """A format for the results of a sweep.

    The contents are those of the report's CSV files. Pending runs are left out, and all others exported,
    failed ones with their cause. Exporting again replaces runs whose contents have changed.
    """

    takes = "results directory"

    @abstractmethod
    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        """Write the results into the directory `out`, which exists."""

    @abstractmethod
    def advice(self, out: Path) -> str:
        """How to open what is written. Raises InputError for a path that the format cannot use."""

    def export(self, source: Path, out: Path | None, options: Options) -> Iterator[Exported | str]:
        self.check_libraries()
        paths = SweepPaths(source)
        sweep = read_contents(paths)
        if out is None:
            out = paths.exported(self.name)
            check_no_link(out.parent)
            check_no_link(out)
        advice = self.advice(out)
        prepare(out)
        yield from self.write(sweep, out)
        if sweep.pending:
            yield f"left out, since they are pending: {count(sweep.pending, 'run').replace(JOIN, ' ')}"
        yield advice

    def check_libraries(self) -> None:
        """Import the libraries. Raises InputError if one is missing."""
        for module in self.modules:
            try:
                found = import_module(module)
            except ModuleNotFoundError as error:
                raise self._missing(error.name or module) from error
            except ImportError as error:
                raise InputError(f"--to {self.name}: {module} cannot be imported ({error})") from error
            # A folder of this name in the current directory, such as that of an export.
            if found.__file__ is None:
                raise self._missing(module)

    def _missing(self, module: str) -> InputError:
        return InputError(
            f"--to {self.name}: the package {module} is missing; run: pip install 'shardyard[{self.name}]' "
            f"(in a checkout: pip install '.[{self.name}]')"
        )


def prepare(out: Path) -> None:
    """Create the directory. Raises InputError if it cannot be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise output_error(out, error) from error


def write_text(path: Path, text: str) -> Exported:
    """Write a file that an export consists of, unless it has this text already."""
    change: Change = "replaced" if path.exists() else "added"
    if change == "replaced" and read_regular(path) == text.encode():
        return Exported(str(path), "unchanged")
    write_atomic(path, text)
    return Exported(str(path), change)
