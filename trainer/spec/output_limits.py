"""How much a run can write, from its spec: a rank that writes more is faulty. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.core.events import MAX_BYTES
from trainer.spec.run_spec import RunSpec

START_AND_END_BYTES = 8 * MAX_BYTES  # of one attempt, exit report and its traceback included
BYTES_PER_S = 2048  # at most two `step` events, each of about 400 bytes
EPOCH_BYTES = 4096  # `partition` without its labels, `coverage`, `epoch` and `checkpoint`
LABEL_BYTES = 12  # a number of samples in `partition`
PART_BYTES = 64  # a part in the `coverage` of a run that continues without a lost node
CHECKPOINT_BYTES = 512
RESAMPLED = 2  # a partitioner may draw more samples than the training set has


@dataclass(frozen=True)
class OutputLimits:
    """What the ranks of a run can write.

    Attributes:
        ranks: number of ranks.
        restarts: how often they may be restarted.
        event_bytes: of each rank's events, over all attempts.
        weight_bytes: of the final weights, 0 if the spec does not save them. Their exact size needs torch,
            but they fit in a node's memory.
    """

    ranks: int
    restarts: int
    event_bytes: int
    weight_bytes: int

    @classmethod
    def of(cls, spec: RunSpec) -> OutputLimits:
        """The limits of one run."""
        epoch_bytes = EPOCH_BYTES + min(MAX_BYTES, LABEL_BYTES * spec.dataset.class_count)
        if spec.on_loss == "continue":
            epoch_bytes += PART_BYTES * spec.world_size
        steps = RESAMPLED * spec.epochs * spec.dataset.train_samples  # at least one sample per step
        checkpoints = steps // spec.checkpoint_steps if spec.checkpoint_steps else 0
        attempt = START_AND_END_BYTES + spec.epochs * epoch_bytes + checkpoints * CHECKPOINT_BYTES
        starts = 1 + spec.restarts + len(spec.return_after)
        events = starts * attempt + int(spec.timeout_s * BYTES_PER_S)
        weights = spec.memory_mb * 2**20 if spec.save_weights else 0
        return cls(spec.world_size, spec.restarts, events, weights)
