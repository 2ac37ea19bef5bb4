"""Row: one run in the report, compared with the serial run of its workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from orchestrator.replay.real_nodes import RealTime
from orchestrator.replay.run import ClusterTime
from orchestrator.report.formats import JOIN, listed
from orchestrator.report.model.labels import (
    LIMIT_LABELS,
    NOT_COMPARED,
    ClusterShape,
    Rate,
    Workload,
    partitioner_label,
    strategy_label,
)
from orchestrator.results.limits import shares_cores, speedup_limit, written
from orchestrator.results.records import Certificate, CertifiedPart, RankResult, RunResult, stages_of
from trainer.spec.run_spec import NODE_LIMITS, RunSpec

MAX_VALUES = 3  # of a limit; more than these are written as a range

Clock = Literal["wall", "cluster"]

SERIAL = "serial"
NO_SERIAL = "no serial run of the same workload"
OTHER_EPOCHS = "the serial run trained for another number of epochs, with this seed or another one"
NOT_OK = "the run is not ok"
UNEQUAL_NODES = "the nodes differed in speed"
FAULTS = "faults were injected"
NO_TRAINING = "the strategy trains nothing"
DISTURBED = "the machine was busy, so times are not compared"
NO_CLUSTER_TIME = "it has no cluster time, on which the runs of its workload are compared"


@dataclass(frozen=True)
class Row:
    """One run. Times in seconds, accuracies and shares 0 … 1, memory in MiB.

    Measured quantities are None unless the run is ok, since an unfinished run compares with nothing.
    """

    key: str
    wall_result: RunResult
    run: RunSpec
    location: str  # where its nodes ran; named only if the runs of the directory differ in it
    lr_schedule: str  # likewise, and its rate if that is not the one of its workload
    workload_rate: Rate
    replayed: ClusterTime | None
    real: RealTime | None  # what a run of virtual nodes took on real ones
    elsewhere: bool  # whether it is compared on another cluster, on which it has no wall time
    disturbed: bool  # whether other load disturbed the sweep so much that it is compared on no clock
    clock: Clock = "wall"  # of all times in this row; the runs of a workload are compared on one
    serial: tuple[Row, ...] = ()  # the runs that it is compared with: that with its seed, or else all
    # Where times do not compare with theirs, for it or for another seed of its configuration: a mean over
    # the others would not be that of the configuration.
    untimed_on: frozenset[Clock] = frozenset()

    def on(self, clock: Clock) -> Row:
        """This run on a clock."""
        return self if clock == self.clock else self._on_the_other

    @cached_property
    def _on_the_other(self) -> Row:
        clock: Clock = "wall" if self.clock == "cluster" else "cluster"
        return replace(self, clock=clock, serial=tuple(each.on(clock) for each in self.serial))

    @property
    def wall(self) -> Row:
        """This run on the wall clock of the machine."""
        return self.on("wall")

    @property
    def cluster(self) -> Row | None:
        """This run in cluster time; None if it has none."""
        return self.on("cluster") if self.replayed else None

    @cached_property
    def result(self) -> RunResult:
        """As measured, with the times of this row's clock."""
        time = self.replayed if self.clock == "cluster" else None
        return _on_cluster(self.wall_result, time) if time else self.wall_result

    @property
    def timed(self) -> bool:
        """Whether the run has a time on this clock that may be compared."""
        if self.disturbed:
            return False
        wall = not self.elsewhere and not self.is_virtual
        return wall if self.clock == "wall" else self.replayed is not None

    @property
    def priced(self) -> bool:
        """Whether other runs show what its exchanges cost beyond their messages, so that they cost more."""
        time = self.replayed
        return time is None or any(cost.seconds for of in time.cluster.software.values() for cost in of)

    @cached_property
    def times_compare(self) -> bool:
        """Whether its times compare with those of other runs of the workload."""
        return self.timed and self.result.times_compare

    @property
    def status(self) -> str:
        return self.wall_result.status

    @property
    def cause(self) -> str | None:
        return self.wall_result.cause

    @property
    def log(self) -> str | None:
        """The log that may say more about the cause, in the results directory."""
        return f"{self.key}/{self.result.log}" if self.result.log else None

    @cached_property
    def ok(self) -> bool:
        return self.wall_result.status == "ok"

    @property
    def trains(self) -> bool:
        """Whether the run has steps of training to compare; fault injection does not."""
        return self.run.strategy.trains

    @property
    def is_sampled(self) -> bool:
        """Whether its steps were charged and not computed, so that it has times and no model."""
        return not self.result.runtime_info.trains

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The fields of the spec that define the computation, without defaults."""
        return self.run.canonical()

    def configuration(self, *without: str) -> str:
        """What it shares with the runs that differ only in their seed, as text: fields and location.

        without: fields in which they may differ, too. `strategy.init` is a parameter of a component.
        """
        fields = {name: value for name, value in self.canonical.items() if name not in NOT_COMPARED}
        for name in without:
            field, _, parameter = name.partition(".")
            if not parameter:
                fields.pop(field, None)
            elif parameter in fields.get(field, ()):
                fields[field] = {key: value for key, value in fields[field].items() if key != parameter}
        return json.dumps([fields, self.location], sort_keys=True)

    @property
    def name(self) -> str:
        """`all_reduce over mpi`; serial has no transport."""
        return self._named(" over ")

    @property
    def series(self) -> str:
        """`all_reduce · mpi`, as figures and tables name it."""
        return self._named(" · ")

    def _named(self, over: str) -> str:
        alone = self.strategy == SERIAL
        return self.strategy_label if alone else f"{self.strategy_label}{over}{self.transport}"

    @property
    def conditions(self) -> list[str]:
        """Its links, location, faults and attacks, without those that it has not."""
        found = (self.workload.link, self.location, self.workload.faults, self.workload.byzantine)
        return [*filter(None, found)]

    @cached_property
    def shape(self) -> ClusterShape:
        return ClusterShape.of(self.run)

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def transport(self) -> str:
        return self.run.transport

    @property
    def link_not_enforced(self) -> bool:
        """Whether the run requests links that its runtime does not make, so that wall time lacks them."""
        return bool(self.workload.link) and not self.result.runtime_info.shapes_links

    @property
    def is_virtual(self) -> bool:
        """Whether its nodes were virtual, so that no wall time says how long they train."""
        return self.wall_result.runtime_info.simulates_time

    @cached_property
    def workload(self) -> Workload:
        found = Workload.of(self.run, self.location, self.result.runtime_info.enforces_limits)
        return replace(found, **self.workload_rate._asdict())

    @cached_property
    def strategy(self) -> str:
        """The strategy's registered name."""
        return self.run.name_of("strategy")

    @cached_property
    def strategy_label(self) -> str:
        return " ".join(filter(None, [strategy_label(self.run), self.lr_schedule]))

    @cached_property
    def partitioner_label(self) -> str:
        """Empty if every node trains on the whole training set."""
        return partitioner_label(self.run)

    @cached_property
    def ranks(self) -> list[RankResult]:
        """What its ranks measured; none unless it is ok."""
        return self.result.ranks if self.ok else []

    @cached_property
    def train_s(self) -> float | None:
        """Time of the slowest rank, on the clock of this row."""
        return self.result.train_s if self.ok and self.timed else None

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Mean seconds per phase over the ranks, evaluation apart from the rest."""
        return self.result.seconds if self.ok and self.timed else {}

    @cached_property
    def work_cpu_s(self) -> float | None:
        return self.result.work_cpu_s if self.ok else None

    @cached_property
    def accuracy(self) -> float | None:
        return self.result.accuracy if self.ok else None

    @cached_property
    def local_accuracies(self) -> list[float]:
        return self.result.local_accuracies if self.ok else []

    @property
    def test_samples(self) -> int | None:
        """Images of the test split; None in older results."""
        return self.ranks[0].test_samples if self.ranks else None

    @property
    def chance_accuracy(self) -> float | None:
        """The accuracy of the best constant answer; None in older results."""
        return self.ranks[0].chance_accuracy if self.ranks else None

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the rank that took most."""
        return max((rank.steps for rank in self.ranks), default=None)

    @cached_property
    def state_bytes(self) -> int | None:
        """Weights, gradient and optimizer state of the rank that holds most; None if not recorded."""
        return max(
            (sum(rank.state_bytes.values()) for rank in self.ranks if rank.state_bytes), default=None
        )

    @cached_property
    def activation_bytes(self) -> int | None:
        """Stored activations of the rank that stores most; None if not recorded."""
        known = [rank.activation_bytes for rank in self.ranks if rank.activation_bytes is not None]
        return max(known, default=None)

    @cached_property
    def cpu_per_sample(self) -> float | None:
        """CPU seconds of work of all ranks per sample; None where they were not recorded."""
        work = [rank.work_cpu_s for rank in self.ranks if rank.work_cpu_s is not None]
        samples = sum(rank.samples for rank in self.ranks)
        return sum(work) / samples if samples and len(work) == len(self.ranks) else None

    def stages(self, replica: int = 0) -> list[list[RankResult]]:
        """The ranks that hold each of a replica's stages, in the blocks' order; none if the model is whole.

        Several ranks hold a stage together if they divide its layers.
        """
        held = self.result.copies[replica] if self.ok and self.result.copies else []
        return stages_of([rank for rank in held if rank.blocks])

    @property
    def split_points(self) -> list[str]:
        """The first block of every pipeline stage but the first: another rank holds the block before it."""
        holders = {block: ranks[0].rank for ranks in self.stages() for block in ranks[0].blocks or ()}
        names = [name for name in self.run.model.names if name in holders]
        return [name for before, name in pairwise(names) if holders[before] != holders[name]]

    @cached_property
    def replicas_equal(self) -> bool | None:
        """Whether all replicas ended with equal weights; None if there is one partitioned replica."""
        strategy = self.run.strategy
        one = strategy.partitions_model and strategy.replicas(self.run.world_size) == 1
        compares = self.trains and not self.is_sampled and not one
        return self.result.replicas_equal if self.ok and compares else None

    @cached_property
    def node_samples(self) -> list[int]:
        """Samples of each training rank in epoch 1."""
        return [part.samples for part in self.parts]

    @property
    def has_classes(self) -> bool:
        """Whether samples have classes, whose share on each node can differ."""
        return self.run.dataset.class_count > 1

    @cached_property
    def _certificate(self) -> Certificate | None:
        return self.result.certificate if self.ok else None

    @property
    def parts(self) -> list[CertifiedPart]:
        """What each training rank trained on in epoch 1."""
        return self._certificate.first_epoch() if self._certificate else []

    @property
    def verified(self) -> bool | None:
        """Whether the samples trained on were those of the partition; None without a certificate."""
        return self._certificate.verified if self._certificate else None

    @property
    def data(self) -> list[str]:
        """What identifies its training data where machines can have different ones, see Certificate."""
        return self._certificate.data if self._certificate else []

    @property
    def no_speedup(self) -> str | None:
        """The reason for a missing speedup; None if there is one."""
        reasons = {
            NOT_OK: not self.ok,
            NO_TRAINING: not self.trains,
            UNEQUAL_NODES: self.run.node_speed is not None,
            FAULTS: bool(self.run.faults),
            DISTURBED: self.disturbed,
            NO_CLUSTER_TIME: not self.timed,
            NO_SERIAL: not self.serial,
            OTHER_EPOCHS: not self.serial_s,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def serials(self, of: Callable[[Row], float | None], timed: bool = False) -> float | None:
        """The mean of what is known of the serial runs. timed: None if times do not compare."""
        known = [value for row in self.serial if (value := of(row)) is not None]
        return fmean(known) if known and not (timed and self.clock in self.untimed_on) else None

    @cached_property
    def serial_s(self) -> float | None:
        """The time of the serial runs."""
        return self.serials(lambda row: row.train_s, timed=True)

    @property
    def other_seeds(self) -> bool:
        """Whether it is compared with serial runs of other seeds."""
        return any(each.seed != self.seed for each in self.serial)

    def of_serial(self, of: Callable[[Row], float | None]) -> float | None:
        """The ratio of a number to that of the serial run; None without either."""
        return quotient(of(self), self.serials(of))

    @property
    def speedup(self) -> float | None:
        """Time of the serial run / time of this run, on one clock."""
        return quotient(self.serial_s, self.train_s)

    @property
    def shares_cores(self) -> bool:
        """Whether the nodes could use more cores than the machine has. In cluster time each has its own."""
        if self.clock == "cluster":
            return False
        return shares_cores(self.run, self.result.runtime_info, self.result.cores)

    @property
    def without_core(self) -> float:
        """That of its wall time; see `RunResult.without_core`."""
        return self.wall_result.without_core

    @property
    def speedup_limit(self) -> float:
        """The largest wall-clock speedup that the shared cores allow."""
        return speedup_limit(self.run, self.result.runtime_info, self.result.cores)


def _on_cluster(result: RunResult, cluster: ClusterTime) -> RunResult:
    """The result with all times of training replaced by cluster time.

    Evaluation, start-up and bytes stay as measured. A rank's training time ends with its last record, while
    others may still train.
    """

    def of_rank(rank: RankResult) -> RankResult:
        its = cluster.ranks[rank.rank]
        seconds = {
            **dict.fromkeys(rank.seconds, 0.0),
            **its.work_s,
            "communicate": its.communicate_s,
            "wait": its.wait_s,
            "evaluate": rank.seconds.get("evaluate", 0.0),
        }
        return rank.model_copy(
            update={
                "train_s": cluster.cluster_s - its.idle_s,
                "seconds": seconds,
                "wait_s_by_rank": its.wait_s_by_rank if len(cluster.ranks) > 1 else None,
            }
        )

    return result.model_copy(
        update={
            "ranks": [of_rank(rank) for rank in result.ranks],
            "epochs": [
                point.model_copy(update={"train_s": cluster.epoch_ends_s[point.epoch - 1]})
                for point in result.epochs
            ],
            # Clocks of a replay are common to all ranks, wherever they ran.
            "runtime_info": replace(result.runtime_info, one_clock=True),
        }
    )


def quotient(dividend: float | None, divisor: float | None) -> float | None:
    """dividend / divisor; None if either is absent or zero."""
    return dividend / divisor if dividend and divisor else None


def describe_nodes(rows: Iterable[Row]) -> str:
    """`containers of Docker 26.1.5 with 0.4 cpus and 2,048 MiB memory per node`, or `local processes`."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.result.node_kind, []).append(row)
    descriptions = []
    for kind, members in kinds.items():
        limits = " and ".join(node_limits(members, ("cpus", "memory_mb")))
        descriptions.append(f"{kind} with {limits} per node" if limits else kind)
    return "; ".join(descriptions)


def node_limits(rows: Sequence[Row], names: Sequence[str] = NODE_LIMITS) -> list[str]:
    """The limits that were enforced on each node; empty if any run was not limited."""
    if not rows or not all(row.result.runtime_info.enforces_limits for row in rows):
        return []
    return [_limit(name, sorted({getattr(row.run, name) for row in rows})) for name in names]


def _limit(name: str, values: Sequence[float]) -> str:
    """`cpus 0.4`, `cpus 0.4 or 1`, `64 to 2,048 MiB memory`."""
    each = [written(value) if isinstance(value, float) else f"{value:,}" for value in values]
    several = f"{each[0]} to {each[-1]}" if len(each) > MAX_VALUES else listed(each, "or")
    return LIMIT_LABELS[name].format(several).replace(" MiB", f"{JOIN}MiB")
