"""Warm containers of runtime docker, with a fake engine and a coordinator played by the test."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.docker import live, project
from orchestrator.runtimes.docker import runtime as runtime_module
from orchestrator.runtimes.docker import warm as module
from orchestrator.runtimes.docker.run import OneRunContainers
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.docker.warm import WarmContainers, WarmRun
from orchestrator.runtimes.launch_plan import LaunchPlan
from tests.unit.cluster_support import FIELDS, OTHER, assigned
from tests.unit.conftest import event
from tests.unit.docker_support import FakeEngine, Row, container, ended, write_ready
from trainer.cluster.hand_over import ALIVE, CANCEL, ENDED, NEXT, Ending, log_marks
from trainer.cluster.run_record import RunRecord
from trainer.spec.run_spec import RunSpec


class Sweep:
    """A sweep on runtime docker. All containers that compose has started run, unless the test says else."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeEngine(monkeypatch)
        self.api = self.fake.api
        self.paths = SweepPaths(directory)
        monkeypatch.setattr(runtime_module, "reach", lambda: self.fake.engine)
        monkeypatch.setattr(runtime_module, "Reaper", lambda label: None)
        monkeypatch.setattr(module, "INSPECT_S", -1.0)
        monkeypatch.setattr(module, "LOG_S", 0.05)
        monkeypatch.setattr(module, "LOSS_S", 0.05)
        monkeypatch.setattr(module, "CANCEL_S", 0.05)
        self.use(DockerRuntime())

    def use(self, runtime: DockerRuntime) -> None:
        self.clusters, self._lease = Clusters(runtime), ExitStack()
        self.replaced: str | None = None  # why the last run has other containers than the one before

    def plan(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> LaunchPlan:
        spec = RunSpec.model_validate({**FIELDS[topology], "nodes": nodes, **fields})
        paths = self.paths.run(spec.key)
        paths.directory.mkdir(exist_ok=True, parents=True)
        paths.spec.write_text(spec.model_dump_json())
        return self.clusters.plan(spec, paths, self.paths.directory / "data")

    def start(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> WarmRun:
        """Start a run, whose containers then run. The one before has ended."""
        run = self.start_run(topology, nodes, **fields)
        self.nodes(run).project.up.returncode = 0  # type: ignore[attr-defined]
        self.api.rows = running(topology, self.nodes(run).compose.scale)
        return run

    def start_run(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> WarmRun:
        plan = self.plan(topology, nodes, **fields)
        self._lease.close()
        lease = self._lease.enter_context(self.clusters.lease(plan))
        self.replaced, run = lease.replaced, lease.cluster.run(plan)
        assert isinstance(run, WarmRun)
        return run

    def close(self) -> None:
        self._lease.close()
        self.clusters.close()

    def nodes(self, run: WarmRun) -> WarmContainers:
        return run._nodes

    def live(self, run: WarmRun) -> Path:
        """The directory of the run record."""
        return run._nodes.directory / run._paths.directory.name

    def finish(
        self,
        run: WarmRun,
        code: int = 0,
        lost: str | None = None,
        failures: dict[str, str] | None = None,
        untrusted: str | None = None,
        cut_off: str | None = None,
        unreported: dict[str, str] | None = None,
        **exits: int,
    ) -> None:
        """Let the coordinator end the run."""
        names = {name.replace("_", "-"): exit for name, exit in exits.items()}
        ending = Ending(
            exits={**names, "coordinator": code},
            failures=failures or {},
            unreported=unreported or {},
            lost=lost,
            cut_off=cut_off,
            untrusted=untrusted,
        )
        (self.live(run) / ENDED).write_text(ending.model_dump_json())

    def assign_ranks(self, run: WarmRun, topology: str, *ordinals: int) -> None:
        RunRecord(self.live(run), assigned(topology, *ordinals))

    @property
    def ups(self) -> list[str]:
        """Projects that compose has started."""
        return [up.argv[up.argv.index("-p") + 1] for up in self.fake.ups]


def running(topology: str, nodes: int) -> list[Row]:
    others = [container(OTHER[topology])] if topology in OTHER else []
    return [*(container("node", number + 1) for number in range(nodes)), *others, container("coordinator")]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    made = Sweep(tmp_path, monkeypatch)
    yield made
    made.fake.alive, made.api.error = True, None
    made.close()


# One run


def test_run_is_handed_over_with_its_spec(sweep: Sweep) -> None:
    run = sweep.start()
    directory = sweep.nodes(run).directory
    assert (directory / NEXT).read_text() == run._paths.directory.name
    assert json.loads((sweep.live(run) / "spec.json").read_text())["nodes"] == 2
    state = run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 1, None)
    (up,) = sweep.fake.ups
    assert up.environment["SHARDYARD_WARM"] == "1"
    assert up.environment["SHARDYARD_RESULTS"] == str(directory.resolve())


@pytest.mark.parametrize(
    ("topology", "exits", "expected"),
    [
        ("ddp", {"node_2": 0, "node_5": 0}, {"node 0": 0, "node 1": 0}),
        ("rpc", {"master": 0, "node_2": 0, "node_5": 0}, {"node 0": 0, "node 1": 0, "node 2": 0}),
        ("mpi", {"launcher": 0, "node_2": 0}, {"launcher": 0, "node 0": 0}),  # the other did not report any
    ],
)
def test_exits_are_named_by_rank(
    sweep: Sweep, topology: str, exits: dict[str, int], expected: dict[str, int]
) -> None:
    run = sweep.start(topology, 2 + (topology == "rpc"))
    sweep.assign_ranks(run, topology, 5, 2)
    sweep.finish(run, **exits)
    state = run.wait(5)
    assert state.exits == {**expected, "coordinator": 0}
    assert (state.running, state.error, state.nodes_lost) == (0, None, False)


def test_cause_of_a_rank_that_did_not_start_is_that_of_its_agent(sweep: Sweep) -> None:
    """Events say why the other rank has failed."""
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 4, 7)
    (sweep.live(run) / "rank-0.jsonl").write_text(event("start", 0, pid=7).to_line() + "\n")
    failures = {"node-4": "killed by SIGTERM", "node-7": "its node needed more than 512 MiB"}
    sweep.finish(run, 1, failures=failures, node_4=1, node_7=1)
    state = run.wait(5)
    assert (state.error, state.nodes_lost) == ("node 1: its node needed more than 512 MiB", False)


def test_nodes_with_little_memory_are_cold(sweep: Sweep) -> None:
    assert not sweep.plan(memory_mb=511).warm
    assert sweep.plan(memory_mb=512).warm


def test_failed_run_leaves_the_containers_to_the_next(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run, 1, node_1=0, node_2=1)
    state = run.wait(5)
    assert state.exits == {"node 0": 0, "node 1": 1, "coordinator": 1}
    assert (state.error, state.nodes_lost) == (None, False)
    run.stop()
    assert not sweep.nodes(run).deleted


def test_run_without_ranks_has_the_error_of_the_coordinator(sweep: Sweep) -> None:
    run = sweep.start()
    (sweep.live(run) / "summary.txt").write_text("FAILED: node 1 did not register\n")
    sweep.finish(run, 1)
    state = run.wait(5)
    assert (state.error, state.nodes_lost) == ("node 1 did not register", False)


@pytest.mark.parametrize("registered", [False, True])
def test_containers_that_sent_invalid_data_take_no_other_run(sweep: Sweep, registered: bool) -> None:
    run = sweep.start()
    if registered:
        sweep.assign_ranks(run, "ddp", 1, 2)
        damaged = event("damaged", 1, line="", reason="message: kind")
        (sweep.live(run) / "rank-1.jsonl").write_text(damaged.to_line() + "\n")
    sweep.finish(run, 1, untrusted="node 1 sent invalid data: message: kind")
    state = run.wait(5)
    # If ranks were assigned, the run's own code did it. Else an earlier run may have spoilt the container.
    assert state.nodes_lost is not registered
    assert state.error == (None if registered else "node 1 sent invalid data: message: kind")
    run.stop()
    run.collect(run._paths)
    assert ("message: kind" in run._paths.events.read_text()) is registered
    following = sweep.start(seed=1)
    assert sweep.nodes(following) is not sweep.nodes(run)
    assert sweep.nodes(run).deleted
    assert "node 1" in str(sweep.replaced)


def test_container_that_is_cut_off_the_network_is_a_loss_of_nodes(sweep: Sweep) -> None:
    """It runs, and its health check passes."""
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run, 1, cut_off="the warm container node 1 was cut off")
    state = run.wait(5)
    assert (state.error, state.nodes_lost) == ("the warm container node 1 was cut off", True)
    run.stop()
    assert sweep.nodes(run).deleted


