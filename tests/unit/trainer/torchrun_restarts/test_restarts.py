"""Runs whose ranks torchrun restarts: processes, outcome and row."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.execution.outcome import cause_of_loss, outcome
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local.processes import processes
from tests.unit import loopback_cluster
from tests.unit.cluster_support import assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster, Script
from tests.unit.orchestrator.execution.test_run_result import part, row, split
from trainer.cluster.commands import commands
from trainer.cluster.run_record import RunRecord
from trainer.core.events import Event, EventReader, EventWriter
from trainer.launch.environment import LaunchError, read_context
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts import __main__ as agent
from trainer.torchrun_restarts.__main__ import ExitReportHandler
from trainer.torchrun_restarts.attempts import Attempts

LOST = "killed together with its container, or disconnected from the coordinator"
AGENT = (sys.executable, "-m", "trainer.torchrun_restarts")
ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, **fields})


# Specs


def test_restarts_need_torchrun() -> None:
    assert spec(restarts=3).restarts == 3
    with pytest.raises(ValidationError, match="type=restarts"):
        spec(transport="mpi", restarts=3)


def test_restarts_exclude_nodes_of_unequal_speed() -> None:
    with pytest.raises(ValidationError, match="type=restarts"):
        spec(restarts=3, nodes=2, node_speed=[1, 0.5])


def test_restarts_are_not_in_the_key() -> None:
    assert spec(restarts=3).key == spec().key


# Processes


def test_local_nodes_are_torchrun_agents(tmp_path: Path) -> None:
    live = tmp_path / "run" / "live"
    made = spec(processes_per_node=2, restarts=4, timeout_s=30)
    started = processes(made, RunPaths(live.parent), tmp_path, live)
    assert [(each.name, each.log) for each in started] == [("node 0", "node-0"), ("node 1", "node-1")]
    for node, each in enumerate(started):
        assert tuple(each.argv[:3]) == AGENT
        assert each.argv[-2:] == ["-m", "trainer"]
        options = {"--nnodes=2", "--nproc-per-node=2", "--max-restarts=4", f"--rdzv-id={made.key}"}
        assert options < set(each.argv)
        assert f"--rdzv-endpoint={live.resolve()}/rendezvous" in each.argv
        assert each.environment["SHARDYARD_NODE"] == str(node)
        assert "RANK" not in each.environment  # set by torchrun
    assert len(processes(spec(processes_per_node=2), RunPaths(live.parent), tmp_path, live)) == 4


def test_containers_start_torchrun_agents() -> None:
    assignment = assigned("ddp", 3, 5, processes_per_node=2, restarts=1)
    (command,) = commands(replace(assignment, index=index_of(assignment, "node-5")), 4711)
    assert command.argv[:3] == AGENT
    assert "--rdzv-endpoint=10.0.0.3:29500" in command.argv  # rank 0's node
    assert (command.ranks, command.environment["SHARDYARD_NODE"]) == ((2, 3), "1")
    assert command.environment["SHARDYARD_PARENT_PID"] == "4711"


def test_context_from_torchrun_s_environment() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.3", "MASTER_PORT": "29500"}
    context = read_context(spec(restarts=1), {**environment, "SHARDYARD_ATTEMPT": "2"})
    assert (context.rendezvous, context.attempt) == ("10.0.0.3:29500", 2)
    with pytest.raises(LaunchError, match="SHARDYARD_ATTEMPT is not set"):
        read_context(spec(restarts=1), environment)
    assert read_context(spec(), environment).attempt is None


def test_memory_limit_reaches_the_torchrun_agent() -> None:
    assignment = assigned("ddp", 1, 2, memory_mb=300, restarts=1)
    (command,) = commands(assignment, 4711)
    assert command.environment["SHARDYARD_MEMORY_MB"] == "300"


# Exit reports of killed ranks


def exit_reports(
    directory: Path, monkeypatch: pytest.MonkeyPatch, memory_mb: str | None, *lost: tuple[int, int]
) -> list[Any]:
    """Reports of node 1's agent. lost: exit code and out-of-memory kills so far, by attempt."""
    writers: list[EventWriter] = []

    def opened(*arguments: Any, **options: Any) -> EventWriter:
        writers.append(EventWriter(*arguments, **options))
        return writers[-1]

    monkeypatch.setattr(agent, "EventWriter", opened)
    counts = [2, *(count for _, count in lost)]  # two before this run
    handler = ExitReportHandler(spec(restarts=9), 1, directory, memory_mb, lambda: counts.pop(0))
    for attempt, (code, _) in enumerate(lost):
        monkeypatch.setenv("SHARDYARD_ATTEMPT", str(attempt))
        args = (code, 0, 4711, "python")
        handler.emit(logging.LogRecord("torch", logging.ERROR, "", 0, ExitReportHandler.FORMAT, args, None))
    for writer in writers:
        assert writer._file
        writer._file.close()
    events = EventReader(directory).new()
    assert {(each.kind, each.rank) for each in events} <= {("died", 1)}
    assert all(each.fields["signal"] in ("SIGKILL", "SIGSEGV") for each in events)
    return [(each.fields["attempt"], each.fields["cause"]) for each in events]


