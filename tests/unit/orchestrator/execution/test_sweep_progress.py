"""Progress of a sweep, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.execution import progress as display
from orchestrator.execution.position import TimeLeft
from orchestrator.execution.progress import LiveProgress, PlainProgress, progress_on, result_line
from orchestrator.results.times import duration
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.unit.conftest import FakeTime, event, run_result
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

RUN = RunSpec.model_validate({"strategy": "ddp", "nodes": 2})


def step(rank: int = 0, **changed: Any) -> Event:
    fields = {"epoch": 1, "epochs": 3, "step": 12, "steps": 45, "loss": 0.23149, "samples_per_s": 12345.6}
    return event("step", rank, **{**fields, **changed})


def epoch(rank: int = 0) -> Event:
    return event("epoch", rank, epoch=2, epochs=3, train_s=1.0, loss=0.1, accuracy=0.9, test_loss=0.2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.6, "1 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (3599.7, "1 h"),
        (7322, "2 h 2 min"),
    ],
)
def test_durations_have_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_time_left_is_estimated_from_finished_runs() -> None:
    time_left = TimeLeft(total=4)
    assert time_left.estimate(1) == ""  # no run has ended yet
    time_left.seconds.append(60.0)
    assert time_left.estimate(2) == "about 3 min left"
    time_left.seconds += [30.0, 30.0]
    assert time_left.estimate(4) == "about 40 s left"


def test_the_time_left_of_a_stage_is_not_that_of_the_sweep() -> None:
    assert TimeLeft(2, [30.0], staged=True).estimate(2) == "at most about 30 s left of this stage"


def test_a_live_table_counts_the_runs_of_a_stage() -> None:
    shown = LiveProgress(Console(file=io.StringIO(), force_terminal=True, width=120), 60, staged=True)
    shown.end(1, 2, run_result(wall_s=30.0), False)
    shown.begin(2, 2, RUN)
    console = Console(file=io.StringIO(), width=120)
    console.print(shown._view())
    assert "about 30 s left of this stage" in console.file.getvalue()  # type: ignore[attr-defined]


def test_time_left_moves_within_a_run() -> None:
    time_left = TimeLeft(total=3)
    assert time_left.estimate(1, elapsed_s=5.0) == ""
    assert (
        time_left.estimate(1, done=0.25, elapsed_s=10.0) == "about 1 min 50 s left"
    )  # 30 s, and two of 40 s
    time_left.seconds.append(20.0)
    assert time_left.estimate(2, elapsed_s=5.0) == "about 35 s left"
    assert time_left.estimate(2, elapsed_s=50.0) == "about 20 s left"
    assert time_left.estimate(2, done=0.5, elapsed_s=12.0) == "about 30 s left"


@pytest.mark.parametrize(
    ("result", "skipped", "line"),
    [
        (run_result(), False, "[2/9] KEY: ok in 4.0 s, trained 2.00 s, acc 90.0%"),
        (run_result(ranks=[]), False, "[2/9] KEY: ok in 4.0 s, trained 0.00 s"),
        (
            run_result(ranks=[], runtime_info=replace(VirtualRuntime.info, trains=False)),
            False,
            "[2/9] KEY: ok in 4.0 s, 0.00 s of simulated time, not trained",
        ),
        (run_result(), True, "[2/9] KEY: already done"),
        (run_result("failed"), False, "[2/9] KEY: FAILED after 4.0 s: node 0: it broke"),
        (run_result("timeout"), False, "[2/9] KEY: TIMEOUT after 4.0 s: node 0: it broke"),
        (
            run_result("failed", log="node-0.log"),
            False,
            "[2/9] KEY: FAILED after 4.0 s: node 0: it broke; see node-0.log",
        ),
    ],
)
def test_result_line(result: Any, skipped: bool, line: str) -> None:
    assert result_line(2, 9, result, skipped) == line.replace("KEY", result.key)


# Plain lines


class Screen:
    """A plain display that writes to a 30-column file and uses a fake clock."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self._file = io.StringIO()
        console = Console(file=self._file, width=30)
        shown = progress_on(console, total=3)
        assert type(shown) is PlainProgress
        self.display = shown

    def lines(self) -> list[str]:
        """Lines written since the last call."""
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text.splitlines()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    time = FakeTime()
    monkeypatch.setattr(display.time, "monotonic", time)
    return Screen(time)


def test_plain_lines_of_a_sweep(screen: Screen) -> None:
    with screen.display as shown:
        shown.begin(1, 3, RUN)
        assert screen.lines() == [f"[1/3] {RUN.key}: started"]
        shown.end(1, 3, run_result(wall_s=60.0), skipped=False)
        assert len(screen.lines()) == 1
        shown.begin(2, 3, RUN)
        assert screen.lines() == [f"[2/3] {RUN.key}: started, about 2 min left"]


def test_time_left_ignores_skipped_runs(screen: Screen) -> None:
    screen.display.end(1, 3, run_result(wall_s=600.0), skipped=True)
    screen.display.begin(2, 3, RUN)
    assert screen.lines()[-1] == f"[2/3] {RUN.key}: started"


