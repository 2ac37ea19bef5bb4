"""What became of a run, and whose fault it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.execution.outcome import verdict
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
def test_ok_when_every_rank_has_a_result_and_its_last_word_is_done(
    events: list[Event], timed_out_s: float | None, exits: dict[str, int]
) -> None:
    assert verdict(events, exits, 2, timed_out_s) == ("ok", None)


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
        "node 1 (process 101) vanished without a word, as after SIGKILL or for want of memory",
    ),
    "mpirun's rank is gone and the other complains": (
        [*up(0, 1), failed(0, 3, RESET, peer=True)],
        {"mpirun": 1},
        "node 1 (process 101) vanished without a word",
    ),
    "a forked rank died, as its parent says": (
        [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL", signal="SIGKILL"), *terminated(0)],
        {"nodes": 1},
        "node 1 (process 101) was killed by SIGKILL",
    ),
    "one never came up": (
        up(1) + terminated(1),
        {"node 0": 1},
        "node 0 never came up (node 0: exit code 1); its log says why",
    ),
    "none came up": (
        [],
        {"mpirun": 213},
        "node 0, 1 never came up (mpirun: exit code 213); its log says why",
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
        "ended without all results (exit code 0); the logs say why",
    ),
}


@pytest.mark.parametrize("situation", FAILURES)
def test_failure_names_the_node_that_is_to_blame(situation: str) -> None:
    events, exits, cause = FAILURES[situation]
    nodes = 3 if "all ranks" in situation else 1 if "in C" in situation else 2
    status, said = verdict(events, exits, nodes, None)
    assert status == "failed"
    assert said is not None
    assert said.startswith(cause)


def test_a_process_that_ended_by_itself_was_not_killed() -> None:
    # A MemoryError or an ImportError before the rank begins: a traceback in the log and exit code 1.
    _, cause = verdict(up(0, 1) + terminated(1), {"node 0": 1}, 2, None)
    assert cause is not None
    assert cause.startswith("node 0 (process 100)")
    assert "exit code 1" in cause
    assert "SIGKILL" not in cause


def test_a_node_that_was_terminated_is_to_blame_for_its_peers_complaints() -> None:
    # `kill <pid>` of one node: it says so and ends with 143, while the run was still on.
    said = event("terminated", 1, 2, cause="stopped by SIGTERM")
    _, cause = verdict(
        [*up(0, 1), said, failed(0, 3, RESET, peer=True)], {"node 0": 1, "node 1": 143}, 2, None
    )
    assert cause is not None
    assert cause.startswith("node 1")
    assert "SIGTERM" in cause


# What the runtime knows


def test_what_the_runtime_found_goes_before_what_the_nodes_complain_of() -> None:
    events = [*up(0, 1), failed(0, 3, RESET, peer=True)]
    stuck = "node 1 is stuck: it does not answer any more"
    assert verdict(events, {"node 0": 1}, 2, None, trouble=stuck) == ("failed", stuck)
    assert verdict(up(0, 1) + finished(0, 1), {}, 2, None, trouble=stuck) == ("ok", None)
    assert verdict(events, {}, 2, 60.0, trouble=stuck)[0] == "timeout"


def test_a_head_that_was_killed_has_taken_the_others_last_words_with_it() -> None:
    said = "the coordinator, which keeps the results, was killed by SIGKILL"
    assert verdict(up(0, 1) + finished(0), {"coordinator": -9, "node 1": 1}, 2, None) == ("failed", said)
    assert verdict(up(0, 1) + finished(0, 1), {"coordinator": -9}, 2, None) == ("ok", None)


def test_a_head_that_says_that_the_run_failed_is_not_the_cause() -> None:
    events = [*up(0, 1), failed(1, 3, "odd"), *terminated(0)]
    assert verdict(events, {"coordinator": 1, "node 1": 1}, 2, None) == ("failed", "node 1: odd")
    _, cause = verdict([], {"coordinator": 1}, 2, None)
    assert cause == "node 0, 1 never came up (coordinator: exit code 1); its log says why"


def test_a_node_s_death_that_the_head_reports_is_the_cause() -> None:
    events = [*up(0, 1), event("died", 1, 3, cause="killed by SIGKILL"), failed(0, 4, RESET, peer=True)]
    exits = {"coordinator": 1, "node 0": 1, "node 1": 1}
    assert verdict(events, exits, 2, None)[1] == "node 1 (process 101) was killed by SIGKILL"


def test_a_signal_without_a_name() -> None:
    assert verdict(up(0), {"node 0": -40}, 1, None)[0] == "failed"


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
            "rank 3 never came up (rank 3 of node 1: exit code 1)",
        ),
        (up(0, 1, 2, 3) + terminated(0, 1, 2), {"mpirun": 137}, "rank 3 of node 1 (process 103) vanished"),
        (up(0, 1, 2, 3), {"nodes": -SIGKILL}, "process 100 with all 4 ranks was killed by SIGKILL"),
        # A container's exit code is not that of one of its ranks.
        (up(0, 1, 2, 3) + terminated(0, 1, 2), {"node 1": 137}, "rank 3 of node 1 (process 103) vanished"),
    ],
)
def test_a_rank_among_several_in_a_node_is_named(
    events: list[Event], exits: dict[str, int], cause: str
) -> None:
    status, said = verdict(events, exits, 4, None, processes_per_node=2)
    assert status == "failed"
    assert said is not None
    assert said.startswith(cause)


def test_a_run_of_several_ranks_per_node_needs_all_of_them() -> None:
    assert verdict(up(0, 1) + finished(0, 1), {}, 2, None, processes_per_node=2) == ("ok", None)
    assert verdict(up(0, 1) + finished(0, 1), {}, 4, None, processes_per_node=2)[0] == "failed"
    _, cause = verdict(up(0, 1), {}, 4, 9.0, processes_per_node=2)
    assert cause == (
        "stopped after 9 s; ranks 2, 3 last seen before it came up; ranks 0, 1 last seen starting"
    )


# Timeouts


@pytest.mark.parametrize(
    ("events", "whereabouts"),
    [
        ([], "nodes 0, 1 last seen before it came up"),
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
    status, cause = verdict(events, {}, 2, 12.5)
    assert status == "timeout"
    assert cause == f"stopped after 12.5 s; {whereabouts}"