MEMORY = "killed: its node needed more than 64 MiB of memory"


def test_out_of_memory_kills_belong_to_their_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [(-9, 3), (-9, 3), (-11, 4), (1, 5), (-9, 5), (-9, 6)]
    assert exit_reports(tmp_path, monkeypatch, "64", *lost) == [
        (0, MEMORY),
        (1, "killed by SIGKILL"),  # the out-of-memory kill was in attempt 0
        (2, "killed by SIGSEGV"),
        (4, "killed by SIGKILL"),
        (5, MEMORY),
    ]


def test_local_processes_have_no_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_reports(tmp_path, monkeypatch, None, (-9, 3)) == [(0, "killed by SIGKILL")]


# Outcome


def up(attempt: int, *ranks: int) -> list[Event]:
    return [event("start", rank, 10.0 * attempt, pid=100 + rank, attempt=attempt) for rank in ranks]


def killed(attempt: int, rank: int) -> Event:
    return event(
        "died", rank, 10.0 * attempt + 9, cause="killed by SIGKILL", signal="SIGKILL", attempt=attempt
    )


def step(rank: int, attempt: int) -> Event:
    return event("step", rank, 10.0 * attempt + 5, epoch=1, step=37, steps=90)


RESET = {"cause": "all-reduce failed: connection reset", "peer": True, "traceback": "…"}


def lost(attempt: int) -> list[Event]:
    """Rank 1 was killed, and rank 0 lost its connection."""
    reset = event("failed", 0, 10.0 * attempt + 8, **RESET)
    return [*up(attempt, 0, 1), step(1, attempt), reset, killed(attempt, 1)]


def good(attempt: int) -> list[Event]:
    at = 10.0 * attempt
    events = [*up(attempt, 0, 1), split(2)]
    for rank in (1, 0):
        events += [part(rank), event("result", rank, at + 8, **rank_fields())]
    events += [event("done", rank, at + 9) for rank in (1, 0)]
    return [replace(each, time=max(each.time, at)) for each in events]


def test_successful_attempt_after_lost_ones() -> None:
    assert outcome([*lost(0), *lost(1), *good(2)], {"node 0": 0, "node 1": 0}, 2, None, restarts=2) == (
        "ok",
        None,
    )


@pytest.mark.parametrize("exits", [{}, {"node 1": 1}, {"node 0": -15}])
def test_loss_after_the_exit_barrier_is_ignored(exits: dict[str, int]) -> None:
    events = [each for each in good(0) if (each.kind, each.rank) != ("done", 1)]
    assert outcome([*events, killed(0, 1)], exits, 2, None, restarts=2) == ("ok", None)
    assert outcome(events, exits, 2, None)[0] == "failed"  # without restarts


def test_cause_is_that_of_the_last_attempt() -> None:
    status, cause = outcome([*lost(0), *lost(1)], {"node 0": 1, "node 1": 1}, 2, None, restarts=1)
    assert status == "failed"
    assert cause == "node 1 (process 101) was killed by SIGKILL, after 1 restart"


def test_lost_torchrun_agent_fails_the_run() -> None:
    events = [*up(0, 0, 1), event("terminated", 0, 3.0, cause="stopped by SIGTERM")]
    status, cause = outcome(events, {"node 0": -9}, 2, None, restarts=1)
    assert (status, cause) == ("failed", "all of node 0 was killed by SIGKILL")


@pytest.mark.parametrize("exits", [{"node 0": 1, "node 1": 1}, {"node 1": 1, "coordinator": 1}])
def test_exit_code_of_torchrun_is_the_fallback_cause(exits: dict[str, int]) -> None:
    status, cause = outcome([], exits, 2, None, restarts=1)
    codes = ", ".join(
        f"{'' if name == 'coordinator' else 'torchrun of '}{name}: exit code 1" for name in exits
    )
    assert (status, cause) == ("failed", f"node 0, 1 did not start ({codes}); see its log")


def stopped(attempt: int, rank: int, seconds: float) -> Event:
    return event("terminated", rank, 10.0 * attempt + seconds, cause="stopped by SIGTERM", signal="SIGTERM")


