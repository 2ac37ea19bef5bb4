"""Pipeline schedules: the order of forward and backward passes in each stage. Pure, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainer.models import split_points as splitting

if TYPE_CHECKING:
    from trainer.models.base import Model, ParallelPair

FlushSchedule = Literal["gpipe", "1f1b"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
Chunks = Annotated[
    int | None,
    Field(
        ge=2,
        le=64,
        description="stages of the model that each rank holds, with schedule interleaved only; null: 2",
    ),
]
# Parts of a backward pass: `input` computes the gradient of the input, and `weight` that of the weights.
Kind = Literal["forward", "backward", "input", "weight"]


@dataclass(frozen=True)
class Pass:
    """One pass of a micro-batch through a chunk of this rank.

    micro_batch, chunk: 0-based indices.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0


def passes(schedule: Schedule, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Pass]:
    """Return the passes that a rank (0-based) of a pipeline executes in one training step.

    A rank holds one stage. With interleaved, it holds `chunks` stages: rank, rank + ranks, ….

    gpipe (Huang et al. 2019, "GPipe", Sec. 2.2): all forward passes, then all backward passes. A stage
    stores the activations of all micro-batches.

    1f1b (Narayanan et al. 2019, "PipeDream", Sec. 3.2; the flush after each step is that of Narayanan et
    al. 2021): after a warm-up of `ranks - rank` forward passes, a stage alternates between backward and
    forward passes. It stores the activations of at most `ranks - rank` micro-batches.

    interleaved: see `_interleaved`. zero_bubble: see `_zero_bubble`.
    """
    if schedule == "zero_bubble":
        return _zero_bubble(rank, ranks, micro_batches)
    if schedule == "interleaved":
        return _interleaved(rank, ranks, micro_batches, chunks)
    forward = [Pass("forward", index) for index in range(micro_batches)]
    backward = [Pass("backward", index) for index in range(micro_batches)]
    warm_up = ranks - rank if schedule == "1f1b" else micro_batches
    return _alternating(forward, backward, warm_up)


def _alternating(forward: list[Pass], backward: list[Pass], warm_up: int) -> list[Pass]:
    """A warm-up of forward passes, then backward and forward passes that alternate."""
    warm_up = min(warm_up, len(forward))
    steady = [each for pair in zip(backward, forward[warm_up:], strict=False) for each in pair]
    return [*forward[:warm_up], *steady, *backward[len(forward) - warm_up :]]


def _interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Pass]:
    """1F1B with several chunks per rank (Narayanan et al. 2021, "Megatron-LM", Sec. 2.2 and Fig. 4).

    With P ranks, micro-batches form groups of P. A group passes forward through chunk 0, then through
    chunk 1, and so on. Backward, it passes through the last chunk first. The warm-up is that of
    Megatron-LM's code. It has (chunks - 1)·P forward passes of the first group through all chunks but the
    last, two for each later rank, and one more. A rank stores activations of at most as many passes:
    (chunks - 1)·P + 2·(P - rank - 1) + 1, each of one micro-batch in one chunk.

    With two ranks, activations and gradients are messages between the same ranks. Each rank receives them
    in the order in which it needs them.

    The last step of an epoch can have a number of micro-batches that is not a multiple of P. It executes
    all forward passes first, because ranks that alternate would wait for each other forever.
    """
    groups = range(0, micro_batches, ranks)
    order = [
        (micro_batch, chunk)
        for first in groups
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + ranks, micro_batches))
    ]
    forward = [Pass("forward", micro_batch, chunk) for micro_batch, chunk in order]
    backward = [Pass("backward", micro_batch, chunks - 1 - chunk) for micro_batch, chunk in order]
    warm_up = (chunks - 1) * ranks + 2 * (ranks - rank - 1) + 1
    return _alternating(forward, backward, len(forward) if micro_batches % ranks else warm_up)