def test_training_is_shown_every_ten_seconds_per_node(screen: Screen) -> None:
    screen.display.begin(1, 3, RUN)
    screen.lines()
    screen.time.pass_(9.9)
    screen.display.events([step(0)])
    assert screen.lines() == []
    screen.time.pass_(0.1)
    screen.display.events([event("start", 0, pid=1)])
    assert screen.lines() == []  # no line for a start event; the next step event is shown at once
    screen.display.events([step(1), step(0, step=11), step(0), event("partition")])
    assert screen.lines() == [
        "  node 0: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
        "  node 1: epoch 1/3 step 12/45, loss 0.231, 12,346 samples/s",
    ]
    screen.time.pass_(9.9)
    screen.display.events([epoch(1)])
    assert screen.lines() == []
    screen.time.pass_(0.2)
    screen.display.events([epoch(1)])
    assert screen.lines() == ["  node 1: epoch 2/3 done, loss 0.100, acc 90.0%"]


def test_lines_name_rank_and_node_with_several_ranks_per_node(screen: Screen) -> None:
    screen.display.begin(1, 3, RUN.model_copy(update={"processes_per_node": 2}))
    screen.lines()
    screen.time.pass_(10)
    screen.display.events([epoch(3)])
    assert screen.lines() == ["  rank 3 of node 1: epoch 2/3 done, loss 0.100, acc 90.0%"]


@pytest.mark.parametrize(
    "cause",
    [
        "node 0: list [bold]index[/bold] [/x] out of 'range' 1234 http://x, and much more than the width",
        pytest.param("node 0: no module a:smile:b"),
    ],
)
def test_cause_is_shown_without_markup(screen: Screen, cause: str) -> None:
    screen.display.end(1, 3, run_result("failed", cause=cause), skipped=False)
    (line,) = screen.lines()
    assert line.endswith(cause)


# The live table


def live(
    total: int = 3, nodes: int = 2, processes_per_node: int = 1
) -> tuple[LiveProgress, Callable[[], str]]:
    """A display on a terminal, and a function that returns its current text."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    shown = progress_on(console, total)
    assert isinstance(shown, LiveProgress)
    shown.begin(2, total, RUN.model_copy(update={"nodes": nodes, "processes_per_node": processes_per_node}))

    def view() -> str:
        with console.capture() as capture:
            console.print(shown._view())
        return capture.get()

    return shown, view


def test_warm_up_run_is_not_counted(screen: Screen) -> None:
    screen.display.warm_up(RUN)
    (line,) = screen.lines()
    assert line.startswith("warm-up run")
    assert RUN.key in line
    screen.display.begin(1, 3, RUN)
    assert screen.lines() == [f"[1/3] {RUN.key}: started"]


def test_live_table_shows_the_warm_up_run() -> None:
    shown, view = live()
    larger = RUN.model_copy(update={"nodes": 3})
    shown.warm_up(larger)
    shown.events([step(rank=2)])
    assert f"warm-up run  {larger.key}" in view()
    assert view().count("starting") == 2
    shown.begin(1, 3, RUN)
    assert "warm-up" not in view()


def test_live_table_shows_the_run_node_by_node() -> None:
    shown, view = live()
    assert view().count("starting") == 2
    assert f"run 2 of 3  {RUN.key}" in view()
    shown.events([step(1), step(0, epoch=2), event("start", pid=1)])
    rows = view().splitlines()[-2:]
    assert [row.split() for row in rows] == [
        ["0", "2/3", "step", "12/45", "0.231", "12,346"],
        ["1", "1/3", "step", "12/45", "0.231", "12,346"],
    ]
    shown.events([epoch(1)])
    assert view().splitlines()[-1].split() == ["1", "2/3", "done", "0.100", "90.0%", "12,346"]
    shown.events([step(1, epoch=3)])  # the accuracy stays until the next evaluation
    assert view().splitlines()[-1].split() == ["1", "3/3", "step", "12/45", "0.231", "90.0%", "12,346"]


def test_live_table_has_a_line_for_every_rank() -> None:
    shown, view = live(processes_per_node=3)
    assert view().count("starting") == 6
    assert view().splitlines()[-7].split()[0] == "rank"
    shown.events([step(5)])
    assert view().splitlines()[-1].split()[:3] == ["5", "1/3", "step"]


def test_live_table_fits_the_screen_with_many_nodes() -> None:
    _, view = live(nodes=300)
    assert len(view().splitlines()) < 24
    assert "and 284 more" in view()


def test_live_table_shows_the_time_left() -> None:
    shown, view = live()
    assert "left" not in view()
    shown.end(1, 3, run_result(wall_s=30.0), skipped=False)
    assert "about 1 min left" in view()


def test_live_table_shows_the_time_since_nodes_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(display.time, "monotonic", clock)
    shown, view = live()
    assert "0 s" in view()
    clock.pass_(7.0)
    assert "7 s" in view()
    assert "starting" in view()
    shown.begin(3, 3, RUN)
    assert "0 s" in view()


def test_live_display_is_a_context_manager() -> None:
    shown, _ = live()
    with shown as entered:
        assert entered is shown
        shown.end(1, 3, run_result(), skipped=False)
