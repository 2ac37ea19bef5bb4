"""What makes large sweeps readable in seconds keeps every check, and never leaves a stale value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay.described import cluster_times
from orchestrator.report.figures.lines import lines_over_nodes
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import Comparison, read_comparison
from orchestrator.report.topics.speed import TIMES
from orchestrator.results.store import SweepPaths, UnusableFile, read_result, write_atomic
from tests.bench.large_sweep import ON_FEW_NODES, PAIRS, a_cluster_time, a_result, specs, write_large_sweep
from tests.unit.report_support import a_run

RESULT = a_result(next(run for run in specs(1) if run.nodes == 4), order=0)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return read_comparison(write_large_sweep(tmp_path_factory.mktemp("large"), seeds=1))


def numbers(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of all floats."""
    if isinstance(value, float):
        yield path
    items = (
        enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    )
    for key, item in items:
        yield from numbers(item, *path, key)


def test_no_number_of_a_result_is_infinite(tmp_path: Path) -> None:
    file, marker = tmp_path / "result.json", "the number"
    fields = RESULT.model_dump(mode="json")
    fields["ranks"], fields["epochs"] = fields["ranks"][1:2], fields["epochs"][:1]
    fields["certificate"]["parts"] = fields["certificate"]["parts"][:1]
    paths = list(numbers(fields))
    assert len(paths) > 20
    for path in paths:
        changed = json.loads(json.dumps(fields))
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = marker
        for infinite in ("1e999", "NaN", "-Infinity"):
            write_atomic(file, json.dumps(changed).replace(f'"{marker}"', infinite))
            with pytest.raises(UnusableFile):
                read_result(file)


def test_a_copy_of_a_result_computes_its_own_values() -> None:
    run = a_run("all_reduce", nodes=2, train_s=5.0)
    assert (run.train_s, run.run.nodes) == (5.0, 2)
    slower = [rank.model_copy(update={"train_s": 7.0}) for rank in run.ranks]
    copy = run.model_copy(update={"ranks": slower, "spec": run.spec | {"nodes": 3}})
    assert (copy.train_s, copy.run.nodes) == (7.0, 3)
    assert (run.train_s, run.run.nodes) == (5.0, 2)
    assert copy != run
    assert run.model_copy() == run


def test_large_sweep_is_what_a_sweep_stores(comparison: Comparison) -> None:
    assert len(comparison.groups) == 1 + 2 * len(PAIRS) + ON_FEW_NODES
    assert not comparison.pending
    assert all(row.ok and row.clock == "cluster" and row.speedup for row in comparison.rows)
    assert max(group.shape.nodes for group in comparison.groups) == 64


def test_cluster_times_of_the_large_sweep_need_no_traces(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    time = a_cluster_time(RESULT)
    write_atomic(paths.run(RESULT.key).cluster_time, time.model_dump_json())
    assert cluster_times(paths, [(RESULT.key, RESULT)]) == {RESULT.key: time}


def test_small_multiples_divide_the_lines_among_panels(comparison: Comparison) -> None:
    (workload,) = comparison.workloads
    view = comparison.view(workload)
    chart = lines_over_nodes(view.line_groups, Style(comparison.groups), TIMES)
    assert chart is not None
    assert "facet" in chart.spec
    coloured = [layer for layer in layers(chart.spec["spec"]) if "color" in layer.get("encoding", {})]
    assert len(coloured) > 2
    assert not [layer for layer in coloured if "data" in layer]  # which would be drawn in every panel


def test_small_multiples_draw_all_lines_behind_them_as_one_mark(comparison: Comparison) -> None:
    view = comparison.view(comparison.workloads[0])
    chart = lines_over_nodes(view.line_groups, Style(comparison.groups), TIMES)
    assert chart is not None
    (behind,) = [
        layer
        for layer in layers(chart.spec["spec"])
        if layer["mark"]["type"] == "line" and "order" in layer["encoding"]
    ]
    points = chart.spec["datasets"][behind["data"]["name"]]
    assert [point["at"] for point in points] == [*range(len(points))]
    lines = len({point["series"] for point in points})
    assert sum(point["mean"] is None for point in points) == lines > 1
    assert "detail" not in behind["encoding"]


def layers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in spec.get("layer", ()):
        yield layer
        yield from layers(layer)
