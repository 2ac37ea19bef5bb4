"""Mistakes in the reading and writing of events: twice, out of order, cut, of others, without limit."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.conftest import event, rank_fields
from tests.unit.trainer.core.test_event_schema import line
from trainer.core import events
from trainer.core.events import MAX_BYTES, MAX_DAMAGED, Event, EventReader, EventWriter
from trainer.data.datasets.synthetic import Synthetic

Writer = Callable[..., EventWriter]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """`writer(rank)`: a writer to tmp_path, closed after the test."""
    opened: list[EventWriter] = []

    def writer(rank: int = 0, directory: Path | None = tmp_path, **options: str) -> EventWriter:
        opened.append(EventWriter("run", rank, directory, io.StringIO(), **options))
        return opened[-1]

    yield writer
    for each in opened:
        each.close()


def shown(writer: EventWriter) -> str:
    """The text on the console."""
    assert isinstance(writer._console, io.StringIO)
    return writer._console.getvalue()


def write(directory: Path, *lines: str, rank: int = 0, end: str = "") -> None:
    (directory / f"rank-{rank}.jsonl").write_text("".join(f"{each}\n" for each in lines) + end)


def kinds(reader: EventReader) -> list[str]:
    return [each.kind for each in reader.new()]


# Lines


@pytest.mark.parametrize("character", ["x", "ü"])
def test_a_line_with_its_newline_is_shorter_than_8_kib(character: str) -> None:
    width = len(f"{event('failed', cause=character).to_line()}") - len(event("failed", cause="").to_line())
    room = MAX_BYTES - 2 - len(event("failed", cause="").to_line())
    longest = event("failed", cause=character * (room // width) + "x" * (room % width))
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


def test_the_largest_number_of_classes_fits_a_line() -> None:
    most = next(m.le for m in Synthetic.model_fields["classes"].metadata if hasattr(m, "le"))
    skew = dict.fromkeys(["js_divergence", "js_divergence_so_far", "earth_movers_distance"], 1 / 3)
    labels, digest = [99_999] * most, "0" * 16
    event("partition", epoch=10_000, samples=10**9, labels=labels, digest=digest, **skew).to_line()


def test_a_digest_is_of_all_parts_in_their_order() -> None:
    parts = [["a", "b"], ["b", "a"], ["a"], [], ["a", "b", "c"]]
    assert len({events.combined_digest(each) for each in parts}) == len(parts)
    assert events.combined_digest(iter(["a", "b"])) == events.combined_digest(["a", "b"])
    assert len(events.combined_digest(["a"])) == 16


def test_a_process_ends_with_a_code_or_by_a_signal() -> None:
    ends = {0: "ended with exit code 0", 3: "ended with exit code 3", -9: "was killed by SIGKILL"}
    assert {code: events.how_ended(code) for code in ends} == ends
    assert events.how_ended(-40) == "was killed by signal 40"


# Writing


def test_ranks_write_to_files_of_their_own_and_to_one_console(writer: Writer, tmp_path: Path) -> None:
    first = writer(0, prefix="rank {rank} {x} | ")
    other = first.as_rank(12)
    other.write("start", pid=7)
    first.write("failed", cause="odd")
    first.write_quietly("train_end")
    other.close()
    assert shown(first) == "rank 12 {x} | up, process 7\nrank 0 {x} | failed: odd\n"
    found = EventReader(tmp_path).new()
    assert [(each.run, each.rank, each.kind) for each in found] == [
        ("run", 12, "start"),
        ("run", 0, "failed"),
        ("run", 0, "train_end"),
    ]
    assert all(each.time > 1_700_000_000 and each.host for each in found)
    alone = writer(2, None)
    alone.write("start", pid=7)
    assert shown(alone) == "node-2 | up, process 7\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.jsonl", "rank-12.jsonl"]


def test_a_console_line_is_one_write() -> None:
    writes: list[str] = []

    class Console(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    EventWriter("run", 1, None, Console()).write("start", pid=7)
    assert writes == ["node-1 | up, process 7\n"]  # otherwise ranks that share a console mix their lines


def test_a_writer_continues_after_a_cut_line_of_a_killed_process(writer: Writer, tmp_path: Path) -> None:
    write(tmp_path, line("ready"), end=line("done")[:30])
    for kind in ("train_end", "ready"):  # the second one finds a complete line
        writer().write(kind)
    assert kinds(EventReader(tmp_path)) == ["ready", "damaged", "train_end", "ready"]
    assert b"\n\n" not in (tmp_path / "rank-0.jsonl").read_bytes()


# Reading


@settings(deadline=None)
@given(data=st.data())
def test_events_are_read_once_in_order_however_their_files_grow(data: st.DataObject) -> None:
    """Between ranks by time; within a rank as written, also if its clock was set back."""
    clocks = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=3))
    written = [[event("failed", rank, time, cause="ü") for time in own] for rank, own in enumerate(clocks)]
    rests = [b"".join(f"{each.to_line()}\n".encode() for each in own) for own in written]
    with TemporaryDirectory() as name:
        reader, found = EventReader(Path(name), ranks=len(clocks)), []
        while any(rests):
            for rank, rest in enumerate(rests):
                size = data.draw(st.integers(1, 400))
                with open(Path(name, events.events_name(rank)), "ab") as file:
                    file.write(rest[:size])
                rests[rank] = rest[size:]
            new = reader.new()
            found += new
            latest = [max(clocks[each.rank][: _written_by(found, each)]) for each in new]
            assert latest == sorted(latest)
        assert reader.new() == []
    assert [[each for each in found if each.rank == rank] for rank in range(len(clocks))] == written


def _written_by(found: list[Event], last: Event) -> int:
    """The number of events of a rank up to this one, which is one of those found."""
    at = next(number for number, each in enumerate(found) if each is last)
    return sum(each.rank == last.rank for each in found[: at + 1])


def test_only_files_of_ranks_of_the_run_are_read(tmp_path: Path) -> None:
    for name in ("rank-x", "rank-", "rank--1", "rank-01", "rank-2", "rank-100000", "node-0"):
        (tmp_path / f"{name}.jsonl").write_text(line("done", rank=2) + "\n")
    assert EventReader(tmp_path, ranks=2).new() == []
    assert [each.rank for each in EventReader(tmp_path, ranks=3).new()] == [2]


def test_what_is_no_event_of_the_rank_is_damaged_in_its_place(tmp_path: Path) -> None:
    """Of a restarted rank, only the lines since its last start count."""
    odd = [
        '{"cut',
        line("done", rank=1),
        line("start", attempt=3),
        "\x00\udcff".encode(errors="replace").decode(),
    ]
    write(tmp_path, line("start", attempt=2), *odd, line("start", time=6), line("done", time=7))
    found = EventReader(tmp_path, restarts=2).new()
    assert [each.kind for each in found] == ["start", *["damaged"] * 4, "start", "done"]
    reasons = [each.fields["reason"] for each in found if each.kind == "damaged"]
    assert "rank: 1" in reasons[1]
    assert "attempt: 3" in reasons[2]
    for each in found:
        assert Event.from_line(each.to_line()) == each


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
    (found,) = reader.new()
    assert (found.kind, found.rank) == ("damaged", 1)
    assert kind in found.fields["reason"]
    assert reader.has_given_up
    assert reader.new() == []


def test_a_removed_file_is_damaged_once_unless_the_run_is_over(tmp_path: Path) -> None:
    write(tmp_path, line("ready"))
    write(tmp_path, line("ready", rank=1), rank=1)
    reader = EventReader(tmp_path)
    assert len(reader.new()) == 2
    (tmp_path / "rank-1.jsonl").unlink()
    (found,) = reader.new()
    assert (found.rank, found.kind, "rank-1.jsonl" in found.fields["reason"]) == (1, "damaged", True)
    shutil.rmtree(tmp_path)
    assert reader.new() == []


def test_a_file_is_read_up_to_its_limits(tmp_path: Path) -> None:
    one = line("ready")
    reader = EventReader(tmp_path, max_bytes_per_rank=3 * (len(one) + 1))
    write(tmp_path, *[one] * 3)
    assert kinds(reader) == ["ready"] * 3
    write(tmp_path, *[one] * 50_000)
    assert kinds(reader) == ["damaged"]
    assert kinds(reader) == []
    assert kinds(EventReader(tmp_path, max_bytes_per_rank=3 * (len(one) + 1))) == ["ready"] * 3 + [
        "damaged"
    ]
    write(tmp_path, *["x"] * 100_000, one)
    assert kinds(EventReader(tmp_path)) == ["damaged"] * MAX_DAMAGED
    endless = EventReader(tmp_path)
    for size, expected in ((MAX_BYTES - 1, ["ready"]), (MAX_BYTES, ["damaged"]), (10 * MAX_BYTES, [])):
        write(tmp_path, one, end="x" * size)
        assert kinds(endless) == expected


def test_a_merged_file_is_read_in_its_order(tmp_path: Path) -> None:
    merged = [event("ready", 1, time=2.0), event("failed", 0, time=1.0, cause="…")]
    (tmp_path / "events.jsonl").write_text("".join(each.to_line() + "\n" for each in merged))
    assert list(events.read_events(tmp_path / "events.jsonl")) == merged


# Console lines

EPOCH = {"epoch": 2, "epochs": 9, "train_s": 1.234, "test_loss": 0.2, "accuracy": 0.9754}
POSITION = {"file": "mine.py", "line": 3, "function": "train"}
CONSOLE: list[tuple[str, dict[str, Any], str | None]] = [
    ("epoch", {**EPOCH, "loss": 0.1}, "epoch 2/9 done in 1.23 s, loss 0.100 acc 97.5%"),
    (
        "epoch",
        {**EPOCH, "loss": None, "target_reached": True},
        "epoch 2/9 done in 1.23 s, acc 97.5%, target",
    ),
    ("result", rank_fields(samples=60_000), "trained 60,000 samples in 2.00 s, acc 90.0%"),
    ("result", rank_fields(samples=0, accuracy=0.0), "took part in 2.00 s, acc 0.0%"),
    ("result", rank_fields(accuracy=None), "took 10 steps in 2.00 s, not trained"),
    ("result", rank_fields(accuracy=None, steps=0), None),
    ("resumed", {"epoch": 1, "step": 2}, "resumed from the checkpoint after epoch 1 and 2 steps"),
    ("failed", {"cause": "odd", "traceback": "Trace\n  back\n"}, "failed: odd\nTrace\n  back"),
    ("died", {"cause": "killed", "position": POSITION}, "died: killed, train at mine.py:3"),
    *((kind, {}, None) for kind in ("partition", "coverage", "train_start", "train_end", "done")),
]


def test_a_console_line_has_the_numbers_of_its_event_or_there_is_none() -> None:
    for kind, fields, expected in CONSOLE:
        shown_line = events.format_event(event(kind, **fields))
        assert shown_line is expected is None or (shown_line or "").startswith(str(expected))
