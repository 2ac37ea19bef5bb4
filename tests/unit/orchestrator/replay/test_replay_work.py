"""Mistakes in CPU time of steps: which steps are whole, which runs compare, medians and bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.replay.work import LEAST, MOST, Work, first_step_cpu_s, partial_step_cpu_s, step_cpu_s
from tests.support.traces import TraceBuilder
from trainer.core.trace import Kind, Trace

PLACE = ("local", 2)


def training(rank: TraceBuilder, *epochs: Sequence[float]) -> Trace:
    """Epochs whose steps take so many CPU seconds of work, in two phases, and some for their exchanges."""
    for number, seconds in enumerate(epochs, start=1):
        rank.add(Kind.EPOCH, peer=number)
        for step_s in seconds:
            rank.work(step_s / 4, "data").work(3 * step_s / 4).add(Kind.BARRIER, cpu_s=9.0).add(Kind.STEP)
    return rank.trace()


def steps(*epochs: Sequence[float]) -> Trace:
    return training(TraceBuilder(0, 1), *epochs)


def test_cpu_time_of_a_step_is_that_of_whole_batches() -> None:
    """A rank with fewer samples than others goes on exchanging: its mean over all steps is too low."""
    trace, idle = steps(*2 * [(0.4, 0.4, 0.1, 0.0, 0.0, 0.0)]), TraceBuilder(0, 1).work(5.0).trace()
    found = step_cpu_s([trace, trace, trace, idle, steps([0.04])], [2, 0, None, None, None])
    assert found == pytest.approx([0.4, 0.15, 0.18, 0.0, 0.04])  # without a whole batch: of all steps
    assert partial_step_cpu_s(trace, 2) == pytest.approx(0.1)
    assert partial_step_cpu_s(trace, 6) is None


def test_the_first_step_of_a_run_has_a_cost_of_its_own() -> None:
    first = steps((0.9, 0.4, 0.1), (0.6, 0.5, 0.1))  # the third batch of an epoch is not whole
    assert first_step_cpu_s(first, 2) == first_step_cpu_s(first, None) == pytest.approx((0.5, 0.4))
    assert first_step_cpu_s(steps((0.3, 0.4, 0.1), (0.6, 0.5, 0.1)), 2) == pytest.approx((0.5, 0.0))
    assert first_step_cpu_s(steps((0.9,)), 1) == pytest.approx((0.9, 0.0))  # none to compare it with
    assert first_step_cpu_s(TraceBuilder(0, 1).work(5.0).trace(), None) == (0.0, 0.0)


def test_inflation_is_relative_to_undisturbed_runs_of_the_same_work() -> None:
    work = Work()
    work.add_undisturbed("quiet 0", "ddp", [0.1, 0.3])
    work.add_undisturbed("quiet 1", "ddp", [0.3, 0.5])
    work.add_shared("as many", "ddp", PLACE, [0.3, 0.6])
    work.add_shared("more", "ddp", PLACE, [0.3, 0.3, 0.3, 0.6])
    assert work.inflation("as many") == pytest.approx([1.5, 1.5])
    assert work.inflation("more") == pytest.approx([0.375 / 0.3] * 4)
    assert work.inflation("quiet 0") == []


def test_inflation_of_other_work_is_that_of_runs_at_the_same_place() -> None:
    work = Work()
    work.add_undisturbed("quiet", "ddp", [0.1, 0.1])
    for key, ranks, step_s in (("a", 2, 0.11), ("b", 2, 0.13), ("c", 4, 0.19), ("d", 2, 0.12)):
        work.add_shared(key, "ddp", PLACE, [step_s] * ranks)
    work.add_shared("other work", "fsdp", PLACE, [7.0, 7.0])
    work.add_shared("other ranks", "fsdp", PLACE, [7.0] * 3)
    work.add_shared("elsewhere", "fsdp", ("docker", 2), [7.0, 7.0])
    assert work.inflation("other work") == pytest.approx([1.2, 1.2])  # with as many ranks
    assert work.inflation("other ranks") == pytest.approx([1.25] * 3)  # the median of all
    assert work.inflation("elsewhere") == []


def test_inflation_has_bounds_and_needs_steps() -> None:
    for quiet, shared, expected in (
        ([1e-9, 0.1, 0.1], [5.0, 0.1, 0.01], [MOST, 1.0, LEAST]),
        ([], [0.2, 0.2], []),
        ([0.1, 0.0], [0.2, 0.2], []),
        ([0.1, 0.1], [0.1, 0.0], []),
    ):
        work = Work()
        work.add_undisturbed("quiet", "ddp", quiet)
        work.add_shared("shared", "ddp", PLACE, shared)
        assert work.inflation("shared") == pytest.approx(expected)