def test_rank_stopped_from_outside_is_the_cause() -> None:
    """Rank 1 gets SIGTERM from outside; rank 0 loses its connection, and rank 2 is stopped by its agent."""
    events = [*up(0, 0, 1, 2), step(1, 0), stopped(0, 2, 8.5), stopped(0, 1, 7.0)]
    events.append(event("failed", 0, 8.0, **RESET))
    exits = {"node 0": 1, "node 1": 1, "node 2": 1}
    _, cause = outcome(events, exits, 3, None, restarts=1)
    assert cause == "node 1 (process 101) was stopped by SIGTERM from outside"
    said = "node 1 was stopped by SIGTERM from outside, last seen in epoch 1, step 37"
    assert cause_of_loss(Attempts(3, events), 0) == said


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([event("failed", 0, 8.0, **RESET), stopped(0, 1, 8.5)], "node 0: all-reduce failed"),
        (
            [stopped(0, 1, 7.0), event("failed", 0, 8.0, cause="ValueError: odd", peer=False)],
            "node 0: ValueError: odd",
        ),
        (
            [stopped(0, 1, 7.0), event("failed", 0, 8.0, **RESET), killed(0, 0)],
            "node 0 was killed by SIGKILL",
        ),
    ],
    ids=["after the complaint", "one has failed by itself", "one was killed"],
)
def test_rank_stopped_after_another_failure_is_not_the_cause(events: list[Event], cause: str) -> None:
    events = [*up(0, 0, 1), *events]
    assert cause_of_loss(Attempts(2, events), 0).startswith(cause)
    _, said = outcome(events, {"node 0": 1, "node 1": 1}, 2, None, restarts=1)
    assert str(said).replace(" (process 100)", "").startswith(cause)


def test_rank_stopped_because_another_did_not_start_is_not_the_cause() -> None:
    events = [*up(0, 0, 1), stopped(0, 1, 7.0), event("failed", 0, 8.0, **RESET)]
    _, cause = outcome(events, {"node 2": 1}, 3, None, restarts=1)
    assert cause == "node 0: all-reduce failed: connection reset"
    assert cause_of_loss(Attempts(3, events), 0) == cause


def test_timeout() -> None:
    status, cause = outcome([*lost(0), *up(1, 0, 1)], {}, 2, 60.0, restarts=1)
    assert status == "timeout"
    assert cause == "stopped after 60 s; nodes 0, 1 last seen starting, after 1 restart"


LOST_TIME = "start-up and wall time include the attempts before the last restart"


def restarted(*events: Event) -> RunResult:
    return row(list(events), restarts=3)


def test_row_names_lost_ranks_and_counts_nothing_twice() -> None:
    result = restarted(*lost(0), killed(1, 0), *good(2))
    assert (result.status, result.restarted) == ("ok", 2)
    first, second, lost_time = result.flags
    assert first.startswith("node 1 was killed by SIGKILL, last seen in epoch 1, step 37; ")
    assert second.startswith("node 0 was killed by SIGKILL, last seen before it started; ")
    assert ["1 of 3 restarts" in first, "2 of 3 restarts" in second] == [True, True]
    assert lost_time.startswith(LOST_TIME)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert result.certificate is not None
    assert len(result.certificate.parts) == 2


def test_elapsed_time_includes_lost_attempts() -> None:
    def training(kind: str, at: float, **fields: Any) -> Event:
        return replace(event(kind, 0, **fields), time=at)

    first = [*up(0, 0, 1), training("train_start", 3.0, parameters=5), killed(0, 1)]
    second = [training("train_start", 12.0, parameters=5), training("train_end", 17.5)]
    attempt = good(1)
    assert restarted(*first, *attempt[:3], *second, *attempt[3:]).elapsed_s == 14.5


def test_certificate_excludes_lost_attempts() -> None:
    result = restarted(*up(0, 0, 1), part(0), split(2), killed(0, 1), *good(1))
    assert result.certificate is not None
    assert (len(result.certificate.parts), len(result.certificate.splits)) == (2, 1)


def test_lost_rank_without_exit_report() -> None:
    words = [event("failed", 0, 8.0, **RESET)]
    flag, _ = restarted(*up(0, 0, 1), *words, *good(1)).flags
    assert flag.startswith("node 1 was lost without an exit report, last seen starting; all ranks")


def test_failed_rank_is_restarted_and_named() -> None:
    own = event("failed", 1, 8.0, cause="ValueError: odd", peer=False, traceback="…")
    flag, _ = restarted(*up(0, 0, 1), event("failed", 0, 7.0, **RESET), own, *good(1)).flags
    assert flag == "node 1: ValueError: odd; all ranks were restarted (1 of 3 restarts)"


