"""The columns of results.csv and epochs.csv: each with its value, unit and meaning, and when it is empty.

Programs read these files: add columns at the end, and do not rename them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Generic, TypeVar

from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.quantities.data_partition import NO_CERTIFICATE
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.quantities.model_partition import NO_STAGES
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.times import NO_CHECKPOINTS, NO_SERIAL_RUN, NOT_RECORDED
from orchestrator.results.limits import written
from orchestrator.results.records import EpochPoint
from trainer.spec.run_spec import RunSpec

Value = str | int | float | bool | None
T = TypeVar("T")


@dataclass(frozen=True)
class CsvColumn(Generic[T]):
    """A column of a CSV file.

    unit: the unit of its numbers; empty for text, counts, and values without a unit. empty: the lines for
    which it has no value, beside those for which nothing is known or measured at all.
    """

    name: str
    value: Callable[[T], Value]
    meaning: str
    unit: str = ""
    empty: str = ""


WITH_PARAMETERS = "name, and the parameters that are not the default"
NO_TARGET = "the run has no target"


def _quantities(*names: str) -> list[CsvColumn[Row]]:
    return [_of_quantity(QUANTITIES[name]) for name in names]


def _of_quantity(quantity: Quantity) -> CsvColumn[Row]:
    return CsvColumn(quantity.name, quantity.of, quantity.meaning, quantity.unit.name, quantity.empty)


def _field(name: str, unit: str = "", empty: str = "") -> CsvColumn[Row]:
    """A field of the sweep file, with the description that the field has there."""
    meaning = RunSpec.model_fields[name].description or ""
    return CsvColumn(name, lambda row: getattr(row.run, name), meaning, unit, empty)


def _component(name: str) -> CsvColumn[Row]:
    return CsvColumn(name, lambda row: component_label(row.run, name), WITH_PARAMETERS)


def _node_speed(row: Row) -> Value:
    """The speeds of the nodes, separated by spaces; None if all are equal."""
    run = row.run
    return " ".join(f"{speed:g}" for speed in run.node_speeds) if run.slower_nodes else None


TRANSPORT = "what carries the bytes"
NO_PARTITION = "every node trains on the whole training set"

# Times are on the wall clock, whichever clock is the report's.
WALL_COLUMNS: tuple[CsvColumn[Row], ...] = (
    CsvColumn("key", lambda row: row.key, "the run's key and directory"),
    CsvColumn("status", lambda row: row.status, "`ok`, `failed`, `timeout`, `unusable` or `pending`"),
    CsvColumn(
        "cause",
        lambda row: row.cause,
        "why the run is not ok, or its result not usable",
        empty="the run is ok",
    ),
    _component("strategy"),
    CsvColumn("transport", lambda row: row.transport, TRANSPORT),
    CsvColumn("partitioner", lambda row: row.partitioner_label, WITH_PARAMETERS, empty=NO_PARTITION),
    *map(_component, ("dataset", "model", "optimizer")),
    *map(_field, ("nodes", "seed", "lr")),
    _field("batch_size", "samples"),
    *map(_field, ("epochs", "threads")),
    CsvColumn("runtime", lambda row: row.result.runtime, "where the nodes ran: `docker` or `local`"),
    CsvColumn("cores", lambda row: written(row.result.cores), "cores that the nodes shared"),
    *_quantities("train_s", "speedup", "efficiency", "work_cpu_s", "cpu_time_speedup"),
    CsvColumn(
        "baseline",
        lambda row: " ".join(row.baseline.keys) if row.baseline else None,
        "keys of the serial runs that this run is compared with",
        empty=NO_SERIAL_RUN,
    ),
    CsvColumn(
        "no_speedup_reason", lambda row: row.no_speedup, "why there is no speedup", empty="there is one"
    ),
    *_quantities("accuracy", "accuracy_difference", "test_loss", "bits_per_token"),
    *_quantities("local_accuracy_min", "local_accuracy_mean", "local_accuracy_max"),
    *_quantities("steps", "samples_per_s", "data_s", "compute_s", "communicate_s", "wait_s"),
    *_quantities("cpu_contention_s", "other_s", "evaluate_s"),
    *_quantities("coverage", "overlap", "coverage_whole_run", "overlap_whole_run"),
    *_quantities("js_divergence_mean_bits", "js_divergence_max_bits", "js_divergence_whole_run_max_bits"),
    *_quantities("samples_per_rank_min", "samples_per_rank_max"),
    CsvColumn(
        "certificate_verified",
        lambda row: row.verified,
        "whether the ranks trained on the samples of the partition",
        empty=NO_CERTIFICATE,
    ),
    *_quantities("peak_memory_mib", "startup_s", "teardown_s", "run_wall_s"),
    CsvColumn(
        "replicas_equal",
        lambda row: row.replicas_equal,
        "whether all replicas ended with the same weights",
        empty="there is one replica",
    ),
    CsvColumn(
        "flags",
        lambda row: "; ".join(row.result.flags),
        "what limits comparisons of the run, separated by `; `",
        empty="nothing does",
    ),
    _field("processes_per_node"),
    CsvColumn("ranks", lambda row: row.run.world_size, "nodes × processes per node"),
    _field("cpus", "cores"),
    _field("memory_mb", "MiB"),
    _field("pids"),
    _field("shm_mb", "MiB"),
    *_quantities("bytes_sent_per_rank", "containers", "container_sent_bytes_mean", "container_cpu_s_mean"),
    *_quantities("container_throttled_s_max", "container_memory_peak_mib_max"),
    *_quantities("container_memory_limit_mib"),
    CsvColumn(
        "image",
        lambda row: row.result.environment.get("image"),
        "the image, and the hash of the sources it was built from",
        empty="nodes were local processes",
    ),
    *_quantities("consensus_distance", "bytes_sent_per_rank_per_step"),
    CsvColumn(
        "link",
        lambda row: row.link_label or None,
        "the links that the sweep file requests",
        empty="it requests none",
    ),
    *_quantities("link_latency_s", "link_bytes_per_s", "exchange_s_per_step"),
    *_quantities("earth_movers_distance_mean", "earth_movers_distance_max"),
    *_quantities("staleness_mean", "staleness_max"),
    _field("batch_per"),
    *_quantities("step_s", "parameters_per_rank_max", "state_bytes_per_rank_max"),
    *_quantities("activation_bytes_per_rank_max", "load_balance"),
    CsvColumn(
        "split_points",
        lambda row: " ".join(row.split_points) or None,
        "the first block of every partition but the first",
        empty=NO_STAGES,
    ),
    *_quantities("bubble_share", "bubble_share_formula", "split_point_bytes_per_step_max"),
    _component("augmentation"),
    CsvColumn(
        "node_speed",
        _node_speed,
        "speed of each node, separated by spaces",
        empty="all nodes are equally fast",
    ),
    *_quantities("straggler_rank", "straggler_share_of_time", "straggler_share_of_waiting"),
    *map(_field, ("lr_scaling", "warm_up_epochs")),
    *_quantities("lr_first_epoch", "lr_last_epoch"),
    _field("target_accuracy", "0 … 1", NO_TARGET),
    _field("patience", "epochs"),
    CsvColumn("target_reached", target_reached, "whether the target accuracy was reached", empty=NO_TARGET),
    *_quantities("time_to_target_s", "epochs_trained"),
    CsvColumn(
        "vary", lambda row: " ".join(row.run.vary), "what the seed varies", empty="it varies nothing"
    ),
    *_quantities("checkpoint_s"),
    _field("checkpoint_epochs", "epochs", NO_CHECKPOINTS),
    _field("checkpoint_steps", "steps", NO_CHECKPOINTS),
    CsvColumn("faults", lambda row: row.faults_label or None, "what was injected", empty="nothing was"),
    *_quantities("faults_injected"),
    CsvColumn(
        "byzantine",
        lambda row: row.run.byzantine_label or None,
        "the nodes that attack the aggregation, and how",
        empty="all nodes are honest",
    ),
    *map(_field, ("on_loss", "restarts")),
    *_quantities("restarted", "elapsed_s", "repeated_steps", "samples_lost"),
    CsvColumn(
        "order",
        lambda row: row.result.order,
        "position among the runs that the command executed, from 0",
        empty=NOT_RECORDED,
    ),
    CsvColumn(
        "log", lambda row: row.log, "the log that may say more about the cause", empty="there is none"
    ),
    *_quantities("cpu_s_per_sample", "cpu_s_per_sample_of_serial"),
    _component("loss"),
    *_quantities("rounds_to_target", "dropped_choices"),
)

CLOCK = CsvColumn[Row](
    "clock", lambda row: row.clock, "on which the report compares the run: `wall` or `cluster`"
)

# The quantities that results.csv has in cluster time, too.
ON_BOTH_CLOCKS = (
    *("train_s", "speedup", "efficiency", "data_s", "compute_s", "communicate_s", "wait_s", "other_s"),
    *("exchange_s_per_step", "step_s", "bubble_share", "time_to_target_s"),
)
CLUSTER_COLUMNS = (
    *(_of_quantity(QUANTITIES[name].in_cluster_time) for name in ON_BOTH_CLOCKS),
    # All ranks of a replay have a common clock.
    replace(_of_quantity(QUANTITIES["straggler_rank"].in_cluster_time), empty="no rank waited"),
)
RESULT_COLUMNS = (*WALL_COLUMNS, CLOCK, *CLUSTER_COLUMNS)


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


EPOCH_COLUMNS: tuple[CsvColumn[Epoch], ...] = (
    CsvColumn("key", lambda epoch: epoch.row.key, "the run's key"),
    CsvColumn("strategy", lambda epoch: component_label(epoch.row.run, "strategy"), "as in results.csv"),
    CsvColumn("nodes", lambda epoch: epoch.row.run.nodes, "as in results.csv"),
    CsvColumn("seed", lambda epoch: epoch.row.seed, "as in results.csv"),
    CsvColumn("epoch", lambda epoch: epoch.number, "counted from 1"),
    CsvColumn(
        "train_s",
        lambda epoch: epoch.end_s,
        "wall time from the start of training until all ranks have finished the epoch, without evaluation",
        "s",
    ),
    CsvColumn("lr", lambda epoch: epoch.points[0].lr, "the learning rate of the epoch", empty=NOT_RECORDED),
    CsvColumn("loss", lambda epoch: epoch.loss, "loss of each rank's last batch, mean over ranks"),
    CsvColumn(
        "accuracy",
        lambda epoch: fmean(point.accuracy for point in epoch.points),
        "test accuracy of the model evaluated after the epoch; mean if each rank evaluates its own",
        "0 … 1",
    ),
    CsvColumn(
        "test_loss",
        lambda epoch: fmean(point.test_loss for point in epoch.points),
        "loss of the same on the test split",
    ),
    CsvColumn(
        "samples_per_s",
        lambda epoch: epoch.samples_per_s,
        "samples of all ranks in the epoch / its time",
        "1/s",
        NO_CERTIFICATE,
    ),
)
