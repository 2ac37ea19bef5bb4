"""Mistakes in what counts as an event: a field without its type or range, text that controls a terminal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.execution.outcome import outcome
from orchestrator.execution.position import position
from orchestrator.execution.run_result import certify
from orchestrator.results.records import epochs_of, ranks_of
from tests.unit.conftest import rank_fields
from trainer.core.event_schema import EVENTS
from trainer.core.events import MAX_BYTES, Event, format_event
from trainer.core.record import printable

STEP = {"epoch": 1, "epochs": 3, "step": 2, "steps": 9, "loss": 0.5, "accuracy": 0.5, "samples_per_s": 9.0}
EPOCH = {"epoch": 1, "epochs": 3, "train_s": 1.5, "loss": 0.5, "accuracy": 0.5, "test_loss": 0.75}
SKEW = {"js_divergence": 0.1, "js_divergence_so_far": 0.1, "earth_movers_distance": 0.2}
SHARES = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
VALID: dict[str, dict[str, Any]] = {
    "start": {"pid": 7, "attempt": 1},
    "ready": {},
    "waiting": {"incarnation": 1},
    "consent": {"returned": 2, "incarnation": 1},
    "link": {"to": 1, "latency_s": 0.001, "bytes_per_s": 1.25e7},
    "train_start": {"parameters": 50},
    "step": STEP,
    "partition": {"epoch": 1, "samples": 6, "labels": [1, 2, 3], **SKEW, "digest": "0" * 16},
    "coverage": {"epoch": 1, "uneven": "pad", **SHARES, "digest": "0" * 16},
    "epoch": {**EPOCH, "lr": 0.1, "target_reached": True, "consensus_distance": 0.1},
    "checkpoint": {"epoch": 1, "step": 2, "bytes": 100, "seconds": 0.1},
    "checkpoint_skipped": {"epoch": 1, "step": 2, "cause": "odd"},
    "resumed": {"epoch": 1, "step": 2, "age_s": 1.5, "times": None, "steps_taken": 5},
    "fault": {"fault": 1, "action": "kill", "epoch": 1, "step": 2, "second": 0.5, "earlier": True},
    "train_end": {},
    "result": rank_fields(bytes_to=[1, 2], wait_s_by_rank=[0.1, 0.2], blocks=["fc"], state_bytes={"w": 1}),
    "done": {"forced": True},
    "failed": {"cause": "größer als 2 × 3, 漢字, 🙂", "peer": True, "traceback": 'a\n\tb "\\'},
    "terminated": {"cause": "stopped by SIGTERM"},
    "died": {"cause": "killed by SIGKILL", "signal": "SIGKILL", "attempt": 1},
    "damaged": {"line": "odd", "reason": "not JSON"},
}
HEAD = {"version": 1, "time": 5.0, "run": "key", "rank": 0, "host": "host"}
ODD_NUMBERS = [None, True, -1, 0, 2**60, 10**400, -0.5, 1e300, float("nan"), float("inf")]
JUNK = [
    *ODD_NUMBERS,
    "",
    "3",
    "x\x1b[2J\r\x85\u202e",
    "\udcff",
    [],
    [[]],
    [None],
    ["x"],
    {},
    {"x": {}},
    {"": 1},
]


def line(kind: str, /, **changed: Any) -> str:
    return json.dumps({**HEAD, "kind": kind, **VALID[kind], **changed})


def invalid(text: str) -> str:
    """Why the line is not an event: in one short line, which can be shown."""
    with pytest.raises(ValueError, match=r".") as caught:
        Event.from_line(text)
    cause = str(caught.value)
    assert len(cause) < 400
    assert cause == printable(cause)
    return cause


def fields() -> Iterator[tuple[str, str, bool]]:
    """Kind, name and whether it is required, of all fields of all kinds."""
    assert VALID.keys() == EVENTS.keys()
    for kind, model in EVENTS.items():
        for name, field in model.model_fields.items():
            yield kind, name, field.is_required()


def test_an_event_keeps_its_fields() -> None:
    for kind, expected in VALID.items():
        event = Event.from_line(line(kind))
        assert event.fields == expected
        assert Event.from_line(event.to_line()) == event


def test_a_missing_field_is_named_unless_it_has_a_default() -> None:
    for kind, name, required in fields():
        without = json.loads(line(kind))
        without.pop(name, None)
        if required:
            assert invalid(json.dumps(without)).startswith(f"event {kind}: {name}")
        else:
            Event.from_line(json.dumps(without))


def test_a_mistyped_field_is_named() -> None:
    """No field accepts an object with a number as a name, nor a number beyond any measurement."""
    for kind, name, _ in fields():
        for value in ({"7": []}, -(10**400)):
            assert invalid(line(kind, **{name: value})).startswith(f"event {kind}: {name}")


@pytest.mark.parametrize(
    ("kind", "field", "least", "most"),
    [
        ("start", "rank", 0, 2**16 - 1),
        ("start", "time", 0, 1e11),
        ("start", "pid", 1, 2**31 - 1),
        ("start", "attempt", 0, 100),
        ("waiting", "incarnation", 1, 100),
        ("step", "accuracy", 0.0, 1.0),
        ("step", "step", 1, 2**53),
        ("fault", "fault", 0, 31),
        ("checkpoint", "seconds", 0.0, 1e15),
        ("link", "bytes_per_s", 1.0, 1e15),
    ],
)
def test_a_range_includes_its_ends_and_no_more(kind: str, field: str, least: float, most: float) -> None:
    for value in (least, most):
        Event.from_line(line(kind, **{field: value}))
    for value in (least - 1, most * 1.5, str(least), bool(least), float("nan")):
        assert field in invalid(line(kind, **{field: value})) or value != value


def test_a_line_that_is_no_event_is_refused() -> None:
    for changed in ({"version": 2}, {"host": None}, {"kind": "x\x1b[2J"}, {"kind": None}, {"more": 1}):
        assert next(iter(changed)) in invalid(line("start", **changed))
    for seconds in ({}, {"data": 1.0}, {**rank_fields()["seconds"], "odd": 1.0}):
        assert "event result: seconds" in invalid(line("result", seconds=seconds))
    for text in (
        "",
        "fault_injection line 1",
        "[]",
        "1",
        "{}",
        '{"version": 1',
        "1" * 8000,
        '{"a":' * 1600,
    ):
        invalid(text)
    for number in ("1e999", "-1e999", "NaN", "Infinity"):
        assert "not a finite number" in invalid(f'{{"version": {number}}}')
    for depth in (100, 101, 500, 1000, 4000):
        nested = "[" * depth + "]" * depth
        invalid(nested)
        invalid(line("failed", cause="X").replace('"X"', nested))


def test_characters_that_control_a_terminal_become_visible() -> None:
    for character in "\x1b\r\0\x9b\u202e\udcff\u2028":
        read = Event.from_line(line("failed", cause=f"a{character}[2J\n\tb", host=character))
        escape = ascii(character)[1:-1]
        assert (read.fields["cause"], read.host) == (f"a{escape}[2J\\n\\tb", escape)
        assert Event.from_line(read.to_line()) == read  # so that stored events can be read again
    assert str(MAX_BYTES) in invalid(json.dumps({**HEAD, "kind": "failed", "cause": "\b" * 3500}))


def test_mutated_events_are_valid_or_rejected() -> None:
    """What is accepted can be shown, stored, read again, and become part of a result."""
    rng, accepted = random.Random(0), 0
    for _ in range(3000):
        changed = json.loads(line(rng.choice([*VALID])))
        for _ in range(rng.randint(0, 2)):
            changed[rng.choice([*changed])] = rng.choice(JUNK)
        try:
            read = Event.from_line(json.dumps(changed))
        except ValueError:
            continue
        accepted += 1
        assert Event.from_line(read.to_line()) == read
        format_event(read)
        position(read)
        ranks_of([read])
        epochs_of([read])
        certify([read])
        outcome([read], {}, 1, None)
    assert 200 < accepted < 2800
