"""Mistakes in local nodes: their own network, warm parents that fail, ranks that return, CPU quotas."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.runtimes.local import namespace
from orchestrator.runtimes.local import throttle as module
from orchestrator.runtimes.local.namespace import NamespaceError, PrivateNetwork
from orchestrator.runtimes.local.runtime import LocalCluster, LocalRun, LocalRuntime
from orchestrator.runtimes.local.throttle import PERIOD_S, NodeLimit, Throttle
from tests.unit.conftest import FakeTime
from trainer.core.cgroup import NodeUsage, throttle_mark
from trainer.spec.run_spec import RunSpec

REASON = "no namespaces on this machine"


def run(transport: str, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "transport": transport, "nodes": 2, **fields})


@pytest.fixture
def private() -> Iterator[PrivateNetwork]:
    created = PrivateNetwork()
    if reason := created.unavailable_reason:
        pytest.skip(reason)
    yield created
    created.close()


def inside(private: PrivateNetwork, code: str) -> str:
    """What code prints in the namespace."""
    command = [*private.prefix, sys.executable, "-S", "-c", f"import os, socket\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_namespace_has_a_loopback_interface_and_the_callers_user_only(private: PrivateNetwork) -> None:
    name = f"shardyard-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as outside, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        code = f"""
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
print([name for _, name in socket.if_nameindex()], os.getuid(), os.getgid(), os.getppid())
print(os.strerror(socket.socket().connect_ex({outside.getsockname()})))
print(os.strerror(socket.socket(socket.AF_UNIX).connect_ex("\\0{name}")))
"""
        own, *others = inside(private, code).splitlines()
    assert own == f"['lo'] {os.getuid()} {os.getgid()} {os.getpid()}"
    assert others == ["Connection refused"] * 2


def test_namespace_ends_with_its_descriptors(private: PrivateNetwork) -> None:
    paths = [option.partition("=")[2] for option in private.prefix if "=/proc/" in option]
    assert paths
    assert all(os.readlink(path).startswith(("net:", "user:")) for path in paths)
    for _ in range(2):
        private.close()
        assert not any(Path(path).exists() for path in paths)
    assert inside(private, "print('a new one')") == "a new one"
    assert [found.status for found in LocalRuntime().findings()] == ["ok"]


@pytest.mark.usefixtures("private")
def test_namespace_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(namespace.shutil, "which", lambda command: "/no/nsenter")
    other = PrivateNetwork()
    assert (other.prefix, "/no/nsenter" in str(other.unavailable_reason)) == ([], True)
    other.close()
    executable = tmp_path / "python"
    executable.write_text("#!/bin/sh\necho first >&2; echo cannot create it >&2; exit 1\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    monkeypatch.setattr(namespace, "_setting", lambda name: "0")
    expected = "cannot create it; kernel.unprivileged_userns_clone is 0; user.max_user_namespaces is 0"
    assert PrivateNetwork().unavailable_reason == expected


def test_run_that_would_let_others_in_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(namespace, "_created", MagicMock(side_effect=NamespaceError(REASON)))
    runtime = LocalRuntime(cold=True)
    for transport in ("rpc", "mpi"):
        refusal = str(runtime.unsupported_reason(run(transport)))
        assert refusal.startswith("other users")
        for named in (f"transport {transport}", REASON, "--shared-network"):
            assert named in refusal
        plan = runtime.plan(run(transport), RunPaths(tmp_path), tmp_path)
        with pytest.raises(InputError, match=REASON):
            runtime.create(plan).run(plan)
        assert list(tmp_path.iterdir()) == []
    for transport in ("gloo", "memory"):
        assert runtime.unsupported_reason(run(transport)) is None
    (found,) = runtime.findings()
    assert found.status == "note"
    assert f"{REASON}; rpc and mpi need --shared-network" in found.detail


def test_shared_network_permits_every_run_and_creates_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_created", lambda: pytest.fail("created a namespace"))
    runtime = LocalRuntime(shared_network=True)
    for transport in ("rpc", "mpi", "gloo"):
        assert runtime.unsupported_reason(run(transport)) is None
        plan = runtime.plan(run(transport), RunPaths(Path()), Path())
        assert not any("nsenter" in argument for process in plan.processes for argument in process.argv)


def test_warm_parent_that_fails_is_named_and_ended() -> None:
    interrupted = MagicMock(**{"ensure.side_effect": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        LocalCluster(interrupted)
    interrupted.close.assert_called_once()
    for reason in ("their process grew", None):  # one that ends after an idle time has not failed
        cluster = LocalCluster(MagicMock(is_running=False, **{"unhealthy_reason.return_value": reason}))
        assert (cluster.ready(), cluster.failure) == (False, reason)


def test_exit_of_a_rank_is_not_reported_by_the_look_that_starts_it_again(tmp_path: Path) -> None:
    def due() -> list[Process]:
        again = [Process(name, ["sleep", "60"], {}, "node-1") for name in losses.lost]
        losses.lost.clear()
        return again

    paths, spec = RunPaths(tmp_path), run("gloo")
    paths.live.mkdir()
    losses: Any = MagicMock(lost={"node 1"}, due=due, superfluous=set())
    local = LocalRun(LaunchPlan(spec, paths, tmp_path), losses=losses)
    try:
        assert local._without_lost(losses, {"node 0": 1, "node 1": -9}) == {"node 0": 1}
        losses.record_exit.assert_called_with("node 1", -9)
        assert (local.wait(0.0).exits, local.wait(0.0).running) == ({}, 1)
    finally:
        local.stop()


def test_the_rank_that_mpirun_has_lost_is_the_first_that_was_killed(tmp_path: Path) -> None:
    paths, spec = RunPaths(tmp_path), run("mpi")
    paths.live.mkdir()
    nodes = MagicMock(**{"killed.return_value": [(8, signal.SIGSEGV), (7, signal.SIGTERM)]})
    local = LocalRun(LaunchPlan(spec, paths, tmp_path), nodes=nodes)
    local._pids = {0: 7, 1: 8}
    assert local._first_killed({"mpirun": 1}) == {"node 1": -signal.SIGSEGV}
    assert local._first_killed({"mpirun": 0}) == {}


TICK_S = PERIOD_S / 20


class Worker:
    """A process that uses `cores` cores whenever it is not stopped."""

    def __init__(self, cores: float) -> None:
        self._cores, self._used = cores, 0.0
        self.running = True

    def cpu_s(self) -> float:
        return self._used

    def signal(self, number: int) -> None:
        self.running = {signal.SIGSTOP: False, signal.SIGCONT: True}[signal.Signals(number)]

    def work(self, seconds: float) -> None:
        self._used += self._cores * seconds * self.running


@given(
    st.floats(0.05, 2.0),
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=3),
    st.sampled_from([TICK_S, PERIOD_S / 3, PERIOD_S * 2.5]),
    st.sampled_from([0.0, 5.0]),
)
def test_processes_share_the_quota(quota: float, cores: list[float], tick_s: float, idle_s: float) -> None:
    """Unused time is lost. A throttle that misses periods on a busy machine makes up for it later."""
    throttle, workers, stopped = Throttle(quota, 0.0), [Worker(each) for each in cores], 0.0
    throttle.add(workers[0])
    throttle.step(idle_s)
    for at in range(1, round(2 / tick_s) + 1):
        stopped += tick_s * throttle.stopped
        for worker in workers[max(at - 1, 1) : at]:  # one more
            throttle.add(worker)
        for worker in workers[:at]:
            assert worker.running is not throttle.stopped
            worker.work(tick_s)
        throttle.step(idle_s + at * tick_s)
    throttle.release(idle_s + 2)
    assert all(worker.running for worker in workers)
    used, wanted = sum(worker.cpu_s() for worker in workers), min(quota, sum(cores)) * 2
    assert (throttle.used_s, throttle.stopped_s) == pytest.approx((used, stopped))
    margin = sum(cores) * tick_s * 3 + quota * PERIOD_S
    assert used <= wanted + margin
    assert used >= wanted - margin or tick_s > PERIOD_S
    assert stopped == 0 or sum(cores) > quota - 1e-9 or tick_s > PERIOD_S


def test_the_throttle_limits_each_node_marks_its_ranks_and_writes_what_they_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, workers = FakeTime(), {0: Worker(1.0), 1: Worker(1.0), 4: Worker(2.0)}
    ready = iter([[0], [], [1, 4]])

    def sleep(seconds: float) -> None:
        clock.pass_(seconds)
        for worker in workers.values():
            worker.work(seconds)

    def new(_: object) -> Iterator[tuple[int, Worker]]:
        for rank in next(ready):
            assert not throttle_mark(tmp_path, rank).exists()
            yield rank, workers[rank]
            assert throttle_mark(tmp_path, rank).exists()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    monkeypatch.setattr(module, "Process", lambda worker: worker)
    monkeypatch.setattr(module.ReadyRanks, "new", new)
    monkeypatch.setattr(signal, "signal", MagicMock())
    monkeypatch.setattr(os, "getppid", lambda: int(clock() < 102))
    monkeypatch.setenv("SHARDYARD_PARENT_PID", "1")
    file, limits = tmp_path / "usage.jsonl", [NodeLimit(0.5, "a", (0, 1)), NodeLimit(0.25, "b", (4,))]
    module.main(file, limits)
    assert all(worker.running for worker in workers.values())
    nodes = [NodeUsage.model_validate_json(line) for line in file.read_text().splitlines()]
    assert [(each.name, each.ranks, each.cpus) for each in nodes] == [("a", [0, 1], 0.5), ("b", [4], 0.25)]
    assert [each.cpu_s for each in nodes] == pytest.approx([1.0, 0.5], abs=0.1)
    assert [each.throttled_s for each in nodes] == pytest.approx([1.5, 1.75], abs=0.1)


def test_the_throttle_is_started_before_the_ranks() -> None:
    fields = {"nodes": 3, "processes_per_node": 2, "node_speed": [0.25, 1, 0.5]}
    for transport in ("gloo", "mpi"):
        spec = run(transport, **fields)
        plan = LocalRuntime(shared_network=True).plan(spec, RunPaths(Path("/run")), Path("/data"))
        modules = ["orchestrator.runtimes.local.throttle" in each.argv for each in plan.processes]
        assert modules == [True, *[False] * (len(modules) - 1)]
        limits = [NodeLimit.parse(text) for text in plan.processes[0].argv[4:]]
        assert limits == [NodeLimit(0.5, "node-1", (0, 1)), NodeLimit(1.0, "node-3", (4, 5))]
