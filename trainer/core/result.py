"""The result of one rank's training."""

from __future__ import annotations

from trainer.core.record import Record


class Diverged(Exception):
    """The loss is not finite. The message says where and what may help."""


class TrainResult(Record):
    """One rank's result. Times in seconds, accuracies 0 … 1 on the whole test split.

    seconds: wall time per phase, evaluation in its own; train_s is their sum without it.
    work_cpu_s: CPU time of everything but communicating, waiting, evaluating and checkpoints: the time this
    rank would need on a core of its own; None on a GPU. local_accuracy: of this node's model before it met
    the others, where a strategy has such a thing. weights_digest: 16 hex digits of the final weights.
    staleness: updates that others made between this rank's pull of the weights and its push of a gradient,
    mean and largest over its pushes; None where nothing can become stale. state_bytes: what this rank keeps
    from step to step, of `weights`, `gradient` and `optimizer` (state); None where there is no model.
    activation_bytes: the most that its forward passes kept for backward passes in the first step, bytes.
    blocks: of the model that this rank holds; None: all. bytes_to: payload that it has sent to each rank in
    single sends, by rank; None where there are none. wait_s_by_rank: seconds of `wait` by the rank that was
    waited for, as far as meetings tell it; None where there is nobody to wait for, or too many to list.
    """

    steps: int
    samples: int
    train_s: float
    work_cpu_s: float | None
    seconds: dict[str, float]
    bytes_sent: float
    accuracy: float | None = None
    test_loss: float | None = None
    local_accuracy: float | None = None
    weights_digest: str | None = None
    parameters: int = 0
    peak_memory_mb: float = 0.0
    staleness_mean: float | None = None
    staleness_max: int | None = None
    state_bytes: dict[str, int] | None = None
    activation_bytes: int | None = None
    blocks: list[str] | None = None
    bytes_to: list[int] | None = None
    wait_s_by_rank: list[float] | None = None
