"""The result of one rank's training."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationInfo, field_validator

from trainer.core.record import Amount, Count, Real, Record, Share, Text

MAX_WAITS_LISTED = 256  # ranks in `wait_s_by_rank`: a result is an event, which must stay below 8 KiB


def listed_waits(wait_s: Mapping[int, float], ranks: int) -> list[float] | None:
    """The seconds that a rank waited for each of so many ranks; None if these are too many to list."""
    return [wait_s.get(rank, 0.0) for rank in range(ranks)] if ranks <= MAX_WAITS_LISTED else None


class Diverged(Exception):
    """The loss is not finite. The message says where and what may help."""


class TrainResult(Record):
    """One rank's result. Times in seconds, accuracies 0 … 1 on the whole test split.

    Attributes:
        train_s: wall time of all phases but evaluation.
        work_cpu_s: CPU time without communication, waiting, evaluation and checkpoints, which is what the
            rank would need on a core of its own; None on a GPU.
        seconds: wall time of each phase.
        test_samples: number of samples on which the accuracy was measured; None in older results.
        chance_accuracy: accuracy of the most frequent label as the answer for all; None in older results.
        local_accuracy: accuracy of the rank's own model before the final average, if there is one.
        weights_digest: 16 hex digits of the final weights.
        peak_memory_mb: largest resident set in the first epoch, in MiB; None where the system has no /proc.
        staleness_mean, staleness_max: updates by other ranks between the rank's pull of the weights and its
            push of a gradient; None for strategies without stale gradients.
        state_bytes: bytes held between steps, as `weights`, `gradient` and `optimizer`.
        activation_bytes: largest total of activations stored for the backward pass, in the first step.
        blocks: names of the model's blocks on this rank; None: all.
        expert_choices: choices of an expert by the tokens of its batches in training, over all layers of
            the rank; None without experts. dropped_choices: how many of them were dropped.
        bytes_to: payload of point-to-point sends, by receiving rank; None without any.
        aggregations_without_effect: how often too few vectors counted for the aggregation of the strategy;
            None: never.
        wait_s_by_rank: seconds in phase `wait`, by the rank that was waited for; None for one rank, or for
            too many to list.
    """

    steps: Count
    samples: Count
    train_s: Amount
    work_cpu_s: Amount | None
    seconds: dict[str, Real]
    bytes_sent: Amount
    accuracy: Share | None = None
    test_loss: Real | None = None
    test_samples: Count | None = None
    chance_accuracy: Share | None = None
    local_accuracy: Share | None = None
    weights_digest: Text | None = None
    parameters: Count = 0
    peak_memory_mb: Amount | None = None
    staleness_mean: Amount | None = None
    staleness_max: Count | None = None
    state_bytes: dict[Text, Count] | None = None
    activation_bytes: Count | None = None
    blocks: list[Text] | None = None
    expert_choices: Count | None = None
    dropped_choices: Count | None = None
    bytes_to: list[Count] | None = None
    aggregations_without_effect: Count | None = None
    wait_s_by_rank: list[Amount] | None = None

    @field_validator("dropped_choices")
    @classmethod
    def _some_of_all(cls, dropped: int | None, info: ValidationInfo) -> int | None:
        """A share above 1 is not possible."""
        choices = info.data.get("expert_choices") or 0
        if dropped is not None and dropped > choices:
            raise ValueError(f"must be at most expert_choices, which is {choices}")
        return dropped
