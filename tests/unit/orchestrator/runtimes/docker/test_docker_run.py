"""Mistakes in runs in cold containers: names and codes of exits, the cause of a failure, quotas, links."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtimes.docker import live, project
from orchestrator.runtimes.docker.live import LiveRecord
from orchestrator.runtimes.docker.project import Project
from tests.unit.conftest import FakeTime
from tests.unit.docker_support import FAST, LINKED, FakeRun, write_events
from tests.unit.docker_support import start as start  # a fixture
from trainer.node import heartbeat
from trainer.node.hand_over import ALIVE

Start = Callable[..., FakeRun]


@pytest.fixture
def fake(start: Start) -> FakeRun:
    return start()


def test_run_is_active_while_compose_starts(fake: FakeRun) -> None:
    state = fake.run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 1, None)
    assert fake.up.argv == ["docker", "--host", "unix:///x.sock", *fake.compose.up]
    assert fake.up.environment.items() >= fake.compose.environment.items()
    assert fake.filters == {"label": f"com.docker.compose.project={fake.compose.project}"}
    fake.up.returncode = 0
    fake.show("data-1", "node-1", created=["coordinator-1"])
    assert fake.run.wait(0).running == 1


@pytest.mark.parametrize(
    ("topology", "ordinals", "fields", "names"),
    [
        ("ddp", (10, 2, 5), {}, {"node-10": "node 2", "node-2": "node 0", "node-5": "node 1"}),
        ("ddp", (1, 7), {"processes_per_node": 2}, {"node-7": "node 1", "node-1": "node 0"}),
        ("mpi", (1, 4), {}, {"launcher-1": "launcher", "node-4": "node 1"}),
        ("rpc", (1, 4), {}, {"master-1": "node 0", "node-1": "node 1", "node-4": "node 2"}),
        ("single", (1, 4), {}, {"node-1": "node 0", "coordinator-1": "coordinator"}),
        ("rpc", (), {}, {"master-1": "node 0", "node-1": "node 1"}),  # before ranks are assigned
    ],
)
def test_exits_are_named_by_rank(
    start: Start, topology: str, ordinals: tuple[int, ...], fields: dict[str, Any], names: dict[str, str]
) -> None:
    fake = start(topology)
    if ordinals:
        fake.assign_ranks(topology, *ordinals, **fields)
    fake.show(exited=[*names, "data-1"])
    fake.codes = dict(zip(names, (3, 137, 128), strict=False))
    assert fake.run.wait(0).exits == dict(zip(names.values(), (3, -9, 128), strict=False))


def test_wait_returns_when_a_container_exits(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.show("node-1", "node-2")
    monkeypatch.setattr(time, "sleep", lambda _: fake.show("node-2", exited=["node-1"]))
    assert fake.run.wait(60).exits == {"node 0": 0}


def test_silence_of_the_coordinator_is_measured_from_its_last_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeTime()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock))
    record = LiveRecord(tmp_path)

    def wait(seconds: int) -> str | None:
        for _ in range(seconds):
            clock.pass_(1)
            trouble = record.coordinator_trouble()
        return trouble

    assert wait(30) is None, "it may still start"
    for beat in (1, 2):
        (tmp_path / ALIVE).touch()
        os.utime(tmp_path / ALIVE, (beat, beat))
        assert wait(20) is None
    assert wait(1) == "is stuck: no heartbeat for 20 s"


def test_stuck_coordinator_is_the_cause(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, and also of a run that would continue."""
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", -1)
    fake = start(strategy="local_sgd", transport="gloo", on_loss="continue")
    fake.assign_ranks("ddp", 1, 2)
    (fake.paths.live / ALIVE).touch()
    fake.show("node-1", "coordinator-1")
    assert str(fake.run.wait(0).error).startswith("the coordinator is stuck")
    fake.show("node-1", exited=["coordinator-1"])
    assert fake.run.wait(0).error is None


def test_coordinator_that_misses_an_agent_is_not_the_cause_if_that_was_killed(fake: FakeRun) -> None:
    fake.paths.live.mkdir()
    fake.show("node-2", exited=["node-1", "coordinator-1"])
    fake.codes = {"coordinator-1": 1}
    assert "before it assigned ranks" in str(fake.run.wait(0).error)
    (fake.paths.live / "summary.txt").write_text("FAILED: node 1 did not register\n")
    assert fake.run.wait(0).error == "node 1 did not register"
    fake.show(exited=["node-1", "node-2", "coordinator-1"])
    fake.codes["node-2"] = 137
    error = "node 1 was killed by SIGKILL together with its container, before it registered"
    assert fake.run.wait(0).error == error


