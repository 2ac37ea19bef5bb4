"""Mistakes in warm containers: who shares them, when they are lost, how runs end, whose logs are kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtimes.docker import live as live_module
from orchestrator.runtimes.docker import project, warm
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.unit.cluster_support import FIELDS
from tests.unit.docker_support import FAST, LINKED, FakeSweep, assign_ranks, live, write_events
from tests.unit.docker_support import sweep as sweep  # a fixture
from trainer.node.hand_over import ALIVE, CANCEL, NEXT, log_marks
from trainer.spec.run_spec import RunSpec

HALF = {"node_speed": {-1: 0.5}}
SOURCE = {"code": "1", "folder": "a", "module": "mine.py", "attribute": "flip"}
OWN = {"augmentation": {"name": "mine.py:flip", "imported": SOURCE}}
CUT_OFF = "the warm container node 1 was cut off"
INVALID = "node 1 sent invalid data: kind"


def test_run_is_handed_over_with_its_spec_in_an_empty_directory(sweep: FakeSweep) -> None:
    directory = Path(sweep.plan().cluster.processes[0].environment["SHARDYARD_RESULTS"])
    (directory / "old").mkdir(parents=True)
    run = sweep.start()
    assert {path.name for path in directory.iterdir()} == {live(run).name, NEXT, warm.SPEC}
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    assert (directory / NEXT).read_text() == live(run).name
    assert json.loads((live(run) / "spec.json").read_text())["nodes"] == 2
    state = run.wait(0)
    assert (state.exits, state.running, state.error) == ({}, 1, None)
    (up,) = sweep.ups
    assert (up.environment["SHARDYARD_WARM"], up.environment["SHARDYARD_RESULTS"]) == ("1", str(directory))


def test_exits_of_a_failed_run_are_named_by_rank_and_its_containers_stay(sweep: FakeSweep) -> None:
    run = sweep.start("rpc", 3)
    assign_ranks(run, "rpc", 5, 2)
    state = sweep.finish(run, 1, {"master": 0, "node-2": 0, "node-5": 1})
    assert state.exits == {"node 0": 0, "node 1": 0, "node 2": 1, "coordinator": 1}
    assert (state.running, state.error, state.nodes_lost) == (0, None, False)
    run.stop()
    assert not run._nodes.deleted
    assert not (live(run) / CANCEL).exists()
    following = sweep.start("rpc", 3, seed=1)
    sweep.show()  # a run that has succeeded does not need its containers
    assert sweep.finish(following).error is None


@pytest.mark.parametrize(
    ("assigned", "ending", "error", "lost", "deleted"),
    [
        (True, {"failures": {"node-4": "SIGTERM", "node-7": "memory"}}, "node 1: memory", False, False),
        (True, {"unreported": {"node-7": "killed", "node-9": "later"}}, "node 1: killed", False, False),
        (True, {"cut_off": CUT_OFF}, CUT_OFF, True, True),
        (False, {"cut_off": CUT_OFF}, CUT_OFF, False, True),  # other new ones would be as slow
        # The agent starts another parent.
        (True, {"lost": "of node-4 died"}, "the process of warm nodes of node-4 died", True, False),
        (True, {"untrusted": INVALID}, None, False, False),  # an event names it: the run's own code did it
        (False, {"untrusted": INVALID}, INVALID, True, False),  # of an earlier run
        (False, {}, "node 1 did not register", False, False),
    ],
)
def test_error_of_a_failed_run_and_whether_others_can_use_its_containers(
    sweep: FakeSweep, assigned: bool, ending: dict[str, Any], error: str | None, lost: bool, deleted: bool
) -> None:
    run = sweep.start()
    (live(run) / "summary.txt").write_text("FAILED: node 1 did not register\n")
    if assigned:
        assign_ranks(run, "ddp", 4, 7)
        write_events(live(run), "start", 0, pid=7)  # so that its own events say why it fails
    state = sweep.finish(run, 1, **ending)
    assert (state.error, state.nodes_lost) == (error, lost)
    run.stop()
    assert run._nodes.deleted is deleted
    following = sweep.start(seed=1)
    assert (following._nodes is run._nodes) is not (deleted or "untrusted" in ending)
    assert sweep.replaced == ending.get("untrusted")


@pytest.mark.parametrize("reported", [False, True], ids=["silent", "reported"])
def test_failed_container_is_a_loss_of_nodes(sweep: FakeSweep, reported: bool) -> None:
    """Also if the coordinator has found out first."""
    sweep.codes = {"node-1": 137, "master-1": 3}
    losses = [
        ("exited", "node-1", "node 1 was killed by SIGKILL"),
        ("exited", "master-1", "node 0 ended with exit code 3"),
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
        assert run._nodes.deleted


def test_a_run_goes_on_without_a_spare_node_and_the_next_one_gets_new_containers(sweep: FakeSweep) -> None:
    sweep.clusters.expect([sweep.plan(nodes=3).spec, (run := sweep.start(nodes=2))._spec])
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
    monkeypatch.setattr(warm, "LOSS_S", 5.0)
    monkeypatch.setattr(warm.time, "sleep", lambda _: sweep.show("coordinator-1", exited=["node-1"]))
    state = sweep.finish(run, 1, {"node-2": 1}, failures={"node-1": "disconnected from the coordinator"})
    assert (state.error, state.nodes_lost) == ("the warm container node 0 was killed by SIGKILL", True)


def test_coordinator_without_a_heartbeat_is_a_loss_of_nodes(
    sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In new containers once it has had one; in others, also if it does not take the run."""
    monkeypatch.setattr(live_module, "COORDINATOR_STUCK_S", -1.0)
    run = sweep.start()
    assert run.wait(0).error is None
    (live(run) / ALIVE).touch()
    assert run.wait(5).nodes_lost
    sweep.succeed(run)
    sweep.ended(seed=1)
    following = sweep.start(seed=2)
    state = following.wait(5)
    assert state.nodes_lost
    assert "the warm container coordinator is stuck" in str(state.error)
    assert sweep.finish(following, 1, cut_off=CUT_OFF).nodes_lost, "an earlier run has had them"