def _zero_bubble(rank: int, ranks: int, micro_batches: int) -> list[Pass]:
    """ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", Sec. 2.1 and Fig. 3, top).

    The order is that of 1F1B, but a backward pass first computes only the gradient of the input. A rank
    computes the gradient of the weights when it has as many micro-batches in flight as there are ranks. So
    later ranks have work at the end of a step, where they would wait with 1F1B. A rank stores the
    activations of at most `ranks` micro-batches, as many as the first rank with 1F1B.
    """
    warm_up = min(ranks - rank, micro_batches)
    order = [Pass("forward", index) for index in range(warm_up)]
    forwards, weights = warm_up, 0
    for index in range(micro_batches):
        order.append(Pass("input", index))
        if forwards - weights == ranks or forwards == micro_batches:
            order.append(Pass("weight", weights))
            weights += 1
        if forwards < micro_batches:
            order.append(Pass("forward", forwards))
            forwards += 1
    return [*order, *(Pass("weight", index) for index in range(weights, micro_batches))]


def chunks_of(schedule: Schedule, chunks: int | None) -> int:
    """Return how many stages a rank holds."""
    return (chunks or 2) if schedule == "interleaved" else 1


def parts_of_work(schedule: Schedule, micro_batches: int, chunks: int | None = None) -> int:
    """Return a rank's work in a step, in units of the time that each further rank adds to the step.

    With M micro-batches:

    - gpipe, 1f1b: M. Each further rank adds the forward and backward pass of one micro-batch.
    - interleaved, with v chunks: v·M. Each further rank adds the passes through one chunk (Narayanan et al.
      2021, Sec. 2.2).
    - zero_bubble: 3·M. A micro-batch takes T_F + T_B + T_W for the forward pass, the gradient of the input
      and that of the weights. Each further rank adds T_F + T_B - T_W. The formula takes T_F, T_B and T_W as
      equal (Qi et al. 2023, Table 1).
    """
    return micro_batches * (3 if schedule == "zero_bubble" else chunks_of(schedule, chunks))


def bubble(ranks: int, parts: int) -> float:
    """Return the idle share of a step, 0 … 1: (P - 1) / (K + P - 1) for P ranks and K `parts_of_work`.

    With gpipe or 1f1b it is (S - 1) / (M + S - 1) for M micro-batches and S stages (Huang et al. 2019, Sec.
    2.3). The formula holds if all stages take equally long and communication takes no time.
    """
    return (ranks - 1) / (parts + ranks - 1)


def recompute_error(schedule: Schedule) -> str | None:
    """Return why stages with this schedule cannot run blocks again in a backward pass, or None."""
    if schedule != "zero_bubble":
        return None
    return "with schedule zero_bubble, activations are used twice; allowed: none, or another schedule"


def pipeline_validation_error(
    model: Model,
    split_points: Sequence[str] | None,
    ranks: int,
    micro_batches: int,
    batch_size: int,
    schedule: Schedule = "1f1b",
    chunks: int | None = None,
    pairs: Sequence[ParallelPair] = (),
) -> str | None:
    """Return why a pipeline of so many ranks cannot have these parameters, or None.

    pairs: the pairs of layers that must be in one stage.
    """
    if micro_batches > batch_size:
        return (
            f"{micro_batches} micro-batches do not fit a batch of {batch_size}; allowed: 1 to {batch_size}"
        )
    if chunks is not None and schedule != "interleaved":
        return f"chunks: {chunks} needs schedule interleaved, and the schedule is {schedule}"
    if schedule == "interleaved" and (ranks == 1 or micro_batches % ranks):
        multiples = range(ranks, batch_size + 1, ranks) if ranks > 1 else ()
        allowed = f"{', '.join(map(str, multiples[:3]))}, …, or " if multiples else ""
        return (
            f"schedule interleaved needs two stages or more, and a number of micro-batches that is a "
            f"multiple of theirs ({ranks}), not {micro_batches}; allowed: {allowed}schedule 1f1b"
        )
    if schedule == "zero_bubble" and micro_batches < ranks:
        counts = f"{ranks} to {batch_size} micro-batches, or " if ranks <= batch_size else ""
        return (
            f"schedule zero_bubble needs at least as many micro-batches as stages ({ranks}), not "
            f"{micro_batches}; allowed: {counts}schedule 1f1b"
        )
    stages = ranks * chunks_of(schedule, chunks)
    return splitting.validation_error(model.names, split_points, stages, pairs)
