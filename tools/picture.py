"""`make picture`: the README's picture, four figures of a report on a small file of results in docs/."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import InputError
from orchestrator.replay.described import cluster_times
from orchestrator.replay.run import ClusterTime
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, SweepRecord, read_record, read_result, write_atomic
from orchestrator.shipped import IMPORT_ROOT
from trainer.core.regular_files import read_regular

RESULTS = IMPORT_ROOT / "docs" / "picture.json"
PICTURE = IMPORT_ROOT / "docs" / "picture.svg"
FIGURES = ("time", "speedup", "accuracy", "phases")  # row by row, two in a row
GAP = 16  # between figures


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
    from orchestrator.report.figures.vega import svg_file, svg_of
    from orchestrator.report.model.comparison import compare
    from orchestrator.report.plots import draw
    from orchestrator.report.topics import asked_by

    try:
        known = Results.model_validate_json(read_regular(results))
    except FileNotFoundError:
        raise InputError(
            f"{results}: no such file; run: make picture ARGS=RESULTS_DIR in a checkout"
        ) from None
    except ValidationError as error:
        raise InputError(
            f"{results}: not of this version; run: make picture ARGS=RESULTS_DIR ({error})"
        ) from error
    comparison = compare(known.sweep, list(known.runs.items()), clusters=known.clusters)
    plots = {plot.name: plot for plot in draw(comparison, asked_by(comparison).decided())}
    if missing := [name for name in FIGURES if name not in plots]:
        raise InputError(f"{results}: no figure {', '.join(missing)}; there are {', '.join(plots)}")
    shown = [plots[name] for name in FIGURES]
    return grid([svg_file(svg_of(plot.spec), plot.heading) for plot in shown], columns=2)


def grid(figures: Sequence[str], columns: int) -> str:
    """One SVG that holds several, row by row. A row is as high as its highest figure."""
    sizes = [_size(svg) for svg in figures]
    width = max(wide for wide, _ in sizes)
    placed, top = [], 0.0
    for first in range(0, len(figures), columns):
        row = range(first, min(first + columns, len(figures)))
        placed += [
            _placed(figures[at], f"f{at}", (at - first) * (width + GAP), top, sizes[at]) for at in row
        ]
        top += max(sizes[at][1] for at in row) + GAP
    whole = f"{columns * (width + GAP) - GAP:g}", f"{top - GAP:g}"
    name_spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {name_spaces} viewBox="0 0 {whole[0]} {whole[1]}">'
    background = f'<rect width="{whole[0]}" height="{whole[1]}" fill="white"/>'
    return "\n".join([head, background, *placed, "</svg>", ""])


def _placed(svg: str, prefix: str, left: float, top: float, size: tuple[float, float]) -> str:
    """The `<svg>` element at this position, with ids that differ from those of other figures."""
    head, close, rest = svg.strip().partition(">")
    head = re.sub(r' (width|height|x|y)="[^"]*"', "", head)
    position = f'<svg x="{left:g}" y="{top:g}" width="{size[0]:g}" height="{size[1]:g}"'
    rest = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', rest)
    rest = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', rest)
    rest = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", rest)
    return head.replace("<svg", position, 1) + close + rest


def _size(svg: str) -> tuple[float, float]:
    """Width and height of an SVG, in its units."""
    size = re.search(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', svg)
    if not size:
        raise ValueError("an SVG without a viewBox")
    return float(size[1]), float(size[2])


def same_drawing(one: str, other: str, tolerance: float = 1.0) -> bool:
    """Whether two SVGs show the same, up to generated ids and rounding of coordinates."""
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


def main() -> int:
    """Draw the picture. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.picture", description=__doc__)
    parser.add_argument(
        "results", nargs="?", type=Path, help="directory to draw from now on; default: " + RESULTS.name
    )
    directory = parser.parse_args().results
    try:
        if directory:
            copy_results(directory)
        write_atomic(PICTURE, draw_picture())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
