"""Locations: rows of different runtimes or images are kept apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.report.render import html
from orchestrator.results.records import RunResult
from tests.unit.report_support import SERIAL, a_comparison, a_run, findings_of, repeated, row_of
from trainer.core.cgroup import NodeUsage

DOCKER = {"docker": "26.1.5", "image": "shardyard-trainer from sources 4c3e83f91028d114"}
NEWER = {**DOCKER, "image": "shardyard-trainer from sources cc817da906eec4a9"}


def a_node(name: str, ranks: list[int], **fields: Any) -> NodeUsage:
    counted = {"cpu_s": 3.0, "throttled_s": 0.0, "memory_peak_mb": 256.0, "sent_bytes": 1_100_000}
    return NodeUsage(
        name=name, ranks=ranks, **{**counted, "received_bytes": 9, "out_of_memory": 0, **fields}
    )


def contained(
    strategy: str, *usages: NodeUsage, environment: dict[str, str] = DOCKER, **fields: Any
) -> RunResult:
    """A run of runtime docker; without `usages` all nodes have equal usage."""
    run = a_run(strategy, runtime="docker", **fields)
    usage = usages or [a_node(f"node-{rank.rank + 1}", [rank.rank]) for rank in run.ranks]
    return run.model_copy(update={"usage": list(usage), "environment": environment})


def test_runs_of_two_runtimes_are_neither_averaged_nor_compared() -> None:
    runs = [SERIAL, contained("all_reduce", nodes=2, seed=0), a_run("all_reduce", nodes=2, seed=1)]
    comparison = a_comparison(*runs)
    assert [len(group.rows) for group in comparison.groups] == [1, 1, 1]
    inside, outside = row_of(comparison, "all_reduce", 0), row_of(comparison, "all_reduce", 1)
    assert (inside.no_speedup, inside.speedup) == (NO_SERIAL, None)
    assert outside.speedup == pytest.approx(1.0)
    assert [workload.label.rpartition(", ")[2] for workload in comparison.workloads] == [
        "runtime local",
        "runtime docker",
    ]
    (data,) = [finding.data for finding in findings_of(comparison, "conditions_differ")]
    assert (data["condition"], data["values"], data["compared"]) == ("runtime", ["local", "docker"], False)


def test_runs_of_two_images_are_kept_apart() -> None:
    old, new = contained("ddp", nodes=2), contained("ddp", nodes=2, seed=1, environment=NEWER)
    comparison = a_comparison(old, new)
    assert len(comparison.groups) == 2
    assert [workload.label.rpartition(", ")[2] for workload in comparison.workloads] == [
        "image 4c3e83f9",
        "image cc817da9",
    ]
    same_sources = {**DOCKER, "image": "mine from sources 4c3e83f91028d114"}
    named = a_comparison(old, contained("ddp", nodes=2, seed=1, environment=same_sources))
    assert [workload.location for workload in named.workloads] == [
        "image shardyard-trainer 4c3e83f9",
        "image mine 4c3e83f9",
    ]


def played(run: RunResult, **fields: Any) -> RunResult:
    """The run without training: what virtual nodes with `compute: sampled` leave."""
    nothing = {"accuracy": None, "test_loss": None, "weights_digest": None}
    changes = {
        "runtime_info": replace(run.runtime_info, trains=False),
        "ranks": [rank.model_copy(update=nothing) for rank in run.ranks],
        "epochs": [],
        "certificate": None,
    }
    return run.model_copy(update=changes)


def test_runs_that_train_nothing_are_named_so_and_kept_apart() -> None:
    seeds = range(5)
    alone = a_comparison(*(played(a_run("ddp", nodes=2, seed=seed)) for seed in seeds))
    (workload,) = alone.workloads
    assert workload.label.endswith(", not trained")
    assert alone.rows[0].replicas_equal is None
    trained = [a_run("ddp", nodes=2, seed=seed) for seed in seeds]
    both = a_comparison(*trained, *(played(a_run("ddp", nodes=2, seed=seed)) for seed in range(5, 10)))
    assert [len(group.rows) for group in both.groups] == [5, 5]
    assert len(both.workloads) == 2


def test_a_location_is_named_only_if_there_are_several() -> None:
    for runs in (repeated("ddp", [4, 5], nodes=2), [contained("ddp", nodes=2, seed=s) for s in (0, 1)]):
        comparison = a_comparison(*runs)
        (workload,) = comparison.workloads
        assert len(comparison.groups) == 1
        assert workload.label.endswith("2 epochs")
        assert findings_of(comparison, "conditions_differ") == []


def test_conditions_are_compared_within_a_runtime() -> None:
    local = [
        a_run("ddp", nodes=2, seed=seed).model_copy(update={"environment": {"torch": torch}})
        for seed, torch in enumerate(["2.12.0", "2.13.0"])
    ]
    docker = [
        contained("ddp", nodes=2, seed=seed, environment={**DOCKER, "python": "of the image"})
        for seed in (2, 3)
    ]
    found = [finding.data for finding in findings_of(a_comparison(*local, *docker), "conditions_differ")]
    conditions = {data["condition"]: data for data in found}
    assert list(conditions) == ["runtime", "torch"]
    assert conditions["torch"]["values"] == ["2.12.0", "2.13.0"]
    assert conditions["torch"]["compared"]


def test_the_environment_is_listed_for_each_location() -> None:
    local = a_run("ddp", nodes=2, seed=1).model_copy(update={"environment": {"torch": "2.13.0+local"}})
    found = dict(html.environments(a_comparison(contained("ddp", nodes=2), local)))
    assert list(found) == ["runtime docker", "runtime local"]
    docker, processes = (dict(facts) for facts in found.values())
    assert "node limits" in docker
    assert processes == {"torch": "2.13.0+local"}
