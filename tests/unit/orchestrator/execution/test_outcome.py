"""Mistakes in the status and the cause of a run: consequences named as causes, wrong ranks, wrong order."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.execution import outcome as of_attempts
from orchestrator.results.records import Status
from tests.unit.conftest import event
from trainer.core.events import Event
from trainer.torchrun_restarts.attempts import Attempts

OK = ("ok", None)
ODD, RESET = "ValueError: odd", "all-reduce failed: connection reset by peer"
BY_SIGKILL, STOPPED = "was killed by SIGKILL", "was stopped by SIGTERM from outside"


def up(*ranks: int) -> list[Event]:
    """Start events of these ranks, with process IDs 100 + rank."""
    return [event("start", rank, time=rank / 10, pid=100 + rank) for rank in ranks]


def finished(*ranks: int) -> list[Event]:
    return [event(kind, rank, time=5 + rank) for rank in ranks for kind in ("result", "done")]


def failed(rank: int, time: float, cause: str = ODD, peer: bool = False) -> Event:
    return event("failed", rank, time, cause=cause, peer=peer, traceback="…")


def lost(rank: int, time: float, cause: str = RESET) -> Event:
    """A rank that has noticed that another one has failed."""
    return failed(rank, time, cause, peer=True)


def died(rank: int, time: float = 3) -> Event:
    return event("died", rank, time, cause="killed by SIGKILL")


def terminated(*ranks: int, time: float = 9) -> list[Event]:
    """Events of ranks that were stopped; at time 9, because the outcome was decided."""
    return [event("terminated", rank, time, cause="stopped by SIGTERM") for rank in ranks]


def outcome(
    events: list[Event], exits: dict[str, int], ranks: int, timed_out_s: float | None = None, **options: Any
) -> tuple[Status, str | None]:
    return of_attempts.outcome(Attempts(ranks, events), exits, timed_out_s, **options)


def cause_of(events: list[Event], exits: dict[str, int], ranks: int = 2, **options: Any) -> str:
    """The cause of a failed run."""
    status, cause = outcome(events, exits, ranks, None, **options)
    assert status == "failed"
    return str(cause)


def test_a_run_is_ok_once_every_rank_has_a_result_and_has_reported_done() -> None:
    hung = [*finished(0), event("result", 1), event("done", 1, forced="teardown hung")]
    for events in (finished(0, 1), finished(1, 0), finished(0, 1) + terminated(1), hung):
        for exits in ({"node 0": -6, "node 1": 0}, {"mpirun": 1}, {"coordinator": -9}):
            for timed_out_s, error in ((None, None), (60.0, None), (None, "stuck")):
                assert outcome(up(0, 1) + events, exits, 2, timed_out_s, runtime_error=error) == OK
        assert outcome(up(0, 1) + events, {}, 4, None, processes_per_node=2)[0] == "failed"


FAILURES = [
    # A rank's own error is the cause, and the earliest one: errors of its peers are consequences.
    ([*up(0, 1), failed(1, 3), *terminated(0)], {"node 1": 1}, f"node 1: {ODD}"),
    ([*up(0, 1), failed(0, 4, "late"), failed(1, 3, "early")], {"node 0": 1, "node 1": 1}, "node 1: early"),
    ([*up(0, 1), lost(0, 2), failed(1, 3)], {"node 0": 1, "node 1": 1}, f"node 1: {ODD}"),
    ([*up(0, 1), lost(1, 3), lost(0, 2, "timed out")], {"node 0": 1, "node 1": 1}, "node 0: timed out"),
    ([failed(0, 1, "mnist is not in data")], {"nodes": 1}, "node 0: mnist is not in data"),
    # A rank without an exit report was killed, also before it started or after its result.
    ([*up(0, 1), lost(0, 3)], {"node 0": 1, "node 1": -9}, f"node 1 (process 101) {BY_SIGKILL}"),
    (up(0, 1) + terminated(0), {"node 1": -9}, f"node 1 (process 101) {BY_SIGKILL}"),
    ([*up(0), lost(0, 3)], {"node 0": 1, "node 1": -9}, f"node 1 {BY_SIGKILL} before it started"),
    (up(0, 1), {"node 0": 1, "node 1": -9}, f"node 1 (process 101) {BY_SIGKILL}"),
    (up(0, 1), {"node 1": -11}, "node 1 (process 101) was killed by SIGSEGV"),
    ([*up(0, 1), *finished(0), event("result", 1)], {"node 1": -6}, "node 1 (process 101) was killed by"),
    # Code 1 is no kill: a MemoryError or ImportError before training has a traceback in the log.
    (up(0, 1) + terminated(1), {"node 0": 1}, "node 0 (process 100) exited with code 1; see its log"),
    # The process of all ranks, or one without which no rank can go on.
    (up(0, 1), {"nodes": -9}, f"process 100 with all 2 nodes {BY_SIGKILL}"),
    (up(0, 1) + terminated(0, 1), {"nodes": -9}, f"the process that started all 2 nodes {BY_SIGKILL}"),
    ([*up(0, 1), died(1), *terminated(0)], {"nodes": 1}, f"node 1 (process 101) {BY_SIGKILL}"),
    ([*up(0, 1), died(1), lost(0, 4)], {"coordinator": 1}, f"node 1 (process 101) {BY_SIGKILL}"),
    (up(0, 1) + finished(0), {"coordinator": -9}, "the coordinator, which records the results, was killed"),
    ([*up(0, 1), failed(1, 3, "odd"), *terminated(0)], {"coordinator": 1, "node 1": 1}, "node 1: odd"),
    # mpirun, whose exit code is that of a rank, or 128 and a signal after which it has killed the others.
    (up(0, 1) + terminated(0, 1), {"mpirun": -9}, f"mpirun, which starts the ranks, {BY_SIGKILL}"),
    (up(0, 1), {"launcher": -9}, f"the launcher, which runs mpirun, {BY_SIGKILL}"),
    (up(0, 1) + terminated(0), {"mpirun": 137}, f"node 1 (process 101) {BY_SIGKILL}"),
    (up(0, 1), {"mpirun": 137}, f"one of node 0 (process 100) and node 1 (process 101) {BY_SIGKILL}"),
    (up(0, 1), {"mpirun": 213}, "node 0 (process 100) and node 1 (process 101) exited without a report"),
    ([*up(0, 1), lost(0, 3)], {"mpirun": 1}, "node 1 (process 101) exited without a report"),
    (up(0, 1) + terminated(0, 1), {"mpirun": 1}, "mpirun, which starts the ranks, was stopped by SIGTERM"),
    (up(0, 1) + terminated(0, 1), {"mpirun": 143}, "ended without all results (mpirun: exit code 143)"),
    # A rank that another program stopped, before its peers noticed or with a code of its own.
    ([*up(0, 1), *terminated(1, time=2), lost(0, 3)], {"node 0": 1}, f"node 1 (process 101) {STOPPED}"),
    (up(0, 1) + terminated(0, 1), {"node 1": 143}, f"node 1 (process 101) {STOPPED}"),
    # What is left: consequences, ranks that did not start, results that are missing, unreadable events.
    ([*up(0, 1), *finished(0), lost(1, 7)], {"node 1": 1}, f"node 1: {RESET}; node 0 had finished"),
    (up(1) + terminated(1), {"node 0": 1}, "node 0 did not start (node 0: exit code 1); see its log"),
    ([], {"mpirun": 213}, "node 0, 1 did not start (mpirun: exit code 213); see its log"),
    ([*up(0, 1), *finished(0), event("done", 1)], {}, "ended without all results (exit code 0)"),
]  # fmt: skip


KILLED_0 = """WARNING: Open MPI failed to TCP connect to a peer MPI process.
prterun noticed that process rank 0 with PID 20956 on node vm exited on
signal 9 (Killed).
"""
ABORTED_0 = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process.
prterun has exited due to process rank 0 with PID 92 on node vm calling
"abort". This may have caused other processes in the application to be
"""
APART = """At least one pair of MPI processes are unable to reach each other for
MPI communications.
  Process 1 ([[10223,1],1]) is on host: 844f13fb05b5
  Process 2 ([[10223,1],0]) is on host: 126ac7cb464d
"""
LOGS = [
    # mpirun has killed rank 1, which is the only one without a report that has started.
    (KILLED_0, up(1), 137, f"node 0 {BY_SIGKILL} before it started"),
    (KILLED_0, [*up(0, 1), failed(0, 3)], 1, f"node 0: {ODD}"),  # it has a report: it was not killed
    (KILLED_0, up(0, 1), -9, f"mpirun, which starts the ranks, {BY_SIGKILL}"),
    (KILLED_0.replace("rank 0", "rank 7"), up(0, 1), 1, "node 0 (process 100) and node 1"),
    (ABORTED_0, up(0, 1), 1, "node 1 (process 101) exited without a report"),
    (ABORTED_0, [*up(0, 1), lost(1, 3)], 1, "node 0 (process 100) exited without a report"),
    (APART, [*up(0, 1), failed(1, 3)], 1, "Open MPI found no network from node 1 to node 0"),
    (APART.replace(",1],1]", ",1],2]"), [*up(0, 1), failed(1, 3)], 1, f"node 1: {ODD}"),
]
FOUR = up(0, 1, 2, 3)
PAIRS = [
    ([*FOUR, lost(0, 3)], {"rank 3 of node 1": -9}, f"rank 3 of node 1 (process 103) {BY_SIGKILL}"),
    (
        FOUR[:3] + terminated(0, 1, 2),
        {"rank 3 of node 1": 1},
        "rank 3 did not start (rank 3 of node 1: exit",
    ),
    (FOUR, {"nodes": -9}, f"process 100 with all 4 ranks {BY_SIGKILL}"),
    # The exit code of a container does not identify one of its ranks.
    (FOUR + terminated(0, 1, 2), {"node 1": 137}, "rank 3 of node 1 (process 103) exited"),
    ([*FOUR, event("damaged", 3, reason="cut off")], {}, "rank 3 of node 1's events are damaged: cut off"),
]
LOST = [*up(0, 1, 2), died(1)]
AGAIN = event("start", 1, 4, pid=201, incarnation=1)
CONTINUING = [
    ([*LOST, died(0, 4), died(2, 5)], {}, f"node 2 (process 102) {BY_SIGKILL}"),
    ([*LOST, failed(0, 4)], {}, f"node 0: {ODD}"),
    ([*LOST, AGAIN, *finished(0), failed(1, 9)], {}, f"node 1: {ODD}"),
    ([*LOST, *finished(0), event("done", 2)], {}, f"node 1 (process 101) {BY_SIGKILL}"),
    ([*up(0, 1, 2), *finished(0, 2)], {"node 1": 1}, "node 1 (process 101) exited with code 1"),
]


