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
    """These ranks started, as processes 100 + rank."""
    return [event("start", rank, time=rank / 10, pid=100 + rank) for rank in ranks]


def finished(*ranks: int) -> list[Event]:
    return [event(kind, rank, time=5 + rank) for rank in ranks for kind in ("result", "done")]


def failed(rank: int, time: float, cause: str, peer: bool = False, **fields: Any) -> Event:
    return event("failed", rank, time, cause=cause, peer=peer, traceback="…", **fields)


def terminated(*ranks: int) -> list[Event]:
    """These ranks were ended by the orchestrator, after the fact."""
    return [event("terminated", rank, time=9, cause="stopped by SIGTERM") for rank in ranks]


RESET = "all-reduce failed: connection reset by peer"


@pytest.mark.parametrize(
    "events",
    [
        up(0, 1) + finished(0, 1),
        up(0, 1) + finished(1, 0),
        # A teardown that hung is forced to its end, after the results were written.
        [*up(0, 1), *finished(0), event("result", 1), event("done", 1, forced="teardown hung")],
        # The others hung after they were done, and were ended.
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
    "one crashes, the other is ended": (
        [*up(0, 1), failed(1, 3, "ValueError: odd"), *terminated(0)],
        {"node 1": 1},
        "node 1: ValueError: odd",
    ),
    "the first of two crashes, whoever is listed first": (
        [*up(0, 1), failed(0, 4, "late"), failed(1, 3, "early")],
        {"node 0": 1, "node 1": 1},
        "node 1: early",
    ),
    "one crashes, the other complains earlier in our list": (
        [*up(0, 1), failed(0, 2, RESET, peer=True), failed(1, 3, "ValueError: odd")],
        {"node 0": 1, "node 1": 1},
        "node 1: ValueError: odd",
    ),
    "all complain of each other": (
        [*up(0, 1), failed(1, 3, RESET, peer=True), failed(0, 2, "meeting timed out", peer=True)],
        {"node 0": 1, "node 1": 1},
        "node 0: meeting timed out",
    ),
    "killed, the other complains of it": (
        [*up(0, 1), failed(0, 3, RESET, peer=True)],
        {"node 0": 1, "node 1": -SIGKILL},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "killed, the other waits and is ended": (
        up(0, 1) + terminated(0),
        {"node 1": -SIGKILL},
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
    "mpirun's rank is gone without an exit code of its own": (
        up(0, 1) + terminated(0),
        {"mpirun": 137},
        "node 1 (process 101) exited without a report, as after SIGKILL or when out of memory",
    ),
    "mpirun's rank is gone and the other complains": (
        [*up(0, 1), failed(0, 3, RESET, peer=True)],
        {"mpirun": 1},
        "node 1 (process 101) exited without a report",
    ),
    "a forked rank died, as its parent says": (
        [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL", signal="SIGKILL"), *terminated(0)],
        {"nodes": 1},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "one did not start": (
        up(1) + terminated(1),
        {"node 0": 1},
        "node 0 did not start (node 0: exit code 1); see its log",
    ),
    "none came up": (
        [],
        {"mpirun": 213},
        "node 0, 1 did not start (mpirun: exit code 213); see its log",
    ),
    "data cannot be read, said before any rank starts": (
        [failed(0, 1, "mnist is not in data")],
        {"nodes": 1},
        "node 0: mnist is not in data",
    ),
    "parting failed after the results": (
        up(0, 1) + finished(0) + [event("result", 1), failed(1, 8, "barrier failed", peer=True)],
        {"node 0": 0, "node 1": 1},
        "node 1: barrier failed",
    ),
    "done, but a result is lacking": (
        up(0, 1) + finished(0) + [event("done", 1)],
        {"node 0": 0, "node 1": 0},
        "ended without all results (exit code 0); see the logs",
    ),
}


@pytest.mark.parametrize("situation", FAILURES)
def test_failure_names_the_node_that_is_to_blame(situation: str) -> None:
    events, exits, cause = FAILURES[situation]
    nodes = 3 if "all ranks" in situation else 1 if "in C" in situation else 2
    status, said = outcome(events, exits, nodes, None)
    assert status == "failed"
    assert said is not None
    assert said.startswith(cause)


def test_a_process_that_ended_by_itself_was_not_killed() -> None:
    # A MemoryError or an ImportError before the rank begins: a traceback in the log and exit code 1.
    _, cause = outcome(up(0, 1) + terminated(1), {"node 0": 1}, 2, None)
    assert cause is not None
    assert cause.startswith("node 0 (process 100)")
    assert "code 1" in cause
    assert "SIGKILL" not in cause


def test_a_node_that_was_terminated_is_to_blame_for_its_peers_complaints() -> None:
    # `kill <pid>` of one node: it says so and ends with 143, while the run was still on.
    said = event("terminated", 1, 2, cause="stopped by SIGTERM")
    _, cause = outcome(
        [*up(0, 1), said, failed(0, 3, RESET, peer=True)], {"node 0": 1, "node 1": 143}, 2, None
    )
    assert cause is not None
    assert cause.startswith("node 1")
    assert "SIGTERM" in cause


# What the runtime knows


def test_what_the_runtime_found_goes_before_what_the_nodes_complain_of() -> None:
    events = [*up(0, 1), failed(0, 3, RESET, peer=True)]
    stuck = "node 1 is stuck: its health check fails"
    assert outcome(events, {"node 0": 1}, 2, None, runtime_error=stuck) == ("failed", stuck)
    assert outcome(up(0, 1) + finished(0, 1), {}, 2, None, runtime_error=stuck) == ("ok", None)
    assert outcome(events, {}, 2, 60.0, runtime_error=stuck)[0] == "timeout"


def test_a_head_that_was_killed_has_taken_the_others_last_words_with_it() -> None:
    said = "the coordinator, which records the results, was killed by SIGKILL"
    assert outcome(up(0, 1) + finished(0), {"coordinator": -9, "node 1": 1}, 2, None) == ("failed", said)
    assert outcome(up(0, 1) + finished(0, 1), {"coordinator": -9}, 2, None) == ("ok", None)


def test_a_head_that_says_that_the_run_failed_is_not_the_cause() -> None:
    events = [*up(0, 1), failed(1, 3, "odd"), *terminated(0)]
    assert outcome(events, {"coordinator": 1, "node 1": 1}, 2, None) == ("failed", "node 1: odd")
    _, cause = outcome([], {"coordinator": 1}, 2, None)
    assert cause == "node 0, 1 did not start (coordinator: exit code 1); see its log"


def test_a_node_s_death_that_the_head_reports_is_the_cause() -> None:
    events = [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL"), failed(0, 4, RESET, peer=True)]
    exits = {"coordinator": 1, "node 0": 1, "node 1": 1}
    assert outcome(events, exits, 2, None)[1] == "node 1 (process 101) was killed by SIGKILL"


def test_a_signal_without_a_name() -> None:
    assert outcome(up(0), {"node 0": -40}, 1, None)[0] == "failed"


# Several ranks in a node: the rank is named, and its node


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
            "rank 3 of node 1 (process 103) exited",
        ),
        (up(0, 1, 2, 3), {"nodes": -SIGKILL}, "process 100 with all 4 ranks was killed by SIGKILL"),
        # A container's exit code is not that of one of its ranks.
        (
            up(0, 1, 2, 3) + terminated(0, 1, 2),
            {"node 1": 137},
            "rank 3 of node 1 (process 103) exited",
        ),
    ],
)
def test_a_rank_among_several_in_a_node_is_named(
    events: list[Event], exits: dict[str, int], cause: str
) -> None:
    status, said = outcome(events, exits, 4, None, processes_per_node=2)
    assert status == "failed"
    assert said is not None
    assert said.startswith(cause)


def test_a_run_of_several_ranks_per_node_needs_all_of_them() -> None:
    assert outcome(up(0, 1) + finished(0, 1), {}, 2, None, processes_per_node=2) == ("ok", None)
    assert outcome(up(0, 1) + finished(0, 1), {}, 4, None, processes_per_node=2)[0] == "failed"
    _, cause = outcome(up(0, 1), {}, 4, 9.0, processes_per_node=2)
    assert cause == (
        "stopped after 9 s; ranks 2, 3 last seen before it started; ranks 0, 1 last seen starting"
    )


# Timeouts


@pytest.mark.parametrize(
    ("events", "whereabouts"),
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
def test_timeout_says_where_the_nodes_were(events: list[Event], whereabouts: str) -> None:
    status, cause = outcome(events, {}, 2, 12.5)
    assert status == "timeout"
    assert cause == f"stopped after 12.5 s; {whereabouts}"