def test_kill_after_the_exit_barrier_is_flagged() -> None:
    events = [each for each in good(0) if (each.kind, each.rank) != ("done", 1)]
    assert restarted(*events).flags == ["node 1 was killed after its result was written"]
    assert restarted(*events, killed(0, 1)).flags == ["node 1 was killed after its result was written"]


def test_requeues_of_a_batch_system_are_restarts() -> None:
    first = [*up(0, 0, 1), step(1, 0), stopped(0, 0, 7.0), killed(0, 1)]
    result = row([*first, *good(1)], requeues=["preemption"])
    assert (result.status, result.restarted, result.cause) == ("ok", 1, None)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert "preemption" in result.flags[0]
    failed = row([*first, *up(1, 0, 1), killed(1, 0)], requeues=["preemption"])
    assert failed.status == "failed"
    assert "node 0" in str(failed.cause)
    assert str(failed.cause).endswith("after 1 requeue")


# In containers


def run_record(directory: Path, *events: Event, **fields: Any) -> RunRecord:
    record = RunRecord(directory / "live", assigned("ddp", 1, 2, restarts=2, **fields))
    for each in events:
        record.add_event(each)
    return record


def test_lost_rank_is_not_a_failure_until_torchrun_gives_up(tmp_path: Path) -> None:
    record = run_record(tmp_path, *lost(0))
    assert (record.failures, record.finished, record.complete) == ({}, False, False)
    lost_it = record.assignment.agents[1]
    assert record.exit_cause(lost_it, {1: 1}) == "rank 1 was killed by SIGKILL, after 0 restarts"
    assert record.exit_cause(lost_it, {1: 0}) is None


def test_run_record_uses_the_finished_attempt(tmp_path: Path) -> None:
    record = run_record(tmp_path, *lost(0), event("result", 0, 9.5, **rank_fields(steps=1)), *good(1))
    assert (record.finished, record.complete, record.failures) == (True, True, {})
    for each in up(2, 0, 1):  # an agent starts another attempt before shutdown
        record.add_event(each)
    assert record.complete
    assert record.summary()[0].startswith("ok: 2 nodes")
    assert record.summary()[-1] == "  a rank was lost and all ranks were restarted: 1 of 2 restarts"


def test_loss_reported_before_the_events_of_the_exit_barrier(
    tmp_path: Path,
) -> None:
    """The restarts are used, a rank is killed after the exit barrier, and its agent gives up at once."""
    *events, last = [each for each in good(0) if (each.kind, each.rank) != ("done", 1)]
    assert last.kind == "done"
    record = run_record(tmp_path, *events, killed(0, 1))
    record.fail(record.assignment.agents[1], "gave up")
    assert record.failures
    record.add_event(last)
    assert (record.failures, record.complete) == ({}, True)


def test_loss_reported_after_the_events_of_the_exit_barrier(tmp_path: Path) -> None:
    """As above, but the other events arrive first, so no later event revokes the loss."""
    events = [each for each in good(0) if (each.kind, each.rank) != ("done", 1)]
    record = run_record(tmp_path, *events)
    last = record.assignment.agents[1]
    record.record_exit(last, {1: -9}, False)
    record.fail(last, "rank 1 was killed by SIGKILL, after 2 restarts")
    assert (record.failures, record.complete) == ({}, True)
    assert record.summary()[0].startswith("ok: ")


@pytest.mark.parametrize("done_last", [False, True])
def test_agent_with_unsent_weights_is_required(tmp_path: Path, done_last: bool) -> None:
    *events, last = good(0)
    record = run_record(tmp_path, *events, save_weights=True)
    first, other = record.assignment.agents
    if not done_last:
        record.add_event(last)
    record.fail(first, LOST)
    record.fail(other, "killed, too")
    if done_last:
        record.add_event(last)
    assert (record.failures, record.complete) == (
        {"node-1": LOST},
        False,
    )
    assert record.summary()[1:] == [f"  node-1: {LOST}"]


def test_coordinator_ends_a_finished_run(cluster: LoopbackCluster) -> None:
    """node-2's rank was killed after the exit barrier, and its agent waits for one that has exited."""

    def part(*kinds: str) -> Script:
        async def play(agent: FakeAgent) -> None:
            await agent.receive_assignment()
            await agent.send_event("start", pid=1, attempt=0)
            for kind in kinds:
                await agent.send_event(kind, **(rank_fields() if kind == "result" else {}))
            assert await agent.receive() == {
                "kind": "shutdown",
                "finished": True,
            }
            await agent.exit(-9)

        return play

    assert cluster.run({"node-1": part("result", "done"), "node-2": part("result")}, restarts=1) == 0
    assert cluster.summary[0].startswith("ok: 2 nodes")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)
