"""A run in progress on runtime docker, with a fake engine."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import InputError
from orchestrator.runtimes.docker import live, project
from orchestrator.runtimes.docker.runtime import check_readable
from tests.unit.cluster_support import assigned
from tests.unit.conftest import event
from tests.unit.docker_support import FakeRun, Row, container, ended
from trainer.cluster.hand_over import ALIVE, ENDED, Ending
from trainer.cluster.run_record import RunRecord
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    return FakeRun(tmp_path, monkeypatch)


# Exit codes and names


def test_run_is_active_while_compose_starts(fake: FakeRun) -> None:
    state = fake.run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 1, None)
    assert fake.up.argv == ["docker", "--host", "unix:///x.sock", *fake.compose.up]
    assert fake.up.environment.items() >= fake.compose.environment.items()
    assert fake.api.filters == {"label": f"com.docker.compose.project={fake.compose.project}"}


def test_exits_are_named_by_rank(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 10, 2, 5)
    fake.up.returncode = 0
    fake.api.codes = {"node-2": 0, "node-5": 137, "node-10": 3, "coordinator-1": 1}
    fake.api.rows = [
        ended("node", 10),
        ended("node", 2),
        ended("node", 5),
        ended("coordinator"),
        ended("data"),
    ]
    state = fake.run.wait(5)
    assert state.exits == {"node 2": 3, "node 0": 0, "node 1": -9, "coordinator": 1}
    assert (state.running, state.error) == (0, None)


def test_cause_that_no_event_reports_is_named_by_its_node(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 10, 2, 5)
    ending = Ending(exits={}, unreported={"node-5": "rank 1, before it started: killed"})
    (fake.paths.live / ENDED).write_text(ending.model_dump_json())
    fake.api.rows = [ended("node", 5), container("coordinator")]
    assert fake.run.wait(0).error is None
    fake.api.codes = {"coordinator-1": 1}
    fake.api.rows = [ended("node", 5), ended("coordinator")]
    assert fake.run.wait(5).error == "node 1: rank 1, before it started: killed"


def test_exit_code_of_mpirun_is_that_of_the_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, "mpi")
    fake.up.returncode = 0
    fake.assign_ranks("mpi", 1)
    fake.api.codes = {"launcher-1": 1, "coordinator-1": 1}
    fake.api.rows = [ended("launcher"), container("node", 1), container("coordinator")]
    assert fake.run.wait(5).exits == {"launcher": 1}
    ending = Ending(exits={"launcher": 1, "node-1": 0, "mpirun": -9, "coordinator": 1})
    (fake.paths.live / ENDED).write_text(ending.model_dump_json())
    fake.api.rows = [ended("launcher"), ended("node", 1), ended("coordinator")]
    assert fake.run.wait(5).exits == {"launcher": 1, "node 0": 0, "mpirun": -9, "coordinator": 1}


@pytest.mark.parametrize(
    ("topology", "rows", "names"),
    [
        ("mpi", [ended("launcher"), ended("node", 4)], {"launcher", "node 1"}),
        ("rpc", [ended("master"), ended("node", 1), ended("node", 4)], {"node 0", "node 1", "node 2"}),
        ("single", [ended("node", 1)], {"node 0"}),
    ],
)
def test_names_by_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, rows: list[Row], names: set[str]
) -> None:
    fake = FakeRun(tmp_path, monkeypatch, topology)
    fake.assign_ranks(topology, 1, 4)
    fake.api.rows = rows
    assert fake.run.wait(5).exits.keys() == names


def test_names_with_several_ranks_per_node(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 1, 7, processes_per_node=2)
    fake.api.rows = [ended("node", 7), ended("node", 1)]
    assert fake.run.wait(5).exits.keys() == {"node 0", "node 1"}


@pytest.mark.parametrize(
    ("topology", "names"), [("ddp", {"node 0", "node 1"}), ("rpc", {"node 0", "node 1", "node 2"})]
)
def test_names_before_ranks_are_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, names: set[str]
) -> None:
    fake = FakeRun(tmp_path, monkeypatch, topology)
    fake.api.rows = [ended("node", 1), ended("node", 2)] + [ended("master")] * (topology == "rpc")
    assert fake.run.wait(5).exits.keys() == names


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (1, 1), (125, 125), (128, 128), (137, -9), (139, -11), (143, -15)]
)
def test_exit_codes_above_128_are_signals(fake: FakeRun, status: int, code: int) -> None:
    fake.api.codes = {"node-1": status}
    fake.api.rows = [ended("node", 1), container("node", 2)]
    assert fake.run.wait(5).exits == {"node 0": code}


def test_exit_code_is_read_once(fake: FakeRun) -> None:
    fake.api.rows = [ended("node", 1), container("node", 2)]
    for _ in range(3):
        fake.run.wait(0)
    assert fake.api.inspected == ["node-1"]


def test_data_and_created_containers_do_not_count(fake: FakeRun) -> None:
    fake.up.returncode = 0
    fake.api.rows = [container("data"), container("node", 1), container("coordinator", 1, "created", "")]
    assert fake.run.wait(0).running == 1


def test_wait_returns_when_a_container_exits(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.up.returncode = 0
    fake.api.rows = [container("node", 1), container("node", 2)]
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            fake.api.rows = [ended("node", 1), container("node", 2)]

    monkeypatch.setattr(time, "sleep", sleep)
    state = fake.run.wait(60)
    assert (state.exits, state.running, len(looks)) == ({"node 0": 0}, 1, 3)


def test_suspended_ranks_are_those_of_the_run_record(fake: FakeRun) -> None:
    assert fake.run.suspended() == {}
    assignment = assigned("ddp", 3, 4)
    record = RunRecord(fake.paths.live, assignment)
    record.add_event(event("start", 1, pid=7))
    record.note_suspended(assignment.agent_of(1), [1])
    assert fake.run.suspended() == {1: 7}


# Errors


@pytest.mark.parametrize("on_loss", ["stop", "continue"])
def test_coordinator_without_a_heartbeat_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_loss: str
) -> None:
    """Once it has had one: before, it may still start."""
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", 0.1)
    fake = FakeRun(tmp_path, monkeypatch, strategy="local_sgd", transport="gloo", on_loss=on_loss)
    fake.up.returncode = 0
    fake.api.rows = [container("node", 1), container("node", 2), container("coordinator")]
    assert fake.run.wait(0.3).error is None
    fake.paths.live.mkdir()
    (fake.paths.live / ALIVE).touch()
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", 600)
    assert fake.run.wait(0.05).error is None
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", 0.1)
    assert "coordinator" in str(fake.run.wait(5).error)


def test_coordinator_that_has_ended_is_not_stuck(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", 0.05)
    fake.up.returncode = 0
    fake.assign_ranks("ddp", 1, 2)
    (fake.paths.live / ALIVE).touch()
    fake.api.rows = [container("node", 1), ended("coordinator")]
    assert fake.run.wait(0.3).error is None


def test_unhealthy_node_is_stuck(fake: FakeRun) -> None:
    fake.assign_ranks("ddp", 3, 4)
    fake.api.rows = [container("node", 3), container("node", 4, health="unhealthy")]
    assert fake.run.wait(5).error == "node 1 is stuck: its health check fails"
    for fake.api.failing_streak in (0, 1):  # it was paused, and goes on
        assert fake.run.wait(0).error is None
    fake.api.rows = [container("node", 3), container("node", 4, health="health: starting")]
    assert fake.run.wait(0).error is None


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (
            "pulling\n\nError response from daemon: no space left\n",
            "Error response from daemon: no space left",
        ),
        ("", "exit code 17"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_last_line_of_compose_is_the_error(fake: FakeRun, output: str, error: str) -> None:
    fake.up.returncode = 17
    fake.paths.log("compose").write_text(output)
    state = fake.run.wait(5)
    assert state.error == f"docker compose failed: {error}"


def test_compose_failure_after_a_node_s_exit_is_not_the_cause(fake: FakeRun) -> None:
    fake.up.returncode = 1
    fake.api.codes = {"node-1": 2}
    fake.api.rows = [ended("node", 1)]
    state = fake.run.wait(5)
    assert (state.exits, state.error) == ({"node 0": 2}, None)


def test_dead_engine_ends_the_run(fake: FakeRun) -> None:
    fake.api.rows = [ended("node", 1), container("node", 2)]
    fake.run.wait(5)
    fake.api.error, fake.alive = ConnectionError("no socket"), False
    state = fake.run.wait(5)
    assert state.error == "the Docker engine stopped responding (ConnectionError)"
    assert (state.exits, state.running) == ({"node 0": 0}, 0)


def test_slow_answer_of_the_engine(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.api.rows = [container("node", 1)]
    before = fake.run.wait(0)
    fake.api.error = TimeoutError()
    assert fake.run.wait(0) == before
    monkeypatch.setattr(project, "UNRESPONSIVE_S", -1.0)
    assert "stopped responding (TimeoutError)" in str(fake.run.wait(0).error)


# Runs that continue without a lost node


def test_lost_nodes_do_not_fail_a_continuing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator knows whether the others continue."""
    fields = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
    fake = FakeRun(tmp_path, monkeypatch, **fields)
    fake.assign_ranks("ddp", 1, 2, 3, **fields)
    fake.up.returncode = 0
    fake.api.codes = {"node-2": 137}
    left = container("node", 1, health="unhealthy")  # its agent is silent before that
    fake.api.rows = [left, ended("node", 2), container("node", 3), container("coordinator")]
    state = fake.run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 3, None)
    fake.api.rows = [ended("node", 2)]  # the coordinator was not started
    assert fake.run.wait(0).exits == {"node 1": -9}
    fake.api.rows = [ended("node", 1), ended("node", 2), ended("node", 3), ended("coordinator")]
    state = fake.run.wait(5)
    assert state.exits == {"node 0": 0, "node 1": -9, "node 2": 0, "coordinator": 0}
    assert (state.running, state.error) == (0, None)


