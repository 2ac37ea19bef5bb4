"""Mistakes in runs in containers: who shares them, when they are lost, causes, quotas, links, files."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtimes import led
from orchestrator.runtimes.docker import cluster, project
from orchestrator.runtimes.docker.compose import SPEC
from orchestrator.runtimes.docker.project import Project
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.unit.cluster_support import FIELDS
from tests.unit.conftest import FakeTime
from tests.unit.docker_support import (
    FAST,
    LINKED,
    FakeSweep,
    answers,
    assign_ranks,
    containers,
    requests,
    write_events,
)
from tests.unit.docker_support import cold as cold  # fixtures
from tests.unit.docker_support import either as either
from tests.unit.docker_support import sweep as sweep
from trainer.node import heartbeat
from trainer.node.channel import ANSWERS, REQUESTS, log_marks
from trainer.spec.run_spec import RunSpec

HALF = {"node_speed": {-1: 0.5}}
SOURCE = {"code": "1", "folder": "a", "module": "mine.py", "attribute": "flip"}
OWN = {"augmentation": {"name": "mine.py:flip", "imported": SOURCE}}
CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
MEMORY, MISSING = "node 1: memory", "node 1 did not register"
CUT_OFF = "the warm container node 1 was cut off"
INVALID = "node 1 sent invalid data: kind"


def test_run_is_handed_over_with_its_spec_in_an_empty_directory(either: FakeSweep) -> None:
    started = either.plan().cluster.processes[0]
    directory = Path(started.environment["SHARDYARD_RESULTS"])
    (directory / "old").mkdir(parents=True)
    run = either.hand_over()
    assert {path.name for path in directory.iterdir()} == {run.directory.name, REQUESTS, ANSWERS, SPEC}
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    (request,) = requests(run)
    assert (request.kind, request.directory, request.warm) == ("run", run.directory.name, not either.cold)
    assert json.loads((run.directory / "spec.json").read_text())["nodes"] == 2
    (up,) = either.ups
    assert up.argv == ["docker", "--host", "unix:///x.sock", *containers(run).compose.up]
    assert up.environment["SHARDYARD_RESULTS"] == str(directory)
    assert up.environment["SHARDYARD_WARM"] == ("" if either.cold else "1")
    for _ in range(2):  # compose starts them, then they run
        state = run.wait(0)
        assert (state.exits, state.running, state.error) == ({}, 1, None)
        up.returncode = 0
        either.show("data-1", "node-1", "node-2", "coordinator-1")
    assert either.filters == {"label": f"com.docker.compose.project={containers(run).compose.project}"}


@pytest.mark.parametrize(
    ("topology", "ordinals", "fields", "names"),
    [
        ("ddp", (10, 2, 5), {}, {"node-10": "node 2", "node-2": "node 0", "node-5": "node 1"}),
        ("ddp", (1, 7), {"processes_per_node": 2}, {"node-7": "node 1", "node-1": "node 0"}),
        ("mpi", (1, 4), {}, {"launcher": "launcher", "node-4": "node 1", "mpirun": "mpirun"}),
        ("rpc", (1, 4), {}, {"master": "node 0", "node-1": "node 1", "node-4": "node 2"}),
        ("single", (1,), {}, {"node-1": "node 0"}),
    ],
)
def test_exits_are_named_by_rank(
    either: FakeSweep, topology: str, ordinals: tuple[int, ...], fields: Any, names: dict[str, str]
) -> None:
    run = either.start(topology, len(ordinals) + (topology == "rpc"), **fields)
    assign_ranks(run, topology, *ordinals, **fields)
    write_events(run.directory, "start", *range(run.spec.world_size), pid=7)
    codes = dict(zip(names, (3, -9, 1), strict=False))
    state = either.finish(run, 1, codes)
    assert state.exits == {**{names[name]: code for name, code in codes.items()}, "coordinator": 1}
    assert (state.running, state.error, state.nodes_lost) == (0, None, False)


def test_warm_containers_stay_and_cold_ones_end_with_their_run(either: FakeSweep) -> None:
    run = either.start("rpc", 3)
    assign_ranks(run, "rpc", 1, 2)
    assert either.finish(run, 1).error is None
    run.stop()
    assert containers(run).deleted is either.cold
    assert [each.kind for each in requests(run)] == ([] if either.cold else ["run"]), "nothing to cancel"
    following = either.start("rpc", 3, seed=1)
    assert (containers(following) is containers(run)) is not either.cold
    answers(following, "ended", run=7, ending={"exits": {"coordinator": 1}})  # of another run
    assert following.wait(0).running == 1
    either.show()  # a run that has succeeded does not need its containers
    assert either.finish(following).error is None


@pytest.mark.parametrize(
    ("assigned", "ending", "cold", "warm", "lost", "deleted"),
    [
        (True, {"failures": {"node-4": "SIGTERM", "node-7": "memory"}}, MEMORY, MEMORY, False, False),
        (True, {"unreported": {"node-7": "memory", "node-9": "later"}}, MEMORY, MEMORY, False, False),
        (True, {"cut_off": "node 1 was cut off"}, None, CUT_OFF, True, True),
        # Other new ones would be as slow.
        (False, {"cut_off": "node 1 was cut off"}, MISSING, CUT_OFF, False, True),
        # The agent starts another parent.
        (True, {"lost": "of node-4 died"}, None, "the process of warm nodes of node-4 died", True, False),
        (
            True,
            {"untrusted": INVALID},
            None,
            None,
            False,
            False,
        ),  # an event names it: the run's code did it
        (False, {"untrusted": INVALID}, MISSING, INVALID, True, False),  # of an earlier run
        (False, {}, MISSING, MISSING, False, False),
    ],
)
def test_error_of_a_failed_run_and_whether_others_can_use_its_containers(
    either: FakeSweep,
    assigned: bool,
    ending: dict[str, Any],
    cold: str | None,
    warm: str | None,
    lost: bool,
    deleted: bool,
) -> None:
    run = either.start()
    (run.directory / "summary.txt").write_text(f"FAILED: {MISSING}\n")
    if assigned:
        assign_ranks(run, "ddp", 4, 7)
        write_events(run.directory, "start", 0, pid=7)  # so that its own events say why it fails
    state = either.finish(run, 1, **ending)
    assert (state.error, state.nodes_lost) == ((cold, False) if either.cold else (warm, lost))
    run.stop()
    assert containers(run).deleted is (deleted or either.cold)
    shared = not (deleted or either.cold or "untrusted" in ending)
    assert (containers(either.start(seed=1)) is containers(run)) is shared
    assert either.replaced == (None if either.cold else ending.get("untrusted"))


def test_coordinator_that_misses_an_agent_is_not_the_cause_if_that_was_killed(cold: FakeSweep) -> None:
    run = cold.start()
    cold.show("node-2", "coordinator-1", exited=["node-1"])
    cold.codes = {"node-1": 1, "node-2": 137}
    assert "before it assigned ranks" in str(cold.finish(run, 1).error)
    (run.directory / "summary.txt").write_text(f"FAILED: {MISSING}\n")
    assert cold.finish(run, 1).error == MISSING
    cold.show("coordinator-1", exited=["node-1", "node-2"])
    error = "node 1 was killed by SIGKILL together with its container, before it registered"
    assert cold.finish(run, 1).error == error


# Containers, engine and coordinator that fail


@pytest.mark.parametrize("reported", [False, True], ids=["silent", "reported"])
def test_failed_container_is_a_loss_of_nodes(sweep: FakeSweep, reported: bool) -> None:
    """Also if the coordinator has found out first."""
    sweep.codes = {"node-1": 137, "master-1": 128}
    losses = [
        ("exited", "node-1", "node 1 was killed by SIGKILL"),
        ("exited", "master-1", "node 0 ended with exit code 128"),
        ("unhealthy", "node-1", "node 1 is stuck: its health check fails"),
        ("removed", "node-2", "a warm container was removed"),
    ]
    for seed, (failure, name, expected) in enumerate(losses):
        run = sweep.start("rpc", 3, seed=seed)
        assign_ranks(run, "rpc", 1, 2)
        others = [row["Id"] for row in sweep.rows if row["Id"] != name]
        sweep.show(*others, **({} if failure == "removed" else {failure: [name]}))
        state = sweep.finish(run, 1) if reported else run.wait(5)
        assert (state.nodes_lost, state.running) == (True, 0)
        assert expected in str(state.error)
        run.stop()
        assert containers(run).deleted


def test_of_cold_containers_the_coordinator_alone_notices_the_end(cold: FakeSweep) -> None:
    """But not its own, and not that of a switch."""
    run = cold.start(link=FAST)
    cold.codes = {"node-1": 137, "coordinator-1": 1}
    cold.show("node-2", "coordinator-1", "switch-1", exited=["node-1"])
    assert run.wait(0).error is None
    for ended, error in (
        ("coordinator-1", "coordinator ended with exit code 1"),
        ("switch-1", "the switch of the run's links has ended; switch.log may say why"),
    ):
        cold.show(*[name for name in LINKED if name != ended], exited=[ended])
        state = run.wait(0)
        assert (state.error, state.nodes_lost) == (error, False)


def test_node_is_stuck_while_its_health_checks_fail(
    either: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = either.start()
    assign_ranks(run, "ddp", 1, 2)
    answers(run, "alive")
    either.show("node-1", "coordinator-1", unhealthy=["node-2"])
    either.failing_streak = 1  # it was paused, and goes on
    assert run.wait(0).error is None
    either.failing_streak = 2
    assert run.wait(5).error == f"{either.noun}node 1 is stuck: its health check fails"
    monkeypatch.setattr(led.time, "sleep", None)  # no coordinator has to end a run whose nodes are lost
    run.stop()


def test_a_run_goes_on_without_a_spare_node_and_the_next_one_gets_new_containers(sweep: FakeSweep) -> None:
    sweep.clusters.expect([sweep.plan(nodes=3).spec, sweep.start(nodes=2).spec])
    sweep.codes = {"node-3": 1}
    for number, failure in enumerate(({"exited": ["node-3"]}, {"unhealthy": ["node-3"]}, {})):
        run = sweep.start(nodes=2, seed=number + 1)
        assign_ranks(run, "ddp", 1, 2)
        sweep.show("node-1", "node-2", "coordinator-1", **failure)
        assert (run.wait(0).error, run.wait(0).running) == (None, 1)
        sweep.succeed(run)
    sweep.start(seed=9)
    assert sweep.replaced == "a warm container was removed"


def test_container_that_the_engine_calls_running_for_a_moment_is_a_loss_of_nodes(
    sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent has disconnected, and the coordinator has ended the run."""
    run = sweep.start()
    assign_ranks(run, "ddp", 1, 2)
    sweep.codes = {"node-1": 137}
    monkeypatch.setattr(cluster, "LOSS_S", 5.0)
    monkeypatch.setattr(cluster.time, "sleep", lambda _: sweep.show("coordinator-1", exited=["node-1"]))
    state = sweep.finish(run, 1, {"node-2": 1}, failures={"node-1": "disconnected from the coordinator"})
    assert (state.error, state.nodes_lost) == ("the warm container node 0 was killed by SIGKILL", True)


