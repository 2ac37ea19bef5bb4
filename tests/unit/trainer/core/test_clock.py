"""The clock: every second belongs to exactly one phase."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from tests.unit.conftest import FakeTime
from trainer.core.clock import PHASES, Clock
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect, rank_clock
from trainer.spec.registries import TRANSPORTS


class Timed:
    """A clock on fake time: `after(2)` advances wall time by 2 s and CPU time by 1 s."""

    def __init__(self) -> None:
        self.wall, self.cpu = FakeTime(), FakeTime(7.0)
        self.clock = Clock(self.wall, self.cpu)

    def after(self, seconds: float) -> None:
        self.wall.pass_(seconds)
        self.cpu.pass_(seconds / 2)

    @property
    def booked(self) -> dict[str, float]:
        return {phase: seconds for phase, seconds in self.clock.seconds.items() if seconds}


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_phases_add_up_to_the_whole(timed: Timed) -> None:
    timed.after(100)  # before the start
    timed.clock.start()
    for number, phase in enumerate(PHASES, start=1):
        timed.after(0.5)  # other
        with timed.clock.phase(phase):
            timed.after(number)
    timed.clock.stop()
    timed.after(100)
    expected = {phase: float(number) for number, phase in enumerate(PHASES, start=1)}
    expected["other"] += len(PHASES) * 0.5
    assert timed.clock.seconds == expected
    assert sum(timed.clock.seconds.values()) == timed.wall.now - 300
    assert timed.clock.cpu_seconds == {phase: s / 2 for phase, s in timed.clock.seconds.items()}


def test_inner_phase_takes_its_time_from_the_outer(timed: Timed) -> None:
    timed.clock.start()
    with timed.clock.phase("compute"):
        timed.after(1)
        with timed.clock.phase("communicate"):
            timed.after(2)
            with timed.clock.phase("wait"):
                timed.after(4)
        timed.after(8)
    timed.after(16)
    timed.clock.stop()
    assert timed.booked == {"compute": 9, "communicate": 2, "wait": 4, "other": 16}


def test_phase_records_when_it_is_entered_and_left(timed: Timed) -> None:
    timed.clock.start()
    started = timed.wall.now
    timed.after(1)
    with timed.clock.phase("communicate") as outer:
        timed.after(2)
        with timed.clock.phase("evaluate") as evaluation, timed.clock.phase("data") as inside:
            timed.after(4)
    assert (outer.entered - started, outer.left - started) == (1, 7)
    assert (evaluation.entered - started, evaluation.left - started) == (3, 7)
    assert outer.counted
    assert not inside.counted
    timed.clock.stop()
    with timed.clock.phase("communicate") as after:
        pass
    assert not after.counted


def test_phases_inside_evaluation_count_as_evaluation(timed: Timed) -> None:
    timed.clock.start()
    with timed.clock.phase("evaluate"):
        assert not timed.clock.counting
        timed.after(1)
        with timed.clock.phase("communicate"):
            timed.after(2)
            assert not timed.clock.counting
        timed.after(4)
    assert timed.clock.counting
    timed.clock.stop()
    assert timed.booked == {"evaluate": 7}
    assert timed.clock.train_s == 0


def test_nothing_is_booked_before_start_or_after_stop(timed: Timed) -> None:
    for _ in range(2):
        assert not timed.clock.counting
        with timed.clock.phase("communicate"):
            timed.after(1)
        assert timed.booked == {}
        timed.clock.start()
        timed.clock.stop()


def test_exception_ends_a_phase(timed: Timed) -> None:
    timed.clock.start()
    with contextlib.suppress(ValueError), timed.clock.phase("compute"):
        timed.after(1)
        raise ValueError
    timed.after(2)
    timed.clock.stop()
    assert timed.booked == {"compute": 1, "other": 2}


def test_training_time_can_be_read_at_any_time(timed: Timed) -> None:
    timed.clock.start()
    timed.after(1)
    assert timed.clock.train_s == 1
    with timed.clock.phase("compute"):
        timed.after(2)
        assert timed.clock.train_s == 3
        timed.after(4)
    with timed.clock.phase("evaluate"):
        timed.after(8)
        assert timed.clock.train_s == 7
    timed.clock.stop()
    timed.after(16)
    assert timed.clock.train_s == 7
    assert timed.booked == {"other": 1, "compute": 6, "evaluate": 8}


@pytest.mark.parametrize(
    ("seconds", "moved"), [(2, 2), (0, 0), (-3, 0), (5, 5), (9, 5)], ids=["some", "0", "<0", "all", "more"]
)
def test_transfer_moves_at_most_the_booked_time(timed: Timed, seconds: float, moved: float) -> None:
    timed.clock.start()
    with timed.clock.phase("communicate"):
        timed.after(5)
    timed.clock.stop()
    timed.clock.transfer("communicate", "wait", seconds)
    assert timed.clock.seconds["communicate"] == 5 - moved
    assert timed.clock.seconds["wait"] == moved
    assert timed.clock.cpu_seconds["communicate"] == 2.5


def test_clock_stopped_inside_a_phase_does_not_advance(timed: Timed) -> None:
    timed.clock.start()
    with timed.clock.phase("compute"):
        timed.after(1)
        timed.clock.stop()
    timed.after(2)
    assert not timed.clock.counting
    assert timed.clock.train_s == 1


def test_real_clocks() -> None:
    clock = Clock()
    clock.start()
    with clock.phase("wait"):
        time.sleep(0.02)
    with clock.phase("compute"):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
    clock.stop()
    assert clock.seconds["wait"] >= 0.02
    assert clock.cpu_seconds["wait"] < 0.015
    assert clock.cpu_seconds["compute"] >= 0.02


# CPU contention


def test_wall_time_beyond_cpu_time_is_cpu_contention(timed: Timed) -> None:
    timed.clock.start()
    for phase, wall, cpu in [
        ("data", 2.0, 2.0),
        ("compute", 10.0, 4.0),
        ("communicate", 5.0, 0.0),  # waits for bytes, not for a core
        ("wait", 3.0, 0.0),
        ("evaluate", 7.0, 1.0),
    ]:
        with timed.clock.phase(phase):  # type: ignore[arg-type]
            timed.wall.pass_(wall)
            timed.cpu.pass_(cpu)
    timed.wall.pass_(1.0)
    timed.cpu.pass_(0.5)
    timed.clock.stop()
    before = timed.clock.train_s
    timed.clock.book_cpu_contention()
    booked = {"data": 2, "compute": 4, "communicate": 5, "wait": 3, "evaluate": 7, "other": 0.5}
    assert timed.booked == {**booked, "cpu_contention": 6.5}
    assert timed.clock.train_s == before == 21
    assert timed.clock.work_cpu_s == 6.5


def test_rank_with_several_threads_has_no_cpu_contention(timed: Timed) -> None:
    timed.clock.start()
    with timed.clock.phase("compute"):
        timed.wall.pass_(2.0)
        timed.cpu.pass_(3.5)
    timed.clock.stop()
    timed.clock.book_cpu_contention()
    assert timed.booked == {"compute": 2}
    assert timed.clock.work_cpu_s == 3.5


# CPU time of a rank


def cpu_of_a_helper_thread(clock: Clock) -> float:
    """CPU seconds that the clock books while another thread of the process works for 30 ms."""

    def work() -> None:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    (_, before) = clock.now()
    helper = threading.Thread(target=work)
    helper.start()
    helper.join()
    return clock.now()[1] - before


def test_ranks_that_share_a_process_count_the_cpu_time_of_their_thread() -> None:
    assert cpu_of_a_helper_thread(rank_clock(2)) < 0.02


def test_rank_whose_other_threads_communicate_counts_the_cpu_time_of_its_own() -> None:
    assert cpu_of_a_helper_thread(rank_clock(1, computes_alone=True)) < 0.02


@pytest.mark.parametrize(
    ("transport", "threads", "own"), [("gloo", 1, True), ("gloo", 2, False), ("rpc", 1, False)]
)
def test_only_over_gloo_other_threads_do_no_work(
    monkeypatch: pytest.MonkeyPatch, transport: str, threads: int, own: bool
) -> None:
    """Requests over rpc are handled in threads of the library."""
    clocks: list[Clock] = []
    monkeypatch.setattr(TRANSPORTS.load(transport), "connect", lambda _, clock: clocks.append(clock))
    connect(NodeContext(0, 1, transport, Path()), threads)
    assert (cpu_of_a_helper_thread(clocks[0]) < 0.02) is own


def test_rank_alone_in_its_process_counts_the_cpu_time_of_the_process() -> None:
    # `serial` runs on transport memory: torch's other threads (spec.threads) work for it.
    assert cpu_of_a_helper_thread(rank_clock(1)) >= 0.03