def test_container_that_does_not_register_is_a_loss_of_nodes_that_have_had_a_run(sweep: Sweep) -> None:
    """Other new containers would be as slow."""
    run = sweep.start()
    sweep.finish(run, 1, cut_off="the warm container node 1 did not register")
    state = run.wait(5)
    assert (state.error, state.nodes_lost) == ("the warm container node 1 did not register", False)
    run.stop()
    assert sweep.nodes(run).deleted
    second = sweep.start(seed=1)
    sweep.assign_ranks(second, "ddp", 1, 2)
    sweep.finish(second)
    second.wait(5)
    second.stop()
    third = sweep.start(seed=2)
    sweep.finish(third, 1, cut_off="the warm container node 1 did not register")
    assert third.wait(5).nodes_lost
    third.stop()
    assert sweep.nodes(third).deleted


def test_coordinator_without_a_heartbeat_is_a_loss_of_nodes(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of containers that have had a run, also if it does not take the next one."""
    monkeypatch.setattr(live, "COORDINATOR_STUCK_S", 0.1)
    run = sweep.start()
    assert run.wait(0.3).error is None  # it may still start
    (sweep.live(run) / ALIVE).touch()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run)
    run.stop()
    following = sweep.start(seed=1)
    state = following.wait(5)
    assert "coordinator" in str(state.error)
    assert state.nodes_lost
    following.stop()
    assert sweep.nodes(following).deleted


def test_cause_that_no_event_reports_is_named_by_its_node(sweep: Sweep) -> None:
    run = sweep.start("mpi", 2)
    sweep.assign_ranks(run, "mpi", 4, 7)
    sweep.finish(run, 1, unreported={"node-7": "rank 1, before it started: killed", "launcher": "later"})
    assert run.wait(5).error == "node 1: rank 1, before it started: killed"


def test_lost_warm_parent_is_a_loss_of_nodes(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run, 1, lost="of node-1 was killed by SIGKILL", node_1=1)
    state = run.wait(5)
    assert state.nodes_lost
    assert "of node-1 was killed by SIGKILL" in str(state.error)
    assert not sweep.nodes(run).deleted  # the agent starts another parent


def ends(sweep: Sweep, code: int) -> None:
    sweep.api.rows[0] = ended("node", 1)
    sweep.api.codes = {"node-1": code}


def is_unhealthy(sweep: Sweep) -> None:
    sweep.api.rows[0] = container("node", 1, health="unhealthy")


def is_removed(sweep: Sweep) -> None:
    sweep.api.rows = sweep.api.rows[1:]


LOSSES: dict[str, tuple[Callable[[Sweep], None], str]] = {
    "killed": (lambda sweep: ends(sweep, 137), "{} was killed by SIGKILL"),
    "ended": (lambda sweep: ends(sweep, 3), "{} ended with exit code 3"),
    "unhealthy": (is_unhealthy, "{} is stuck"),
    "removed": (is_removed, "removed"),
}


@pytest.mark.parametrize("reported", [False, True], ids=["silent", "reported"])
@pytest.mark.parametrize("topology", ["ddp", "mpi", "rpc"])
@pytest.mark.parametrize("loss", LOSSES)
def test_failed_container_is_a_loss_of_nodes(
    sweep: Sweep, topology: str, loss: str, reported: bool
) -> None:
    """Also if the coordinator has found out first."""
    fail, expected = LOSSES[loss]
    run = sweep.start(topology, 3)
    sweep.assign_ranks(run, topology, *([1, 2] if topology == "rpc" else [1, 2, 3]))
    fail(sweep)
    if reported:
        sweep.finish(run, 1)
    state = run.wait(5)
    assert state.nodes_lost
    assert expected.format("node 1" if topology == "rpc" else "node 0") in str(state.error)
    assert state.running == 0
    run.stop()
    assert sweep.nodes(run).deleted


def test_container_that_the_engine_calls_running_for_a_moment_is_a_loss_of_nodes(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent has disconnected, and the coordinator has ended the run."""
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run, 1, failures={"node-1": "killed, or disconnected from the coordinator"}, node_2=1)
    monkeypatch.setattr(module, "LOSS_S", 5.0)
    monkeypatch.setattr(module.time, "sleep", lambda _: ends(sweep, 137))
    state = run.wait(5)
    assert state.nodes_lost
    assert "node 0 was killed by SIGKILL" in str(state.error)


