"""Mistakes in which events count when the ranks of a run are restarted."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import event
from trainer.core.events import Event
from trainer.torchrun_restarts.attempts import Attempts

RANKS = 2


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of ranks that start up to three attempts, in any order of the ranks."""
    started, found = dict.fromkeys(range(RANKS), -1), []
    for rank, kind in draw(
        st.lists(st.tuples(st.integers(0, RANKS - 1), st.sampled_from(KINDS)), max_size=14)
    ):
        started[rank] += kind == "start"
        named = {"attempt": max(started[rank], 0)} if kind in ("start", "died") else {}
        found.append(event(kind, rank, pid=1, **named))
    return found


KINDS = ("start", "start", "result", "result", "done", "failed", "died")


@given(histories())
def test_attempts_equal_those_that_are_counted_anew_after_each_event(events: list[Event]) -> None:
    attempts, of = Attempts(RANKS), dict.fromkeys(range(RANKS), 0)
    seen: defaultdict[int, list[Event]] = defaultdict(list)
    finished = None
    for each in events:
        number = of[each.rank] = each.fields.get("attempt", of[each.rank])
        seen[number].append(each)
        results = {past.rank for past in seen[number] if past.kind == "result"}
        if finished is None and len(results) == RANKS and any(past.kind == "done" for past in seen[number]):
            finished = number
        assert (attempts.add(each), attempts.finished) == (number, finished)
    assert attempts.effective == (max(seen, default=0) if finished is None else finished)
    for number in range(max(seen, default=0) + 1):
        kinds = [{past.kind for past in seen[number] if past.rank == rank} for rank in range(RANKS)]
        ended = [bool(found & {"done", "failed", "died"}) for found in kinds]
        assert attempts.events_of(number) == seen[number]
        assert attempts.not_started(number) == [r for r in range(RANKS) if "start" not in kinds[r]]
        alone = [r for r in range(RANKS) if "start" in kinds[r] and not ended[r]]
        assert attempts.without_exit_report(number) == alone
        assert attempts.killed(number) == sorted({*alone, *(r for r in range(RANKS) if "died" in kinds[r])})
