"""Schedules of a pipeline, played through with stages that take their time."""

from __future__ import annotations

from itertools import product

import pytest

from trainer.parallel.schedules import Pass, Schedule, bubble, passes

SCHEDULES: list[Schedule] = ["gpipe", "1f1b"]
SIZES = list(product([1, 2, 3, 4], [1, 2, 3, 4, 8]))
FORWARD_S, BACKWARD_S = 1.0, 2.0


def play(schedule: Schedule, stages: int, micro_batches: int) -> list[dict[Pass, float]]:
    """When each stage has done each pass, if sending takes no time; fails where stages wait for ever."""
    to_do = [passes(schedule, stage, stages, micro_batches) for stage in range(stages)]
    done: list[dict[Pass, float]] = [{} for _ in range(stages)]
    free = [0.0] * stages
    while any(to_do):
        moved = False
        for stage, ahead in enumerate(to_do):
            if not ahead:
                continue
            this = ahead[0]
            if this.forward:
                needs = done[stage - 1].get(this) if stage else 0.0
            else:
                at_end = stage == stages - 1
                needs = (
                    done[stage].get(Pass(True, this.micro_batch)) if at_end else done[stage + 1].get(this)
                )
            if needs is not None:
                takes = FORWARD_S if this.forward else BACKWARD_S
                free[stage] = done[stage][this] = max(free[stage], needs) + takes
                ahead.pop(0)
                moved = True
        assert moved, "all stages wait for each other"
    return done


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_micro_batch_goes_forward_and_then_back_once(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    for stage in range(stages):
        order = passes(schedule, stage, stages, micro_batches)
        assert len(order) == len({*order}) == 2 * micro_batches
        for number in range(micro_batches):
            assert order.index(Pass(True, number)) < order.index(Pass(False, number))
        # Stages send in the order in which their neighbours receive.
        for forward in (True, False):
            assert [each.micro_batch for each in order if each.forward is forward] == [
                *range(micro_batches)
            ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_with_equal_stages_the_bubble_is_that_of_the_formula(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    done = play(schedule, stages, micro_batches)
    whole = max(max(times.values()) for times in done)
    busy = micro_batches * (FORWARD_S + BACKWARD_S)
    assert 1 - busy / whole == pytest.approx(bubble(stages, micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_what_a_stage_keeps(stages: int, micro_batches: int) -> None:
    def most(schedule: Schedule, stage: int) -> int:
        kept = [0]
        for each in passes(schedule, stage, stages, micro_batches):
            kept.append(kept[-1] + (1 if each.forward else -1))
        return max(kept)

    for stage in range(stages):
        assert most("gpipe", stage) == micro_batches
        assert most("1f1b", stage) == min(stages - stage, micro_batches)
