"""Mistakes in what a sweep displays: the time left, which ranks are shown and when, text read as markup."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.execution import progress as display
from orchestrator.execution.position import TimeLeft
from orchestrator.execution.progress import LiveProgress, PlainProgress, progress_on, result_line
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.unit.conftest import FakeTime, event, rank_fields, run_result
from trainer.core.events import Event
from trainer.core.registry import IMPORTED
from trainer.spec.run_spec import RunSpec

RUN = RunSpec.model_validate({"strategy": "ddp", "nodes": 2})
SAMPLED = replace(VirtualRuntime.info, trains=False)


def step(rank: int = 0, **changed: Any) -> Event:
    fields = {"epoch": 1, "epochs": 3, "step": 12, "steps": 45, "loss": 0.23149, "samples_per_s": 12345.6}
    return event("step", rank, **{**fields, **changed})


def epoch(rank: int = 0) -> Event:
    return event("epoch", rank, epoch=2, epochs=3, train_s=1.0, loss=0.1, accuracy=0.9, test_loss=0.2)


def test_the_time_left_follows_from_ended_runs_and_moves_within_one() -> None:
    for time_left, now, text in (
        (TimeLeft(4), {"number": 1}, ""),  # no run has ended yet
        (TimeLeft(4, [60.0]), {"number": 2}, "about 3 min left"),
        (TimeLeft(4, [60.0, 30.0, 30.0]), {"number": 4}, "about 40 s left"),
        (TimeLeft(2, [30.0], staged=True), {"number": 2}, "at most about 30 s left of this stage"),
        (TimeLeft(3), {"number": 1, "elapsed_s": 5.0}, ""),
        (
            TimeLeft(3),
            {"number": 1, "done": 0.25, "elapsed_s": 10.0},
            "about 1 min 50 s left",
        ),  # 30 + 2 · 40
        (TimeLeft(3, [20.0]), {"number": 2, "elapsed_s": 5.0}, "about 35 s left"),
        (TimeLeft(3, [20.0]), {"number": 2, "elapsed_s": 50.0}, "about 20 s left"),
        (TimeLeft(3, [20.0]), {"number": 2, "done": 0.5, "elapsed_s": 12.0}, "about 30 s left"),
    ):
        assert time_left.estimate(**now) == text


def test_a_run_that_has_ended_is_one_line() -> None:
    failed = "FAILED after 4.0 s: node 0: it broke"
    for fields, text in (
        ({}, "ok in 4.0 s, trained 2.00 s, acc 90.0%"),
        ({"ranks": []}, "ok in 4.0 s, trained 0.00 s"),
        ({"ranks": [], "runtime_info": SAMPLED}, "ok in 4.0 s, 0.00 s of simulated time, not trained"),
        ({"status": "failed"}, failed),
        ({"status": "failed", "log": "node-0.log"}, f"{failed}; see node-0.log"),
        ({"status": "timeout"}, failed.replace("FAILED", "TIMEOUT")),
    ):
        result = run_result(**fields)
        assert result_line(2, 9, result, skipped=False) == f"[2/9] {result.key}: {text}"
        assert result_line(2, 9, result, skipped=True) == f"[2/9] {result.key}: already done"
    own = {"partitioner": {"name": "mine.py:Mine\x1b", IMPORTED: {}}}
    result = run_result(spec=result.spec | own)
    assert result_line(2, 9, result, skipped=True) == f"[2/9] {result.key} · Mine\\x1b: already done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(display.time, "monotonic", time)
    return time


class Screen:
    """A display of three runs on a terminal, or on a 30-column file."""

    def __init__(self, terminal: bool = False, staged: bool = False) -> None:
        self._file = io.StringIO()
        width = 100 if terminal else 30
        self.console = Console(file=self._file, force_terminal=terminal, width=width, color_system=None)
        self.display = progress_on(self.console, 3, staged)
        assert type(self.display) is (LiveProgress if terminal else PlainProgress)

    def begin(self, number: int, total: int = 3, **fields: Any) -> None:
        self.display.begin(number, total, RUN.model_copy(update=fields))

    def end(self, number: int, skipped: bool = False, **fields: Any) -> None:
        self.display.end(number, 3, run_result(**fields), skipped)

    def events(self, *events: Event) -> list[str]:
        """The lines that are written about events."""
        self.lines()
        self.display.events(events)
        return self.lines()

    def lines(self) -> list[str]:
        """Lines written since the last call; of a terminal those that it shows now."""
        if isinstance(self.display, LiveProgress):
            with self.console.capture() as capture:
                self.console.print(self.display._view())
            return capture.get().splitlines()
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text.splitlines()


def test_plain_lines_of_a_sweep_are_as_written_and_count_no_warm_up_or_skipped_runs(
    clock: FakeTime,
) -> None:
    screen = Screen()
    screen.display.warm_up(RUN)
    for skipped, wall_s in ((True, 600.0), (False, 60.0)):
        screen.begin(1)
        screen.end(1, skipped, wall_s=wall_s)
    screen.begin(2)
    cause = "node 0: a:smile:b, list [bold]index[/bold] [/x] out of 'range' 1234 http://x, beyond the width"
    screen.end(2, status="failed", cause=cause)
    lines = screen.lines()
    assert lines[0] == f"warm-up run, whose result is dropped: {RUN.key}"
    assert [lines[1], lines[3]] == [f"[1/3] {RUN.key}: started"] * 2
    assert lines[5] == f"[2/3] {RUN.key}: started, about 2 min left"
    assert lines[6].endswith(cause)


def test_the_first_run_beside_too_much_load_is_named_at_once(clock: FakeTime) -> None:
    screen = Screen()
    alone, beside = ({"train_s": 2.0, "seconds": {"cpu_contention": waited}} for waited in (1.0, 1.5))
    for number, fields in enumerate((alone, beside, beside), start=1):
        screen.end(number, ranks=[{"rank": 0, **rank_fields(), **fields}])
    said = [line.startswith("The machine is busy") for line in screen.lines()]
    assert said == [False, False, True, False]


def test_plain_lines_show_each_node_every_ten_seconds(clock: FakeTime) -> None:
    screen = Screen()
    screen.begin(1)
    clock.pass_(9.9)
    assert screen.events(step(0)) == []
    clock.pass_(0.1)
    assert screen.events(event("start", 0, pid=1)) == []  # no line; the next step event is shown at once
    assert screen.events(step(1), step(0, step=11), step(0), event("partition")) == [
        "  node 0: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
        "  node 1: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
    ]
    clock.pass_(9.9)
    assert screen.events(epoch(1)) == []
    clock.pass_(0.2)
    assert screen.events(epoch(1)) == ["  node 1: epoch 2/3 done, loss 0.100, acc 90.0%"]
    screen.begin(1, processes_per_node=2)
    clock.pass_(10)
    *shown, others = screen.events(*map(epoch, range(10)))
    assert shown[3] == "  rank 3 of node 1: epoch 2/3 done, loss 0.100, acc 90.0%"
    assert (len(shown), others) == (8, "  and 2 other ranks")


def test_the_live_table_shows_the_run_rank_by_rank() -> None:
    screen = Screen(terminal=True)
    screen.display.warm_up(RUN)
    assert screen.lines()[0] == f"warm-up run  {RUN.key}"
    screen.begin(2)
    shown = screen.lines()
    assert shown[0] == f"run 2 of 3  {RUN.key}"
    assert [row.split() for row in shown[-2:]] == [["0", "starting"], ["1", "starting"]]
    assert [
        row.split() for row in screen.events(step(1), step(0, epoch=2), event("start", pid=1))[-2:]
    ] == [
        ["0", "2/3", "step", "12/45", "0.231", "12,346"],
        ["1", "1/3", "step", "12/45", "0.231", "12,346"],
    ]
    assert screen.events(epoch(1))[-1].split() == ["1", "2/3", "done", "0.100", "90.0%", "12,346"]
    later = screen.events(step(1, epoch=3))[-1].split()  # the accuracy stays until the next evaluation
    assert later == ["1", "3/3", "step", "12/45", "0.231", "90.0%", "12,346"]
    screen.begin(3, processes_per_node=3)
    assert [row.split()[0] for row in screen.lines()[-7:]] == ["rank", *"012345"]
    screen.begin(3, nodes=300)
    assert len(many := screen.lines()) < 24
    assert "and 284 more" in many[-1]


def test_the_live_table_shows_the_time_since_the_start_and_the_time_left(clock: FakeTime) -> None:
    for total, left in ((3, "0 s, about 1 min left"), (2, "0 s, at most about 30 s left of this stage")):
        screen = Screen(terminal=True, staged=total == 2)
        screen.begin(2)
        assert ("left" in screen.lines()[1], screen.lines()[1].count("━")) == (False, 13)  # 40 for 3 runs
        clock.pass_(7.0)
        assert screen.lines()[1].endswith("7 s")
        with screen.display:
            screen.end(2, wall_s=30.0)
        screen.begin(2, total)
        assert screen.lines()[1].endswith(left)
