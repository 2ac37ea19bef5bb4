"""Hostile events: whatever a node writes is a valid event or `damaged`, and never an exception."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.outcome import outcome
from orchestrator.execution.position import position
from orchestrator.execution.run_result import certify
from orchestrator.results.records import epochs_of, ranks_of
from tests.unit.conftest import rank_fields
from trainer.core.event_schema import EVENTS
from trainer.core.events import MAX_BYTES, MAX_DAMAGED, Event, EventReader, format_event
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
    "failed": {"cause": "odd", "peer": True, "traceback": "Trace"},
    "terminated": {"cause": "stopped by SIGTERM"},
    "died": {"cause": "killed by SIGKILL", "signal": "SIGKILL", "attempt": 1},
    "damaged": {"line": "odd", "reason": "not JSON"},
}
HEAD = {"version": 1, "time": 5.0, "run": "key", "rank": 0, "host": "host"}
JUNK = [
    None,
    True,
    -1,
    0,
    2**60,
    10**400,
    -0.5,
    1e300,
    float("nan"),
    float("inf"),
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


def test_every_kind_has_an_example() -> None:
    assert VALID.keys() == EVENTS.keys()


@pytest.mark.parametrize("kind", VALID)
def test_valid_event_keeps_its_fields(kind: str) -> None:
    assert Event.from_line(line(kind)).fields == VALID[kind]


def invalid(text: str) -> str:
    """Why the line is not an event."""
    with pytest.raises(ValueError, match=r".") as caught:
        Event.from_line(text)
    assert len(str(caught.value)) < 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind, fields in VALID.items() for field in fields]
)
def test_mistyped_field_is_named(kind: str, field: str) -> None:
    """No field accepts an object with a number as a name, nor a number beyond any measurement."""
    for value in ({"7": []}, -(10**400)):
        assert invalid(line(kind, **{field: value})).startswith(f"event {kind}: {field}")


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("start", "pid"),
        ("epoch", "loss"),
        ("result", "steps"),
        ("failed", "cause"),
        ("train_start", "parameters"),
    ],
)
def test_missing_field_is_named(kind: str, field: str) -> None:
    fields = json.loads(line(kind))
    del fields[field]
    assert invalid(json.dumps(fields)).startswith(f"event {kind}: {field}")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rank": True}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": 2**16}, "rank"),
        ({"rank": 1.0}, "rank"),
        ({"time": float("inf")}, "Infinity"),
        ({"time": -1}, "time"),
        ({"host": None}, "host"),
        ({"version": 2}, "version"),
        ({"kind": "x\x1b[2J"}, "kind"),
        ({"kind": None}, "kind"),
        ({"more": 1}, "more"),
        ({"pid": "7"}, "pid"),
        ({"pid": True}, "pid"),
        ({"pid": 0}, "pid"),
        ({"pid": float("nan")}, "NaN"),
        ({"attempt": 101}, "attempt"),
    ],
)
def test_invalid_value_is_named(changed: dict[str, Any], named: str) -> None:
    cause = invalid(line("start", **changed))
    assert named in cause
    assert cause == printable(cause)


@pytest.mark.parametrize("seconds", [{}, {"data": 1.0}, {**rank_fields()["seconds"], "odd": 1.0}])
def test_result_needs_every_phase(seconds: dict[str, float]) -> None:
    assert "event result: seconds" in invalid(line("result", seconds=seconds))


@pytest.mark.parametrize(
    "text", ["[" * 8000, '{"a":' * 1600, "1" * 8000, "1e999", '{"version": 1e999}', "x" * MAX_BYTES]
)
def test_malformed_line_is_not_an_event(text: str) -> None:
    invalid(text)


@pytest.mark.parametrize(
    ("character", "escape"),
    [
        ("\x1b", "\\x1b"),
        ("\r", "\\r"),
        ("\0", "\\x00"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_become_visible(character: str, escape: str) -> None:
    read = Event.from_line(line("failed", cause=f"a{character}[2J\n\tb", host=character))
    assert (read.fields["cause"], read.host) == (f"a{escape}[2J\\n\\tb", escape)
    assert Event.from_line(read.to_line()) == read  # so that stored events can be read again


@pytest.mark.parametrize("depth", [*range(100, 1300, 50), 4000])
def test_nesting_of_any_depth_is_rejected(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    invalid(nested)
    invalid(line("failed", cause="X").replace('"X"', nested))


def test_escapes_may_not_make_an_event_too_long_to_store() -> None:
    assert str(MAX_BYTES) in invalid(json.dumps({**HEAD, "kind": "failed", "cause": "\b" * 3500}))


def test_mutated_events_are_valid_or_rejected() -> None:
    """What is accepted can be shown, stored, read again, and become part of a result."""
    rng, accepted = random.Random(0), 0
    for _ in range(5000):
        kind = rng.choice([*VALID])
        fields = {**HEAD, "kind": kind, **VALID[kind]}
        for _ in range(rng.randint(1, 2)):
            name = rng.choice([*fields, "more"])
            if rng.random() < 0.2:
                fields.pop(name, None)
            else:
                fields[name] = rng.choice(JUNK)
        try:
            read = Event.from_line(json.dumps(fields))
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
    assert 200 < accepted < 4000


def test_random_bytes_are_rejected(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [rng.randbytes(rng.randint(1, 60)).replace(b"\n", b"") for _ in range(MAX_DAMAGED)]
    (tmp_path / "rank-0.jsonl").write_bytes(b"".join(line + b"\n" for line in lines if line))
    events = EventReader(tmp_path).new()
    assert {each.kind for each in events} == {"damaged"}
    for each in events:
        assert Event.from_line(each.to_line()) == each


# Files


def write(directory: Path, *lines: str, rank: int = 0, end: str = "") -> None:
    (directory / f"rank-{rank}.jsonl").write_text("".join(f"{line}\n" for line in lines) + end)


def test_event_of_another_rank_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, line("done", rank=1), rank=0)
    (found,) = EventReader(tmp_path).new()
    assert (found.kind, found.rank) == ("damaged", 0)
    assert "rank: 1" in found.fields["reason"]


def test_damaged_line_keeps_its_place(tmp_path: Path) -> None:
    """Of a restarted rank, only the lines since its last start count."""
    write(tmp_path, line("start", time=5), '{"cut', line("start", time=6), line("done", time=7))
    assert [e.kind for e in EventReader(tmp_path).new()] == ["start", "damaged", "start", "done"]


def test_files_that_are_not_a_rank_s_are_ignored(tmp_path: Path) -> None:
    for name in ("rank-x.jsonl", "rank-.jsonl", "rank--1.jsonl", "rank-01.jsonl", "rank-2.jsonl"):
        (tmp_path / name).write_text(line("done", rank=2) + "\n")
    assert EventReader(tmp_path, ranks=2).new() == []
    assert [e.rank for e in EventReader(tmp_path).new()] == [2]


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_what_is_no_file_of_events_is_damaged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rank-1.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "others").write_text(line("done", rank=1) + "\n")
        path.symlink_to("others")
    reader = EventReader(tmp_path, ranks=2)
    (event,) = reader.new()
    assert (event.kind, event.rank) == ("damaged", 1)
    assert kind in event.fields["reason"]
    assert reader.has_given_up
    assert reader.new() == []


def test_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    one = line("ready")
    reader = EventReader(tmp_path, max_bytes_per_rank=3 * (len(one) + 1))
    write(tmp_path, *[one] * 3)
    assert [e.kind for e in reader.new()] == ["ready"] * 3
    write(tmp_path, *[one] * 50_000)
    (found,) = reader.new()
    assert found.kind == "damaged"
    assert reader.new() == []
    again = EventReader(tmp_path, max_bytes_per_rank=3 * (len(one) + 1)).new()
    assert [e.kind for e in again] == ["ready"] * 3 + ["damaged"]


def test_endless_line_is_damaged_once(tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    write(tmp_path, line("ready"), end="x" * MAX_BYTES)
    assert [e.kind for e in reader.new()] == ["ready", "damaged"]
    write(tmp_path, line("ready"), end="x" * 10 * MAX_BYTES)
    assert reader.new() == []


def test_many_damaged_lines_are_given_up(tmp_path: Path) -> None:
    write(tmp_path, *["x"] * 100_000, line("done"))
    assert [e.kind for e in EventReader(tmp_path).new()] == ["damaged"] * MAX_DAMAGED
