"""Which events count of a run whose ranks were started again."""

from __future__ import annotations

from tests.unit.conftest import event
from trainer.core.events import Event
from trainer.elastic.attempts import Attempts


def start(attempt: int, *ranks: int, time: float = 0.0) -> list[Event]:
    return [event("start", rank, time, pid=100 + rank, attempt=attempt) for rank in ranks]


def told(kind: str, *ranks: int, time: float = 0.0) -> list[Event]:
    return [event(kind, rank, time) for rank in ranks]


def test_a_run_that_is_never_started_again_has_one_attempt() -> None:
    events = [event("start", pid=1), *told("result", 0), *told("done", 0)]
    attempts = Attempts(1, events)
    assert (attempts.counts, attempts.finished, attempts.of(0)) == (0, 0, events)


def test_the_last_attempt_counts() -> None:
    events = [*start(0, 0, 1), *told("result", 0), *told("failed", 0), *start(1, 0, 1)]
    attempts = Attempts(2, events)
    assert (attempts.counts, attempts.finished) == (1, None)
    assert {each.kind for each in attempts.of(attempts.counts)} == {"start"}


def test_a_rank_belongs_to_its_own_last_start() -> None:
    """Rank 1 is forwarded late: what it said in attempt 0 is received of when rank 0 is in attempt 1."""
    attempts = Attempts(2, [*start(0, 0, 1), *start(1, 0), *told("result", 1)])
    assert told("result", 1)[0] in attempts.of(0)
    assert attempts.absent(1) == [1]


def test_a_rank_that_died_before_it_came_up_is_of_the_attempt_that_its_agent_says() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *start(1, 0), event("died", 1, cause="killed", attempt=1)])
    assert [each.kind for each in attempts.of(1)] == ["start", "died"]


def test_it_is_finished_when_all_have_given_results_and_one_is_done() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *told("result", 0, 1)])
    assert attempts.finished is None  # the last meeting may not have come about
    attempts.add(event("done", 1))
    assert attempts.finished == 0
    assert attempts.silent(0) == [0]


def test_who_says_done_first_may_be_heard_of_before_the_results_of_others() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *told("result", 0), *told("done", 0)])
    assert attempts.finished is None
    attempts.add(event("result", 1))
    assert attempts.finished == 0


def test_results_of_different_attempts_do_not_add_up() -> None:
    events = [*start(0, 0, 1), *told("result", 0), *start(1, 0, 1), *told("result", 1), *told("done", 1)]
    assert Attempts(2, events).finished is None


def test_after_a_finished_attempt_no_other_counts() -> None:
    """Rank 1 was killed after the last meeting, and its agent began another attempt."""
    events = [*start(0, 0, 1), *told("result", 0, 1), *told("done", 0), *start(1, 1)]
    attempts = Attempts(2, events)
    assert (attempts.counts, attempts.finished) == (0, 0)
    assert attempts.add(event("failed", 1)) == 1
