"""Schedules of a pipeline: in which order a stage takes the forward and backward passes of a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True)
class Pass:
    """One micro-batch, by number from 0, going through a stage: forward, or else backward."""

    forward: bool
    micro_batch: int


def passes(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """What `stage` (0-based) of `stages` does in a step.

    gpipe (Huang et al. 2019, "GPipe", Sec. 2.2): all forward passes, then all backward passes; a stage
    keeps the activations of all micro-batches. 1f1b (Narayanan et al. 2019, "PipeDream", Sec. 3.2; with the
    flush at the end of a step of Narayanan et al. 2021): as soon as the pipeline is full a stage takes
    forward and backward passes in turns, and keeps those of at most `stages - stage` micro-batches.
    """
    lead = min(stages - stage, micro_batches) if schedule == "1f1b" else micro_batches
    forward = [Pass(True, number) for number in range(micro_batches)]
    backward = [Pass(False, number) for number in range(micro_batches)]
    steady = [each for pair in zip(backward, forward[lead:], strict=False) for each in pair]
    return [*forward[:lead], *steady, *backward[micro_batches - lead :]]


def bubble(stages: int, micro_batches: int) -> float:
    """The share of a step, 0 … 1, that a stage stands idle with either schedule if all take equally long
    and sending takes no time (Huang et al. 2019, Sec. 2.3)."""
    return (stages - 1) / (micro_batches + stages - 1)