def test_lost_nodes_do_not_fail_a_continuing_run(sweep: FakeSweep) -> None:
    """The coordinator knows whether the others continue."""
    run = sweep.start(nodes=3, **CONTINUES)
    assign_ranks(run, "ddp", 1, 2, 3, **CONTINUES)
    sweep.codes = {"node-2": 137}
    # The agent of a node whose health check fails is silent before that.
    lost = {"unhealthy": ["node-1"], "exited": ["node-2"]}
    sweep.show("node-3", "coordinator-1", **lost)
    state = run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 1, None)
    sweep.show("node-3", **lost)  # the coordinator was not started
    assert run.wait(0).error == "node 0 is stuck: its health check fails"


def test_coordinator_without_a_heartbeat_is_stuck(
    either: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In new containers once it has had one; in others, also if it does not take the run."""
    clock = FakeTime()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock))

    def error(seconds: int) -> str | None:
        for _ in range(seconds):
            clock.pass_(1)
            state = run.wait(0)
        assert state.nodes_lost is (bool(state.error) and not either.cold)
        return state.error

    stuck = f"{either.noun or 'the '}coordinator is stuck: no heartbeat for 20 s"
    run = either.start(**(CONTINUES if either.cold else {}))
    assert error(30) is None, "it may still start"
    for _ in range(2):
        answers(run, "alive")
        run.wait(0)
        assert error(20) is None
    assert error(1) == stuck
    if not either.cold:
        either.ended(seed=1)
        run = either.start(seed=2)
        assert error(21) == stuck
        assert either.finish(run, 1, cut_off="it was").nodes_lost, "an earlier run has had them"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'{"kind": "lost", "reason": "no space"}\n', "coordinator has ended: no space"),
        (b"junk\n", "coordinator sent invalid data: answer"),
    ],
)
def test_coordinator_that_says_so_or_sends_junk_has_failed(
    either: FakeSweep, answer: bytes, error: str
) -> None:
    run = either.start()
    (containers(run).directory / ANSWERS).write_bytes(answer)
    state = run.wait(5)
    assert error in str(state.error)
    assert state.nodes_lost is not either.cold
    run.stop()
    assert containers(run).deleted


def test_suspended_processes_are_those_that_the_coordinator_has_named_last(either: FakeSweep) -> None:
    run = either.start()
    for suspended in ({"0": 7, "mpirun": 8}, {"1": 9}, {}):
        answers(run, "suspended", suspended=suspended)
        run.wait(0)
        expected = {int(name) if name != "mpirun" else name: pid for name, pid in suspended.items()}
        assert run.suspended() == expected


def test_a_run_waits_as_long_as_the_coordinator_says_so(either: FakeSweep) -> None:
    run = either.start()
    for reason in ("2 machines", None):
        answers(run, "waiting", reason=reason)
        answers(run, "alive")
        assert run.wait(0).waiting is bool(reason)


def test_compose_failure_is_no_loss_and_known_after_its_run_was_removed(either: FakeSweep) -> None:
    """New containers would fail, too. A dropped run may have started those of the next one."""
    errors = {"a\n\nno space\n": "no space", "": "exit code 17", "x" * 999: "x" * 300}
    for seed, (output, error) in enumerate(errors.items()):
        run = either.hand_over(memory_mb=512 + seed)
        either.show("node-1")
        assert run.wait(0.02).error is None, "compose still starts the others"
        containers(run).project.up.returncode = 17
        run.paths.log("compose").write_text(output)
        state = run.wait(5)
        assert (state.error, state.nodes_lost) == (f"docker compose failed: {error}", False)
        shutil.rmtree(run.paths.directory)
        assert containers(run).defect() == f"docker compose failed: {error}"
        run.paths.directory.mkdir()


def test_dead_engine_ends_the_run_and_a_slow_answer_does_not(
    either: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = either.start()
    either.error = TimeoutError()
    assert run.wait(0.02).running == 1
    monkeypatch.setattr(project, "UNRESPONSIVE_S", -1.0)
    assert "stopped responding (TimeoutError)" in str(run.wait(0.02).error)
    monkeypatch.setattr(project, "remove_project", either.containers)  # it fails, too
    with pytest.raises(TimeoutError):
        containers(run).delete()
    either.alive = False
    run.stop()
    assert containers(run).deleted


# Stop and collect


def test_stop_cancels_a_run_in_progress(either: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = either.start()
    answers(run, "alive")
    run.wait(0)
    kinds: list[str] = []

    def end(_: float) -> None:
        kinds[:] = [each.kind for each in requests(run)]
        if "cancel" in kinds:
            answers(run, "ended", ending={"exits": {"coordinator": 1}})

    monkeypatch.setattr(led, "CANCEL_S", 60.0)
    monkeypatch.setattr(led.time, "sleep", end)
    for _ in range(2):
        run.stop()
    assert kinds == ["run", "cancel"]
    assert containers(run).deleted is either.cold


def test_a_coordinator_that_still_starts_is_not_waited_for(
    either: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led, "CANCEL_S", 60.0)
    run = either.start()
    for _ in range(2):
        run.stop()
        either.close()
    assert len(either.asked("down")) == 1
    assert either.removed == [containers(run).compose.project] * 2  # leftovers before the start; and now
    assert not containers(run).directory.parent.exists()


def test_compose_is_ended_after_ctrl_c_has_interrupted_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt inside Popen.poll() can leave the lock taken under which a child is reaped."""
    monkeypatch.setattr(project, "TERMINATE_S", 0.1)
    process: Any = subprocess.Popen(["sleep", "300"])
    process._waitpid_lock.acquire()
    Project._end_compose(SimpleNamespace(up=process))  # type: ignore[arg-type]
    process._waitpid_lock.release()
    assert process.wait(10) < 0


def logs_of(run: led.LedRun) -> Mapping[str, str]:
    """Those of nodes and others, by name."""
    return {path.stem: path.read_text() for path in run.paths.directory.glob("*.log")}


def test_logs_are_those_of_the_last_attempt_of_the_run(sweep: FakeSweep) -> None:
    run = sweep.start(nodes=3)
    assign_ranks(run, "ddp", 3, 1)
    (begin, end), before = log_marks(run.directory.name), "\n".join([*log_marks("another"), ""])
    sweep.output = {
        "coordinator-1": f"{before}{begin}\nok\n{end}\nlater\n",
        "node-1": f"{begin}\nkilled here\n",
        "node-3": f"{begin}\nearlier attempt\n{end}\n{before}{begin}\nat 3\n{end}\n",
        "node-2": before,
    }
    sweep.finish(run)
    run.stop()
    logs = {"coordinator": "ok\n", "node-0": "killed here\n", "node-1": "at 3\n"}
    assert logs_of(run) == {"compose": "", **logs}


def test_logs_of_cold_containers_are_whole(cold: FakeSweep) -> None:
    run = cold.start()
    assign_ranks(run, "ddp", 10, 2)
    cold.show("node-10", "coordinator-1", "data-1", "switch-1", exited=["node-2"])
    begin, end = log_marks(run.directory.name)
    cold.output = {"coordinator-1": f"{begin}\nok\n{end}\n"}
    cold.finish(run)
    run.stop()
    logs = {"node-0": "log of node-2\n", "node-1": "log of node-10\n", "switch": "log of switch-1\n"}
    logs["coordinator"] = "ok\n"
    assert logs_of(run) == {"compose": "", **logs}


def test_stop_takes_the_files_of_the_run_alone(either: FakeSweep) -> None:
    run = either.start()
    assign_ranks(run, "ddp", 1, 2)
    for rank in (0, 1):
        write_events(run.directory, "start", rank, time=5.0 - rank, pid=7)
    (run.directory / "usage.jsonl").write_text("{}\n")
    path = run.directory / "assignment.json"
    path.write_text(path.read_text().replace('"replaced": null', '"replaced": "it grew"'))
    assert [each.rank for each in run.new_events()] == [1, 0], "in order of time"
    either.finish(run)
    run.stop()
    assert [each.rank for each in run.collect()] == [1, 0]
    assert [json.loads(line)["rank"] for line in run.paths.events.read_text().splitlines()] == [1, 0]
    assert run.replaced == "it grew"
    assert (run.paths.usage.exists(), run.paths.weights.exists()) == (True, False)
    assert not run.directory.exists()
    assert containers(run).directory.exists() is not either.cold


# Quotas and links


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
    cold: FakeSweep, topology: str, fields: dict[str, Any], nodes: list[int], updates: list[str]
) -> None:
    ranks = len(nodes) + (topology == "rpc")
    run = cold.start(topology, ranks, **fields)
    others = {"ddp": "switch-1", "mpi": "launcher-1", "rpc": "master-1"}
    cold.show(*(f"node-{number}" for number in nodes), others[topology], "coordinator-1")
    write_events(run.directory, "ready", *range(1, ranks))
    run.wait(0)
    assert cold.asked("update") == []
    write_events(run.directory, "ready", 0)
    for _ in range(2):
        run.wait(0)
    assert [" ".join(arguments) for arguments in cold.asked("update")] == updates


