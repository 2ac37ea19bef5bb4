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
from tests.unit.conftest import FakeTime, event, run_result
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

RUN = RunSpec.model_validate({"strategy": "ddp", "nodes": 2})
SAMPLED = replace(VirtualRuntime.info, trains=False)
FAILED = "[2/9] KEY: FAILED after 4.0 s: node 0: it broke"


def step(rank: int = 0, **changed: Any) -> Event:
    fields = {"epoch": 1, "epochs": 3, "step": 12, "steps": 45, "loss": 0.23149, "samples_per_s": 12345.6}
    return event("step", rank, **{**fields, **changed})


def epoch(rank: int = 0) -> Event:
    return event("epoch", rank, epoch=2, epochs=3, train_s=1.0, loss=0.1, accuracy=0.9, test_loss=0.2)


@pytest.mark.parametrize(
    ("time_left", "now", "text"),
    [
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
    ],
)
def test_the_time_left_follows_from_ended_runs_and_moves_within_one(
    time_left: TimeLeft, now: dict[str, Any], text: str
) -> None:
    assert time_left.estimate(**now) == text


@pytest.mark.parametrize(
    ("fields", "skipped", "line"),
    [
        ({}, False, "[2/9] KEY: ok in 4.0 s, trained 2.00 s, acc 90.0%"),
        ({"ranks": []}, False, "[2/9] KEY: ok in 4.0 s, trained 0.00 s"),
        ({"ranks": [], "runtime_info": SAMPLED}, False,
         "[2/9] KEY: ok in 4.0 s, 0.00 s of simulated time, not trained"),
        ({}, True, "[2/9] KEY: already done"),
        ({"status": "failed"}, False, FAILED),
        ({"status": "failed", "log": "node-0.log"}, False, f"{FAILED}; see node-0.log"),
        ({"status": "timeout"}, False, FAILED.replace("FAILED", "TIMEOUT")),
    ],
)  # fmt: skip
def test_a_run_that_has_ended_is_one_line(fields: dict[str, Any], skipped: bool, line: str) -> None:
    result = run_result(**fields)
    assert result_line(2, 9, result, skipped) == line.replace("KEY", result.key)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(display.time, "monotonic", time)
    return time


class Screen:
    """A plain display that writes to a 30-column file, on which the first of three runs has started."""

    def __init__(self, **fields: Any) -> None:
        self._file = io.StringIO()
        self.display = progress_on(Console(file=self._file, width=30), total=3)
        assert type(self.display) is PlainProgress
        self.display.warm_up(RUN)
        self.display.begin(1, 3, RUN.model_copy(update=fields))

    def lines(self) -> list[str]:
        """Lines written since the last call."""
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text.splitlines()


def test_plain_lines_of_a_sweep_count_neither_warm_up_nor_skipped_runs(clock: FakeTime) -> None:
    screen = Screen()
    warm_up, started = screen.lines()
    assert warm_up == f"warm-up run, whose result is dropped: {RUN.key}"
    assert started == f"[1/3] {RUN.key}: started"
    screen.display.end(1, 3, run_result(wall_s=600.0), skipped=True)
    screen.display.begin(2, 3, RUN)
    assert screen.lines()[1:] == [f"[2/3] {RUN.key}: started"]
    screen.display.end(2, 3, run_result(wall_s=60.0), skipped=False)
    screen.display.begin(3, 3, RUN)
    assert screen.lines()[1:] == [f"[3/3] {RUN.key}: started, about 1 min left"]


def test_plain_lines_show_each_node_every_ten_seconds(clock: FakeTime) -> None:
    screen = Screen()
    screen.lines()
    clock.pass_(9.9)
    screen.display.events([step(0)])
    assert screen.lines() == []
    clock.pass_(0.1)
    screen.display.events([event("start", 0, pid=1)])
    assert screen.lines() == []  # no line for a start event; the next step event is shown at once
    screen.display.events([step(1), step(0, step=11), step(0), event("partition")])
    assert screen.lines() == [
        "  node 0: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
        "  node 1: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
    ]
    clock.pass_(9.9)
    screen.display.events([epoch(1)])
    assert screen.lines() == []
    clock.pass_(0.2)
    screen.display.events([epoch(1)])
    assert screen.lines() == ["  node 1: epoch 2/3 done, loss 0.100, acc 90.0%"]