# Nodes of unequal speed


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    return FakeRun(tmp_path, monkeypatch, node_speed={-1: 0.25})


def test_quotas_are_applied_once_all_ranks_are_ready(slow: FakeRun) -> None:
    slow.api.rows = [
        container("node", 10),
        container("node", 2),
        container("node", 9),
        container("coordinator"),
    ]
    slow.make_ready(0, 2)
    slow.run.wait(0)
    assert slow.commands == []
    slow.make_ready(1)
    slow.run.wait(0)
    slow.run.wait(0)
    assert [command[3:] for command in slow.commands] == [
        ["update", "--cpus", "1", "node-2", "node-9"],
        ["update", "--cpus", "0.25", "node-10"],
    ]


def test_refused_quota_ends_the_run(slow: FakeRun) -> None:
    slow.answer = SimpleNamespace(returncode=1, stderr="Error response from daemon: no\n")
    slow.api.rows = [container("node", number) for number in (1, 2, 3)]
    slow.make_ready(0, 1, 2)
    assert "Error response from daemon: no" in str(slow.run.wait(0).error)


def test_node_that_ends_before_it_has_its_quota_is_the_failure(slow: FakeRun) -> None:
    slow.answer = SimpleNamespace(returncode=1, stderr="Error response from daemon: not running\n")
    slow.api.rows = [container("node", 1), ended("node", 2), container("node", 3)]
    slow.api.codes["node-2"] = 137
    slow.make_ready(0, 1, 2)
    state = slow.run.wait(0)
    assert (state.exits, state.error) == ({"node 1": -9}, None)


def test_nodes_with_all_cores_need_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, cpus=4)
    fake.api.rows = [container("node", number) for number in (1, 2, 3)]
    fake.make_ready(0, 1, 2)
    fake.run.wait(0)
    assert fake.commands == []


def test_launcher_has_the_quota_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(tmp_path, monkeypatch, "mpi", node_speed={-1: 0.5})
    fake.api.rows = [container("node", number) for number in (1, 2, 3)] + [container("launcher")]
    fake.make_ready(0, 1, 2)
    fake.run.wait(0)
    assert [command[5:] for command in fake.commands] == [
        ["1", "launcher-1", "node-1", "node-2"],
        ["0.5", "node-3"],
    ]


def test_unreadable_data_is_found_before_anything_starts(tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "serial", "dataset": "mnist", "model": "lenet"})
    file = tmp_path / run.dataset.files[0]
    file.parent.mkdir(parents=True)
    for directory in (tmp_path, *file.parents[: len(file.relative_to(tmp_path).parts) - 1]):
        directory.chmod(0o755)
    file.write_bytes(b"")
    file.chmod(0o604)
    check_readable(tmp_path, run)
    file.chmod(0o600)
    with pytest.raises(InputError, match=re.escape(str(file))):
        check_readable(tmp_path, run)