@pytest.mark.parametrize(
    ("events", "exits", "cause", "options"),
    [
        *((*each, {}) for each in FAILURES),
        *((each, {"mpirun": code}, cause, {"launcher_log": log}) for log, each, code, cause in LOGS),
        *((*each, {"ranks": 4, "processes_per_node": 2}) for each in PAIRS),
        *((*each, {"ranks": 3, "continues": True}) for each in CONTINUING),
    ],
)
def test_a_failure_names_the_process_that_caused_it(
    events: list[Event], exits: dict[str, int], cause: str, options: dict[str, Any]
) -> None:
    assert cause_of(events, exits, **options).startswith(cause)


def test_an_error_that_the_runtime_found_comes_before_its_consequences() -> None:
    events = [*up(0, 1), lost(0, 3)]
    assert cause_of(events, {"node 0": 1}, runtime_error="node 1 is stuck") == "node 1 is stuck"
    assert outcome(events, {}, 2, 60.0, runtime_error="node 1 is stuck")[0] == "timeout"


def stopped(rank: int, line: int, exchange: dict[str, Any] | None = None, waited_s: float = 3.2) -> Event:
    """A rank that was found in this line of a user."""
    position = {"file": "mine.py", "line": line, "function": "train", "exchange": exchange}
    position |= {"waited_s": waited_s} if exchange else {}
    return event("terminated", rank, time=9, cause="stopped by SIGTERM", position=position)


