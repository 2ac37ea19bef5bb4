"""Mistakes in the clock of a rank: seconds in the wrong phase, twice or nowhere, wall for CPU seconds."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
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
    entered, entered_cpu, counts = timed.wall.now, timed.cpu.now, phase != "evaluate"
    with suppress(InterruptedError), timed.clock.phase(name) as span:
        for each in inside:
            play(timed, each, name if counts else phase, expected)
        assert timed.clock.counting == (counts and name != "evaluate")
        raise InterruptedError
    assert (span.entered, span.counted, timed.clock.counting) == (entered, counts, counts)
    if counts:
        assert (span.left, span.cpu_s) == (timed.wall.now, timed.cpu.now - entered_cpu)


@given(st.lists(PROGRAMS, max_size=4))
def test_every_second_between_start_and_stop_belongs_to_the_innermost_phase(programs: list[Any]) -> None:
    """Also if a phase ends with an exception, and in a process that continues from the state of another."""
    first, expected = Timed(), Counter[str]()
    first.spend("compute", 100)
    timed = first
    for _ in range(2):
        timed.clock.start()
        for program in programs:
            play(timed, program, "other", expected)
        timed, state = Timed(), timed.clock.state()
        first.spend("compute", 100)
        timed.clock.restore(state)
    assert timed.booked == expected
    assert timed.clock.cpu_seconds == {phase: s / 2 for phase, s in timed.clock.seconds.items()}


def test_a_lap_books_all_seconds_and_a_clock_may_stop_in_a_phase(timed: Timed) -> None:
    timed.after(2)
    assert timed.clock.lap() == (102, 8)
    assert timed.clock.booked_until == 102
    with timed.clock.phase("compute"):
        timed.after(1)
        timed.clock.stop()
    timed.after(4)
    assert timed.booked == {"other": 2, "compute": 1}


def test_booked_seconds_are_rounded_and_list_checkpoints_only_if_there_were_any(timed: Timed) -> None:
    timed.spend("wait", 1 / 3)
    assert timed.clock.booked == dict.fromkeys({*PHASES} - {"checkpoint"}, 0.0) | {"wait": 0.333333}
    timed.spend("checkpoint", 1)
    assert timed.clock.booked["checkpoint"] == 1


def test_a_transfer_moves_at_most_what_is_booked(timed: Timed) -> None:
    timed.spend("communicate", 5)
    for seconds, left, left_cpu in ((2, 3, 0.5), (0, 3, 0.5), (-3, 3, 0.5), (9, 0, 0)):
        timed.clock.transfer("communicate", "wait", seconds, seconds)
        booked = [timed.clock.seconds[each] for each in ("communicate", "wait")]
        assert booked == [left, 5 - left]
        assert timed.clock.cpu_seconds["wait"] == 2.5 - left_cpu


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


def test_what_threads_of_the_library_take_of_a_core_is_communication() -> None:
    """Not: what they compute on a core of their own, and while the rank communicates."""
    timed, others = Timed(), FakeTime()
    timed.clock = Clock(timed.wall, timed.cpu, lambda: timed.cpu() + others())
    timed.clock.start()
    for phase, wall_s, cpu_s, of_others in (
        ("compute", 10, 4, 1),
        ("data", 3, 3, 2),
        ("communicate", 5, 1, 9),
    ):
        with timed.clock.phase(phase):  # type: ignore[arg-type]
            timed.after(wall_s, cpu_s)
            others.pass_(of_others)
    state = timed.clock.state()
    timed.clock.stop()
    resumed = Clock(timed.wall, timed.cpu)
    resumed.restore(state)
    for clock in (timed.clock, resumed):
        clock.book_cpu_contention()
        booked = {phase: seconds for phase, seconds in clock.seconds.items() if seconds}
        assert booked == {"data": 3, "compute": 4, "communicate": 6, "cpu_contention": 5}
        assert clock.work_cpu_s == 7


def test_other_threads_count_unless_they_do_no_work_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 1.0)
    monkeypatch.setattr(time, "process_time", lambda: 2.0)
    for transport in ("gloo", "rpc"):
        monkeypatch.setattr(TRANSPORTS.load(transport), "connect", lambda _, clock: clock)

    def connected(transport: str, threads: int) -> Any:
        return connect(NodeContext(0, 1, transport, Path()), threads)

    shared, gloo = rank_clock(2), connected("gloo", 1)  # ranks of one process, and threads that communicate
    computes, handles = connected("gloo", 2), connected("rpc", 1)  # other threads also handle requests
    clocks = shared, gloo, computes, handles
    assert [clock.now()[1] for clock in clocks] == [1.0, 1.0, 2.0, 2.0]
    assert [clock._all_cpu is not None for clock in clocks] == [False, True, False, False]
