"""Mistakes about where nodes ran: runtimes, images and limits that are mixed; counters of containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.model.locations import node_limits
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.report.quantities.containers import Containers, containers
from orchestrator.results.records import RunResult
from tests.unit.report_support import FAST, SERIAL, a_comparison, a_run, findings_of, repeated
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


def locations(*runs: RunResult) -> list[str]:
    return [workload.location for workload in a_comparison(*runs).workloads]


# Runtimes and images


def test_runs_of_two_runtimes_are_neither_averaged_nor_compared() -> None:
    comparison = a_comparison(
        SERIAL, contained("all_reduce", nodes=2, seed=0), a_run("all_reduce", nodes=2, seed=1)
    )
    assert [len(group.rows) for group in comparison.groups] == [1, 1, 1]
    _, inside, outside = comparison.rows
    assert (inside.no_speedup, inside.speedup) == (NO_SERIAL, None)
    assert outside.speedup == pytest.approx(1.0)
    assert [each.location for each in comparison.workloads] == ["runtime local", "runtime docker"]
    (data,) = [finding.data for finding in findings_of(comparison, "conditions_differ")]
    assert (data["condition"], data["values"], data["compared"]) == ("runtime", ["local", "docker"], False)


def test_a_location_is_named_only_if_there_are_several() -> None:
    old, new = contained("ddp", nodes=2), contained("ddp", nodes=2, seed=1, environment=NEWER)
    assert locations(old, new) == ["image 4c3e83f9", "image cc817da9"]
    same_sources = {**DOCKER, "image": "mine from sources 4c3e83f91028d114"}
    named = locations(old, contained("ddp", nodes=2, seed=1, environment=same_sources))
    assert named == ["image shardyard-trainer 4c3e83f9", "image mine 4c3e83f9"]
    assert locations(old, contained("ddp", nodes=2, seed=1)) == [""]
    assert locations(*repeated("ddp", [4, 5], nodes=2)) == [""]


def played(run: RunResult) -> RunResult:
    """The run without training: what virtual nodes with `compute: sampled` leave."""
    nothing = {"accuracy": None, "test_loss": None, "weights_digest": None}
    changes = {
        "runtime_info": replace(run.runtime_info, trains=False),
        "ranks": [rank.model_copy(update=nothing) for rank in run.ranks],
        "epochs": [],
        "certificate": None,
    }
    return run.model_copy(update=changes)


def test_runs_that_train_nothing_are_kept_apart() -> None:
    trained, other = a_run("ddp", nodes=2), played(a_run("ddp", nodes=2, seed=1))
    assert locations(trained, other) == ["", "not trained"]
    (alone,) = a_comparison(other).rows
    assert (alone.location, alone.replicas_equal) == ("not trained", None)


def test_limits_are_described_only_if_they_were_enforced() -> None:
    runs = [contained("ddp", nodes=2, cpus=cpus, memory_mb=512 * int(10 * cpus)) for cpus in (0.4, 0.5, 2)]
    assert node_limits(a_comparison(*runs).rows) == [
        "cpus 0.4, 0.5 or 2",
        f"2,048, 2,560 or 10,240{formats.JOIN}MiB memory",
        "512 pids",
        f"256{formats.JOIN}MiB /dev/shm",
    ]
    more = a_comparison(*runs, contained("serial")).rows
    assert node_limits(more, ["cpus"]) == ["cpus 0.4 to 2"]
    assert node_limits(a_comparison(SERIAL, FAST).rows) == []


# Counters of containers


def counted(run: RunResult) -> Containers | None:
    (row,) = a_comparison(run).rows
    return containers(row)


def test_nodes_are_counted_and_the_launcher_is_not() -> None:
    found = counted(
        contained(
            "all_reduce",
            a_node("launcher", [], throttled_s=9.0, sent_bytes=50_000, memory_peak_mb=999.0),
            a_node("node-2", [1], cpu_s=4.0, throttled_s=1.5, memory_peak_mb=300.0, sent_bytes=1_300_000),
            a_node("node-1", [0], cpu_s=3.0, throttled_s=0.5, memory_peak_mb=200.0, sent_bytes=1_100_000),
            nodes=2,
            memory_mb=512,
        )
    )
    assert found == Containers(2, 1_200_000, 1e6, 3.5, 1.5, 300.0, 512)
    assert found.sent_by_payload == pytest.approx(1.2)


def test_a_container_of_several_ranks_has_no_payload_and_a_missing_counter_no_number() -> None:
    two = [a_node("node-1", [0, 1]), a_node("node-2", [2, 3])]
    assert counted(contained("ddp", *two, nodes=2, processes_per_node=2)) == Containers(
        2, 1_100_000, None, 3.0, 0.0, 256.0, 2048
    )
    blind = contained("ddp", a_node("node-1", [0]), a_node("node-2", [1], cpu_s=None), nodes=2)
    assert counted(blind) == Containers(2, 1_100_000, 1e6, None, 0.0, 256.0, 2048)
    alone = counted(contained("serial"))
    assert alone
    assert alone.payload_bytes is None
    failed = contained("ddp", nodes=2, status="failed", cause="gone")
    for none in (contained("ddp", a_node("node-1", [0]), nodes=2), failed, FAST):
        assert counted(none) is None