def test_ending_of_a_failed_coordinator_has_the_exit_of_mpirun_and_the_cause(start: Start) -> None:
    """The cause that no event reports, with the name of its node."""
    fake = start("mpi")
    fake.up.returncode = 0
    fake.assign_ranks("mpi", 10, 2)
    fake.codes = {"launcher-1": 1, "coordinator-1": 1}
    fake.end(exits={"mpirun": -9, "coordinator": 1}, unreported={"node-10": "rank 1, before it started"})
    fake.show("node-2", "coordinator-1", exited=["launcher-1"])
    state = fake.run.wait(0)
    assert (state.exits, state.error) == ({"launcher": 1}, None)
    fake.show("node-2", exited=["launcher-1", "coordinator-1"])
    state = fake.run.wait(0)
    assert state.exits == {"launcher": 1, "mpirun": -9, "coordinator": 1}
    assert state.error == "node 1: rank 1, before it started"


def test_node_is_stuck_while_its_health_checks_fail(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 3, 4)
    fake.show("node-3", unhealthy=["node-4"])
    assert fake.run.wait(5).error == "node 1 is stuck: its health check fails"
    fake.failing_streak = 1  # it was paused, and goes on
    assert fake.run.wait(0).error is None
    fake.failing_streak = 2
    fake.show("node-3", "node-4")
    assert fake.run.wait(0).error is None


def test_last_line_of_compose_is_the_error_unless_a_node_has_ended(start: Start) -> None:
    errors = {"a\n\nno space\n": "no space", "": "exit code 17", "x" * 999: "x" * 300}
    for output, error in errors.items():
        fake = start()
        fake.up.returncode = 17
        fake.paths.log("compose").write_text(output)
        assert fake.run.wait(5).error == f"docker compose failed: {error}"
        fake.show(exited=["node-1"])
        assert fake.run.wait(5).error is None


def test_dead_engine_ends_the_run_and_a_slow_answer_does_not(fake: FakeRun) -> None:
    fake.show("node-2", exited=["node-1"])
    before = fake.run.wait(0)
    fake.error = TimeoutError("slow")
    assert fake.run.wait(0) == before
    fake.alive = False
    state = fake.run.wait(5)
    assert state.error == "the Docker engine stopped responding (TimeoutError)"
    assert (state.exits, state.running) == ({"node 0": 0}, 0)


def test_lost_nodes_do_not_fail_a_continuing_run(start: Start) -> None:
    """The coordinator knows whether the others continue."""
    fields = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
    fake = start(**fields)
    fake.assign_ranks("ddp", 1, 2, 3, **fields)
    fake.up.returncode = 0
    fake.codes = {"node-2": 137}
    # The agent of a node whose health check fails is silent before that.
    fake.show("node-3", "coordinator-1", unhealthy=["node-1"], exited=["node-2"])
    state = fake.run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 3, None)
    fake.show(exited=["node-2"])  # the coordinator was not started
    assert fake.run.wait(0).exits == {"node 1": -9}


@pytest.mark.parametrize(
    ("topology", "fields", "nodes", "updates"),
    [
        ("ddp", {"node_speed": {-1: 0.25}}, [10, 2, 9], ["--cpus 1 node-2 node-9", "--cpus 0.25 node-10"]),
        ("mpi", {"node_speed": {-1: 0.5}}, [1, 2], ["--cpus 1 launcher-1 node-1", "--cpus 0.5 node-2"]),
        ("rpc", {"node_speed": {0: 0.5}}, [1, 2], ["--cpus 0.5 master-1", "--cpus 1 node-1 node-2"]),
        ("ddp", {"link": FAST}, [1, 2], ["--cpus 1 node-1 node-2"]),  # not of the switch
        ("ddp", {"cpus": 4}, [1, 2], []),  # all cores of the engine
    ],
)
def test_quotas_are_applied_once_when_all_ranks_are_ready(
    start: Start, topology: str, fields: dict[str, Any], nodes: list[int], updates: list[str]
) -> None:
    ranks = len(nodes) + (topology == "rpc")
    fake = start(topology, **fields, nodes=ranks)
    others = {"ddp": "switch-1", "mpi": "launcher-1", "rpc": "master-1"}
    fake.show(*(f"node-{number}" for number in nodes), others[topology], "coordinator-1")
    write_events(fake.paths.live, "ready", *range(1, ranks))
    fake.run.wait(0)
    assert fake.commands == []
    write_events(fake.paths.live, "ready", 0)
    for _ in range(2):
        fake.run.wait(0)
    assert [" ".join(arguments) for arguments in fake.asked("update")] == updates