def test_refused_quota_ends_the_run_unless_its_node_has_ended(cold: FakeSweep) -> None:
    run = cold.start(nodes=3, **HALF)
    cold.answer = SimpleNamespace(returncode=1, stderr="Error response from daemon: no\n")
    write_events(run.directory, "ready", 0, 1, 2)
    cold.show("node-1", "node-3", "coordinator-1", exited=["node-2"])
    assert run.wait(0).error is None
    cold.show("node-1", "node-2", "node-3", "coordinator-1")
    assert run.wait(0).error == "CPU quotas were not applied: Error response from daemon: no"


def test_links_are_set_once_all_containers_run_before_nodes_are_connected(either: FakeSweep) -> None:
    run = either.hand_over("mpi", link=FAST)
    either.show(*LINKED, "launcher-1")  # which is no node
    assert run.wait(0).error is None
    assert either.setups == [], "compose still starts containers"
    containers(run).project.up.returncode = 0
    for _ in range(2):
        assert run.wait(0).error is None
    (setup,) = either.setups
    assert (setup.nodes, setup.addresses) == (2, ["10.0.4.1", "10.0.4.2"])
    assert setup.link.default.bandwidth_mbit == 100
    assert [each.environment["SHARDYARD_NODE"] for each in either.plugs] == ["node-1", "node-2"]
    assert [each.argv[-2:] for each in either.plugs] == [["10.0.4.1", "10.0.4.2"], ["10.0.4.2", "10.0.4.1"]]


