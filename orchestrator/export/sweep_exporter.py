"""SweepExporter: the base class of formats for the runs of a sweep, which another program starts."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from orchestrator.errors import InputError, output_error
from orchestrator.export.base import Change, Exported, Exporter, Options, option, prepare, write_text
from orchestrator.runtimes.docker.image import IMAGE
from orchestrator.shipped import command, find_sweep
from orchestrator.sweeps.load import Sweep, load_sweep
from trainer.spec.run_spec import RunSpec

NAME_LENGTH = 48  # a pod's name adds `-1023` and five letters to it, and has at most 63 characters
LABEL_LENGTH = 63
CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, with the names that it has in a cluster."""

    sweep: str
    spec: RunSpec

    @cached_property
    def name(self) -> str:
        """A DNS label of sweep, run and digest: unique among the runs of all sweeps."""
        key = self.spec.key
        return dns_label(f"{self.sweep}-{key}".rpartition("-")[0], f"{self.sweep}/{key}", NAME_LENGTH)

    @property
    def labels(self) -> dict[str, str]:
        return {"shardyard/sweep": label_value(self.sweep), "shardyard/run": label_value(self.spec.key)}

    @property
    def annotations(self) -> dict[str, str]:
        return {"shardyard/sweep": self.sweep, "shardyard/run": self.spec.key}

    @property
    def nodes(self) -> int:
        """How many containers it needs; in topology `single`, one has all ranks."""
        return 1 if self.spec.topology == "single" else self.spec.nodes

    @property
    def share(self) -> int:
        """The number of nodes whose limits one container has."""
        return self.spec.nodes // self.nodes


def dns_label(readable: str, whole: str, length: int) -> str:
    """A name for objects of a cluster, which ends in a digest. whole: what it is unique for."""
    digest = sha256(whole.encode()).hexdigest()[:8]
    found = re.sub(r"[^a-z0-9]+", "-", readable.lower())
    found = found if found[:1].isalpha() else f"run-{found}"
    return f"{found[: length - len(digest) - 1].strip('-')}-{digest}"


def label_value(text: str) -> str:
    """The text as a label's value; with a digest where it cannot be one."""
    value = re.sub(r"[^\w.-]", "-", text, flags=re.ASCII).strip("-_.")
    if value == text and len(value) <= LABEL_LENGTH:
        return value
    return f"{value[: LABEL_LENGTH - 9].rstrip('-_.')}-{sha256(text.encode()).hexdigest()[:8]}"


class SweepExporter(Exporter):
    """A format for the runs of a sweep in pods of an image. All runs are exported, or none."""

    takes = "sweep file"
    uses: ClassVar[tuple[str, ...]] = (
        "sets",
        "nodes",
        "gloo_for_mpi",
        "image",
        "results_claim",
        "data_claim",
    )

    @abstractmethod
    def texts(
        self, sweep: Sweep, runs: Sequence[PlannedRun], options: Options
    ) -> Mapping[str, Mapping[str, str]]:
        """What is exported by its label: path below the directory of the export -> text."""

    def announcements(self, sweep: Sweep, runs: Sequence[PlannedRun]) -> Iterator[str]:
        """What to say of the export before it begins."""
        yield from ()

    @abstractmethod
    def remarks(self, sweep: Sweep, runs: Sequence[PlannedRun], out: Path) -> Iterator[str]:
        """What else to say of the export, and how to start a run."""

    def refusal(self, run: PlannedRun, options: Options) -> str | None:
        """Why the format cannot express a run; None if it can."""
        if run.spec.topology == "mpi":
            hint = "--gloo-for-mpi exports runs over gloo in their place"
            other = hint if "gloo" in run.spec.strategy.transports else "its strategy has no gloo"
            return f"transport mpi needs mpirun and ssh between the nodes; {other}"
        if run.spec.has_imports:
            return "the code of components from import paths is not in the image"
        if run.spec.dataset.files and options.data_claim is None:
            return (
                f"dataset {run.spec.name_of('dataset')} needs --data-claim: its files are not in the image"
            )
        if run.spec.checkpoints and options.results_claim is None:
            return "checkpoints need --results-claim: without it they are gone with their pod"
        if not (run.share * run.spec.cpus * 1000).is_integer():
            return "cpus must be a multiple of 0.001 core"
        return None

    def check_values(self, options: Options) -> None:
        """Raise InputError for options that are missing or invalid."""
        if not options.image:
            raise InputError(
                f"--to {self.name} needs --image, a name under which the cluster can pull the trainer "
                f"image; {command('image')} builds it as {IMAGE}, on this machine only"
            )
        if not re.fullmatch(r"[\w.:/@-]+", options.image, re.ASCII):
            raise InputError(f"--image {options.image!r}: is not the name of an image")
        for name in ("results_claim", "data_claim"):
            value = getattr(options, name)
            if value is not None and not re.fullmatch(CLAIM, value):
                raise InputError(f"{option(name)} {value!r}: is not the name of a PersistentVolumeClaim")

    def export(self, source: Path, out: Path | None, options: Options) -> Iterator[Exported | str]:
        self.check_values(options)
        path = find_sweep(str(source))
        if path.is_dir():
            raise InputError(f"{path}: is a directory; --to {self.name} takes a sweep file")
        sweep = load_sweep(path, options.sets, options.nodes)
        name = sweep.spec.name
        exported = [_twin(run, options.gloo_for_mpi) for run in sweep.runs]
        # The sweep may have a run's twin already.
        runs = [PlannedRun(name, spec) for spec in {each.key: each for each in exported}.values()]
        self._check(runs, options)
        texts = self.texts(sweep, runs, options)
        out = Path("export") / name / self.name if out is None else out
        prepare(out)
        yield from self.announcements(sweep, runs)
        for label, files in texts.items():
            yield _write(label, files, out)
        if twins := sum(twin is not run for twin, run in zip(exported, sweep.runs, strict=True)):
            yield f"runs over mpi that are exported as other runs, over gloo: {twins}"
        yield from self.remarks(sweep, runs, out)

    def _check(self, runs: Sequence[PlannedRun], options: Options) -> None:
        """Raise InputError if the format cannot express all runs."""
        reasons: dict[str, list[str]] = {}
        for run in runs:
            if reason := self.refusal(run, options):
                reasons.setdefault(reason, []).append(run.spec.key)
        if reasons:
            lines = [
                f"--to {self.name}: {reason}: {keys[0]}"
                + (f" and {len(keys) - 1} more" if keys[1:] else "")
                for reason, keys in reasons.items()
            ]
            raise InputError("\n".join(lines))


def _twin(run: RunSpec, gloo_for_mpi: bool) -> RunSpec:
    """The run; over gloo instead of mpi, if that is wanted and its strategy supports it."""
    if not gloo_for_mpi or run.transport != "mpi" or "gloo" not in run.strategy.transports:
        return run
    return RunSpec.model_validate({**run.model_dump(mode="json"), "transport": "gloo"})


def _write(label: str, texts: Mapping[str, str], out: Path) -> Exported:
    """Write the files of a run, and say what that did to it as a whole."""
    changes: set[Change] = set()
    for name, text in texts.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(path.parent, error) from error
        changes.add(write_text(path, text).change)
    if changes == {"unchanged"} or changes == {"added"}:
        return Exported(label, changes.pop())
    return Exported(label, "replaced")
