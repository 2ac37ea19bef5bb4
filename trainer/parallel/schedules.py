"""Pipeline schedules: the order of forward and backward passes in each stage. Pure, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer.models import split_points as splitting

if TYPE_CHECKING:
    from trainer.models.base import Model

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True)
class Pass:
    """One pass of a micro-batch (0-based index) through a stage: forward, or else backward."""

    forward: bool
    micro_batch: int


def passes(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """Return the passes that stage number `stage` (0-based) of `stages` executes in one training step.

    gpipe (Huang et al. 2019, "GPipe", Sec. 2.2): all forward passes, then all backward passes. A stage
    stores the activations of all micro-batches.

    1f1b (Narayanan et al. 2019, "PipeDream", Sec. 3.2, with the flush after each step of Narayanan et al.
    2021): after a warm-up of `stages - stage` forward passes, a stage alternates between backward and
    forward passes. It stores the activations of at most `stages - stage` micro-batches.
    """
    warm_up = min(stages - stage, micro_batches) if schedule == "1f1b" else micro_batches
    forward = [Pass(True, index) for index in range(micro_batches)]
    backward = [Pass(False, index) for index in range(micro_batches)]
    steady = [each for pair in zip(backward, forward[warm_up:], strict=False) for each in pair]
    return [*forward[:warm_up], *steady, *backward[micro_batches - warm_up :]]


def bubble(stages: int, micro_batches: int) -> float:
    """Return the idle share of a step, 0 … 1: (S - 1) / (M + S - 1) for S stages and M micro-batches.

    It holds for both schedules if all stages take equally long and communication takes no time (Huang et
    al. 2019, Sec. 2.3).
    """
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_validation_error(
    model: Model, split_points: Sequence[str] | None, stages: int, micro_batches: int, batch_size: int
) -> str | None:
    """Return why a pipeline cannot have these stages or micro-batches, or None."""
    if micro_batches > batch_size:
        return (
            f"{micro_batches} micro-batches do not fit a batch of {batch_size}; allowed: 1 to {batch_size}"
        )
    return splitting.validation_error(model.names, split_points, stages)
