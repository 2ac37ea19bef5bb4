"""A node lies about where its rank was stopped: `invalid data from a node fails only its run`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.execution.outcome import outcome
from trainer.core.events import Event
from trainer.core.position import MAX_NAME

HOSTILE: list[dict[str, Any]] = [
    {"file": "x" * (MAX_NAME + 1)},
    {"file": "\x1b" * MAX_NAME},  # too long once it is escaped
    {"function": "a\nb"},
    {"function": 3},
    {"line": -1},
    {"line": 2**31},
    {"waited_s": 1e300},
    {"waited_s": -1.0},
    {"unknown": 1},
    {"exchange": {"kind": "shell", "ranks": 1}},
    {"exchange": {"kind": "barrier", "ranks": 0}},
    {"exchange": {"kind": "barrier", "ranks": 2**40}},
    {"exchange": {"kind": "barrier", "ranks": 2, "dtype": "a\tb"}},
    {"exchange": {"kind": "barrier", "ranks": 2, "op": "x" * (MAX_NAME + 1)}},
    {"exchange": {"kind": "barrier", "ranks": 2, "peer": 2**40}},
    {"exchange": {"kind": "barrier", "ranks": 2, "elements": -1}},
    {"exchange": [[[]]]},
]


def line_of(**position: Any) -> str:
    fields = {"file": "mine.py", "line": 1, "function": "train", **position}
    head = {"version": 1, "time": 1.0, "run": "r", "rank": 0, "host": "h", "kind": "terminated"}
    return json.dumps({**head, "cause": "stopped by SIGTERM", "position": fields})


@pytest.mark.parametrize("fields", HOSTILE)
def test_invalid_positions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="position"):
        Event.from_line(line_of(**fields))


def test_escapes_are_visible_and_survive_another_reading() -> None:
    event = Event.from_line(line_of(file="\x1b[2Jmine.py\u202e"))
    assert event.fields["position"]["file"] == r"\x1b[2Jmine.py\u202e"
    assert Event.from_line(event.to_line()) == event


def test_a_cause_is_short_and_in_one_line_whatever_ranks_say() -> None:
    exchange = {"kind": "all_reduce", "ranks": 1000, "op": "x" * MAX_NAME, "dtype": "y" * MAX_NAME}
    line = line_of(file="\x1b]0;" * 9, function="f" * MAX_NAME, exchange={**exchange, "elements": 2**53})
    events = [
        Event(1.0, "r", rank, "h", "terminated", Event.from_line(line).fields) for rank in range(1000)
    ]
    for number, event in enumerate(events):
        event.fields["position"] = {**event.fields["position"], "line": number}
    cause = str(outcome(events, {}, 1000, 9.0)[1]).partition("last seen before it started")[2]
    assert 0 < len(cause) < 8 * 5 * MAX_NAME
    assert cause.isprintable()
