"""Pipeline schedules: order of the passes, and a simulation of stages that take time."""

from __future__ import annotations

from itertools import product

import pytest

from trainer.parallel.schedules import Pass, Schedule, bubble, passes

SCHEDULES: list[Schedule] = ["gpipe", "1f1b"]
SIZES = list(product([1, 2, 3, 4], [1, 2, 3, 4, 8]))
FORWARD_S, BACKWARD_S = 1.0, 2.0


def simulate(schedule: Schedule, stages: int, micro_batches: int) -> list[dict[Pass, float]]:
    """When each stage finishes each pass, if communication takes no time. Fails on a deadlock."""
    queues = [passes(schedule, stage, stages, micro_batches) for stage in range(stages)]
    finished: list[dict[Pass, float]] = [{} for _ in range(stages)]
    free = [0.0] * stages
    while any(queues):
        progress = False
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            this = queue[0]
            if this.forward:
                input_at = finished[stage - 1].get(this) if stage else 0.0
            elif stage == stages - 1:
                input_at = finished[stage].get(Pass(True, this.micro_batch))
            else:
                input_at = finished[stage + 1].get(this)
            if input_at is not None:
                duration = FORWARD_S if this.forward else BACKWARD_S
                free[stage] = finished[stage][this] = max(free[stage], input_at) + duration
                queue.pop(0)
                progress = True
        assert progress, "deadlock: every stage waits for another"
    return finished


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_micro_batch_has_one_forward_and_then_one_backward_pass(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    for stage in range(stages):
        order = passes(schedule, stage, stages, micro_batches)
        assert len(order) == len({*order}) == 2 * micro_batches
        for index in range(micro_batches):
            assert order.index(Pass(True, index)) < order.index(Pass(False, index))
        # Stages send in the order in which their neighbours receive.
        for forward in (True, False):
            indices = [each.micro_batch for each in order if each.forward is forward]
            assert indices == [*range(micro_batches)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_bubble_of_equal_stages_equals_the_formula(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    finished = simulate(schedule, stages, micro_batches)
    step_s = max(max(times.values()) for times in finished)
    busy_s = micro_batches * (FORWARD_S + BACKWARD_S)
    assert 1 - busy_s / step_s == pytest.approx(bubble(stages, micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_micro_batches_in_flight(stages: int, micro_batches: int) -> None:
    def most_in_flight(schedule: Schedule, stage: int) -> int:
        in_flight = [0]
        for each in passes(schedule, stage, stages, micro_batches):
            in_flight.append(in_flight[-1] + (1 if each.forward else -1))
        return max(in_flight)

    for stage in range(stages):
        assert most_in_flight("gpipe", stage) == micro_batches
        assert most_in_flight("1f1b", stage) == min(stages - stage, micro_batches)