def test_compose_failure_is_no_loss_and_known_after_its_run_was_removed(sweep: FakeSweep) -> None:
    """New containers would fail, too. A dropped run may have started those of the next one."""
    run = sweep.hand_over()
    sweep.show("node-1")
    assert run.wait(0.02).error is None, "compose still starts the others"
    run._nodes.project.up.returncode = 17
    run._paths.log("compose").write_text("Error: no space left\n")
    state = run.wait(5)
    assert (state.error, state.nodes_lost) == ("docker compose failed: Error: no space left", False)
    shutil.rmtree(run._paths.directory)
    assert run._nodes.defect() == "docker compose failed: Error: no space left"


def test_dead_engine_ends_the_run_and_a_slow_answer_does_not(
    sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sweep.start()
    sweep.error = TimeoutError()
    assert run.wait(0.02).running == 1
    monkeypatch.setattr(project, "UNRESPONSIVE_S", -1.0)
    assert "stopped responding (TimeoutError)" in str(run.wait(0.02).error)
    sweep.alive = False
    run.stop()
    assert run._nodes.deleted


def test_stop_cancels_a_run_in_progress(sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sweep.start()
    cancel = live(run) / CANCEL  # the coordinator sees it
    monkeypatch.setattr(warm, "CANCEL_S", 60.0)
    monkeypatch.setattr(warm.time, "sleep", lambda _: cancel.exists() and sweep.finish(run, 1))
    for _ in range(2):
        run.stop()
    assert not run._nodes.deleted


def test_containers_that_do_not_end_a_run_are_removed_with_their_directory(sweep: FakeSweep) -> None:
    run = sweep.start()
    for _ in range(2):
        run.stop()
        sweep.close()
    assert len(sweep.asked("down")) == 1
    assert not run._nodes.directory.parent.exists()


def test_logs_are_those_of_the_last_attempt_of_the_run(sweep: FakeSweep) -> None:
    run = sweep.start(nodes=3)
    assign_ranks(run, "ddp", 3, 1)
    (begin, end), before = log_marks(live(run).name), "\n".join([*log_marks("another"), ""])
    sweep.output = {
        "coordinator-1": f"{before}{begin}\nok\n{end}\nlater\n",
        "node-1": f"{begin}\nkilled here\n",
        "node-3": f"{begin}\nearlier attempt\n{end}\n{before}{begin}\nat 3\n{end}\n",
        "node-2": before,
    }
    sweep.finish(run)
    run.stop()
    logs = {path.name: path.read_text() for path in run._paths.directory.glob("*.log")}
    assert logs.pop("compose.log") == ""
    assert logs == {"coordinator.log": "ok\n", "node-0.log": "killed here\n", "node-1.log": "at 3\n"}


def test_collect_takes_the_files_of_the_run_alone(sweep: FakeSweep) -> None:
    run = sweep.start()
    assign_ranks(run, "ddp", 1, 2)
    for rank in (0, 1):
        write_events(live(run), "start", rank, time=5.0 - rank, pid=7)
    (live(run) / "usage.jsonl").write_text("{}\n")
    path = live(run) / "assignment.json"
    path.write_text(path.read_text().replace('"replaced": null', '"replaced": "it grew"'))
    assert [each.rank for each in run.new_events()] == [1, 0], "in order of time"
    nodes = sweep.succeed(run)
    assert [json.loads(line)["rank"] for line in run._paths.events.read_text().splitlines()] == [1, 0]
    assert run.replaced == "it grew"
    assert (run._paths.usage.exists(), run._paths.weights.exists()) == (True, False)
    assert not live(run).exists()
    assert nodes.directory.exists()


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
    assert (second._nodes is first, len(sweep.ups), sweep.replaced) == (True, 9, None)
    assert (first.directory / NEXT).read_text() == live(second).name


def test_containers_are_as_many_as_the_largest_expected_run_of_their_kind_needs(sweep: FakeSweep) -> None:
    fields = {"nodes": 2}, {"nodes": 5}, {"nodes": 7, "memory_mb": 1024}, {"nodes": 6, "restarts": 1}
    halves = {"nodes": 3, **HALF}, {"nodes": 2, **HALF}
    expected = [RunSpec.model_validate({**FIELDS["ddp"], **each}) for each in (*fields, *halves)]
    sweep.clusters.expect(expected)
    nodes = sweep.ended(nodes=2)
    assert (nodes.compose.scale, sweep.start(nodes=5)._nodes is nodes) == (5, True)
    # The last node is the slow one, so that another number of nodes is another kind.
    assert sweep.ended(nodes=2, **HALF).compose.scale == 2
    run = sweep.start(nodes=3, **HALF)
    assert run._nodes.compose.scale == 3
    write_events(live(run), "ready", 0, 1, 2)
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
    assert sweep.start(seed=3)._nodes is not second
    assert (second.deleted, sweep.replaced) == (True, None)


def test_each_run_gets_its_own_links_in_containers_of_runs_with_links(sweep: FakeSweep) -> None:
    first = sweep.start(link=FAST)
    sweep.show(*LINKED)
    first._nodes.project.start_s = 2.5
    assert (first.wait(0).error, first._nodes.engine_start_s) == (None, 2.5)
    nodes = sweep.succeed(first)
    second = sweep.hand_over(link={"bandwidth_mbit": 10})
    assert (second.wait(0).error, nodes.engine_start_s) == (None, 0.0)
    assert [each.link.default.bandwidth_mbit for each in sweep.setups] == [100, 10]
    assert len(sweep.plugs) == 2, "the nodes are connected once"
    sweep.succeed(second)
    sweep.answer.returncode, sweep.answer.stderr = 1, "no answer"
    state = sweep.hand_over(link=FAST).wait(0)
    assert (state.error, state.nodes_lost) == ("links were not applied: no answer", True)
    assert sweep.hand_over()._nodes is not nodes


def test_a_lost_switch_is_a_loss_of_nodes(sweep: FakeSweep) -> None:
    run = sweep.start(link=FAST)  # without its switch
    state = run.wait(0)
    assert (state.error, state.nodes_lost) == ("a warm container was removed", True)


def test_what_warm_containers_cannot_do_starts_cold(sweep: FakeSweep) -> None:
    assert sweep.plan(memory_mb=512).warm
    for fields in ({"checkpoint_steps": 10}, {"restarts": 1}, {"memory_mb": 511}, {"transport": "nccl"}):
        plan = sweep.plan(**fields)
        assert not plan.warm, fields
        assert plan.cluster.processes[0].environment["SHARDYARD_WARM"] == "", fields
    sweep.clusters.runtime = DockerRuntime(cold=True)
    assert not sweep.plan().warm