def test_links_that_cannot_be_set_fail_the_run(cold: FakeSweep) -> None:
    run = cold.start(link=FAST)
    cold.show(*LINKED)
    cold.plugged = (1, "compose\nlinks: no TUN device\n")
    assert run.wait(0).error == "links were not applied: links: no TUN device"
    cold.answer.returncode, cold.answer.stderr = 1, "links: the switch does not answer"
    assert run.wait(0).error == "links were not applied: links: the switch does not answer"


def test_each_run_gets_its_own_links_in_containers_of_runs_with_links(sweep: FakeSweep) -> None:
    first = sweep.start(link=FAST)
    sweep.show(*LINKED)
    nodes = containers(first)
    nodes.project.start_s = 2.5
    assert (first.wait(0).error, nodes.engine_start_s) == (None, 2.5)
    sweep.succeed(first)
    second = sweep.hand_over(link={"bandwidth_mbit": 10})
    assert (second.wait(0).error, nodes.engine_start_s) == (None, 0.0)
    assert [each.link.default.bandwidth_mbit for each in sweep.setups] == [100, 10]
    assert len(sweep.plugs) == 2, "the nodes are connected once"
    sweep.succeed(second)
    sweep.answer.returncode, sweep.answer.stderr = 1, "no answer"
    state = sweep.hand_over(link=FAST).wait(0)
    assert (state.error, state.nodes_lost) == ("links were not applied: no answer", True)
    assert containers(sweep.hand_over()) is not nodes


