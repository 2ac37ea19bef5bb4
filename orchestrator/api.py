"""The Python interface: `import shardyard` has these names."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from markupsafe import escape
from rich.console import Console

from orchestrator.commands.run import directory_of, load_run
from orchestrator.commands.sweep import (
    INTERRUPTED,
    HowToRun,
    RuntimeSelection,
    SelectedRuntime,
    memory_warning,
    run_sweep,
    select_runtime,
    text_console,
)
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths, claimed, read_record
from orchestrator.shipped import find_sweep
from orchestrator.sweeps.load import Sweep, import_directory, load_sweep
from orchestrator.sweeps.validation import excerpt

if TYPE_CHECKING:
    import pandas

    from orchestrator.report.findings.base import Finding
    from orchestrator.report.findings.decide import Claims
    from orchestrator.report.model.comparison import Comparison
    from orchestrator.report.plots import Plot

Value = str | int | float | bool | None
Line = dict[str, Value]
Source = str | Path | Mapping[str, Any]

SHOWN = 20  # lines of a table in a notebook


@dataclass(frozen=True)
class Table(Sequence[Line]):
    """Lines with the same columns. columns.csv beside a report explains them."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @overload
    def __getitem__(self, at: int) -> Line: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...

    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        return self.lines[at]

    def __len__(self) -> int:
        return len(self.lines)

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a data frame. Raises ImportError, which says how to install pandas, without it."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            reason = (
                f"to_pandas() needs the package {error.name}; run: {sys.executable} -m pip install pandas"
            )
            raise ImportError(reason, name=error.name) from None
        return pandas.DataFrame([*self.lines], columns=[*self.columns])

    def _repr_html_(self) -> str:
        """The first lines, for a notebook; columns without a value are left out."""
        shown = [name for name in self.columns if any(line.get(name) is not None for line in self.lines)]
        head = "".join(f"<th>{escape(name)}</th>" for name in shown)
        body = "".join(
            f"<tr>{''.join(f'<td>{_shown(line.get(name))}</td>' for name in shown)}</tr>"
            for line in self.lines[:SHOWN]
        )
        more = len(self.lines) - SHOWN
        rest = f"<p>{more} more lines</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


@dataclass(frozen=True)
class Figure:
    """A figure of a report. A notebook displays it.

    Attributes:
        title: what it shows.
        spec: its Vega-Lite specification, with its data.
    """

    title: str
    spec: Mapping[str, Any]

    @cached_property
    def svg(self) -> str:
        """The figure as SVG, on white."""
        from orchestrator.report.figures.chart import Chart
        from orchestrator.report.figures.vega import svg_file, svg_of

        return svg_file(svg_of(Chart(dict(self.spec)).without_heading), self.title)

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class Results:
    """A results directory, as it was when it was read.

    Attributes:
        directory: the directory with the report and the files of each run.
    """

    directory: Path

    @property
    def report(self) -> Path:
        """The page."""
        return SweepPaths(self.directory).html

    @cached_property
    def verdict(self) -> tuple[str, ...]:
        """What to choose, a sentence for each workload; empty if nothing has finished."""
        from orchestrator.report.verdict import verdicts

        return tuple(_plain(each.headline) for each in verdicts(self._comparison, self._concluded[0]))

    @cached_property
    def findings(self) -> tuple[dict[str, Any], ...]:
        """Every finding as in findings.json: its text, numbers, intervals and decisions."""
        from orchestrator.report.findings.base import findings_json

        return tuple(json.loads(findings_json(self._concluded[1])))

    @cached_property
    def runs(self) -> Table:
        """A line per run, as in results.csv."""
        from orchestrator.report.render.csv_tables import result_lines

        return _table(*result_lines(self._comparison))

    @cached_property
    def configurations(self) -> Table:
        """A line per configuration, with means over seeds, as in summary.csv."""
        from orchestrator.report.render.csv_tables import summary_lines

        return _table(*summary_lines(self._comparison, self._concluded[0]))

    @cached_property
    def epochs(self) -> Table:
        """A line per run and epoch, as in epochs.csv."""
        from orchestrator.report.render.csv_tables import epoch_lines

        return _table(*epoch_lines(self._comparison))

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The report's figures by name: `time`, `speedup`, `accuracy`, …"""
        from orchestrator.report.model.timelines import with_timelines
        from orchestrator.report.plots import draw

        comparison = with_timelines(SweepPaths(self.directory), self._comparison)
        return {plot.name: _figure(plot) for plot in draw(comparison, self._concluded[0])}

    def to_pandas(self) -> pandas.DataFrame:
        """`runs` as a data frame. Raises ImportError without pandas."""
        return self.runs.to_pandas()

    @cached_property
    def _comparison(self) -> Comparison:
        from orchestrator.report.model.comparison import read_comparison

        return read_comparison(SweepPaths(self.directory))

    @cached_property
    def _concluded(self) -> tuple[Claims, Sequence[Finding]]:
        from orchestrator.report.topics import concluded

        return concluded(self._comparison)

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.verdict)
        return paragraphs + self.configurations._repr_html_()


def load(directory: str | os.PathLike[str]) -> Results:
    """The results in a directory.

    Raises:
        InputError: It has no results of a sweep, or its sweep.json is damaged.
    """
    read_record(SweepPaths(Path(directory)))
    return Results(Path(directory))


