"""How much a run can write, from its spec: a rank that writes more is faulty. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.core.events import MAX_BYTES
from trainer.core.trace import ANY_RUN, MAX_RECORDS, RECORD, TraceLimits
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

START_AND_END_BYTES = 8 * MAX_BYTES  # of one attempt, exit report and its traceback included
BYTES_PER_S = 2048  # at most two `step` events, each of about 400 bytes
EPOCH_BYTES = 4096  # `partition` without its labels, `coverage`, `epoch` and `checkpoint`
LABEL_BYTES = 12  # a number of samples in `partition`
PART_BYTES = 64  # a part in the `coverage` of a run that continues without a lost node
CHECKPOINT_BYTES = 512
RESAMPLED = 2  # a partitioner may draw more samples than the training set has
# Records of a trace. Each exchange is at most four: the work before it, and start and end of a send.
STEP_RECORDS = 256  # a few exchanges, and intervals of work
BLOCK_RECORDS = 64  # of exchanges of a block's layers or tensors, in each micro-batch
MICRO_BATCH_RECORDS = 32  # of a stage: two receives and two sends
PEER_RECORDS = 16  # a gossip step exchanges with up to P - 1 nodes, a server with P workers
EPOCH_RECORDS = 256
TRACE_HEADER_BYTES = 4096
GROUPS = 8  # communicators of a rank
RANK_BYTES = 8  # a rank in a group
# A run ends soon after its time limit. A rank that is started again begins another trace.
TRACE_TIME_LIMITS = 10
TRACE_MEMORIES = 16  # a buffer fits in a node's memory, which runtime local does not limit
NODE_TRACE_BYTES = 2**28  # of all ranks of a node: half of the memory in which a container keeps files


@dataclass(frozen=True)
class OutputLimits:
    """What the ranks of a run can write.

    Attributes:
        ranks: number of ranks.
        restarts: how often they may be restarted.
        event_bytes: the largest size of each rank's events, over all attempts.
        weight_bytes: the largest size of the final weights, 0 if the spec does not save them. Their exact
            size needs torch, but they fit in a node's memory.
        trace_records, trace_bytes: the largest size of each rank's trace; 0 if the run has none.
        trace: the limits of the values in its records.
    """

    ranks: int
    restarts: int
    event_bytes: int
    weight_bytes: int
    trace_records: int
    trace_bytes: int
    trace: TraceLimits

    @classmethod
    def of(cls, spec: RunSpec, requeues: int = 0, simulated: bool = False) -> OutputLimits:
        """The limits of one run.

        Args:
            requeues: how often a batch system may start it again.
            simulated: its times are not those of this machine, so no time limit bounds them.
        """
        epoch_bytes = EPOCH_BYTES + min(MAX_BYTES, LABEL_BYTES * spec.dataset.class_count)
        if spec.on_loss == "continue":
            epoch_bytes += PART_BYTES * spec.world_size
        steps = RESAMPLED * spec.epochs * spec.dataset.train_samples  # at least one sample per step
        checkpoints = steps // spec.checkpoint_steps if spec.checkpoint_steps else 0
        attempt = START_AND_END_BYTES + spec.epochs * epoch_bytes + checkpoints * CHECKPOINT_BYTES
        starts = 1 + spec.restarts + requeues + len(spec.return_after)
        events = starts * attempt + int((1 + requeues) * spec.timeout_s * BYTES_PER_S)
        weights = spec.memory_mb * 2**20 if spec.save_weights else 0
        records = 0 if untraced_reason(spec) else _trace_records(spec)
        header = TRACE_HEADER_BYTES + GROUPS * RANK_BYTES * spec.world_size
        trace = header + records * RECORD.itemsize if records else 0
        said = TraceLimits(
            seconds=ANY_RUN.seconds if simulated else TRACE_TIME_LIMITS * spec.timeout_s,
            bytes=min(TRACE_MEMORIES * spec.memory_mb * 2**20, ANY_RUN.bytes),
            epochs=spec.epochs,
        )
        return cls(spec.world_size, spec.restarts + requeues, events, weights, records, trace, said)


def _trace_records(spec: RunSpec) -> int:
    """The most records of a rank's trace. A rank that does more ends its trace early."""
    # A server takes the steps of all workers. Each of them may end an epoch with a part of a batch.
    samples = RESAMPLED * spec.dataset.train_samples
    steps = spec.epochs * (samples // max(1, spec.batch_per_replica) + spec.world_size)
    step = (
        STEP_RECORDS
        + BLOCK_RECORDS * len(spec.model.names) * spec.strategy.micro_batch_count
        + MICRO_BATCH_RECORDS * spec.strategy.parts_of_work
        + PEER_RECORDS * spec.world_size
    )
    ranks_of_node = spec.world_size if spec.topology == "single" else spec.processes_per_node
    share = NODE_TRACE_BYTES // ranks_of_node // RECORD.itemsize
    return min(MAX_RECORDS, share, steps * step + spec.epochs * EPOCH_RECORDS)
