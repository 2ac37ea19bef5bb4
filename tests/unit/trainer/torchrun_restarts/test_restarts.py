"""Mistakes in runs whose ranks are restarted: commands of agents, exit reports, whose events count."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.execution.outcome import outcome
from orchestrator.execution.run_result import Execution, Place, build_result
from orchestrator.results.records import RunResult
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.cluster_support import assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster
from trainer.core.events import Event, EventReader, combined_digest
from trainer.node.commands import commands
from trainer.node.home import CONTAINER
from trainer.node.run_record import RunRecord
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.__main__ import ExitReportHandler
from trainer.torchrun_restarts.attempts import Attempts

STEP = event("step", 1, epoch=1, step=37, steps=90)
SHARES = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
PART = {"epoch": 1, "samples": 5, "labels": [5, *[0] * 9], "js_divergence": 0, "js_divergence_so_far": 0}


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 2, "epochs": 1, **fields})


def test_containers_start_torchrun_agents() -> None:
    assignment = assigned("ddp", 3, 5, processes_per_node=2, restarts=1, memory_mb=300)
    (command,) = commands(replace(assignment, index=index_of(assignment, "node-5")), CONTAINER, 4711)
    assert command.argv[:3] == (sys.executable, "-m", "trainer.torchrun_restarts")
    assert "--rdzv-endpoint=10.0.0.3:29500" in command.argv  # rank 0's node
    assert command.ranks == (2, 3)
    own = {"SHARDYARD_NODE": "1", "SHARDYARD_PARENT_PID": "4711", "SHARDYARD_MEMORY_MB": "300"}
    assert own.items() <= command.environment.items()


MEMORY, KILLED = "killed: its node needed more than 64 MiB of memory", "killed by SIGKILL"


@pytest.mark.parametrize(
    ("memory_mb", "lost", "reports"),
    [
        ("64", [(-9, 3), (-9, 3), (1, 3)], [(0, MEMORY), (1, KILLED)]),  # the first kill counts once
        ("64", [(-11, 3), (1, 4), (-9, 4), (-9, 5)], [(0, "killed by SIGSEGV"), (2, KILLED), (3, MEMORY)]),
        (None, [(-9, 3)], [(0, KILLED)]),
    ],
)
def test_out_of_memory_kills_belong_to_their_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_mb: str | None, lost: list[Any], reports: Any
) -> None:
    """Node 1's agent reports. lost: exit code, and out-of-memory kills so far, of which 2 are older."""
    counts = [2, *(count for _, count in lost)]
    handler = ExitReportHandler(spec(processes_per_node=2), 1, tmp_path, memory_mb, lambda: counts.pop(0))
    for attempt, (code, _) in enumerate(lost):
        monkeypatch.setenv("SHARDYARD_ATTEMPT", str(attempt))
        args = (code, 1, 4711, "python")
        handler.emit(logging.LogRecord("torch", logging.ERROR, "", 0, ExitReportHandler.FORMAT, args, None))
    events = EventReader(tmp_path).new()
    assert {(each.kind, each.rank) for each in events} == {("died", 3)}
    assert [(each.fields["attempt"], each.fields["cause"]) for each in events] == reports


def up(attempt: int, *ranks: int) -> list[Event]:
    return [event("start", rank, 10.0 * attempt, pid=100 + rank, attempt=attempt) for rank in ranks]


def killed(attempt: int, rank: int) -> Event:
    fields = {"cause": KILLED, "signal": "SIGKILL", "attempt": attempt}
    return event("died", rank, 10.0 * attempt + 9, **fields)


def stopped(rank: int, seconds: float) -> Event:
    return event("terminated", rank, seconds, cause="stopped by SIGTERM", signal="SIGTERM")


def reset(rank: int = 0) -> Event:
    return event("failed", rank, 8.0, cause="all-reduce failed: connection reset", peer=True)


def lost(attempt: int) -> list[Event]:
    """Rank 1 was killed, and rank 0 lost its connection."""
    return [*up(attempt, 0, 1), STEP, reset(), killed(attempt, 1)]