def test_a_lost_switch_is_a_loss_of_nodes(sweep: FakeSweep) -> None:
    run = sweep.start(link=FAST)  # without its switch
    state = run.wait(0)
    assert (state.error, state.nodes_lost) == ("a warm container was removed", True)


# The containers of several runs


def test_runs_of_one_kind_share_containers_and_others_have_their_own(sweep: FakeSweep) -> None:
    first = sweep.ended()
    kinds = [{"cpus": 0.5}, {"memory_mb": 512}, {"pids": 100}, {"shm_mb": 64}, OWN]
    kinds += [{"topology": "rpc"}, {"topology": "single"}, {"topology": "single", "nodes": 3}]
    found = [first, *(sweep.ended(**fields) for fields in kinds)]
    for names in ([each.compose.project for each in found], [each.directory for each in found]):
        assert len({*names}) == len(sweep.ups) == 9
    sweep.show("node-1", "node-2", "coordinator-1")
    second = sweep.start(seed=3, lr=0.5)
    assert (containers(second) is first, len(sweep.ups), sweep.replaced) == (True, 9, None)
    assert [each.run for each in requests(second)] == [1, 2]


def test_containers_are_as_many_as_the_largest_expected_run_of_their_kind_needs(sweep: FakeSweep) -> None:
    fields = {"nodes": 2}, {"nodes": 5}, {"nodes": 7, "memory_mb": 1024}, {"nodes": 6, "restarts": 1}
    halves = {"nodes": 3, **HALF}, {"nodes": 2, **HALF}
    expected = [RunSpec.model_validate({**FIELDS["ddp"], **each}) for each in (*fields, *halves)]
    sweep.clusters.expect(expected)
    nodes = sweep.ended(nodes=2)
    assert (nodes.compose.scale, containers(sweep.start(nodes=5)) is nodes) == (5, True)
    # The last node is the slow one, so that another number of nodes is another kind.
    assert sweep.ended(nodes=2, **HALF).compose.scale == 2
    run = sweep.start(nodes=3, **HALF)
    assert containers(run).compose.scale == 3
    write_events(run.directory, "ready", 0, 1, 2)
    for _ in range(2):
        assert run.wait(0.02).error is None
    assert sweep.asked("update") == [["--cpus", "1", "node-1", "node-2"], ["--cpus", "0.5", "node-3"]]


def test_failed_containers_are_replaced_with_the_reason(sweep: FakeSweep) -> None:
    first = sweep.ended()
    sweep.show("node-2", "coordinator-1", exited=["node-1"])
    sweep.codes = {"node-1": 137}
    second = sweep.ended(seed=2)
    assert first.deleted
    assert "SIGKILL" in str(sweep.replaced)
    sweep.show(exited=["node-1", "node-2", "coordinator-1"])  # after an idle time
    assert containers(sweep.start(seed=3)) is not second
    assert (second.deleted, sweep.replaced) == (True, None)


def test_what_warm_containers_cannot_do_starts_cold(sweep: FakeSweep) -> None:
    assert sweep.plan(memory_mb=512).warm
    for fields in ({"checkpoint_steps": 10}, {"restarts": 1}, {"memory_mb": 511}, {"transport": "nccl"}):
        plan = sweep.plan(**fields)
        assert not plan.warm, fields
        assert plan.cluster.processes[0].environment["SHARDYARD_WARM"] == "", fields
    sweep.clusters.runtime = DockerRuntime(cold=True)
    assert not sweep.plan().warm
