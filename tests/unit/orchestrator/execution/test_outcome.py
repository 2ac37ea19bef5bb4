"""Status and cause of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.execution.outcome import outcome
from tests.unit.conftest import event
from trainer.core.events import Event

SIGKILL, SIGTERM = 9, 15


def up(*ranks: int) -> list[Event]:
    """Start events of these ranks, with process IDs 100 + rank."""
    return [event("start", rank, time=rank / 10, pid=100 + rank) for rank in ranks]


def finished(*ranks: int) -> list[Event]:
    return [event(kind, rank, time=5 + rank) for rank in ranks for kind in ("result", "done")]


def failed(rank: int, time: float, cause: str, peer: bool = False, **fields: Any) -> Event:
    return event("failed", rank, time, cause=cause, peer=peer, traceback="…", **fields)


def terminated(*ranks: int) -> list[Event]:
    """Events of ranks that the orchestrator stopped after the outcome was decided."""
    return [event("terminated", rank, time=9, cause="stopped by SIGTERM") for rank in ranks]


RESET = "all-reduce failed: connection reset by peer"


@pytest.mark.parametrize(
    "events",
    [
        up(0, 1) + finished(0, 1),
        up(0, 1) + finished(1, 0),
        # Rank 1 wrote its result, its teardown hung, and it was forced to exit.
        [*up(0, 1), *finished(0), event("result", 1), event("done", 1, forced="teardown hung")],
        # Rank 1 hung after `done` and was terminated.
        up(0, 1) + finished(0, 1) + terminated(1),
    ],
)
@pytest.mark.parametrize("timed_out_s", [None, 60.0])
@pytest.mark.parametrize("exits", [{"node 0": 0, "node 1": 0}, {"node 0": -6, "node 1": 0}, {"mpirun": 1}])
def test_ok_when_every_rank_has_a_result_and_has_reported_done(
    events: list[Event], timed_out_s: float | None, exits: dict[str, int]
) -> None:
    assert outcome(events, exits, 2, timed_out_s) == ("ok", None)


FAILURES: Mapping[str, tuple[list[Event], dict[str, int], str]] = {
    "one crashes, the other is terminated": (
        [*up(0, 1), failed(1, 3, "ValueError: odd"), *terminated(0)],
        {"node 1": 1},
        "node 1: ValueError: odd",
    ),
    "the first of two crashes, in either order of events": (
        [*up(0, 1), failed(0, 4, "late"), failed(1, 3, "early")],
        {"node 0": 1, "node 1": 1},
        "node 1: early",
    ),
    "one crashes, a peer's error is listed earlier": (
        [*up(0, 1), failed(0, 2, RESET, peer=True), failed(1, 3, "ValueError: odd")],
        {"node 0": 1, "node 1": 1},
        "node 1: ValueError: odd",
    ),
    "every rank reports a peer error": (
        [*up(0, 1), failed(1, 3, RESET, peer=True), failed(0, 2, "barrier timed out", peer=True)],
        {"node 0": 1, "node 1": 1},
        "node 0: barrier timed out",
    ),
    "killed, the other reports a peer error": (
        [*up(0, 1), failed(0, 3, RESET, peer=True)],
        {"node 0": 1, "node 1": -SIGKILL},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "killed, the other waits and is terminated": (
        up(0, 1) + terminated(0),
        {"node 1": -SIGKILL},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "killed before it started, the other reports a peer error": (
        [*up(0), failed(0, 3, "node 1 did not join", peer=True)],
        {"node 0": 1, "node 1": -SIGKILL},
        "node 1 was killed by SIGKILL before it started",
    ),
    "killed before it started, the other loses its connection and exits": (
        up(0),
        {"node 0": 1, "node 1": -SIGKILL},
        "node 1 was killed by SIGKILL before it started",
    ),
    "killed, a peer with a lower number exits without a report": (
        up(0, 1),
        {"node 0": 1, "node 1": -SIGKILL},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "killed by a crash in C": (up(0), {"node 0": -11}, "node 0 (process 100) was killed by SIGSEGV"),
    "killed after its result": (
        up(0, 1) + finished(0) + [event("result", 1)],
        {"node 0": 0, "node 1": -6},
        "node 1 (process 101) was killed by SIGABRT",
    ),
    "the process of all ranks is killed": (
        up(0, 1, 2),
        {"nodes": -SIGKILL},
        "process 100 with all 3 nodes was killed by SIGKILL",
    ),
    "a rank of mpirun is killed, whose signal is in the exit code of mpirun": (
        up(0, 1) + terminated(0),
        {"mpirun": 137},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "several ranks of mpirun have no report, and its exit code is a signal": (
        up(0, 1),
        {"mpirun": 137},
        "one of node 0 (process 100) and node 1 (process 101) was killed by SIGKILL",
    ),
    "several ranks of mpirun have no report, and its exit code is no signal": (
        up(0, 1),
        {"mpirun": 213},
        "node 0 (process 100) and node 1 (process 101) exited without a report, as after SIGKILL",
    ),
    "mpirun is killed": (
        up(0, 1) + terminated(0, 1),
        {"mpirun": -SIGKILL},
        "mpirun, which starts the ranks, was killed by SIGKILL",
    ),
    "the container of mpirun is killed": (
        up(0, 1),
        {"launcher": -SIGKILL},
        "the launcher, which runs mpirun, was killed by SIGKILL",
    ),
    "the process that has started the ranks is killed, and they notice": (
        up(0, 1) + terminated(0, 1),
        {"nodes": -SIGKILL},
        "the process that started all 2 nodes was killed by SIGKILL",
    ),
    "a rank of mpirun exits and the other reports a peer error": (
        [*up(0, 1), failed(0, 3, RESET, peer=True)],
        {"mpirun": 1},
        "node 1 (process 101) exited without a report",
    ),
    "a forked rank died, as its parent reports": (
        [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL", signal="SIGKILL"), *terminated(0)],
        {"nodes": 1},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "one did not start": (
        up(1) + terminated(1),
        {"node 0": 1},
        "node 0 did not start (node 0: exit code 1); see its log",
    ),
    "no rank started": (
        [],
        {"mpirun": 213},
        "node 0, 1 did not start (mpirun: exit code 213); see its log",
    ),
    "data cannot be read, reported before any rank starts": (
        [failed(0, 1, "mnist is not in data")],
        {"nodes": 1},
        "node 0: mnist is not in data",
    ),
    "close failed after the results": (
        up(0, 1) + finished(0) + [event("result", 1), failed(1, 8, "barrier failed", peer=True)],
        {"node 0": 0, "node 1": 1},
        "node 1: barrier failed",
    ),
    "done, but a result is missing": (
        up(0, 1) + finished(0) + [event("done", 1)],
        {"node 0": 0, "node 1": 0},
        "ended without all results (exit code 0); see the logs",
    ),
}


@pytest.mark.parametrize("situation", FAILURES)
def test_failure_names_the_node_that_caused_it(situation: str) -> None:
    events, exits, cause = FAILURES[situation]
    nodes = 3 if "all ranks" in situation else 1 if "in C" in situation else 2
    status, reported = outcome(events, exits, nodes, None)
    assert status == "failed"
    assert reported is not None
    assert reported.startswith(cause)


KILLED_0 = """WARNING: Open MPI failed to TCP connect to a peer MPI process.
prterun noticed that process rank 0 with PID 20956 on node vm exited on
signal 9 (Killed).
"""


@pytest.mark.parametrize(
    ("events", "code", "cause"),
    [
        # mpirun has killed rank 1, which is the only one without a report that has started.
        (up(1), 137, "node 0 was killed by SIGKILL before it started"),
        ([], 137, "node 0 was killed by SIGKILL before it started"),
        (up(0, 1), 137, "node 0 (process 100) was killed by SIGKILL"),
        ([*up(0, 1), failed(1, 3, RESET, peer=True)], 1, "node 0 (process 100) was killed by SIGKILL"),
        # It has an exit report, so it was not killed.
        ([*up(0, 1), failed(0, 3, "ValueError: odd")], 1, "node 0: ValueError: odd"),
    ],
)
def test_mpirun_names_the_rank_that_was_killed(events: list[Event], code: int, cause: str) -> None:
    _, reported = outcome(events, {"mpirun": code}, 2, None, launcher_log=KILLED_0)
    assert reported is not None
    assert reported.startswith(cause)


@pytest.mark.parametrize("log", ["", KILLED_0])
def test_mpirun_that_is_killed_is_the_cause(log: str) -> None:
    _, reported = outcome(up(0, 1), {"launcher": 1, "mpirun": -9}, 2, None, launcher_log=log)
    assert str(reported).startswith("mpirun, which starts the ranks, was killed by SIGKILL")


ABORTED_0 = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).
[vm:00000] ***    and MPI will try to terminate your MPI job as well)
prterun has exited due to process rank 0 with PID 92 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""


def test_rank_that_open_mpi_aborts_because_of_its_peer_is_not_the_cause() -> None:
    _, reported = outcome(up(0, 1), {"mpirun": 1}, 2, None, launcher_log=ABORTED_0)
    assert str(reported).startswith("node 1 (process 101) exited without a report")
    _, alone = outcome(up(0), {"mpirun": 1}, 1, None, launcher_log=ABORTED_0)
    assert str(alone).startswith("node 0 (process 100) exited without a report")


APART = """At least one pair of MPI processes are unable to reach each other for
MPI communications.  This means that no Open MPI device has indicated
that it can be used to communicate between these processes.

  Process 1 ([[10223,1],1]) is on host: 844f13fb05b5
  Process 2 ([[10223,1],0]) is on host: 126ac7cb464d
  BTLs attempted: self
