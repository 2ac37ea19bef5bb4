"""RunResult: one row of the comparison, stored in result.json by the runner and read by the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator

from trainer.core.cgroup import NodeUsage
from trainer.core.event_schema import CoverageRecord, MeasuredLink, PartitionRecord
from trainer.core.events import Event
from trainer.core.record import Record, Text
from trainer.core.result import TrainResult
from trainer.spec.run_spec import RunSpec

Status = Literal["ok", "failed", "timeout"]


@dataclass(frozen=True, kw_only=True)
class RuntimeInfo:
    """Capabilities of a runtime: it declares them, and every result records them."""

    enforces_limits: bool  # every node is limited to its cpus, memory_mb, pids and shm_mb
    shares_cores: bool  # all nodes of a run compute on the cores of one machine
    one_clock: bool  # the ranks' clocks agree, so their timestamps compare
    shapes_links: bool  # bandwidth and latency between nodes can be set
    warm: bool  # nodes stay up between runs
    remote: bool  # nodes are on other machines than the orchestrator
    simulates_time: bool = False  # times of training are those of a described cluster, not of this machine
    trains: bool = True  # False: the computation of a step is skipped, so a result has times but no model


class _Finite(Record):
    """A record whose numbers have no range of their own. A JSON number such as 1e999 is infinite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RankResult(TrainResult):
    """The result of one rank of the run."""

    rank: int

    @property
    def held_bytes(self) -> int | None:
        """Bytes of state and stored activations; None if not recorded."""
        return sum(self.state_bytes.values()) + (self.activation_bytes or 0) if self.state_bytes else None


class EpochPoint(_Finite):
    """A rank's model after an epoch; train_s is training time so far, evaluation excluded.

    consensus_distance: root mean square distance of the replicas' weights from their mean, where replicas
    differ; the mean is evaluated then.
    """

    rank: int
    epoch: int
    train_s: float
    loss: float | None  # of the last batch; None for a parameter server
    accuracy: float  # test split, 0 … 1
    test_loss: float
    consensus_distance: float | None = None
    lr: float | None = None  # learning rate; older results lack it
    target_reached: bool = False  # in `patience` consecutive epochs: training ended here
    # The rank's part of two sums over the steps of the epoch, see trainer.training.noise.
    gradient_noise: float | None = None
    gradient_signal: float | None = None


class CertifiedPart(PartitionRecord):
    """The samples that one rank trained on in one epoch."""

    rank: int


class Certificate(Record):
    """The samples that the nodes trained on, checked against the partition.

    Attributes:
        verified: whether the digest of the partition equals that of the samples trained on, in every epoch.
        samples_lost: the samples of the partition that no rank has reported, because their rank was lost.
            A sample counts once for each epoch.
    """

    verified: bool
    splits: list[CoverageRecord]
    parts: list[CertifiedPart]
    samples_lost: int = 0

    @property
    def data(self) -> list[str]:
        """What identifies the samples where machines can have different ones: one, or those that differ."""
        return sorted({part.data for part in self.parts if part.data})

    def first_epoch(self) -> list[CertifiedPart]:
        """The parts of epoch 1, by rank."""
        return sorted((part for part in self.parts if part.epoch == 1), key=lambda part: part.rank)

    def js_whole_run(self) -> float | None:
        """The largest JS divergence of a node's labels over all epochs, in bits."""
        last = max((part.epoch for part in self.parts), default=0)
        found = (part.js_divergence_so_far for part in self.parts if part.epoch == last)
        return max((js for js in found if js is not None), default=None)


class LinkResult(MeasuredLink):
    """The link from rank `source` to rank `to`, as the run measured it before training."""

    source: int


class InjectedFault(_Finite):
    """A fault that a run injected into one of its nodes, and where it fired.

    Attributes:
        fault: its number in the spec, from 0.
        rank: the first rank of the node that it reached.
        epoch: the epoch that the rank was in; 0 before the first.
        step: steps that the rank had taken.
        second: seconds since the rank started training, in the attempt in which it fired.
    """

    fault: int
    node: int
    rank: int
    action: Text
    epoch: int
    step: int
    second: float


