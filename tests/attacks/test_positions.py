"""A node lies about where its rank was stopped: `invalid data from a node fails only its run`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.execution.outcome import outcome
from trainer.core.events import Event
from trainer.core.position import MAX_NAME

BARRIER = {"kind": "barrier", "ranks": 2}
HOSTILE: list[dict[str, Any]] = [
    {"file": "x" * (MAX_NAME + 1)},
    {"file": "\x1b" * MAX_NAME},  # too long once it is escaped
    {"function": "a\nb"},
    {"function": 3},
    *({"line": line} for line in (-1, 2**31)),
    *({"waited_s": seconds} for seconds in (1e300, -1.0)),
    {"unknown": 1},
    *({"exchange": {**BARRIER, "ranks": ranks}} for ranks in (0, 2**40)),
    *({"exchange": {**BARRIER, "op": text}} for text in ("a\tb", "x" * (MAX_NAME + 1))),
    {"exchange": {**BARRIER, "kind": "shell"}},
    {"exchange": {**BARRIER, "dtype": "a\tb"}},
    {"exchange": {**BARRIER, "peer": 2**40}},
    {"exchange": {**BARRIER, "elements": -1}},
    {"exchange": [[[]]]},
]


def stopped(**position: Any) -> Event:
    fields = {"file": "mine.py", "line": 1, "function": "train", **position}
    head = {"version": 1, "time": 1.0, "run": "r", "rank": 0, "host": "h", "kind": "terminated"}
    return Event.from_line(json.dumps({**head, "cause": "stopped by SIGTERM", "position": fields}))


def test_invalid_positions_are_refused() -> None:
    for fields in HOSTILE:
        with pytest.raises(ValueError, match="position"):
            stopped(**fields)


def test_a_cause_is_short_and_in_one_line_whatever_ranks_say() -> None:
    exchange = {**BARRIER, "op": "x" * MAX_NAME, "dtype": "y" * MAX_NAME, "elements": 2**53}
    events = []
    for rank in range(1000):
        event = stopped(file="\x1b]0;" * 9, function="f" * MAX_NAME, exchange=exchange, line=rank)
        assert Event.from_line(event.to_line()) == event
        events.append(Event(1.0, "r", rank, "h", "terminated", event.fields))
    cause = str(outcome(events, {}, 1000, 9.0)[1]).partition("last seen before it started")[2]
    assert 0 < len(cause) < 8 * 5 * MAX_NAME
    assert cause.isprintable()
    assert r"\x1b]0;" in cause
