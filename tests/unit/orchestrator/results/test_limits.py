"""The cores and memory that a run can use, with quotas and without."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.limits import (
    cores_wanted,
    counted,
    limit_flags,
    memory_flags,
    node_speed_flags,
    shares_cores,
    speeds_label,
    speedup_limit,
)
from orchestrator.results.records import RankResult
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.local.runtime import LocalRuntime
from trainer.core.cgroup import NodeUsage
from trainer.spec.run_spec import RunSpec

DOCKER, LOCAL = DockerRuntime.info, LocalRuntime.info


def run(nodes: int = 4, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": nodes, **fields})


@pytest.mark.parametrize(
    ("fields", "local", "docker"),
    [
        ({}, 4, 4),
        ({"cpus": 0.4}, 4, 1.6),
        ({"threads": 2}, 8, 4),
        ({"cpus": 2}, 8, 8),
        ({"processes_per_node": 3}, 12, 4),
        ({"processes_per_node": 3, "cpus": 6}, 24, 24),
        ({"strategy": "hogwild", "cpus": 0.5}, 4, 2),  # one container, with the cpus of four nodes
        ({"nodes": 10, "cpus": 1.1}, 10, 11),
    ],
)
def test_cores_wanted(fields: dict[str, Any], local: float, docker: float) -> None:
    assert cores_wanted(run(**fields), LOCAL) == local
    assert cores_wanted(run(**fields), DOCKER) == docker


def test_cores_are_shared_if_a_run_needs_more_than_available() -> None:
    assert shares_cores(run(), LOCAL, 3.5)
    assert not shares_cores(run(), LOCAL, 4)
    assert not shares_cores(run(cpus=0.4), DOCKER, 2)
    assert shares_cores(run(cpus=0.4), LOCAL, 2)
    assert not shares_cores(run(nodes=10, cpus=1.1), DOCKER, 11)


@pytest.mark.parametrize(
    ("cores", "cpus", "local", "docker"),
    [
        (2, 1.0, 2, 2),
        (2, 0.4, 2, 5),  # the serial run has 0.4 cores, and five such nodes fit
        (2, 4.0, 2, 2),
        (1.5, 1.0, 1.5, 1.5),
        (0.5, 1.0, 1, 1),  # the serial run has 0.5 cores, too
    ],
)
def test_speedup_limit(cores: float, cpus: float, local: float, docker: float) -> None:
    assert speedup_limit(run(cpus=cpus), LOCAL, cores) == local
    assert speedup_limit(run(cpus=cpus), DOCKER, cores) == docker


def test_speedup_limit_of_small_nodes_exceeds_the_number_of_cores() -> None:
    (flag,) = limit_flags(run(nodes=6, cpus=0.4), DOCKER, 2)
    assert flag == (
        "6 nodes × 0.4 cpus shared 2 cores: wall-clock speedup cannot exceed 5; "
        "compare cluster times, or give each node fewer cpus (0.33)"
    )


def test_flag_suggests_no_quota_for_too_many_nodes() -> None:
    (flag,) = limit_flags(run(nodes=300), DOCKER, 2)
    assert flag.endswith("compare cluster times")


def test_ranks_that_share_the_quota_of_a_container_are_flagged() -> None:
    (flag,) = limit_flags(run(nodes=2, processes_per_node=2), DOCKER, 8)
    assert flag == "the 2 ranks of a node shared its 1 cpu: cpus 2 would give every thread a core"
    assert list(limit_flags(run(nodes=2, processes_per_node=2, cpus=2), DOCKER, 8)) == []
    assert list(limit_flags(run(nodes=2, processes_per_node=2), LOCAL, 8)) == []


def test_counted() -> None:
    assert [counted(number, "core") for number in (1, 1.0, 1.5, 2.0, 0.4)] == [
        "1 core",
        "1 core",
        "1.5 cores",
        "2 cores",
        "0.4 cores",
    ]


def killed(name: str, *ranks: int, times: int = 1) -> NodeUsage:
    nothing = dict.fromkeys(["cpu_s", "throttled_s", "memory_peak_mb", "sent_bytes", "received_bytes"])
    return NodeUsage(name=name, ranks=list(ranks), out_of_memory=times, **nothing)


@pytest.mark.parametrize(
    ("fields", "usage", "reported"),
    [
        ({}, killed("node-3", 2), "node 2 needed more than 2,048 MiB of memory"),
        ({"processes_per_node": 2}, killed("node-2", 2, 3), "node 1 needed more than 2,048 MiB"),
        ({"memory_mb": 64}, killed("launcher", times=3), "launcher needed more than 64 MiB"),
        (
            {"strategy": "hogwild"},
            killed("node-1", 0, 1, 2, 3),
            "the container of all nodes needed more than 8,192",
        ),
    ],
)
def test_out_of_memory_kills_are_flagged(fields: dict[str, Any], usage: NodeUsage, reported: str) -> None:
    (flag,) = memory_flags(run(**fields), [usage, killed("node-9", 8, times=0)])
    assert flag.startswith(reported)
    assert f"killed {usage.out_of_memory} of its processes" in flag


@pytest.mark.parametrize(
    ("restarts", "rest"), [(0, "the run finished without them"), (2, "the run finished after a restart")]
)
def test_out_of_memory_flag_includes_restarts(restarts: int, rest: str) -> None:
    (flag,) = memory_flags(run(restarts=restarts), [killed("node-1", 0)])
    assert flag.endswith(f"the kernel killed 1 of its processes, and {rest}")


def test_throttled_node_is_not_flagged() -> None:
    throttled = killed("node-1", 0, times=0).model_copy(update={"throttled_s": 9.0})
    assert list(memory_flags(run(), [throttled])) == []


# Nodes of unequal speed


def limited(cpus: float | None, *ranks: int) -> NodeUsage:
    return killed("node-4", *ranks, times=0).model_copy(update={"cpus": cpus})


def ranks(used_s: float, size: int = 4) -> list[RankResult]:
    """Results of ranks that train for 10 s; the last one uses `used_s` CPU seconds."""
    return [rank_result(rank, used_s if rank == size - 1 else 9.0) for rank in range(size)]


def rank_result(rank: int, used_s: float) -> RankResult:
    values: dict[str, Any] = dict.fromkeys(RankResult.model_fields)
    counts = {"rank": rank, "steps": 1, "samples": 1, "parameters": 1, "bytes_sent": 0, "peak_memory_mb": 1}
    return RankResult(**{**values, **counts, "train_s": 10.0, "work_cpu_s": used_s, "seconds": {}})


def test_slower_node_wants_fewer_cores() -> None:
    slow = run(node_speed={-1: 0.25})
    assert (cores_wanted(slow, LOCAL), cores_wanted(slow, DOCKER)) == (3.25, 3.25)
    two = run(cpus=0.4, node_speed={0: 0.5, 1: 0.25})
    assert (cores_wanted(two, LOCAL), cores_wanted(two, DOCKER)) == (2.75, 1.1)
    shared = next(limit_flags(slow, DOCKER, 2))
    assert shared.startswith("4 nodes × 1 cpu, node 3 at speed 0.25 shared 2 cores")


@pytest.mark.parametrize(
    ("usage", "used_s", "reported"),
    [
        ([limited(0.25, 3)], 2.5, None),
        ([limited(0.2501, 3)], 2.5, None),
        ([], 2.5, "not confirmed"),
        ([limited(0.25, 2)], 2.5, "not confirmed"),  # of another node
        ([limited(None, 3)], 2.5, "not confirmed"),
        ([limited(1.0, 3)], 2.5, "was 1, not 0.25"),
        ([limited(0.25, 3)], 9.0, "9 s of CPU time in 10 s"),
    ],
)
def test_quota_of_the_slower_node_is_verified(
    usage: list[NodeUsage], used_s: float, reported: str | None
) -> None:
    slow = run(node_speed={-1: 0.25})
    first, *others = node_speed_flags(slow, DOCKER, ranks(used_s), usage)
    assert "CPU quota 0.25 for node 3, 1 cpu each for the full-speed nodes" in first
    assert [bool(reported) and "node 3" in other and reported in other for other in others] == (
        [True] if reported else []
    )


def test_equal_nodes_have_no_node_speed_flags() -> None:
    assert list(node_speed_flags(run(), DOCKER, ranks(9.0), [])) == []


def test_quota_of_every_slower_node_is_verified() -> None:
    slow = run(cpus=0.4, node_speed={1: 0.5, 3: 0.25})
    usage = [limited(0.2, 1), limited(0.2, 3)]
    first = node_speed_flags(slow, DOCKER, ranks(0.5), [usage[0], limited(0.1, 3)])
    assert "0.2 for node 1 and 0.1 for node 3" in next(first)
    assert [*first] == ["node 1 used 9 s of CPU time in 10 s of training: CPU quota 0.2 was not enforced"]
    (*_, other) = node_speed_flags(slow, DOCKER, ranks(0.5), usage)
    assert other == "CPU quota for node 3 was 0.2, not 0.1"


def test_quota_of_a_slower_local_node_does_not_depend_on_cpus() -> None:
    """The faster nodes have no quota there."""
    slow = run(cpus=0.4, node_speed={-1: 0.25})
    assert len([*node_speed_flags(slow, LOCAL, ranks(2.5), [limited(0.25, 3)])]) == 1


def test_label_of_slower_nodes() -> None:
    assert speeds_label({}) == ""
    assert speeds_label({1: 0.5, 2: 0.25, 3: 0.5}) == "nodes 1 and 3 at speed 0.5, node 2 at speed 0.25"
    assert speeds_label(dict.fromkeys(range(1, 6), 0.5)) == "5 nodes at speed 0.5"
    assert speeds_label({node: node / 10 for node in range(1, 6)}) == "5 nodes at speed 0.1 to 0.5"