class RunResult(_Finite):
    """The outcome of one run. Times in seconds, memory in MiB, accuracies 0 … 1."""

    version: Literal[1] = 1
    key: Text
    status: Status
    cause: Text | None  # why the run is not ok, with the name of the node
    log: Text | None = None  # the file in the run's directory that may say more about the cause
    spec: dict[str, Any]
    topology: Text
    runtime: Text
    runtime_info: RuntimeInfo
    node_kind: Text  # e.g. "containers of Docker 26.1.5"
    started_at: float  # seconds since 1970
    wall_s: float  # from the start of the run to this row
    startup_s: float | None  # from the start of the run to its first training step
    teardown_s: float | None  # from the last training step to this row
    # Parts of startup_s and teardown_s in which an engine started and stopped containers.
    engine_start_s: float = 0.0
    engine_stop_s: float = 0.0
    cores: float  # shared by the nodes
    restarted: int = 0  # how often the ranks were restarted
    faults: list[InjectedFault] = Field(default=[])
    repeated_steps: int = 0  # trained again after restarts; see orchestrator.execution.faults
    # From the first training step of the first attempt to the last step, with evaluation and restarts.
    elapsed_s: float | None = None
    warm: bool = False  # the ranks were forked by warm nodes, which had torch and the data in memory
    order: int | None = (
        None  # position among the runs that the sweep command executed; older results lack it
    )
    nodes_replaced: Text | None = None  # why warm nodes were replaced before or during the run
    flags: list[Text]  # what limits the comparison with other runs, as sentences
    ranks: list[RankResult]
    epochs: list[EpochPoint]
    certificate: Certificate | None
    links: list[LinkResult] = Field(default=[])  # by source and receiver; older results lack them
    usage: list[NodeUsage] = Field(default=[])  # of containers
    environment: dict[str, Any] = Field(default={})

    @field_validator("spec")
    @classmethod
    def _check_removed_field(cls, spec: dict[str, Any]) -> dict[str, Any]:
        """Accept results of equal nodes from versions with `bottleneck_cpus` in place of `node_speed`."""
        if spec.get("bottleneck_cpus") is not None:
            raise ValueError("bottleneck_cpus is a field of an earlier version, which node_speed replaces")
        return {name: value for name, value in spec.items() if name != "bottleneck_cpus"}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Like pydantic's, without cached values, which need not hold for the copy."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def run(self) -> RunSpec:
        return RunSpec.model_validate(self.spec)

    @property
    def samples_lost(self) -> int:
        """Samples of lost nodes that no node trained on; a sample counts once for each epoch."""
        return self.certificate.samples_lost if self.certificate else 0

    @property
    def times_compare(self) -> bool:
        """False if the ranks were threads of one interpreter, which slow each other down."""
        return not self.run.ranks_are_threads

    @cached_property
    def train_s(self) -> float | None:
        """Training time of the run: its slowest rank's."""
        return max((rank.train_s for rank in self.ranks), default=None)

    @property
    def without_core(self) -> float:
        """The share of its wall time in which a rank had work but no core, 0 … 1; of the rank with most."""
        ranks = [rank for rank in self.ranks if rank.train_s > 0]
        return max((rank.seconds.get("cpu_contention", 0.0) / rank.train_s for rank in ranks), default=0.0)

    @cached_property
    def work_cpu_s(self) -> float | None:
        """The largest CPU time of a rank, without communication and waiting; None on GPUs."""
        return max((r.work_cpu_s for r in self.ranks if r.work_cpu_s is not None), default=None)

    @cached_property
    def path_cpu_s(self) -> float | None:
        """CPU seconds on the critical path, which more cores cannot shorten; None on GPUs.

        None also where some ranks are absent in each round: then the path changes from rank to rank.

        With pipeline ranks of CPU time w_s and K `Strategy.parts_of_work`: (Σ w_s + (K − 1) · max w_s) / K.
        Of ranks that share a stage, the slowest counts.
        If all w_s are equal, this is the formula of the pipeline bubble. Otherwise: `work_cpu_s`.
        """
        strategy = self.run.strategy
        if strategy.rounds:
            return None
        if strategy.bubble(self.run.world_size) is None or self.work_cpu_s is None:
            return self.work_cpu_s
        copies = [
            [max(rank.work_cpu_s or 0.0 for rank in stage) for stage in stages_of(copy)]
            for copy in self.copies
        ]
        count = strategy.parts_of_work
        return max((sum(work) + (count - 1) * max(work)) / count for work in copies)

    @cached_property
    def copies(self) -> list[list[RankResult]]:
        """The ranks of each replica of a partitioned model, in the order of its partitions; else empty."""
        run = self.run
        strategy, size = run.strategy, run.world_size
        copies: list[list[RankResult]] = [
            [] for _ in range(run.num_replicas if strategy.partitions_model else 0)
        ]
        for rank in self.ranks if copies else ():
            copies[strategy.replica_of(rank.rank, size) % len(copies)].append(rank)
        return copies

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the final weights (rank 0's, where replicas are equal)."""
        return self.ranks[0].accuracy if self.ranks else None

    @property
    def local_accuracies(self) -> list[float]:
        """Test accuracy of each node's local model before averaging; empty if there was none."""
        return [rank.local_accuracy for rank in self.ranks if rank.local_accuracy is not None]

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all nodes, over the slowest rank's training time.

        The partitions of one replica count their samples once.
        """
        return sum(rank.samples for rank in self.ranks) / self.train_s if self.train_s else None

    @cached_property
    def last_epoch(self) -> int | None:
        """The last evaluated epoch: less than the spec's `epochs` if the target accuracy was reached."""
        return max((point.epoch for point in self.epochs), default=None)

    @cached_property
    def bytes_sent_per_rank(self) -> float | None:
        return fmean(rank.bytes_sent for rank in self.ranks) if self.ranks else None

    @property
    def held_bytes(self) -> int | None:
        """Bytes of state and stored activations of the rank that holds most; None if not recorded."""
        return max((r.held_bytes for r in self.ranks if r.held_bytes is not None), default=None)

    @property
    def staleness(self) -> float | None:
        """Mean over all gradients of the number of updates by other ranks between pull and push."""
        pushed = [(r.staleness_mean, r.steps) for r in self.ranks if r.staleness_mean is not None]
        gradients = sum(steps for _, steps in pushed)
        return sum(mean * steps for mean, steps in pushed) / gradients if gradients else None

    @property
    def staleness_max(self) -> int | None:
        return max((r.staleness_max for r in self.ranks if r.staleness_max is not None), default=None)

    @property
    def dropped_share(self) -> float | None:
        """Share of all choices of experts in training that were dropped; None without experts."""
        made = sum(rank.expert_choices or 0 for rank in self.ranks)
        return sum(rank.dropped_choices or 0 for rank in self.ranks) / made if made else None

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Mean seconds per phase over the ranks."""
        if not self.ranks:
            return {}
        phases = dict.fromkeys(phase for rank in self.ranks for phase in rank.seconds)
        return {phase: fmean(rank.seconds.get(phase, 0.0) for rank in self.ranks) for phase in phases}

    @property
    def replicas_equal(self) -> bool:
        """Whether all copies of the model ended with the same weights, bit for bit."""
        return len({rank.weights_digest for rank in self.ranks if rank.weights_digest}) <= 1


def stages_of(copy: Sequence[RankResult]) -> list[list[RankResult]]:
    """The ranks of one replica by pipeline stage. Ranks that share a stage have the same blocks."""
    return [[*ranks] for _, ranks in groupby(copy, key=lambda rank: rank.blocks or rank.rank)]


def ranks_of(events: Sequence[Event]) -> list[RankResult]:
    """The ranks' results, by rank."""
    results = [RankResult(rank=e.rank, **e.fields) for e in events if e.kind == "result"]
    return sorted(results, key=lambda result: result.rank)


def links_of(events: Sequence[Event]) -> list[LinkResult]:
    """The measured links of all ranks, by source and receiver."""
    found = [LinkResult(source=event.rank, **event.fields) for event in events if event.kind == "link"]
    return sorted(found, key=lambda link: (link.source, link.to))


def epochs_of(events: Sequence[Event]) -> list[EpochPoint]:
    """The evaluated epochs of all ranks, by rank and epoch."""
    points = []
    for event in events:
        if event.kind == "epoch":
            fields = {name: value for name, value in event.fields.items() if name != "epochs"}
            points.append(EpochPoint(rank=event.rank, **fields))
    return sorted(points, key=lambda point: (point.rank, point.epoch))