BARRIER = {"kind": "barrier", "ranks": 3}
SUM = {"kind": "all_reduce", "ranks": 3, "elements": 650}


def test_a_timeout_names_where_unfinished_nodes_were_last_seen() -> None:
    for events, where in (
        ([], "nodes 0, 1, 2 last seen before it started"),
        ([*up(0, 1), *finished(1, 2)], "node 0 last seen starting"),
        ([*finished(0), event("train_start", 1), event("train_end", 2)],
         "node 2 last seen after training; node 1 last seen training"),
        ([*finished(2), event("step", 0, epoch=2, step=7), event("epoch", 1, epoch=1)],
         "node 1 last seen after epoch 1; node 0 last seen in epoch 2, step 7"),
        ([event("done", rank) for rank in range(3)], "all nodes had finished"),
        ([*up(0, 1, 2), stopped(2, 31, SUM, 7.0), stopped(0, 40, BARRIER), stopped(1, 31, SUM)],
         "nodes 0, 1, 2 last seen starting; node 0 in barrier at mine.py:40 for 3 s; "
         "nodes 1, 2 in all_reduce of 650 elements at mine.py:31 for 3 s; "
         "nodes 0, 1 are in different exchanges"),
        ([*up(0, 1, 2), *finished(1, 2), stopped(0, 20), stopped(2, 31, SUM)],
         "node 0 last seen starting; node 0 in train at mine.py:20"),
    ):  # fmt: skip
        assert outcome(events, {}, 3, 12.5) == ("timeout", f"stopped after 12.5 s; {where}")
    cause = str(outcome([stopped(rank, rank + 1, SUM) for rank in range(20)], {}, 20, 9)[1])
    assert cause.count("mine.py") == 8
    assert "and 12 other positions" in cause


