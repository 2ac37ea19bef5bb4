"""Mistakes in the cores, memory and times of a run: quotas that are not there, shares of ranks, unequal
nodes, absent software, shares of time that do not add up."""

from __future__ import annotations

import re
from pathlib import Path
from platform import python_version
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.results import environment as module
from orchestrator.results import limits
from orchestrator.results.environment import gpus
from orchestrator.results.records import LinkResult
from orchestrator.results.times import PURPOSES, duration, time_line, time_shares
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.unit.report_support import SERIAL, a_run, with_ranks
from trainer.core.cgroup import NodeUsage
from trainer.spec.run_spec import RunSpec

DOCKER, LOCAL = DockerRuntime.info, LocalRuntime.info


def run(nodes: int = 4, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": nodes, **fields})


SLOW, AT_SPEED = run(node_speed={-1: 0.25}), ", node 3 at speed 0.25"
TWO_SLOW = run(cpus=0.4, node_speed={1: 0.5, 3: 0.25})


def test_cores_that_a_run_may_use() -> None:
    for fields, *expected in (
        ({}, 4, 4),
        ({"cpus": 0.4}, 4, 1.6),
        ({"threads": 2}, 8, 4),
        ({"processes_per_node": 3}, 12, 4),
        ({"processes_per_node": 3, "cpus": 6}, 24, 24),
        ({"strategy": "hogwild", "cpus": 0.5}, 4, 2),  # one container, with the cpus of four nodes
        ({"nodes": 10, "cpus": 1.1}, 10, 11),
        ({"node_speed": {-1: 0.25}}, 3.25, 3.25),
        ({"cpus": 0.4, "node_speed": {0: 0.5, 1: 0.25}}, 2.75, 1.1),
    ):
        for info, cores in zip((LOCAL, DOCKER), expected, strict=True):
            assert limits.cores_wanted(run(**fields), info) == cores
            assert not limits.shares_cores(run(**fields), info, cores)
            assert limits.shares_cores(run(**fields), info, cores - 0.01)


def test_speedup_is_limited_by_the_cores_of_the_serial_run() -> None:
    for cores, cpus, local, docker in (
        (2, 1.0, 2, 2),
        (2, 0.4, 2, 5),  # the serial run has 0.4 cores, and five such nodes fit
        (2, 4.0, 2, 2),
        (1.5, 1.0, 1.5, 1.5),
        (0.5, 1.0, 1, 1),  # the serial run has 0.5 cores, too
    ):
        assert limits.speedup_limit(run(cpus=cpus), LOCAL, cores) == local
        assert limits.speedup_limit(run(cpus=cpus), DOCKER, cores) == docker


def test_shared_cores_and_limits_without_effect_are_flagged() -> None:
    several: dict[str, Any] = {"nodes": 2, "processes_per_node": 2}
    most, compare = "cores: wall-clock speedup cannot exceed", "compare cluster times"
    fewer, no_limits = ", or give each node fewer cpus", "the runtime does not enforce limits: "
    threads = "the 2 ranks of a node shared its 1 cpu: cpus 2 would give every thread a core"
    for spec, info, cores, *flags in (
        (run(6, cpus=0.4), DOCKER, 2, f"6 nodes × 0.4 cpus shared 2 {most} 5; {compare}{fewer} (0.33)"),
        (run(300), DOCKER, 2, f"300 nodes × 1 cpu shared 2 {most} 2; {compare}"),  # no quota fits
        (SLOW, DOCKER, 2, f"4 nodes × 1 cpu{AT_SPEED} shared 2 {most} 2; {compare}{fewer} (0.5)"),
        (run(**several), LOCAL, 4),
        (run(**several), LOCAL, 3, f"2 nodes × 2 ranks × 1 thread shared 3 {most} 3; {compare}"),
        (run(**several, cpus=2), DOCKER, 8),
        (run(**several), DOCKER, 8, threads),
        (run(pids=99, shm_mb=65), LOCAL, 8, f"{no_limits}pids 99, shm_mb 65 were not enforced"),
    ):
        assert [*limits.limit_flags(spec, info, cores)] == flags


def node(name: str, *ranks: int, killed: int = 0, cpus: float | None = None) -> NodeUsage:
    return NodeUsage(name=name, ranks=list(ranks), out_of_memory=killed, cpus=cpus, throttled_s=9.0)


def test_processes_killed_for_lack_of_memory_are_flagged() -> None:
    for fields, usage, named, memory in (
        ({}, node("node-3", 2, killed=1), "node 2", "2,048"),
        ({"processes_per_node": 2}, node("node-2", 2, 3, killed=1), "node 1", "2,048"),
        ({"memory_mb": 64}, node("launcher", killed=3), "launcher", "64"),
        ({"strategy": "hogwild"}, node("node-1", 0, 1, killed=1), "the container of all nodes", "8,192"),
    ):
        of = f"{named} needed more than {memory} MiB of memory: the kernel killed {usage.out_of_memory} of"
        flags = limits.memory_flags(run(**fields), [usage, node("node-9", 8)])
        assert [*flags] == [f"{of} its processes, and the run finished without them"]
        if "strategy" not in fields:  # which cannot be restarted
            flags = limits.memory_flags(run(restarts=2, **fields), [usage])
            assert [*flags] == [f"{of} its processes, and the run finished after a restart"]


def test_the_link_with_the_smallest_share_of_its_bandwidth_is_flagged() -> None:
    links = {"default": {"bandwidth_mbit": 80}, "pairs": {"1>2": {"bandwidth_mbit": 800}}}
    spec = run(3, link=links, processes_per_node=2)
    for speeds, *flagged in (
        ({(0, 1): 1.0, (0, 2): 7e6, (3, 4): 70e6},),  # ranks of one node have no link
        ({(0, 1): 1.0, (2, 0): 6.9e6, (4, 0): 6.9e6, (3, 5): 68e6}, "node 1 to node 2", "544 of the 800"),
    ):
        found = [LinkResult(source=a, to=b, latency_s=0, bytes_per_s=of) for (a, b), of in speeds.items()]
        flags = [*limits.link_flags(spec, DOCKER, found)]
        text = "from {}, large messages over gloo reached {} Mbit/s requested"
        assert flags == ([text.format(*flagged)] if flagged else [])


# Nodes of unequal speed


def flags(spec: RunSpec, used_s: float, *usage: NodeUsage, info: Any = DOCKER) -> list[str]:
    """Of ranks that train for 10 s; the last one uses `used_s` CPU seconds."""
    spent = [{"work_cpu_s": each} for each in (9.0, 9.0, 9.0, used_s)]
    ranks = with_ranks(a_run("ddp", nodes=4, train_s=10.0), *spent).ranks
    return [*limits.node_speed_flags(spec, info, ranks, [*usage])]


def test_the_quota_of_a_slower_node_is_verified() -> None:
    unknown = "CPU quota 0.25 for node 3 is not confirmed"
    unlimited = "node 3 used 3.06 s of CPU time in 10 s of training: CPU quota 0.25 was not enforced"
    for usage, used_s, reported in (
        ([node("node-4", 3, cpus=0.25)], 2.5, []),
        ([node("node-4", 3, cpus=0.2549)], 3.04, []),
        ([node("node-4", 3, cpus=0.2551)], 2.5, ["CPU quota for node 3 was 0.2551, not 0.25"]),
        ([], 2.5, [unknown]),
        ([node("node-3", 2, cpus=0.25)], 2.5, [unknown]),
        ([node("node-4", 3)], 2.5, [unknown]),
        ([node("node-4", 3, cpus=0.25)], 3.06, [unlimited]),
    ):
        first, *others = flags(SLOW, used_s, *usage)
        assert "CPU quota 0.25 for node 3, 1 cpu each for the full-speed nodes" in first
        assert others == reported


def test_the_quotas_of_all_slower_nodes_are_verified_and_of_no_others() -> None:
    right, wrong = node("node-2", 1, cpus=0.2), node("node-4", 3, cpus=0.2)
    first, *others = flags(TWO_SLOW, 0.5, right, node("node-4", 3, cpus=0.1))
    assert "0.2 for node 1 and 0.1 for node 3" in first
    assert others == ["node 1 used 9 s of CPU time in 10 s of training: CPU quota 0.2 was not enforced"]
    assert flags(TWO_SLOW, 0.5, right, wrong)[-1] == "CPU quota for node 3 was 0.2, not 0.1"
    assert flags(run(), 9.0) == []
    for speeds, label in (
        ({0: 0.5, 1: 0.25, 4: 0.5}, "nodes 0 and 4 at speed 0.5, node 1 at speed 0.25"),
        ({0: 0.25, 1: 0.5, 2: 0.3, 4: 0.5}, "4 nodes at speed 0.25 to 0.5"),
    ):
        (simulated,) = flags(run(nodes=6, node_speed=speeds), 9.0, info=VirtualRuntime.info)
        assert simulated.startswith(f"nodes differ: {label}; no speedup")
    assert "0.3 for node 2 and 1 others, 1 cpu each" in flags(run(nodes=6, node_speed=speeds), 9.0)[0]
    shared = run(2, processes_per_node=2, cpus=2, node_speed={1: 0.5})  # by ranks that need 9 s and 3 s
    assert "node 1 used 12 s" in flags(shared, 3.0, node("node-2", 2, 3, cpus=1.0))[-1]
    local = run(cpus=0.4, node_speed={-1: 0.25})  # where the faster nodes have no quota
    assert len(flags(local, 2.5, node("node-4", 3, cpus=0.25), info=LOCAL)) == 1


# The machine


V2, QUOTA, PERIOD = "QUOTA", "QUOTA_V1", "PERIOD_V1"


def test_cores_are_those_of_the_smallest_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine with eight."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for number, (files, usable) in enumerate((
        ({}, 8),
        ({V2: "max 100000\n"}, 8),
        ({V2: "900000 100000\n"}, 8),  # more than the machine has
        ({V2: "33333 100000\n"}, 0.33),
        ({V2: "1000 1000000\n"}, 0.01),
        ({V2: "odd"}, 8),
        ({QUOTA: "-1\n", PERIOD: "100000\n"}, 8),
        ({QUOTA: "25000\n", PERIOD: "50000\n"}, 0.5),
        ({QUOTA: "1", PERIOD: "0"}, 8),
        ({V2: "400000 100000\n", QUOTA: "200000\n", PERIOD: "100000\n"}, 2),  # the smaller one holds
    )):  # fmt: skip
        for name in (V2, QUOTA, PERIOD):
            monkeypatch.setattr(module, name, tmp_path / f"{name}-{number}")
            if name in files:
                (tmp_path / f"{name}-{number}").write_text(files[name])
        assert module.cores() == usable