def good(attempt: int) -> list[Event]:
    at, digests = 10.0 * attempt, ["0" * 16, "1" * 16]
    events = [*up(attempt, 0, 1), event("train_start", 0, at + 2, parameters=5)]
    for rank, digest in enumerate(digests):
        events.append(event("partition", rank, at, digest=digest, **PART))
        events.append(event("result", rank, at + 8, **rank_fields()))
    events.append(event("coverage", 0, at, epoch=1, digest=combined_digest(digests), **SHARES))
    return [*events, event("train_end", 0, at + 8), event("done", 1, at + 9), event("done", 0, at + 9)]


LATE = [each for each in good(0) if (each.kind, each.rank) != ("done", 1)]  # rank 1 ends after the barrier
ODD = event("failed", 0, 8.0, cause="ValueError: odd", peer=False)
ABSENT = "node 0, 1 did not start ({}: exit code 1); see its log"


@pytest.mark.parametrize(
    ("events", "exits", "cause"),
    [
        ([*lost(0), *lost(1), *good(2)], {}, None),
        ([*LATE, killed(0, 1)], {"node 1": 1}, None),
        ([*LATE, killed(0, 1)], {"node 0": -15}, None),
        (
            [*lost(0), *lost(1)],
            {"node 1": 1},
            "node 1 (process 101) was killed by SIGKILL, after 1 restart",
        ),
        ([*up(0, 0, 1), stopped(0, 3)], {"node 0": -9}, "all of node 0 was killed by SIGKILL"),
        ([], {"node 1": 1}, ABSENT.format("torchrun of node 1")),
        ([], {"coordinator": 1}, ABSENT.format("coordinator")),
    ],
)
def test_outcome_is_that_of_the_attempt_that_counts(
    events: list[Event], exits: dict[str, int], cause: str | None
) -> None:
    found = outcome(Attempts(2, events), exits, None, restarts=2)
    assert found == ("failed" if cause else "ok", cause)


def row(events: list[Event], requeues: tuple[str, ...] = (), **fields: Any) -> RunResult:
    execution = Execution(events=events, started_at=0.0, ended_at=40.0, requeues=requeues)
    place = Place("local", LocalRuntime.info, "local processes", 8, {})
    return build_result(spec(**fields), execution, place)


def test_row_counts_nothing_twice() -> None:
    first = [*good(0)[:6], STEP, reset(), killed(0, 1)]
    result = row([*first, *up(1, 0, 1), killed(1, 0), *good(2)], restarts=3)
    assert (result.status, result.restarted, result.elapsed_s) == ("ok", 2, 26.0)
    assert result.flags[0].startswith("node 1 was killed by SIGKILL, last seen in epoch 1, step 37; ")
    assert result.flags[1].startswith("node 0 was killed by SIGKILL, last seen starting; ")
    assert ["1 of 3 restarts" in result.flags[0], "2 of 3 restarts" in result.flags[1]] == [True, True]
    assert result.flags[2].startswith("start-up and wall time include the attempts before the last restart")
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert (len(result.certificate.parts), len(result.certificate.splits)) == (2, 1)


@pytest.mark.parametrize(
    ("events", "flag"),
    [
        ([reset()], "node 1 was lost without an exit report, last seen starting; "),
        ([reset(1), ODD], "node 0: ValueError: odd; "),
        ([stopped(1, 7), reset()], "node 1 was stopped by SIGTERM from outside, last seen starting; "),
        ([reset(), stopped(1, 8.5)], "node 0: all-reduce failed: connection reset; "),
        ([stopped(1, 7), ODD], "node 0: ValueError: odd; "),
        ([stopped(1, 7), reset(), killed(0, 0)], "node 0 was killed by SIGKILL, last seen starting; "),
    ],
)
def test_flag_names_the_rank_that_was_lost_first(events: list[Event], flag: str) -> None:
    found = row([*up(0, 0, 1), *events, *good(1)], restarts=3).flags
    assert found[0] == f"{flag}all ranks were restarted (1 of 3 restarts)"
    assert row(LATE, restarts=3).flags == ["node 1 was killed after its result was written"]