def test_successful_run_does_not_need_its_containers(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    sweep.finish(run, node_1=0, node_2=0)
    sweep.api.rows = []
    assert run.wait(5).error is None


def test_compose_failure_is_known_after_its_run_was_removed(sweep: Sweep) -> None:
    """A dropped run may have started the containers of the next one."""
    run = sweep.start()
    up: Any = sweep.nodes(run).project.up
    up.returncode = 17
    run._paths.log("compose").write_text("no space left\n")
    sweep.api.rows = []
    assert run.wait(5).error == "docker compose failed: no space left"
    shutil.rmtree(run._paths.directory)
    assert sweep.nodes(run).defect() == "docker compose failed: no space left"


def test_compose_failure_is_no_loss_of_nodes(sweep: Sweep) -> None:
    """New containers would fail, too."""
    run = sweep.start()
    up: Any = sweep.nodes(run).project.up
    up.returncode = 17
    run._paths.log("compose").write_text("Error response from daemon: no space left\n")
    sweep.api.rows = []
    state = run.wait(5)
    assert state.error == "docker compose failed: Error response from daemon: no space left"
    assert not state.nodes_lost


def test_containers_that_are_still_starting_are_not_lost(sweep: Sweep) -> None:
    run = sweep.start()
    up: Any = sweep.nodes(run).project.up
    up.returncode, sweep.api.rows = None, [container("node", 1)]
    state = run.wait(0.05)
    assert (state.error, state.running) == (None, 1)


def test_dead_engine_ends_the_run(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.api.error, sweep.fake.alive = ConnectionError("no socket"), False
    state = run.wait(5)
    assert state.error == "the Docker engine stopped responding (ConnectionError)"
    assert not state.nodes_lost
    run.stop()
    assert sweep.nodes(run).deleted


def test_slow_answer_of_the_engine(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sweep.start()
    sweep.api.error = TimeoutError()
    assert run.wait(0.05).running == 1
    monkeypatch.setattr(project, "UNRESPONSIVE_S", -1.0)
    assert "stopped responding (TimeoutError)" in str(run.wait(0.05).error)


# The end of a run


def test_stop_cancels_a_run_in_progress(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_S", 60.0)
    run = sweep.start()
    cancel = sweep.live(run) / CANCEL

    def sleep(seconds: float) -> None:
        if cancel.exists():  # the coordinator sees it
            sweep.finish(run, 1)

    monkeypatch.setattr(time, "sleep", sleep)
    run.stop()
    run.stop()
    assert cancel.exists()
    assert not sweep.nodes(run).deleted


def test_containers_that_do_not_end_a_run_are_removed(sweep: Sweep) -> None:
    run = sweep.start()
    run.stop()
    assert sweep.nodes(run).deleted
    assert not sweep.nodes(run).directory.exists()


def test_ended_run_is_not_cancelled(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.finish(run)
    run.wait(5)
    run.stop()
    assert not (sweep.live(run) / CANCEL).exists()


def test_logs_are_those_of_the_run(sweep: Sweep) -> None:
    run = sweep.start(nodes=3)
    sweep.assign_ranks(run, "ddp", 3, 1)
    begin, end = log_marks(run._paths.directory.name)
    before = "\n".join([*log_marks("another"), ""])
    sweep.api.output = {
        "coordinator-1": f"{before}{begin}\nok\n{end}\nlater\n",
        "node-1": f"{before}{begin}\nat 1\n{end}\n",
        "node-3": f"{begin}\nearlier attempt\n{end}\n{begin}\nat 3\n{end}\n",
        "node-2": f"{before}",
    }
    sweep.finish(run, node_1=0, node_3=0)
    run.stop()
    logs = {path.name: path.read_text() for path in run._paths.directory.glob("*.log")}
    assert logs == {
        "compose.log": "",
        "coordinator.log": "ok\n",
        "node-0.log": "at 1\n",
        "node-1.log": "at 3\n",
    }
    assert all(asked["since"] <= time.time() for asked in sweep.api.asked)


def test_logs_without_an_end_are_saved(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    begin, _ = log_marks(run._paths.directory.name)
    sweep.api.output = {"node-1": f"{begin}\nkilled here\n"}
    ends(sweep, 137)
    sweep.finish(run, 1)
    run.wait(5)
    run.stop()
    assert run._paths.log("node-0").read_text() == "killed here\n"


def test_collect_moves_the_coordinator_s_files(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    live = sweep.live(run)
    (live / "rank-0.jsonl").write_text(event("start", 0, 5.0, pid=7).to_line() + "\n")
    (live / "usage.jsonl").write_text("{}\n")
    assert [each.rank for each in run.new_events()] == [0]
    sweep.finish(run, node_1=0, node_2=0)
    run.stop()
    run.collect(run._paths)
    assert len(run._paths.events.read_text().splitlines()) == 1
    assert run._paths.usage.exists()
    assert not live.exists()
    assert sweep.nodes(run).directory.exists()


def test_replaced_parent_is_known_after_collect(sweep: Sweep) -> None:
    run = sweep.start()
    sweep.assign_ranks(run, "ddp", 1, 2)
    path = sweep.live(run) / "assignment.json"
    agents = json.loads(path.read_text())
    agents[1]["replaced"] = "it grew"
    path.write_text(json.dumps(agents))
    assert run.replaced is None
    run.collect(run._paths)
    assert run.replaced == "it grew"


# The containers of several runs


def end(sweep: Sweep, run: WarmRun) -> WarmContainers:
    """Let the run succeed."""
    sweep.finish(run)
    run.wait(5)
    run.stop()
    run.collect(run._paths)
    return sweep.nodes(run)


def expect(sweep: Sweep, *runs: dict[str, Any]) -> None:
    specs = [RunSpec.model_validate({**FIELDS["ddp"], **fields}) for fields in runs]
    sweep.clusters.expect(specs)


def test_runs_of_one_kind_use_the_same_containers(sweep: Sweep) -> None:
    first = end(sweep, sweep.start(seed=1))
    second = sweep.start(seed=2, lr=0.5)
    assert sweep.nodes(second) is first
    assert len(sweep.ups) == 1
    assert sweep.replaced is None
    assert (first.directory / NEXT).read_text() == second._paths.directory.name


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 0.5},
        {"memory_mb": 512},
        {"pids": 100},
        {"shm_mb": 64},
        {"node_speed": {-1: 0.5}},
        {"topology": "rpc"},
        {"topology": "single"},
    ],
    ids=str,
)
def test_runs_of_another_kind_use_containers_of_their_own(sweep: Sweep, fields: dict[str, Any]) -> None:
    first = end(sweep, sweep.start())
    second = end(sweep, sweep.start(**fields))
    assert first.compose.project != second.compose.project
    assert first.directory != second.directory
    assert not first.deleted
    sweep.api.rows = running("ddp", 2)
    assert sweep.nodes(sweep.start(seed=3)) is first
    assert len(sweep.ups) == 2


def test_limits_of_topology_single_depend_on_the_number_of_nodes(sweep: Sweep) -> None:
    two, three = (end(sweep, sweep.start("single", nodes)) for nodes in (2, 3))
    assert two.compose.project != three.compose.project


def test_slower_node_is_the_same_in_runs_of_one_size(sweep: Sweep) -> None:
    expect(sweep, {"nodes": 3, "node_speed": {-1: 0.5}}, {"nodes": 2, "node_speed": {-1: 0.5}})
    two, three = (end(sweep, sweep.start(nodes=nodes, node_speed={-1: 0.5})) for nodes in (2, 3))
    assert (two.compose.scale, three.compose.scale) == (2, 3)
    run = sweep.start(nodes=3, seed=9, node_speed={-1: 0.5})
    write_ready(run._record.directory, 0, 1, 2)
    assert run.wait(0.05).error is None
    run.wait(0.05)
    updates = [command[3:] for command in sweep.fake.commands if command[3] == "update"]
    assert updates == [
        ["update", "--cpus", "1", "node-1", "node-2"],
        ["update", "--cpus", "0.5", "node-3"],
    ]


def test_containers_are_as_many_as_the_largest_expected_run_needs(sweep: Sweep) -> None:
    expect(sweep, {"nodes": 2}, {"nodes": 5}, {"nodes": 3}, {"nodes": 7, "memory_mb": 512})
    plan = sweep.plan(nodes=2)
    assert "node=5" in plan.cluster.processes[0].argv
    nodes = end(sweep, sweep.start(nodes=2))
    assert nodes.compose.scale == 5
    assert sweep.nodes(sweep.start(nodes=5)) is nodes


def test_runs_that_start_cold_need_no_warm_containers(sweep: Sweep) -> None:
    expect(sweep, {"nodes": 2}, {"nodes": 5, "restarts": 1})
    assert end(sweep, sweep.start(nodes=2)).compose.scale == 2


def test_failed_containers_are_replaced_with_the_reason(sweep: Sweep) -> None:
    first = end(sweep, sweep.start())
    ends(sweep, 137)
    second = sweep.start(seed=2)
    assert first.deleted
    assert sweep.nodes(second) is not first
    assert "SIGKILL" in str(sweep.replaced)


def test_containers_that_had_no_run_for_a_while_are_replaced_without_a_reason(sweep: Sweep) -> None:
    first = end(sweep, sweep.start())
    sweep.api.rows = [ended("node", 1), ended("node", 2), ended("coordinator")]
    second = sweep.start(seed=2)
    assert first.deleted
    assert sweep.nodes(second) is not first
    assert sweep.replaced is None


def test_close_removes_all_containers_and_directories(sweep: Sweep) -> None:
    found = [end(sweep, sweep.start(memory_mb=memory_mb)) for memory_mb in (512, 1024)]
    warm = found[0].directory.parent
    assert warm == sweep.paths.run("any").warm
    sweep.close()
    sweep.close()
    assert all(nodes.deleted for nodes in found)
    assert not warm.exists()
    downs = [command for command in sweep.fake.commands if "down" in command]
    assert {command[command.index("-p") + 1] for command in downs} == {*sweep.ups}
    assert len(downs) == 2


def test_directory_of_earlier_containers_is_emptied(sweep: Sweep) -> None:
    plan = sweep.plan()
    directory = Path(plan.cluster.processes[0].environment["SHARDYARD_RESULTS"])
    (directory / "old").mkdir(parents=True)
    (directory / NEXT).write_text("old")
    run = sweep.start()
    assert sweep.nodes(run).directory.resolve() == directory
    assert {path.name for path in directory.iterdir()} == {run._paths.directory.name, NEXT, module.SPEC}


@pytest.mark.parametrize("fields", [{"checkpoint_steps": 10}, {"restarts": 1}], ids=str)
def test_checkpoints_and_restarts_start_cold(sweep: Sweep, fields: dict[str, Any]) -> None:
    plan = sweep.plan(**fields)
    assert not plan.warm
    assert plan.cluster.processes[0].environment["SHARDYARD_WARM"] == ""
    with sweep.clusters.lease(plan) as lease:
        assert isinstance(lease.cluster, OneRunContainers)


def test_cold_runtime_starts_cold(sweep: Sweep) -> None:
    assert sweep.plan().warm
    sweep.use(DockerRuntime(cold=True))
    assert not sweep.plan().warm