def test_the_environment_says_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", {"numpy": "2.1"}.get)
    found = module.environment()
    assert (found["numpy"], found["torch"], found["python"]) == ("2.1", "not installed", python_version())


SMI = """#!/bin/sh
[ "$1" = -L ] || exit 2
echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'
echo '  MIG 1g.10gb Device 0: (UUID: MIG-1)'
echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)'
"""


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for script, found in ((None, 0), (SMI, 2), ("#!/bin/sh", 0), (f"{SMI}exit 9\n", 0)):
        if script:
            (tmp_path / "nvidia-smi").write_text(script)
            (tmp_path / "nvidia-smi").chmod(0o755)
        gpus.cache_clear()
        assert gpus() == found
    gpus.cache_clear()


# Where the time went


def test_shares_add_up_to_the_wall_time() -> None:
    changes: list[tuple[dict[str, Any], tuple[float, ...]]] = [  # the seconds of each purpose, in order
        ({}, (10, 4, 1, 0, 0)),
        ({"engine_start_s": 2.5, "engine_stop_s": 0.5}, (10, 1.5, 0.5, 3, 0)),
        ({"status": "failed"}, (0, 0, 0, 0, 15)),
        ({"startup_s": None}, (0, 0, 0, 0, 15)),
        ({"engine_start_s": 5.0}, (10, 0, 1, 4, 0)),  # it starts containers after training began
    ]
    for changed, expected in changes:
        known = {name: seconds for name, seconds in zip(PURPOSES, expected, strict=True) if seconds}
        times = {"wall_s": 15.0, "startup_s": 4.0, "teardown_s": 1.0}
        result = SERIAL.model_copy(update=times | changed)
        assert sum(expected) == result.wall_s
        twice = {name: 2 * each for name, each in known.items()}
        assert time_shares([result, result]) == pytest.approx(twice)


NEAR_UNITS = st.builds(lambda at, off: at + off, st.sampled_from((60, 3600, 7200)), st.floats(-1, 1))


@settings(deadline=None)
@given(st.floats(0, 1e5) | NEAR_UNITS)
def test_a_time_is_rounded_to_its_last_unit_and_no_unit_is_full(seconds: float) -> None:
    parts = [(int(number), unit) for number, unit in re.findall(r"(\d+) (h|min|s)", duration(seconds))]
    total = sum(number * {"h": 3600, "min": 60, "s": 1}[unit] for number, unit in parts)
    assert abs(total - seconds) <= (0.5 if total < 3600 else 30)
    assert all(number < 60 or unit == "h" for number, unit in parts)


def test_only_what_took_time_is_listed() -> None:
    assert [*map(duration, (0.4, 75, 3690))] == ["0 s", "1 min 15 s", "1 h 2 min"]
    line = time_line([SERIAL.model_copy(update={"status": "failed", "wall_s": 3.0})])
    assert line == "Time of all runs: runs without training 3.0 s"
