"""The events that count when the ranks of a run are restarted."""

from __future__ import annotations

from tests.unit.conftest import event
from trainer.core.events import Event
from trainer.torchrun_restarts.attempts import Attempts


def start(attempt: int, *ranks: int, time: float = 0.0) -> list[Event]:
    return [event("start", rank, time, pid=100 + rank, attempt=attempt) for rank in ranks]


def reported(kind: str, *ranks: int, time: float = 0.0) -> list[Event]:
    return [event(kind, rank, time) for rank in ranks]


def test_run_without_restarts() -> None:
    events = [event("start", pid=1), *reported("result", 0), *reported("done", 0)]
    attempts = Attempts(1, events)
    assert (attempts.effective, attempts.finished, attempts.events_of(0)) == (0, 0, events)


def test_last_attempt_counts() -> None:
    events = [*start(0, 0, 1), *reported("result", 0), *reported("failed", 0), *start(1, 0, 1)]
    attempts = Attempts(2, events)
    assert (attempts.effective, attempts.finished) == (1, None)
    assert {each.kind for each in attempts.events_of(attempts.effective)} == {"start"}


def test_events_belong_to_the_rank_s_last_start() -> None:
    """Rank 1's result in attempt 0 arrives after rank 0 has started attempt 1."""
    attempts = Attempts(2, [*start(0, 0, 1), *start(1, 0), *reported("result", 1)])
    assert reported("result", 1)[0] in attempts.events_of(0)
    assert attempts.not_started(1) == [1]


def test_died_event_names_its_attempt() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *start(1, 0), event("died", 1, cause="killed", attempt=1)])
    assert [each.kind for each in attempts.events_of(1)] == ["start", "died"]


def test_finished() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *reported("result", 0, 1)])
    assert attempts.finished is None  # no rank has passed the exit barrier
    attempts.add(event("done", 1))
    assert attempts.finished == 0
    assert attempts.without_exit_report(0) == [0]


def test_finished_when_a_result_arrives_after_done() -> None:
    attempts = Attempts(2, [*start(0, 0, 1), *reported("result", 0), *reported("done", 0)])
    assert attempts.finished is None
    attempts.add(event("result", 1))
    assert attempts.finished == 0


def test_results_of_different_attempts_do_not_finish_a_run() -> None:
    events = [
        *start(0, 0, 1),
        *reported("result", 0),
        *start(1, 0, 1),
        *reported("result", 1),
        *reported("done", 1),
    ]
    assert Attempts(2, events).finished is None


def test_finished_attempt_counts() -> None:
    """Rank 1 was killed after the exit barrier, and its agent started another attempt."""
    events = [*start(0, 0, 1), *reported("result", 0, 1), *reported("done", 0), *start(1, 1)]
    attempts = Attempts(2, events)
    assert (attempts.effective, attempts.finished) == (0, 0)
    assert attempts.add(event("failed", 1)) == 1