def test_plain_lines_name_few_of_many_ranks_with_their_nodes(clock: FakeTime) -> None:
    screen = Screen(processes_per_node=2)
    screen.lines()
    clock.pass_(10)
    screen.display.events([epoch(rank) for rank in range(10)])
    *shown, others = screen.lines()
    assert shown[3] == "  rank 3 of node 1: epoch 2/3 done, loss 0.100, acc 90.0%"
    assert (len(shown), others) == (8, "  and 2 other ranks")


def test_a_cause_is_shown_as_it_is() -> None:
    cause = "node 0: a:smile:b, list [bold]index[/bold] [/x] out of 'range' 1234 http://x, beyond the width"
    screen = Screen()
    screen.display.end(1, 3, run_result("failed", cause=cause), skipped=False)
    assert screen.lines()[-1].endswith(cause)


# The live table


class Live:
    """A display on a terminal, on which the second of three runs has started."""

    def __init__(self, staged: bool = False, **fields: Any) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
        shown = progress_on(self._console, 3, staged)
        assert isinstance(shown, LiveProgress)
        self.display = shown
        self.display.begin(2, 3, RUN.model_copy(update=fields))

    @property
    def view(self) -> str:
        with self._console.capture() as capture:
            self._console.print(self.display._view())
        return capture.get()

    def rows(self, count: int) -> list[list[str]]:
        return [row.split() for row in self.view.splitlines()[-count:]]


def test_the_live_table_shows_the_run_node_by_node() -> None:
    live = Live()
    assert live.view.count("starting") == 2
    assert f"run 2 of 3  {RUN.key}" in live.view
    live.display.events([step(1), step(0, epoch=2), event("start", pid=1)])
    assert live.rows(2) == [
        ["0", "2/3", "step", "12/45", "0.231", "12,346"],
        ["1", "1/3", "step", "12/45", "0.231", "12,346"],
    ]
    live.display.events([epoch(1)])
    assert live.rows(1) == [["1", "2/3", "done", "0.100", "90.0%", "12,346"]]
    live.display.events([step(1, epoch=3)])  # the accuracy stays until the next evaluation
    assert live.rows(1) == [["1", "3/3", "step", "12/45", "0.231", "90.0%", "12,346"]]


def test_the_live_table_shows_the_warm_up_run() -> None:
    live, larger = Live(), RUN.model_copy(update={"nodes": 3})
    live.display.warm_up(larger)
    live.display.events([step(rank=2)])
    assert f"warm-up run  {larger.key}" in live.view
    assert live.view.count("starting") == 2
    live.display.begin(1, 3, RUN)
    assert "warm-up" not in live.view


def test_the_live_table_has_a_line_for_every_rank_that_fits_the_screen() -> None:
    live = Live(processes_per_node=3)
    assert live.view.count("starting") == 6
    assert live.rows(7)[0][0] == "rank"
    live.display.events([step(5)])
    assert live.rows(1)[0][:3] == ["5", "1/3", "step"]
    many = Live(nodes=300).view
    assert len(many.splitlines()) < 24
    assert "and 284 more" in many


@pytest.mark.parametrize(
    ("staged", "left"), [(False, "about 1 min left"), (True, "30 s left of this stage")]
)
def test_the_live_table_shows_the_time_since_the_start_and_the_time_left(
    clock: FakeTime, staged: bool, left: str
) -> None:
    live = Live(staged)
    assert "left" not in live.view
    clock.pass_(7.0)
    assert "7 s" in live.view
    with live.display as shown:
        shown.end(2, 3, run_result(wall_s=30.0), skipped=False)
    live.display.begin(2, 2 if staged else 3, RUN)
    assert f"0 s, {'at most ' if staged else ''}" in live.view
    assert left in live.view
