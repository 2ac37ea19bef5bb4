"""Mistakes in events: fields without type or range, escapes; lines read twice, cut, of others, endless.

tests/unit/project/test_fuzz.py has mistakes in whatever reads events.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.conftest import event, rank_fields
from trainer.core import events
from trainer.core.event_schema import EVENTS
from trainer.core.events import MAX_BYTES, MAX_DAMAGED, Event, EventReader, EventWriter
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


def test_an_event_keeps_its_fields_and_names_one_that_is_missing_or_mistyped() -> None:
    """No field accepts an object with a number as a name, nor a number beyond any measurement."""
    assert VALID.keys() == EVENTS.keys()
    for kind, expected in VALID.items():
        event = Event.from_line(line(kind))
        assert event.fields == expected
        assert Event.from_line(event.to_line()) == event
        for name, field in EVENTS[kind].model_fields.items():
            for value in ({"7": []}, -(10**400)):
                assert invalid(line(kind, **{name: value})).startswith(f"event {kind}: {name}")
            without = json.loads(line(kind))
            without.pop(name, None)
            if field.is_required():
                assert invalid(json.dumps(without)).startswith(f"event {kind}: {name}")
            else:
                Event.from_line(json.dumps(without))


def test_a_range_includes_its_ends_and_no_more() -> None:
    ranges: list[tuple[str, str, float, float]] = [
        ("start", "rank", 0, 2**16 - 1),
        ("start", "pid", 1, 2**31 - 1),
        ("start", "attempt", 0, 100),
        ("waiting", "incarnation", 1, 100),
        ("step", "step", 1, 2**53),
        ("fault", "fault", 0, 31),
        ("link", "bytes_per_s", 1.0, 1e15),
    ]
    for kind, field, least, most in ranges:
        for value in (least, most):
            Event.from_line(line(kind, **{field: value}))
        for odd in (least - 1, most + 1 + most // 2**52, str(least), bool(least)):
            assert field in invalid(line(kind, **{field: odd}))


def test_a_line_that_is_no_event_is_refused() -> None:
    for changed in ({"version": 2}, {"host": None}, {"kind": "x\x1b[2J"}, {"kind": None}, {"more": 1}):
        assert next(iter(changed)) in invalid(line("start", **changed))
    for seconds in ({}, {"data": 1.0}, {**rank_fields()["seconds"], "odd": 1.0}):
        assert "event result: seconds" in invalid(line("result", seconds=seconds))
    for text in ("", "odd", "[]", "1", "{}", '{"version": 1', "1" * 8000, '{"a":' * 1600):
        invalid(text)
    for number in ("1e999", "-1e999", "NaN", "Infinity"):
        assert "not a finite number" in invalid(f'{{"version": {number}}}')
    for depth in (100, 101, 1000, 4000):
        nested = "[" * depth + "]" * depth
        invalid(nested)
        invalid(line("failed", cause="X").replace('"X"', nested))


def test_characters_that_control_a_terminal_become_visible() -> None:
    for character in "\x1b\r\0\x9b\u202e\udcff\u2028":
        read = Event.from_line(line("failed", cause=f"a{character}[2J\n\tb", host=character))
        escape = ascii(character)[1:-1]
        assert (read.fields["cause"], read.host) == (f"a{escape}[2J\\n\\tb", escape)
        assert Event.from_line(read.to_line()) == read  # so that stored events can be read again
        assert json.loads(read.to_line())["host"] == read.host
    assert str(MAX_BYTES) in invalid(json.dumps({**HEAD, "kind": "failed", "cause": "\b" * 3500}))


def write(directory: Path, *lines: str, rank: int = 0, end: str = "") -> None:
    (directory / events.events_name(rank)).write_text("".join(f"{each}\n" for each in lines) + end)


def kinds(reader: EventReader) -> list[str]:
    return [each.kind for each in reader.new()]


@pytest.mark.parametrize("character", ["x", "ü"])
def test_a_line_with_its_newline_is_shorter_than_8_kib(character: str) -> None:
    empty, one = (len(event("failed", cause=cause).to_line()) for cause in ("", character))
    count, rest = divmod(MAX_BYTES - 2 - empty, one - empty)
    longest = event("failed", cause=character * count + "x" * rest)
    assert len(longest.to_line().encode()) + 1 == MAX_BYTES - 1
    assert Event.from_line(longest.to_line()) == longest
    with pytest.raises(ValueError, match=r"failed.*8192"):
        event("failed", cause=longest.fields["cause"] + "x").to_line()
    with pytest.raises(ValueError, match="8192"):
        Event.from_line(longest.to_line() + " ")


def test_what_a_line_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        event("epoch", loss=float("nan")).to_line()
    for name in ("rank", "time", "run", "host", "version"):
        with pytest.raises(ValueError, match=name):
            Event(0.0, "run", 0, "host", "partition", {name: 5}).to_line()


def test_a_digest_is_of_all_parts_in_their_order() -> None:
    parts = [["a", "b"], ["b", "a"], ["a"], [], ["a", "b", "c"]]
    assert len({events.combined_digest(iter(each)) for each in parts}) == len(parts)


# Writing


def test_ranks_write_to_files_of_their_own_and_whole_lines_to_one_console(tmp_path: Path) -> None:
    writes: list[str] = []

    class Console(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)  # ranks that share a console must not mix their lines
            return len(text)

    first = EventWriter("run", 0, tmp_path, Console(), prefix="rank {rank} {x} | ")
    other, alone = first.as_rank(12), EventWriter("run", 2, None, Console())
    other.write("start", pid=7)
    first.write("failed", cause="odd")
    first.write_quietly("train_end")
    alone.write("start", pid=7)
    for each in (first, other, alone):
        each.close()
    assert writes == [
        "rank 12 {x} | up, process 7\n",
        "rank 0 {x} | failed: odd\n",
        "node-2 | up, process 7\n",
    ]
    found = EventReader(tmp_path).new()
    assert [(each.rank, each.kind) for each in found] == [(12, "start"), (0, "failed"), (0, "train_end")]
    assert all(each.time > 1_700_000_000 and each.host and each.run == "run" for each in found)


def test_a_writer_continues_after_a_cut_line_of_a_killed_process(tmp_path: Path) -> None:
    write(tmp_path, line("ready"), end=line("done")[:30])
    for kind in ("train_end", "ready"):  # the second one finds a complete line
        writer = EventWriter("run", 0, tmp_path, io.StringIO())
        writer.write(kind)
        writer.close()
    assert kinds(EventReader(tmp_path)) == ["ready", "damaged", "train_end", "ready"]
    assert b"\n\n" not in (tmp_path / "rank-0.jsonl").read_bytes()


# Reading


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_events_are_read_once_in_order_however_their_files_grow(data: st.DataObject) -> None:
    """Between ranks by time; within a rank as written, also if its clock was set back."""
    clocks = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=3))
    written = [[event("failed", rank, time, cause="ü") for time in own] for rank, own in enumerate(clocks)]
    rests = [b"".join(f"{each.to_line()}\n".encode() for each in own) for own in written]
    found: list[list[Event]] = [[] for _ in clocks]
    with TemporaryDirectory() as name:
        reader = EventReader(Path(name), ranks=len(clocks))
        while any(rests):
            for rank, rest in enumerate(rests):
                size = data.draw(st.integers(1, 400))
                with open(Path(name, events.events_name(rank)), "ab") as file:
                    file.write(rest[:size])
                rests[rank] = rest[size:]
            latest = []
            for each in reader.new():
                found[each.rank].append(each)
                latest.append(max(earlier.time for earlier in found[each.rank]))
            assert latest == sorted(latest)
        assert reader.new() == []
    assert found == written


def test_only_files_of_ranks_of_the_run_are_read(tmp_path: Path) -> None:
    for name in ("rank-x", "rank-", "rank--1", "rank-01", "rank-2", "rank-100000", "node-0"):
        (tmp_path / f"{name}.jsonl").write_text(line("done", rank=2) + "\n")
    assert EventReader(tmp_path, ranks=2).new() == []
    assert [each.rank for each in EventReader(tmp_path, ranks=3).new()] == [2]


def test_what_is_no_event_of_the_rank_is_damaged_in_its_place(tmp_path: Path) -> None:
    odd = [
        '{"cut',
        line("done", rank=1),
        line("start", attempt=3),
        "\x00\udcff".encode(errors="replace").decode(),
    ]
    write(tmp_path, line("start", attempt=2), *odd, line("start", time=6), line("done", time=7))
    found = EventReader(tmp_path, restarts=2).new()
    assert [each.kind for each in found] == ["start", *["damaged"] * 4, "start", "done"]
    for each, named in zip(found[1:5], ("not JSON", "rank: 1", "attempt: 3", "not JSON"), strict=True):
        assert named in each.fields["reason"]
        assert Event.from_line(each.to_line()) == each


def test_what_is_no_file_of_events_is_damaged_once(tmp_path: Path) -> None:
    (tmp_path / "others").write_text(line("done", rank=1) + "\n")
    makers: dict[str, Callable[[Path], object]] = {
        "directory": Path.mkdir,
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to("others"),
    }
    for kind, make in makers.items():
        make(path := tmp_path / "rank-1.jsonl")
        reader = EventReader(tmp_path, ranks=2)
        (found,) = reader.new()
        assert (found.kind, found.rank, reader.has_given_up) == ("damaged", 1, True)
        assert kind in found.fields["reason"]
        assert reader.new() == []
        path.rename(tmp_path / kind)


def test_a_removed_file_is_damaged_once_unless_the_run_is_over(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, line("ready", rank=rank), rank=rank)
    reader = EventReader(tmp_path)
    assert len(reader.new()) == 2
    (tmp_path / "rank-1.jsonl").unlink()
    (found,) = reader.new()
    assert (found.rank, found.kind, "rank-1.jsonl" in found.fields["reason"]) == (1, "damaged", True)
    shutil.rmtree(tmp_path)
    assert reader.new() == []


def test_a_file_is_read_up_to_its_limits(tmp_path: Path) -> None:
    one = line("ready")
    reader, late = (EventReader(tmp_path, max_bytes_per_rank=3 * (len(one) + 1)) for _ in range(2))
    for lines, expected in ((3, ["ready"] * 3), (9, ["damaged"]), (9, [])):
        write(tmp_path, *[one] * lines)
        assert kinds(reader) == expected
    assert kinds(late) == ["ready"] * 3 + ["damaged"]
    write(tmp_path, *["x"] * (MAX_DAMAGED + 9), one)
    assert kinds(EventReader(tmp_path)) == ["damaged"] * MAX_DAMAGED
    endless = EventReader(tmp_path)
    for size, expected in ((MAX_BYTES - 1, ["ready"]), (MAX_BYTES, ["damaged"]), (10 * MAX_BYTES, [])):
        write(tmp_path, one, end="x" * size)
        assert kinds(endless) == expected


SECOND = {"epoch": 2, "epochs": 9, "train_s": 1.234, "test_loss": 0.2, "accuracy": 0.9754, "loss": 0.1}
REACHED = {**SECOND, "loss": None, "target_reached": True}
POSITION = {"file": "mine.py", "line": 3, "function": "train"}
CONSOLE: list[tuple[str, dict[str, Any], str | None]] = [
    ("epoch", SECOND, "epoch 2/9 done in 1.23 s, loss 0.100 acc 97.5%"),
    ("epoch", REACHED, "epoch 2/9 done in 1.23 s, acc 97.5%, target reached"),
    ("result", rank_fields(samples=60_000), "trained 60,000 samples in 2.00 s, acc 90.0%"),
    ("result", rank_fields(samples=0, accuracy=0.0), "took part in 2.00 s, acc 0.0%"),
    ("result", rank_fields(accuracy=None), "took 10 steps in 2.00 s, not trained"),
    ("resumed", {"epoch": 1, "step": 2}, "resumed from the checkpoint after epoch 1 and 2 steps"),
    ("failed", {"cause": "odd", "traceback": "Trace\n  back\n"}, "failed: odd\nTrace\n  back"),
    ("died", {"cause": "killed", "position": POSITION}, "died: killed, train at mine.py:3"),
    *((kind, {}, None) for kind in ("partition", "coverage", "train_start", "train_end", "done")),
]


def test_a_console_line_has_the_numbers_of_its_event_or_there_is_none() -> None:
    for kind, fields, expected in CONSOLE:
        assert events.format_event(event(kind, **fields)) == expected
