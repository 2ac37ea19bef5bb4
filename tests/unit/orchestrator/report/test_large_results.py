"""Mistakes in what makes large sweeps readable in seconds: a check that is skipped, a value of another
result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay.described import cluster_times
from orchestrator.report.figures.lines import lines_over_nodes
from orchestrator.report.figures.style import Style
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.topics.speed import TIMES
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, UnusableFile, read_result, write_atomic
from tests.bench.large_sweep import ON_FEW_NODES, PAIRS, a_cluster_time, a_result, specs, write_large_sweep
from tests.unit.report_support import a_run, layers

RESULT = a_result(next(run for run in specs(1) if run.nodes == 4), order=0)


def numbers(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of all floats."""
    if isinstance(value, float):
        yield path
    pairs = (
        enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    )
    for key, item in pairs:
        yield from numbers(item, *path, key)


def test_no_number_of_a_result_is_infinite(tmp_path: Path) -> None:
    file, marker = tmp_path / "result.json", "the number"
    fields = RESULT.model_dump(mode="json")
    fields["ranks"], fields["epochs"] = fields["ranks"][1:2], fields["epochs"][:1]
    fields["certificate"]["parts"] = fields["certificate"]["parts"][:1]
    paths = list(numbers(fields))
    assert len(paths) > 20
    for at, path in enumerate(paths):
        changed = json.loads(json.dumps(fields))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = marker
        infinite = ("1e999", "NaN", "-Infinity")[at % 3]
        write_atomic(file, json.dumps(changed).replace(f'"{marker}"', infinite))
        with pytest.raises(UnusableFile):
            read_result(file)


def test_a_copy_of_a_result_computes_its_own_values() -> None:
    run = a_run("all_reduce", nodes=2, train_s=5.0)
    assert (run.train_s, run.run.nodes) == (5.0, 2)
    slower = [rank.model_copy(update={"train_s": 7.0}) for rank in run.ranks]
    copy = run.model_copy(update={"ranks": slower, "spec": run.spec | {"nodes": 3}})
    assert (copy.train_s, copy.run.nodes, run.train_s, run.run.nodes) == (7.0, 3, 5.0, 2)
    assert copy != run == run.model_copy()


def test_results_of_earlier_versions_can_be_read() -> None:
    run = a_run("all_reduce", nodes=2)
    written = run.model_dump(mode="json")
    for rank in written["ranks"]:
        del rank["staleness_mean"], rank["staleness_max"]
    assert RunResult.model_validate(written) == run


def test_cluster_times_of_the_large_sweep_need_no_traces(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    time = a_cluster_time(RESULT)
    write_atomic(paths.run(RESULT.key).cluster_time, time.model_dump_json())
    assert cluster_times(paths, [(RESULT.key, RESULT)]) == {RESULT.key: time}


def test_a_large_sweep_is_read_and_drawn_as_small_multiples(tmp_path: Path) -> None:
    comparison = read_comparison(write_large_sweep(tmp_path, seeds=1))
    assert len(comparison.groups) == 1 + 2 * len(PAIRS) + ON_FEW_NODES
    assert not comparison.pending
    assert all(row.ok and row.clock == "cluster" and row.speedup for row in comparison.rows)
    assert max(group.shape.nodes for group in comparison.groups) == 64
    (workload,) = comparison.workloads
    chart = lines_over_nodes(comparison.view(workload).line_groups, Style(comparison.groups), TIMES)
    assert chart is not None
    assert "facet" in chart.spec
    drawn = layers(chart.spec["spec"])
    coloured = [layer for layer in drawn if "color" in layer.get("encoding", {})]
    assert len(coloured) > 2
    assert not [layer for layer in coloured if "data" in layer]  # which would be drawn in every panel
    # All lines behind a panel are one mark, with a gap after each.
    (behind,) = [each for each in drawn if each["mark"]["type"] == "line" and "order" in each["encoding"]]
    records = chart.spec["datasets"][behind["data"]["name"]]
    assert [record["at"] for record in records] == [*range(len(records))]
    lines = len({record["series"] for record in records})
    assert sum(record["mean"] is None for record in records) == lines > 1
    assert "detail" not in behind["encoding"]
