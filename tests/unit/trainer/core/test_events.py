"""Events: one line per event, read exactly once, formatted for the console."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import event, rank_fields
from trainer.core.events import (
    MAX_BYTES,
    Event,
    EventReader,
    EventWriter,
    combined_digest,
    format_event,
    read_events,
)
from trainer.data.datasets.synthetic import Synthetic

Writer = Callable[..., EventWriter]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """`writer(rank)`: a writer to tmp_path, closed after the test."""
    opened: list[EventWriter] = []

    def writer(
        rank: int = 0, directory: Path | None = tmp_path, of: EventWriter | None = None, **options: str
    ) -> EventWriter:
        opened.append(
            of.as_rank(rank) if of else EventWriter("run", rank, directory, io.StringIO(), **options)
        )
        return opened[-1]

    yield writer
    for each in opened:
        if each._file:
            each._file.close()


def shown(writer: EventWriter) -> str:
    """The text on the console."""
    assert isinstance(writer._console, io.StringIO)
    return writer._console.getvalue()


PARTITION = {
    "epoch": 1,
    "samples": 6,
    "labels": [1, 2, 3],
    "js_divergence": 0.1,
    "js_divergence_so_far": 1 / 3,
    "earth_movers_distance": None,
    "digest": "0" * 16,
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("ready", {}),
    ("failed", {"cause": 'quotes " and \\', "traceback": "newline\n and tab\t"}),
    ("failed", {"cause": "größer als 2 × 3, 漢字, 🙂", "peer": True, "traceback": ""}),
    ("partition", PARTITION),
    ("result", rank_fields()),
]


@pytest.mark.parametrize(("kind", "fields"), EVENTS)
def test_line_round_trip(kind: str, fields: dict[str, Any]) -> None:
    original = event(kind, 3, time=1700000000.123456, **fields)
    line = original.to_line()
    assert "\n" not in line
    assert Event.from_line(line) == original
    assert json.loads(line)["version"] == 1


@pytest.mark.parametrize(("kind", "fields"), EVENTS)
def test_written_events_are_read_back(
    writer: Writer, tmp_path: Path, kind: str, fields: dict[str, Any]
) -> None:
    for _ in range(2):
        writer().write(kind, **fields)
    expected = [(kind, fields)] * 2
    assert [(e.kind, e.fields) for e in EventReader(tmp_path).new()] == expected
    assert [(e.kind, e.fields) for e in read_events(tmp_path / "rank-0.jsonl")] == expected


@pytest.mark.parametrize("character", ["x", "ü", "漢"])
def test_lines_are_shorter_than_8_kib(character: str) -> None:
    room = MAX_BYTES - 1 - len(event("failed", cause="").to_line().encode()) - 1
    fits = event("failed", cause=character * (room // 6))
    assert len(fits.to_line().encode()) + 1 < MAX_BYTES
    with pytest.raises(ValueError, match=r"failed.*8192"):
        event("failed", cause=character * (room + 1)).to_line()


def test_longest_line_is_one_byte_below_8_kib() -> None:
    room = MAX_BYTES - 1 - len(event("failed", cause="").to_line()) - 1
    assert len(event("failed", cause="x" * room).to_line()) + 1 == MAX_BYTES - 1


def test_nan_is_rejected() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        event("epoch", loss=float("nan")).to_line()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "fault_injection line 1",
        "[]",
        "1",
        "{}",
        '{"version": 2}',
        '{"version": 1, "time": 1}',
        '{"version": 1',
    ],
)
def test_invalid_line_is_rejected(line: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Event.from_line(line)
    assert len(str(caught.value)) < 300


def test_field_cannot_have_the_name_of_a_header() -> None:
    for name in ("rank", "time", "run", "host", "version"):
        with pytest.raises(ValueError, match=name):
            Event(0.0, "run", 0, "host", "partition", {name: 5}).to_line()


# Writing


def test_writer_adds_run_rank_time_and_host(writer: Writer, tmp_path: Path) -> None:
    writer(2).write("failed", cause="odd")
    (event,) = EventReader(tmp_path).new()
    assert (event.run, event.rank, event.kind, event.fields) == (
        "run",
        2,
        "failed",
        {"cause": "odd"},
    )
    assert event.time > 1_700_000_000
    assert event.host


def test_writer_without_a_directory_writes_only_to_the_console(writer: Writer, tmp_path: Path) -> None:
    alone = writer(2, None)
    alone.write("start", pid=7)
    alone.write("train_end")
    assert shown(alone) == "node-2 | up, process 7\n"
    assert list(tmp_path.iterdir()) == []


def test_writer_of_another_rank_has_its_own_file(writer: Writer, tmp_path: Path) -> None:
    first = writer(0)
    writer(1, of=first).write("start", pid=7)
    first.write("start", pid=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.jsonl", "rank-1.jsonl"]
    assert [e.rank for e in EventReader(tmp_path).new()] == [1, 0]
    assert shown(first) == "node-1 | up, process 7\nnode-0 | up, process 8\n"


@pytest.mark.parametrize(
    ("prefix", "shown_before"),
    [("", ["", ""]), ("rank {rank} | ", ["rank 3 | ", "rank 12 | "]), ("{x} {} | ", ["{x} {} | "] * 2)],
)
def test_prefix_of_console_lines(writer: Writer, prefix: str, shown_before: list[str]) -> None:
    first = writer(3, None, prefix=prefix)
    first.write("start", pid=7)
    writer(12, None, of=first).write("failed", cause="odd")  # of the same run, on the same console
    assert shown(first) == f"{shown_before[0]}up, process 7\n{shown_before[1]}failed: odd\n"


def test_console_line_is_one_write() -> None:
    writes: list[str] = []

    class Console(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    EventWriter("run", 1, None, Console()).write("start", pid=7)
    assert writes == ["node-1 | up, process 7\n"]  # otherwise ranks that share a console mix their lines


def test_lines_are_flushed_and_appended(writer: Writer, tmp_path: Path) -> None:
    writer().write("train_end")
    writer().write("died", cause="killed")
    assert [e.kind for e in EventReader(tmp_path).new()] == ["train_end", "died"]


def test_file_that_is_removed_is_damaged_once(writer: Writer, tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    for rank in (0, 1):
        writer(rank).write("ready")
    assert len(reader.new()) == 2
    (tmp_path / "rank-1.jsonl").unlink()
    (event,) = reader.new()
    assert (event.rank, event.kind) == (1, "damaged")
    assert "rank-1.jsonl" in event.fields["reason"]
    assert reader.new() == []


def test_files_of_a_directory_that_is_removed_are_not_damaged(writer: Writer, tmp_path: Path) -> None:
    """It is removed after the run."""
    reader = EventReader(tmp_path)
    writer().write("ready")
    assert len(reader.new()) == 1
    shutil.rmtree(tmp_path)
    assert reader.new() == []


def test_partial_line_of_a_killed_process_does_not_damage_the_next_event(
    writer: Writer, tmp_path: Path
) -> None:
    append(tmp_path / "rank-0.jsonl", event("ready"), rest=event("done").to_line()[:30])
    writer().write("start", pid=7, attempt=1)
    writer().write("train_end")  # no newline after a complete line
    assert sorted(e.kind for e in EventReader(tmp_path).new()) == [
        "damaged",
        "ready",
        "start",
        "train_end",
    ]
    assert b"\n\n" not in (tmp_path / "rank-0.jsonl").read_bytes()


def test_largest_number_of_classes_fits_a_line(writer: Writer) -> None:
    most = next(m.le for m in Synthetic.model_fields["classes"].metadata if hasattr(m, "le"))
    digest = "0" * 16
    skew = dict.fromkeys(["js_divergence", "js_divergence_so_far", "earth_movers_distance"], 1 / 3)
    writer().write("partition", epoch=10_000, samples=10**9, labels=[99_999] * most, digest=digest, **skew)


# Reading


def append(path: Path, *events: Event, rest: str = "") -> None:
    with open(path, "a") as file:
        file.write("".join(e.to_line() + "\n" for e in events) + rest)


def test_reader_reads_each_event_once_in_order_of_time(tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    assert reader.new() == []
    append(tmp_path / "rank-0.jsonl", event("ready", 0, time=1), event("train_end", 0, time=4))
    append(tmp_path / "rank-10.jsonl", event("start", 10, time=2, pid=1))
    assert [e.kind for e in reader.new()] == ["ready", "start", "train_end"]
    assert reader.new() == []
    append(tmp_path / "rank-2.jsonl", event("terminated", 2, time=3, cause="x"))
    append(tmp_path / "rank-0.jsonl", event("done", 0, time=5))
    assert [e.kind for e in reader.new()] == ["terminated", "done"]
    assert [e.kind for e in EventReader(tmp_path).new()] == [
        "ready",
        "start",
        "terminated",
        "train_end",
        "done",
    ]


def test_reader_keeps_the_order_of_a_rank_whose_clock_was_set_back(tmp_path: Path) -> None:
    """A rank dies and is started again; another one trains meanwhile."""
    own = [
        event("start", 0, 10, pid=7),
        event("died", 0, 20, cause="killed by SIGKILL"),
        event("start", 0, 12, pid=8, incarnation=1),
        event("waiting", 0, 13, incarnation=1),
    ]
    other = [event("ready", 1, time) for time in (11, 19, 21)]
    for rank, events in enumerate((own, other)):
        append(tmp_path / f"rank-{rank}.jsonl", *events)
    found = EventReader(tmp_path).new()
    assert [each for each in found if each.rank == 0] == own
    assert [each.time for each in found] == [10, 11, 19, 20, 12, 13, 21]


def test_reader_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    reader, path = EventReader(tmp_path), tmp_path / "rank-0.jsonl"
    line = event("failed", cause="ü and more").to_line()
    append(path, event("ready"), rest=line[:9])
    assert [e.kind for e in reader.new()] == ["ready"]
    for text in (line[9:30], line[30:]):
        append(path, rest=text)
        assert reader.new() == []
    append(path, rest="\n")
    assert [e.kind for e in reader.new()] == ["failed"]


def test_reader_ignores_other_files(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text("hello\n")
    (tmp_path / "rendezvous").write_bytes(b"\xff\n")
    assert EventReader(tmp_path).new() == []


def test_merged_file(tmp_path: Path) -> None:
    events = [event("ready"), event("failed", 1, cause="…")]
    append(tmp_path / "events.jsonl", *events)
    assert list(read_events(tmp_path / "events.jsonl")) == events


# Console format


@pytest.mark.parametrize(
    ("reported", "line"),
    [
        (event("start", 2, pid=4711), "up, process 4711"),
        (
            event(
                "step",
                2,
                epoch=1,
                epochs=3,
                step=120,
                steps=235,
                loss=0.23149,
                accuracy=0.9375,
                samples_per_s=12345.6,
            ),
            "epoch 1/3 step 120/235 loss 0.231 acc 93.8% 12,346 samples/s",
        ),
        (
            event("epoch", epoch=3, epochs=3, train_s=1.234, loss=0.1, accuracy=0.9754, test_loss=0.2),
            "epoch 3/3 done in 1.23 s, loss 0.100 acc 97.5%",
        ),
        (
            event("epoch", epoch=2, epochs=9, train_s=1.2, loss=None, accuracy=0.9, target_reached=True),
            "epoch 2/9 done in 1.20 s, acc 90.0%, target reached",
        ),
        (
            event("result", 11, **rank_fields(samples=60_000, train_s=1.5, accuracy=0.98)),
            "trained 60,000 samples in 1.50 s, acc 98.0%",
        ),
        (event("result", 1, **rank_fields(samples=0, train_s=1.5)), "took part in 1.50 s, acc 90.0%"),
        (event("failed", 1, cause="odd", traceback="Trace\n  back"), "failed: odd\nTrace\n  back"),
        (event("failed", 1, cause="odd"), "failed: odd"),
        (event("terminated", cause="stopped by SIGTERM"), "terminated: stopped by SIGTERM"),
        (event("died", cause="killed by SIGKILL"), "died: killed by SIGKILL"),
    ],
)
def test_format_event(reported: Event, line: str) -> None:
    assert format_event(reported) == line


@pytest.mark.parametrize("kind", ["partition", "coverage", "train_start", "train_end", "done"])
def test_internal_events_are_not_shown(kind: str) -> None:
    assert format_event(event(kind)) is None


def test_result_without_training_is_not_shown() -> None:
    assert format_event(event("result", **rank_fields(accuracy=None, steps=0))) is None


def test_combined_digest_depends_on_the_parts_and_their_order() -> None:
    assert combined_digest(["a", "b"]) == combined_digest(iter(["a", "b"]))
    assert (
        len({combined_digest(parts) for parts in (["a", "b"], ["b", "a"], ["a"], [], ["a", "b", "c"])}) == 5
    )
    assert len(combined_digest(["a"])) == 16