def sweep(
    source: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    nodes: Sequence[int] | None = None,
    repeat: int | None = None,
    fields: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Results:
    """Run a sweep, write its report, and return its results. Finished runs are not repeated.

    Args:
        source: a sweep file, the name of a shipped sweep, or the content of a file as a mapping.
        out: results directory; default: results/NAME.
        nodes: node counts that replace those of the file.
        repeat: runs of each configuration, with consecutive seeds.
        fields: values of fields in all runs, as with `--set`: `{"epochs": 3, "model.dropout": 0.2}`.
        runtime: where nodes run; default: SHARDYARD_RUNTIME, that of the file, or the first one available.
        data_dir: directory of the datasets, downloaded if missing; default: SHARDYARD_DATA, or data.
        progress: print a line per run. Without, runs that memory may not suffice for are a UserWarning.

    Returns:
        The results. A run that failed is a line with its cause.

    Raises:
        InputError: names key, value and what is allowed.
        StorageError: a file cannot be written.
        KeyboardInterrupt: the sweep was interrupted; the same call resumes it.
    """
    selection = RuntimeSelection(_runtime(runtime))
    given = isinstance(source, Mapping)
    path, text = (Path("sweep"), _json("source", source)) if given else (find_sweep(str(source)), None)
    loaded = load_sweep(
        path,
        _sets(fields or {}),
        ",".join(_json("nodes", each) for each in nodes) if nodes is not None else None,
        repeat=_number("repeat", repeat),
        cores=selection.shared_cores,
        text=text,
        imports=selection.imports(Path() if given else import_directory(path), _data_dir(data_dir)),
    )
    directory = Path(out or Path("results") / loaded.spec.name)
    return _run(loaded, directory, selection.of(loaded.spec), data_dir, progress)


def run(
    strategy: str | Mapping[str, Any],
    *,
    nodes: int | None = None,
    compare: bool = False,
    repeat: int | None = None,
    out: str | os.PathLike[str] | None = None,
    runtime: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **fields: Any,
) -> Results:
    """Run one strategy, and return its results.

    Args:
        strategy: name, or a mapping such as `{"name": "local_sgd", "local_steps": 10}`.
        nodes: default: 2, or the fewest that the strategy needs.
        compare: also run the serial reference.
        out: results directory; default: a directory for these fields below results/run.
        fields: values of fields of the run: `epochs=3`, `model="mlp"`.
        repeat, runtime, data_dir, progress: see `sweep`.

    Raises:
        The errors of `sweep`.
    """
    selected = select_runtime(_runtime(runtime))
    written = strategy if isinstance(strategy, str) else _json("strategy", strategy)
    count = _number("nodes", nodes)
    imports = selected.imports(Path(), _data_dir(data_dir))
    places = {"strategy": "strategy", "nodes": "nodes"}
    loaded = load_run(
        written,
        count,
        _sets(fields),
        _number("repeat", repeat),
        compare,
        lambda _: selected.shared_cores(),
        imports,
        places,
    )
    directory = Path(out) if out is not None else directory_of(loaded)
    return _run(loaded, directory, selected, data_dir, progress, warm_up_run=compare)


def _data_dir(given: str | os.PathLike[str] | None) -> Path:
    return Path(given or os.environ.get("SHARDYARD_DATA") or "data")


def _runtime(given: str | None) -> str | None:
    """The name of the runtime, as on the command line."""
    return given or os.environ.get("SHARDYARD_RUNTIME")


def _run(
    loaded: Sweep,
    directory: Path,
    selected: SelectedRuntime,
    data_dir: str | os.PathLike[str] | None,
    progress: bool,
    warm_up_run: bool = True,
) -> Results:
    paths, data = SweepPaths(directory), _data_dir(data_dir)
    if not progress and (little := memory_warning(loaded, selected.runtime)):
        warnings.warn(little, stacklevel=3)
    with open(os.devnull, "w") as nowhere, claimed(paths):
        # In a notebook, rich would display what is printed, whatever the file.
        console = text_console() if progress else Console(file=nowhere, force_jupyter=False)
        code = run_sweep(loaded, paths, selected, data, console, HowToRun(warm_up_run=warm_up_run))
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return Results(directory)


def _sets(fields: Mapping[str, Any]) -> list[str]:
    """`key=value` for each field, with the value as JSON, which is YAML."""
    return [f"{key}={_json(key, value)}" for key, value in fields.items()]


def _number(key: str, value: int | None) -> Any:
    """A number of numpy as one of Python. Raises InputError, which names key and value."""
    return json.loads(_json(key, value))


def _json(key: str, value: Any) -> str:
    """A value as JSON. Raises InputError, which names key and value."""
    try:
        return json.dumps(value, default=_of_numpy)
    except TypeError as error:
        advice = "; name it by its import path, FILE.py:NAME"
        if not callable(value):
            advice = f": {error}; allowed: numbers, strings, booleans, None, lists, mappings"
        raise InputError(f"{key}: {excerpt(value)} is not allowed{advice}") from error
    except (ValueError, RecursionError) as error:  # a number of more than 4,300 digits, or a circle
        raise InputError(f"{key}: cannot be written as JSON ({error})") from error


def _of_numpy(value: Any) -> Any:
    """A number or an array of numpy as numbers of Python. Raises TypeError for all else."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in a sweep file")


def _table(columns: Sequence[str], lines: Iterator[Line]) -> Table:
    return Table(tuple(columns), tuple(lines))


def _figure(plot: Plot) -> Figure:
    return Figure(plot.heading, plot.chart.spec)


def _shown(value: Value) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(escape(text))


def _plain(text: str) -> str:
    from orchestrator.report.formats import JOIN

    return text.replace(JOIN, " ")