"""


def test_ranks_without_a_network_between_them_are_named() -> None:
    error = failed(1, 3, "Exception: MPI_ERR_INTERN: internal error")
    for events in (up(0, 1), [*up(0, 1), error]):
        _, reported = outcome(events, {"mpirun": 1}, 2, None, launcher_log=APART)
        assert str(reported).startswith("Open MPI found no network from node 1 to node 0")


def test_mpirun_s_report_of_an_unknown_rank_is_ignored() -> None:
    log = KILLED_0.replace("rank 0", "rank 7")
    assert "7" not in str(outcome(up(0, 1), {"mpirun": 1}, 2, None, launcher_log=log)[1])


def test_exit_code_1_is_not_reported_as_a_kill() -> None:
    # A MemoryError or ImportError before training: a traceback in the log and exit code 1.
    _, cause = outcome(up(0, 1) + terminated(1), {"node 0": 1}, 2, None)
    assert cause is not None
    assert cause.startswith("node 0 (process 100)")
    assert "code 1" in cause
    assert "SIGKILL" not in cause


def test_terminated_node_is_the_cause_of_its_peers_errors() -> None:
    # `kill <pid>` of one node during the run: it reports SIGTERM and exits with 143.
    reported = event("terminated", 1, 2, cause="stopped by SIGTERM")
    _, cause = outcome(
        [*up(0, 1), reported, failed(0, 3, RESET, peer=True)], {"node 0": 1, "node 1": 143}, 2, None
    )
    assert cause is not None
    assert cause.startswith("node 1")
    assert "SIGTERM" in cause


# Errors found by the runtime


def test_runtime_error_takes_precedence_over_peer_errors() -> None:
    events = [*up(0, 1), failed(0, 3, RESET, peer=True)]
    stuck = "node 1 is stuck: its health check fails"
    assert outcome(events, {"node 0": 1}, 2, None, runtime_error=stuck) == ("failed", stuck)
    assert outcome(up(0, 1) + finished(0, 1), {}, 2, None, runtime_error=stuck) == ("ok", None)
    assert outcome(events, {}, 2, 60.0, runtime_error=stuck)[0] == "timeout"


def test_time_limit_after_all_ranks_have_finished() -> None:
    events = [*up(0, 1), *(event("done", rank, time=6) for rank in (0, 1))]
    assert outcome(events, {}, 2, 60.0) == ("timeout", "stopped after 60 s; all nodes had finished")


@pytest.mark.parametrize("restarts", [0, 1])
def test_time_limit_names_the_ranks_that_are_suspended(restarts: int) -> None:
    status, cause = outcome(up(0, 1, 2), {}, 3, 60.0, suspended={1: 41, 2: 42}, restarts=restarts)
    assert status == "timeout"
    assert "node 1 (process 41) and node 2 (process 42)" in str(cause)
    assert "node 0" not in str(cause)


def test_time_limit_names_mpirun_that_is_suspended() -> None:
    status, cause = outcome(up(0, 1), {}, 2, 60.0, suspended={"mpirun": 41})
    assert status == "timeout"
    assert "mpirun (process 41)" in str(cause)


@pytest.mark.parametrize(("code", "started"), [(1, 2), (1, 1), (143, 2), (1, 0)])
def test_mpirun_that_was_stopped_is_the_cause(code: int, started: int) -> None:
    """With another code, it has lost a rank; without ranks, it has failed itself."""
    ranks = range(started)
    status, cause = outcome(up(*ranks) + terminated(*ranks), {"mpirun": code}, 2, None)
    assert status == "failed"
    assert (str(cause).startswith("mpirun, which") and "SIGTERM" in str(cause)) == (
        code == 1 and started > 0
    )


def test_killed_coordinator_is_the_cause_of_missing_results() -> None:
    reported = "the coordinator, which records the results, was killed by SIGKILL"
    assert outcome(up(0, 1) + finished(0), {"coordinator": -9, "node 1": 1}, 2, None) == (
        "failed",
        reported,
    )
    assert outcome(up(0, 1) + finished(0, 1), {"coordinator": -9}, 2, None) == ("ok", None)


def test_coordinator_exit_code_is_not_the_cause() -> None:
    events = [*up(0, 1), failed(1, 3, "odd"), *terminated(0)]
    assert outcome(events, {"coordinator": 1, "node 1": 1}, 2, None) == ("failed", "node 1: odd")
    _, cause = outcome([], {"coordinator": 1}, 2, None)
    assert cause == "node 0, 1 did not start (coordinator: exit code 1); see its log"


def test_node_death_reported_by_the_coordinator_is_the_cause() -> None:
    events = [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL"), failed(0, 4, RESET, peer=True)]
    exits = {"coordinator": 1, "node 0": 1, "node 1": 1}
    assert outcome(events, exits, 2, None)[1] == "node 1 (process 101) was killed by SIGKILL"


def test_signal_without_a_name() -> None:
    assert outcome(up(0), {"node 0": -40}, 1, None)[0] == "failed"


# Several ranks per node


@pytest.mark.parametrize(
    ("events", "exits", "cause"),
    [
        (
            [*up(0, 1, 2, 3), failed(0, 3, RESET, peer=True)],
            {"rank 0 of node 0": 1, "rank 3 of node 1": -SIGKILL},
            "rank 3 of node 1 (process 103) was killed by SIGKILL",
        ),
        ([*up(0, 1, 2, 3), failed(2, 3, "odd")], {"rank 2 of node 1": 1}, "rank 2 of node 1: odd"),
        (
            up(0, 1, 2) + terminated(0, 1, 2),
            {"rank 3 of node 1": 1},
            "rank 3 did not start (rank 3 of node 1: exit code 1)",
        ),
        (
            up(0, 1, 2, 3) + terminated(0, 1, 2),
            {"mpirun": 137},
            "rank 3 of node 1 (process 103) was killed by SIGKILL",
        ),
        (up(0, 1, 2, 3), {"nodes": -SIGKILL}, "process 100 with all 4 ranks was killed by SIGKILL"),
        # The exit code of a container does not identify one of its ranks.
        (
            up(0, 1, 2, 3) + terminated(0, 1, 2),
            {"node 1": 137},
            "rank 3 of node 1 (process 103) exited",
        ),
    ],
)
def test_cause_names_rank_and_node_with_several_ranks_per_node(
    events: list[Event], exits: dict[str, int], cause: str
) -> None:
    status, reported = outcome(events, exits, 4, None, processes_per_node=2)
    assert status == "failed"
    assert reported is not None
    assert reported.startswith(cause)


def test_all_ranks_must_finish_with_several_ranks_per_node() -> None:
    assert outcome(up(0, 1) + finished(0, 1), {}, 2, None, processes_per_node=2) == ("ok", None)
    assert outcome(up(0, 1) + finished(0, 1), {}, 4, None, processes_per_node=2)[0] == "failed"
    _, cause = outcome(up(0, 1), {}, 4, 9.0, processes_per_node=2)
    assert cause == (
        "stopped after 9 s; ranks 2, 3 last seen before it started; ranks 0, 1 last seen starting"
    )


# Timeouts


@pytest.mark.parametrize(
    ("events", "positions"),
    [
        ([], "nodes 0, 1 last seen before it started"),
        (up(0, 1), "nodes 0, 1 last seen starting"),
        ([*up(0, 1), event("train_start", 1)], "node 0 last seen starting; node 1 last seen training"),
        (
            [*up(0, 1), event("step", 0, epoch=2, step=7), event("epoch", 1, epoch=1)],
            "node 1 last seen after epoch 1; node 0 last seen in epoch 2, step 7",
        ),
        (up(0, 1) + finished(0) + [event("train_end", 1)], "node 1 last seen after training"),
        (up(0, 1) + finished(0) + terminated(1), "node 1 last seen starting"),
    ],
)
def test_timeout_names_the_last_position_of_each_node(events: list[Event], positions: str) -> None:
    status, cause = outcome(events, {}, 2, 12.5)
    assert status == "timeout"
    assert cause == f"stopped after 12.5 s; {positions}"


def stopped(rank: int, line: int, exchange: dict[str, Any] | None, waited_s: float = 3.2) -> Event:
    """A rank that was found in this line of a user."""
    position = {"file": "mine.py", "line": line, "function": "train", "exchange": exchange}
    position |= {"waited_s": waited_s} if exchange else {}
    return event("terminated", rank, time=9, cause="stopped by SIGTERM", position=position)


BARRIER = {"kind": "barrier", "ranks": 3}
ALL_REDUCE = {"kind": "all_reduce", "ranks": 3, "elements": 650}


@pytest.mark.parametrize(
    ("events", "positions"),
    [
        (
            [stopped(2, 31, ALL_REDUCE, 7.0), stopped(0, 40, BARRIER), stopped(1, 31, ALL_REDUCE)],
            [
                "node 0 in barrier at mine.py:40 for 3 s",
                "nodes 1, 2 in all_reduce of 650 elements at mine.py:31 for 3 s",
                "nodes 0, 1 are in different exchanges",
            ],
        ),
        (
            [stopped(0, 40, BARRIER), stopped(1, 20, None)],
            ["node 0 in barrier at mine.py:40 for 3 s", "node 1 in train at mine.py:20"],
        ),
        (
            [*finished(1, 2), stopped(0, 40, BARRIER), stopped(2, 31, ALL_REDUCE)],
            ["node 0 in barrier at mine.py:40 for 3 s"],
        ),
    ],
)
def test_timeout_says_where_stopped_nodes_were(events: list[Event], positions: list[str]) -> None:
    status, cause = outcome([*up(0, 1, 2), *events], {}, 3, 12.5)
    assert status == "timeout"
    assert str(cause).partition(" last seen starting; ")[2].split("; ") == positions


def test_a_timeout_names_few_positions() -> None:
    events = [stopped(rank, rank + 1, ALL_REDUCE) for rank in range(1000)]
    cause = str(outcome([*up(*range(1000)), *events], {}, 1000, 9)[1])
    assert cause.count("mine.py") == 8
    assert "and 992 other positions" in cause


def test_positions_of_runs_in_time_are_no_cause() -> None:
    events = [*up(0, 1), failed(0, 1, "ValueError: odd"), stopped(1, 40, BARRIER)]
    assert outcome(events, {"node 0": 1}, 2, None) == ("failed", "node 0: ValueError: odd")


def test_a_lost_peer_that_had_finished_is_named() -> None:
    events = [*up(0, 1), *finished(0), failed(1, 7, RESET, peer=True)]
    status, cause = outcome(events, {"node 0": 0, "node 1": 1}, 2, None)
    assert (status, cause) == ("failed", f"node 1: {RESET}; node 0 had finished")


# Runs that continue without a lost rank


def died(rank: int, time: float = 3) -> Event:
    return event("died", rank, time, cause="killed by SIGKILL")


LOST = [*up(0, 1, 2), died(1)]
AGAIN = event("start", 1, 4, pid=201, incarnation=1)


@pytest.mark.parametrize(
    "events",
    [
        LOST + finished(0, 2),
        [*up(0, 1, 2), died(1), died(0, 4), *finished(2)],
        [*LOST, AGAIN, *finished(0, 1, 2)],
        [*LOST, AGAIN, *finished(0, 2), *terminated(1)],  # it waited for the others to let it join
        [*up(0, 1, 2), event("result", 1), died(1), *finished(0, 2)],
    ],
    ids=["lost", "two lost", "returned", "waited", "lost after its result"],
)
def test_continuing_run_is_ok_without_lost_ranks(events: list[Event]) -> None:
    assert outcome(events, {"node 1": -SIGKILL}, 3, None, continues=True) == ("ok", None)
    assert outcome(events, {}, 3, 60.0, continues=True) == ("ok", None)
    assert outcome([each for each in events if each.kind != "done"], {}, 3, None, continues=True)[1]
    if AGAIN not in events:
        assert outcome(events, {"node 1": -SIGKILL}, 3, None)[0] == "failed"


@pytest.mark.parametrize(
    ("events", "exits", "cause"),
    [
        # The last loss ended the run.
        ([*up(0, 1, 2), died(1), died(0, 4), died(2, 5)], {}, "node 2 (process 102) was killed by SIGKILL"),
        ([*LOST, failed(0, 4, "ValueError: odd")], {}, "node 0: ValueError: odd"),
        (
            [*LOST, failed(0, 4, RESET, peer=True), died(2, 5)],
            {},
            "node 2 (process 102) was killed by SIGKILL",
        ),
        ([*LOST, AGAIN, *finished(0), failed(1, 9, "odd")], {}, "node 1: odd"),
        ([*LOST, *finished(0), event("done", 2)], {}, "node 1 (process 101) was killed by SIGKILL"),
        ([*up(0, 1, 2), *finished(0, 2)], {"node 1": 1}, "node 1 (process 101) exited with code 1"),
    ],
    ids=["all lost", "an error later", "a loss after", "an error of a returned", "no result", "no report"],
)
def test_continuing_run_fails_by_what_ended_it(
    events: list[Event], exits: dict[str, int], cause: str
) -> None:
    status, reported = outcome(events, exits, 3, None, continues=True)
    assert status == "failed"
    assert str(reported).startswith(cause)


def test_time_limit_of_a_continuing_run_names_the_ranks_that_are_left() -> None:
    _, cause = outcome([*LOST, *finished(0)], {}, 3, 9.0, continues=True)
    assert cause == "stopped after 9 s; node 2 last seen starting"
