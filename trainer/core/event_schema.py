"""The kinds of events and their fields. Events are checked against this table where they are read.

A restarted rank begins with another `start`, and only its events since then count. After `resumed` it
repeats the `partition`, `coverage` and `epoch` events of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainer.core.clock import PHASES
from trainer.core.position import Position
from trainer.core.record import Amount, Count, Lines, Rank, Real, Record, Share, Text
from trainer.core.result import TrainResult

VERSION = 1
MAX_FAULTS = 32  # of a run
EXIT_REPORTS = ("done", "failed", "terminated", "died")
Number = Annotated[int, Field(ge=1, le=2**53)]  # of an epoch or a step
Attempt = Annotated[int, Field(ge=0, le=100)]  # as many as a run can have restarts


class Head(Record):
    """What every event has. time: seconds since 1970. run: its key. rank: the rank that it is about."""

    version: Literal[1]
    time: Annotated[float, Field(ge=0, le=1e11)]
    run: Text
    rank: Rank
    host: Text
    kind: Text


class Empty(Record):
    """Fields of `ready`, `train_end` and other kinds that have none."""


class Start(Record):
    """The process is up.

    Attributes:
        attempt: how many times torchrun has started the ranks again.
        incarnation: how often this rank alone was started again.
    """

    pid: Annotated[int, Field(ge=1, lt=2**31)]
    attempt: Attempt = 0
    incarnation: Attempt = 0


class Waiting(Record):
    """A rank that was started again is ready to join the others. incarnation: see Start."""

    incarnation: Annotated[int, Field(ge=1, le=100)]


class Consent(Record):
    """The others may let a rank join that was started again, as far as this rank is concerned.

    returned: that rank. incarnation: see Start.
    """

    returned: Rank
    incarnation: Annotated[int, Field(ge=1, le=100)]


class MeasuredLink(Record):
    """The link from the event's rank to rank `to`, measured before training with the run's own transport.

    Attributes:
        latency_s: half of a small message's round trip.
        bytes_per_s: the throughput of large messages.
    """

    to: Rank
    latency_s: Annotated[float, Field(ge=0, le=1e6)]
    bytes_per_s: Annotated[float, Field(ge=1, le=1e15)]


class TrainStart(Record):
    """The clock starts; all ranks are ready."""

    parameters: Count


class Step(Record):
    """A step has ended; written at most twice a second. loss, accuracy: those of the batch."""

    epoch: Number
    epochs: Number
    step: Number
    steps: Number
    loss: Real
    accuracy: Share
    samples_per_s: Amount


class PartitionRecord(Record):
    """What one rank trained on in one epoch.

    Attributes:
        labels: samples per class.
        js_divergence: of the samples' labels from the training set's, in bits; None without samples.
        js_divergence_so_far: the same over all epochs up to this one.
        earth_movers_distance: of the samples' labels from the training set's, 0 … 2; None without samples.
        rounds: in which the rank took part; None if all ranks take part in all rounds.
        data: what identifies the samples where machines can have different ones, see Data.digest.
    """

    epoch: Count
    samples: Count
    labels: list[Count]
    js_divergence: Amount | None = None
    js_divergence_so_far: Amount | None = None
    earth_movers_distance: Amount | None = None
    digest: Text
    rounds: Count | None = None
    data: Text | None = None


class PlannedPart(Record):
    """A part of the planned partition."""

    samples: Count
    digest: Text


class CoverageRecord(Record):
    """Coverage and overlap of the planned partitions in one epoch, and in all epochs up to it.

    Attributes:
        uneven: how partitions of different sizes are handled: join, drop or pad; see trainer.core.strategy.
        digest: the digest of the whole partition.
        parts: the parts of the partition, in a run that continues when it loses a rank.
    """

    epoch: Count
    uneven: Text = "join"
    coverage: Share
    overlap: Share
    coverage_so_far: Share
    overlap_so_far: Share
    digest: Text
    parts: list[PlannedPart] | None = None


class Epoch(Record):
    """An epoch was evaluated.

    Attributes:
        loss: the loss of the last batch; None for a server.
        target_reached: training ends here.
        consensus_distance: the distance of replicas that differ.
        gradient_noise, gradient_signal: sums over steps, see trainer.training.noise.GradientNoise; those of
            the whole run after the ranks' parts are added.
    """

    epoch: Number
    epochs: Number
    train_s: Amount
    loss: Real | None
    accuracy: Share
    test_loss: Real
    lr: Amount | None = None
    target_reached: bool = False
    consensus_distance: Real | None = None
    gradient_noise: Real | None = None
    gradient_signal: Real | None = None


class Checkpoint(Record):
    """A checkpoint was written. epoch: completed epochs. step: steps of the next epoch."""

    epoch: Count
    step: Count
    bytes: Count
    seconds: Amount


class CheckpointSkipped(Record):
    """The run cannot resume from a checkpoint."""

    epoch: Count
    step: Count
    cause: Text


class Resumed(Record):
    """The run resumes from a checkpoint. times: how often, so far; only rank 0 counts."""

    epoch: Count
    step: Count
    age_s: Real
    times: Count | None
    steps_taken: Count = 0  # by the rank, up to the checkpoint; older events lack it


class Injected(Record):
    """A fault of the spec, written before it acts.

    Attributes:
        fault: its number in the spec, from 0.
        epoch: the epoch that the rank was in; 0 before the first.
        step: steps that the rank had taken.
        second: seconds since training started in this process.
        earlier: it fired before the rank was started again, and the rank repeats the event.
    """

    fault: Annotated[int, Field(ge=0, lt=MAX_FAULTS)]
    action: Text
    epoch: Count
    step: Count
    second: Amount
    earlier: bool = False


def _with_all_phases(seconds: dict[str, float]) -> dict[str, float]:
    known, required = {*PHASES}, {*PHASES} - {"checkpoint"}
    if not required <= seconds.keys() <= known:
        raise ValueError(f"phases must be {', '.join(PHASES)}")
    return seconds


class Result(TrainResult):
    """Training ended."""

    seconds: Annotated[dict[str, Amount], AfterValidator(_with_all_phases)]


class Done(Record):
    """The rank has finished. forced: it hung afterwards."""

    forced: bool = False


class Failed(Record):
    """An exception ended the rank. peer: the error is about another rank, which may be the true cause."""

    cause: Text
    peer: bool = False
    traceback: Lines = ""


class Ended(Record):
    """A signal, or another process, ended the rank. position: where a signal has found it."""

    cause: Text
    position: Position | None = None
    signal: Text | None = None
    attempt: Attempt = 0


class Damaged(Record):
    """The reader found a line that is not an event, or too much to read."""

    line: Text
    reason: Text


EVENTS: Mapping[str, type[Record]] = {
    "start": Start,
    "ready": Empty,  # set up; waits for its node's CPU quota, if one will be applied
    "waiting": Waiting,  # of a rank that was started again: the others may let it join
    "consent": Consent,  # between two epochs
    "link": MeasuredLink,  # before training, see trainer/comm/probe.py
    "train_start": TrainStart,
    "step": Step,
    "partition": PartitionRecord,  # of each rank, after an epoch
    "coverage": CoverageRecord,  # of the first training rank, after an epoch
    "epoch": Epoch,
    "checkpoint": Checkpoint,
    "checkpoint_skipped": CheckpointSkipped,
    "resumed": Resumed,
    "fault": Injected,
    "train_end": Empty,  # the clock stopped
    "result": Result,
    "done": Done,
    "failed": Failed,
    "terminated": Ended,
    "died": Ended,
    "damaged": Damaged,
}
