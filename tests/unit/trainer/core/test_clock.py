"""Mistakes in the clock of a rank: seconds in the wrong phase, twice or nowhere, wall for CPU seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import FakeTime
from trainer.core.clock import PHASES, Clock, Phase
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect, rank_clock
from trainer.spec.registries import TRANSPORTS


class Timed:
    """A clock on fake time: `after(2)` advances wall time by 2 s and CPU time by 1 s."""

    def __init__(self) -> None:
        self.wall, self.cpu = FakeTime(), FakeTime(7.0)
        self.clock = Clock(self.wall, self.cpu)

    def after(self, seconds: float, cpu_s: float | None = None) -> None:
        self.wall.pass_(seconds)
        self.cpu.pass_(seconds / 2 if cpu_s is None else cpu_s)

    def spend(self, phase: Phase, seconds: float, cpu_s: float | None = None) -> None:
        with self.clock.phase(phase):
            self.after(seconds, cpu_s)

    @property
    def booked(self) -> dict[str, float]:
        return {phase: seconds for phase, seconds in self.clock.seconds.items() if seconds}


@pytest.fixture
def timed() -> Timed:
    found = Timed()
    found.clock.start()
    return found


# Seconds that pass, or a phase with such programs inside it.
PROGRAMS = st.recursive(
    st.integers(1, 9), lambda inside: st.tuples(st.sampled_from(PHASES), st.lists(inside, max_size=3))
)


def play(timed: Timed, program: Any, phase: str, expected: Counter[str]) -> None:
    """Run a program, and count the seconds that each phase should get; evaluation has no inner phases."""
    if isinstance(program, int):
        timed.after(program)
        expected[phase] += program
        assert timed.clock.train_s == expected.total() - expected["evaluate"]
        return
    name, inside = program
    with timed.clock.phase(name):
        for each in inside:
            play(timed, each, phase if phase == "evaluate" else name, expected)


@given(st.lists(PROGRAMS, max_size=4))
def test_every_second_between_start_and_stop_belongs_to_the_innermost_phase(programs: list[Any]) -> None:
    timed, expected = Timed(), Counter[str]()
    timed.spend("compute", 100)
    timed.clock.start()
    for program in programs:
        play(timed, program, "other", expected)
    timed.clock.stop()
    timed.spend("compute", 100)
    assert timed.booked == expected
    assert timed.clock.cpu_seconds == {phase: s / 2 for phase, s in timed.clock.seconds.items()}


def test_spans_know_when_they_were_entered_and_left_and_whether_they_count(timed: Timed) -> None:
    started = timed.wall.now
    timed.after(1)
    with timed.clock.phase("communicate") as outer:
        timed.after(2)
        with timed.clock.phase("evaluate") as evaluation, timed.clock.phase("data") as inside:
            timed.after(4)
            assert not timed.clock.counting
    assert (outer.entered - started, outer.left - started, outer.cpu_s) == (1, 7, 3)
    assert (evaluation.entered - started, evaluation.left - started) == (3, 7)
    assert (outer.counted, inside.counted, timed.clock.counting) == (True, False, True)


def test_a_phase_ends_with_an_exception_and_with_the_clock(timed: Timed) -> None:
    with pytest.raises(ValueError, match="odd"), timed.clock.phase("compute"):
        raise ValueError("odd")
    timed.after(2)
    assert timed.clock.lap() == (timed.wall.now, timed.cpu.now) == (timed.clock.booked_until, 8)
    with timed.clock.phase("compute"):
        timed.after(1)
        timed.clock.stop()
    timed.after(4)
    assert timed.booked == {"other": 2, "compute": 1}


def test_a_clock_continues_from_a_state_which_is_a_copy(timed: Timed) -> None:
    timed.spend("wait", 8, cpu_s=1)
    timed.after(4, cpu_s=3)
    state = timed.clock.state()
    timed.spend("wait", 16)
    resumed = Timed()
    resumed.clock.restore(state)
    resumed.clock.start()
    resumed.spend("wait", 2)
    resumed.clock.stop()
    assert resumed.booked == {"wait": 10, "other": 4}
    assert (resumed.clock.cpu_seconds["wait"], resumed.clock.cpu_seconds["other"]) == (2, 3)


def test_booked_seconds_are_rounded_and_list_checkpoints_only_if_there_were_any(timed: Timed) -> None:
    timed.spend("wait", 1 / 3)
    without = {"checkpoint"}
    assert timed.clock.booked == dict.fromkeys({*PHASES} - without, 0.0) | {"wait": 0.333333}
    timed.spend("checkpoint", 1)
    assert timed.clock.booked["checkpoint"] == 1


@pytest.mark.parametrize(("seconds", "moved"), [(2, 2), (0, 0), (-3, 0), (5, 5), (9, 5)])
def test_a_transfer_moves_at_most_what_is_booked(timed: Timed, seconds: float, moved: float) -> None:
    timed.spend("communicate", 5)
    timed.clock.transfer("communicate", "wait", seconds, seconds)
    assert (timed.clock.seconds["communicate"], timed.clock.seconds["wait"]) == (5 - moved, moved)
    assert timed.clock.cpu_seconds["wait"] == min(moved, 2.5)


def test_work_without_a_core_is_cpu_contention(timed: Timed) -> None:
    """Not: waiting for bytes, evaluation, and work of several threads."""
    times = {"data": (2.0, 3.5), "compute": (10.0, 4.0), "communicate": (5.0, 0.0), "evaluate": (7.0, 1.0)}
    for phase, (wall_s, cpu_s) in times.items():
        timed.spend(phase, wall_s, cpu_s)  # type: ignore[arg-type]
    timed.after(1.0, cpu_s=0.5)
    timed.clock.stop()
    timed.clock.book_cpu_contention()
    expected = {"data": 2, "compute": 4, "communicate": 5, "evaluate": 7, "other": 0.5}
    assert timed.booked == {**expected, "cpu_contention": 6.5}
    assert (timed.clock.train_s, timed.clock.work_cpu_s) == (18, 8)


def connected(transport: str, threads: int) -> Callable[[pytest.MonkeyPatch], Clock]:
    """Makes the clock of a rank that connects over a transport."""

    def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
        clocks: list[Clock] = []
        monkeypatch.setattr(TRANSPORTS.load(transport), "connect", lambda _, clock: clocks.append(clock))
        connect(NodeContext(0, 1, transport, Path()), threads)
        return clocks[0]

    return clock


@pytest.mark.parametrize(
    ("made", "own"),
    [
        (lambda _: rank_clock(2), True),  # ranks that share a process
        (connected("gloo", 1), True),  # whose other threads communicate
        (connected("gloo", 2), False),  # whose other thread computes
        (connected("rpc", 1), False),  # where requests are handled in threads of the library
    ],
    ids=["shared", "gloo", "threads", "rpc"],
)
def test_other_threads_count_unless_they_do_no_work_of_the_rank(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[pytest.MonkeyPatch], Clock], own: bool
) -> None:
    def work() -> None:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    clock = made(monkeypatch)
    before = clock.now()
    helper = threading.Thread(target=work)
    helper.start()
    helper.join()
    time.sleep(0.03)  # no CPU time
    wall_s, cpu_s = (now - then for now, then in zip(clock.now(), before, strict=True))
    assert wall_s >= 0.05
    assert cpu_s < 0.02 if own else 0.03 <= cpu_s < 0.05