def test_requeues_of_a_batch_system_are_restarts() -> None:
    first = [*up(0, 0, 1), STEP, stopped(0, 7.0), killed(0, 1)]
    result = row([*first, *good(1)], ("preemption",))
    assert (result.status, result.restarted, result.cause) == ("ok", 1, None)
    assert result.flags[0] == "requeue 1: preemption"
    failed = row([*first, *up(1, 0, 1), killed(1, 0)], ("preemption",))
    assert str(failed.cause) == "node 0 (process 100) was killed by SIGKILL, after 1 requeue"


def run_record(directory: Path, *events: Event, **fields: Any) -> RunRecord:
    record = RunRecord(directory / "live", assigned("ddp", 1, 2, restarts=2, **fields))
    for each in events:
        record.add_event(each)
    return record


def test_run_record_uses_the_finished_attempt(tmp_path: Path) -> None:
    record = run_record(tmp_path, *lost(0))
    assert (record.failures, record.finished, record.complete) == ({}, False, False)
    lost_it = record.assignment.agents[1]
    assert record.exit_cause(lost_it, {1: 1}) == "rank 1 was killed by SIGKILL, after 0 restarts"
    late = event("result", 0, 9.5, **rank_fields(steps=1))  # of attempt 0
    for each in [late, *good(1), *up(2, 0, 1)]:  # an agent starts another one before shutdown
        record.add_event(each)
    assert (record.finished, record.complete, record.failures) == (True, True, {})
    assert record.summary()[-1] == "  a rank was lost and all ranks were restarted: 1 of 2 restarts"


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("done_last", [False, True])
def test_late_loss_matters_with_unsent_weights(tmp_path: Path, done_last: bool, weights: bool) -> None:
    """The restarts are used, and agents give up before or after the last event of rank 0 arrives."""
    record = run_record(tmp_path, *(LATE[:-1] if done_last else LATE), save_weights=weights)
    for each in record.assignment.agents if weights else record.assignment.agents[1:]:
        record.fail(each, "gave up")
    assert bool(record.failures) is (done_last or weights)
    if done_last:
        record.add_event(LATE[-1])
    assert (record.failures, record.complete) == ({"node-1": "gave up"} if weights else {}, not weights)


def test_coordinator_ends_a_finished_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Node 1's rank was killed after the exit barrier, and its agent waits for one that has exited."""

    async def play(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        for kind, fields in {"start": {"pid": 1, "attempt": 0}, "result": rank_fields()}.items():
            await agent.send_event(kind, **fields)
        if agent.ranks == (0,):
            await agent.send_event("done")
        assert await agent.receive() == {"kind": "shutdown", "finished": True}
        await agent.exit(-9)

    assert LoopbackCluster(monkeypatch, tmp_path).run({"node-1": play, "node-2": play}, restarts=1) == 0


def any_event(kind: str, rank: int, attempt: int) -> Event:
    return event(kind, rank, **({"attempt": attempt} if kind in ("start", "died") else {}))


KINDS = st.sampled_from(["start", "start", "result", "result", "done", "failed", "died"])


@given(st.lists(st.builds(any_event, KINDS, st.integers(0, 1), st.integers(0, 2)), max_size=14))
def test_attempts_equal_those_that_are_counted_anew_after_each_event(events: list[Event]) -> None:
    attempts, started, finished = Attempts(2), [0, 0], None
    seen: list[list[Event]] = [[], [], []]

    def ranks(number: int, *kinds: str) -> set[int]:
        return {each.rank for each in seen[number] if each.kind in kinds}

    for each in events:
        number = each.fields.get("attempt", started[each.rank])
        started[each.rank] = number if each.kind == "start" else started[each.rank]
        seen[number].append(each)
        if finished is None and ranks(number, "done") and ranks(number, "result") == {0, 1}:
            finished = number
        assert (attempts.add(each), attempts.finished) == (number, finished)
    last = max((number for number in range(3) if seen[number]), default=0)
    assert attempts.effective == (last if finished is None else finished)
    for number in range(last + 1):
        alone = ranks(number, "start") - ranks(number, "done", "failed", "died")
        assert attempts.events_of(number) == seen[number]
        assert attempts.not_started(number) == sorted({0, 1} - ranks(number, "start"))
        assert attempts.without_exit_report(number) == sorted(alone)
        assert attempts.killed(number) == sorted(alone | ranks(number, "died"))