def test_a_timeout_names_the_processes_that_are_suspended() -> None:
    text = "stopped after 60 s; node 1 (process 41) and node 2 (process 42) were suspended by a signal"
    for restarts in (0, 1):
        suspended = outcome(up(0, 1, 2), {}, 3, 60.0, suspended={2: 42, 1: 41}, restarts=restarts)
        assert suspended == ("timeout", text)
    assert "mpirun (process 41) was" in str(outcome(up(0, 1), {}, 2, 60.0, suspended={"mpirun": 41})[1])


def test_a_continuing_run_is_ok_without_lost_ranks() -> None:
    for events in (
        LOST + finished(0, 2),
        [*LOST, died(0, 4), *finished(2)],
        [event("result", 1), *LOST, *finished(0, 2)],
        [*LOST, AGAIN, *finished(0, 1, 2)],
        [*LOST, AGAIN, *finished(0, 2), *terminated(1)],  # it waited for the others to let it join
    ):
        assert outcome(events, {"node 1": -9}, 3, None, continues=True) == OK
        assert outcome(events, {}, 3, 60.0, continues=True) == OK
        assert cause_of([each for each in events if each.kind != "done"], {}, 3, continues=True)
        assert AGAIN in events or cause_of(events, {"node 1": -9}, 3)
    _, cause = outcome([*LOST, *finished(0)], {}, 3, 9.0, continues=True)
    assert cause == "stopped after 9 s; node 2 last seen starting"
