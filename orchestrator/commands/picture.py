"""The README's picture: four of the report's figures, drawn from a small file of results in docs/."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import InputError
from orchestrator.replay.described import cluster_times
from orchestrator.replay.run import ClusterTime
from orchestrator.report.figures.svg import grid
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, SweepRecord, read_record, read_result, write_atomic
from orchestrator.shipped import IMPORT_ROOT

RESULTS = IMPORT_ROOT / "docs" / "picture.json"
PICTURE = IMPORT_ROOT / "docs" / "picture.svg"
FIGURES = ("time", "speedup", "accuracy", "phases")  # row by row, two in a row


class Results(BaseModel):
    """A sweep, and the results of its runs and their times on a cluster, by key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: SweepRecord
    runs: dict[str, RunResult]
    clusters: dict[str, ClusterTime]


def copy_results(directory: Path, to: Path = RESULTS) -> None:
    """Copy a results directory's runs to one file. Raises InputError if a run is not ok."""
    paths = SweepPaths(directory)
    sweep = read_record(paths)
    found = {key: read_result(paths.run(key).result) for key in sweep.keys}
    runs = {key: result for key, result in found.items() if result is not None and result.status == "ok"}
    if missing := [key for key in sweep.keys if key not in runs]:
        raise InputError(f"{directory}: the picture needs all runs; not ok: {', '.join(missing)}")
    times = cluster_times(paths, [*runs.items()])
    clusters = {key: time for key, time in times.items() if isinstance(time, ClusterTime)}
    content = Results(sweep=sweep, runs=runs, clusters=clusters).model_dump_json(exclude_defaults=True)
    write_atomic(to, content + "\n")


def draw_picture(results: Path = RESULTS) -> str:
    """The picture as SVG. Raises InputError for invalid results, or if a figure is missing."""
    from orchestrator.report.figures import draw
    from orchestrator.report.model.comparison import compare

    try:
        known = Results.model_validate_json(results.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{results}: no such file; run: make picture ARGS=RESULTS_DIR in a checkout"
        ) from None
    except ValidationError as error:
        raise InputError(
            f"{results}: not of this version; run: make picture ARGS=RESULTS_DIR ({error})"
        ) from error
    comparison = compare(known.sweep, list(known.runs.items()), clusters=known.clusters)
    plots = {plot.name: plot.file for plot in draw(comparison)}
    if missing := [name for name in FIGURES if name not in plots]:
        raise InputError(f"{results}: no figure {', '.join(missing)}; there are {', '.join(plots)}")
    return grid([plots[name] for name in FIGURES], columns=2)


def same_drawing(one: str, other: str, tolerance: float = 1.0) -> bool:
    """Whether two SVGs show the same, up to generated ids and rounding of coordinates, in points."""
    words, others = _words(one), _words(other)
    if len(words) != len(others):
        return False
    for word, counterpart in zip(words, others, strict=True):
        if word != counterpart:
            try:
                if abs(float(word) - float(counterpart)) > tolerance:
                    return False
            except ValueError:
                return False
    return True


def _words(svg: str) -> list[str]:
    """Markup, text and numbers of an SVG, without ids and references to them."""
    anonymous = re.sub(r'\b(id|clip-path|(?:xlink:)?href)="[^"]*"', "", svg)
    return re.findall(r"-?\d+(?:\.\d+)?|[^\d\s-]+|-", anonymous)
