"""What the CSV files hold, by the names of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.results.limits import written
from orchestrator.results.records import EpochPoint
from trainer.spec.registries import REGISTRIES

Value = str | int | float | bool | None
OfRun = Callable[[Row], Value]
OfGroup = Callable[[Group], Value]
IntervalOf = Callable[[Group], Bounds | None]


def of_run(name: str) -> OfRun:
    """What a column of results.csv holds: a quantity, a field of the sweep file, or something else."""
    if name in _OF_RUN:
        return _OF_RUN[name]
    if name in QUANTITIES:
        return QUANTITIES[name].of
    if name in REGISTRIES:
        return lambda row: component_label(row.run, name)
    if (replayed := QUANTITIES.get(name.removeprefix("cluster_"))) is not None:
        return lambda row: replayed.of(row.cluster) if row.cluster else None
    return lambda row: getattr(row.run, name)


def _node_speed(row: Row) -> Value:
    """The speeds of the nodes, separated by spaces; None if all are equal."""
    run = row.run
    return " ".join(f"{speed:g}" for speed in run.node_speeds) if run.slower_nodes else None


_OF_RUN: dict[str, OfRun] = {
    "key": lambda row: row.key,
    "status": lambda row: row.status,
    "cause": lambda row: row.cause,
    "partitioner": lambda row: row.partitioner_label,
    "runtime": lambda row: row.result.runtime,
    "cores": lambda row: written(row.result.cores),
    "baseline": lambda row: " ".join(each.key for each in row.serial) or None,
    "no_speedup_reason": lambda row: row.no_speedup,
    "certificate_verified": lambda row: row.verified,
    "replicas_equal": lambda row: row.replicas_equal,
    "flags": lambda row: "; ".join(row.result.flags),
    "ranks": lambda row: row.run.world_size,
    "image": lambda row: row.result.environment.get("image"),
    "link": lambda row: row.link_label or None,
    "split_points": lambda row: " ".join(row.split_points) or None,
    "node_speed": _node_speed,
    "target_reached": target_reached,
    "vary": lambda row: " ".join(row.run.vary),
    "faults": lambda row: row.faults_label or None,
    "byzantine": lambda row: row.run.byzantine_label or None,
    "order": lambda row: row.result.order,
    "log": lambda row: row.log,
    "clock": lambda row: row.clock,
}


def of_group(time_interval: IntervalOf, speedup_interval: IntervalOf) -> dict[str, OfGroup]:
    """Of summary.csv. time_interval, speedup_interval: find that of a configuration."""
    values: dict[str, OfGroup] = {
        "workload": lambda group: group.workload.label,
        "strategy": lambda group: group.strategy_label,
        "transport": lambda group: group.transport,
        "partitioner": lambda group: group.partitioner_label,
        "nodes": lambda group: group.shape.nodes,
        "ranks": lambda group: group.shape.ranks,
        "seeds": lambda group: len(group.ok_rows),
        "clock": lambda group: group.first.clock,
        "bytes_sent_per_rank": _mean(Q.bytes_sent_per_rank),
        "peak_memory_mib": lambda group: spread.high if (spread := Q.peak_memory_mib.over(group)) else None,
        "state": _state,
    }
    for name, quantity, interval in (
        ("accuracy", Q.accuracy, Q.accuracy.interval),
        ("time_s", Q.train_s, time_interval),
        ("speedup", Q.speedup, speedup_interval),
    ):
        values |= {
            name: _mean(quantity),
            f"{name}_low": _end(interval, 0),
            f"{name}_high": _end(interval, 1),
        }
    return values


def _mean(quantity: Quantity) -> OfGroup:
    return lambda group: spread.mean if (spread := quantity.over(group)) else None


def _end(interval_of: IntervalOf, end: int) -> OfGroup:
    return lambda group: interval[end] if (interval := interval_of(group)) else None


def _state(group: Group) -> str:
    ok = len(group.ok_rows)
    return "ok" if ok == len(group.rows) else "partly" if ok else "failed"


@dataclass(frozen=True)
class Epoch:
    """An epoch of an ok run. points: its ranks'. before_s: wall time before it. samples: all ranks'."""

    row: Row
    number: int
    points: list[EpochPoint]
    before_s: float
    samples: int

    @property
    def end_s(self) -> float:
        return max(point.train_s for point in self.points)

    @property
    def loss(self) -> float | None:
        losses = [point.loss for point in self.points if point.loss is not None]
        return fmean(losses) if losses else None

    @property
    def samples_per_s(self) -> float | None:
        took_s = self.end_s - self.before_s
        return self.samples / took_s if self.samples and took_s > 0 else None


OF_EPOCH: dict[str, Callable[[Epoch], Value]] = {
    "key": lambda epoch: epoch.row.key,
    "strategy": lambda epoch: component_label(epoch.row.run, "strategy"),
    "nodes": lambda epoch: epoch.row.run.nodes,
    "seed": lambda epoch: epoch.row.seed,
    "epoch": lambda epoch: epoch.number,
    "train_s": lambda epoch: epoch.end_s,
    "lr": lambda epoch: epoch.points[0].lr,
    "loss": lambda epoch: epoch.loss,
    "accuracy": lambda epoch: fmean(point.accuracy for point in epoch.points),
    "test_loss": lambda epoch: fmean(point.test_loss for point in epoch.points),
    "samples_per_s": lambda epoch: epoch.samples_per_s,
}


def epochs_of(row: Row) -> Iterator[Epoch]:
    """The epochs of a run on the row's clock, in order; none unless it is ok."""
    if not row.ok:
        return
    points: dict[int, list[EpochPoint]] = {}
    for point in row.result.epochs:
        points.setdefault(point.epoch, []).append(point)
    samples: dict[int, int] = {}
    for part in row.result.certificate.parts if row.result.certificate else ():
        samples[part.epoch] = samples.get(part.epoch, 0) + part.samples
    before_s = 0.0
    for number in sorted(points):
        epoch = Epoch(row, number, points[number], before_s, samples.get(number, 0))
        yield epoch
        before_s = epoch.end_s