def test_refused_quota_ends_the_run_unless_its_node_has_ended(start: Start) -> None:
    fake = start(node_speed={-1: 0.25})
    fake.answer = SimpleNamespace(returncode=1, stderr="Error response from daemon: no\n")
    fake.codes["node-2"] = 137
    write_events(fake.paths.live, "ready", 0, 1, 2)
    fake.show("node-1", "node-3", exited=["node-2"])
    state = fake.run.wait(0)
    assert (state.exits, state.error) == ({"node 1": -9}, None)
    fake.show("node-1", "node-2", "node-3")
    assert fake.run.wait(0).error == "CPU quotas were not applied: Error response from daemon: no"


def test_links_are_set_once_all_containers_run_before_nodes_are_connected(start: Start) -> None:
    fake = start("mpi", nodes=2, link=FAST)
    fake.show(*LINKED, "launcher-1")  # which is no node
    assert fake.run.wait(0).error is None
    assert fake.setups == [], "compose still starts containers"
    fake.up.returncode = 0
    for _ in range(2):
        state = fake.run.wait(0)
        assert (state.error, state.running) == (None, 4), "the switch does not count"
    (setup,) = fake.setups
    assert (setup.nodes, setup.addresses) == (2, ["10.0.4.1", "10.0.4.2"])
    assert setup.link.default.bandwidth_mbit == 100
    assert [each.environment["SHARDYARD_NODE"] for each in fake.plugs] == ["node-1", "node-2"]
    assert [each.argv[-2:] for each in fake.plugs] == [["10.0.4.1", "10.0.4.2"], ["10.0.4.2", "10.0.4.1"]]
    fake.assign_ranks("mpi", 1, 2, link=FAST)
    fake.show("switch-1", exited=[*LINKED[:-1], "launcher-1"])
    assert fake.run.wait(0).running == 0, "the run ends though its switch runs"


def test_links_that_cannot_be_set_fail_the_run(start: Start) -> None:
    fake = start(nodes=2, link=FAST)
    fake.show(*LINKED)
    fake.up.returncode = 0
    fake.plugged = (1, "compose\nlinks: no TUN device\n")
    assert fake.run.wait(0).error == "links were not applied: links: no TUN device"
    fake.answer.returncode, fake.answer.stderr = 1, "links: the switch does not answer"
    assert fake.run.wait(0).error == "links were not applied: links: the switch does not answer"
    fake.show(*LINKED[:-1], exited=["switch-1"])
    assert "the switch of the run's links has ended" in str(fake.run.wait(0).error)


def test_stop_saves_logs_and_removes_everything_once(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 10, 2)
    fake.show("node-10", "coordinator-1", "data-1", exited=["node-2"])
    for _ in range(2):
        fake.run.stop()
        fake.cluster.delete()
    assert [command[command.index("-p") + 2] for command in fake.commands] == ["stop", "down"]
    assert fake.removed == [fake.compose.project] * 2  # leftovers before the start; and now
    assert fake.up.returncode == -15
    logs = {path.name: path.read_text() for path in fake.paths.directory.glob("*.log")}
    names = {"coordinator": "coordinator-1", "node-0": "node-2", "node-1": "node-10"}
    own = {f"{name}.log": f"log of {container}\n" for name, container in names.items()}
    assert logs == {"compose.log": "", **own}


def test_errors_of_a_dead_engine_alone_are_ignored(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "remove_project", fake.containers)  # it fails, too
    fake.error = ConnectionError("no socket")
    for use in (fake.run.stop, fake.cluster.delete):
        with pytest.raises(ConnectionError):
            use()
    fake.alive = False
    fake.run.stop()


def test_compose_is_ended_after_ctrl_c_has_interrupted_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt inside Popen.poll() can leave the lock taken under which a child is reaped."""
    monkeypatch.setattr(project, "TERMINATE_S", 0.1)
    process: Any = subprocess.Popen(["sleep", "300"])
    process._waitpid_lock.acquire()
    Project._end_compose(SimpleNamespace(up=process))  # type: ignore[arg-type]
    process._waitpid_lock.release()
    assert process.wait(10) < 0
