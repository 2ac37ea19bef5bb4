"""The columns of results.csv and epochs.csv: each with its value, unit and meaning, and when it is empty.

Programs read these files: add columns at the end, and do not rename them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

from orchestrator.report.metrics import links
from orchestrator.report.metrics import model_partition as partition
from orchestrator.report.metrics.communication import (
    bytes_per_step,
    consensus_distance,
    exchange_s_per_step,
)
from orchestrator.report.metrics.containers import metric
from orchestrator.report.metrics.data_partition import distance_max, distance_mean
from orchestrator.report.metrics.learning import (
    first_lr,
    last_epoch,
    last_lr,
    target_reached,
    time_to_target_s,
)
from orchestrator.report.metrics.stragglers import Straggler, straggler_of, wait_shares
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.results.limits import written
from orchestrator.results.records import EpochPoint
from trainer.spec.run_spec import RunSpec

Value = str | int | float | bool | None
T = TypeVar("T")


@dataclass(frozen=True)
class CsvColumn(Generic[T]):
    """A column of a CSV file.

    unit: of its numbers; empty for text, counts, and values without a unit. empty: for which lines it has
    no value, beside those for which nothing is known or measured at all.
    """

    name: str
    value: Callable[[T], Value]
    meaning: str
    unit: str = ""
    empty: str = ""


def _of_spec(field: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.run, field)


def _phase(phase: str) -> Callable[[Row], Value]:
    return lambda row: row.seconds.get(phase)


def _component(field: str) -> Callable[[Row], Value]:
    return lambda row: component_label(row.run, field)


def _node_speed(row: Row) -> Value:
    """The speeds of the nodes, separated by spaces; None if all are equal."""
    run = row.run
    return " ".join(f"{speed:g}" for speed in run.node_speeds) if run.slower_nodes else None


def _straggler(attribute: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        found: Straggler | None = straggler_of(wait_shares(row))
        known: Value = getattr(found, attribute) if found else None
        return known

    return value


def _field(name: str, unit: str = "", empty: str = "") -> CsvColumn[Row]:
    """A field of the sweep file, with the description that the field has there."""
    meaning = RunSpec.model_fields[name].description or ""
    return CsvColumn(name, _of_spec(name), meaning, unit, empty)


WITH_PARAMETERS = "name, and the parameters that are not the default"

# When columns are empty.
ONE_RANK = "there is one rank"
NO_CONTAINERS = "nodes were no containers, or one reported no usage"
NO_TARGET = "the run has no target"
NO_STAGES = "the model is not split into stages"
NOT_RECORDED = "the result is older than the column"
NO_EXCHANGE_IN_STEPS = "there is one rank, or steps exchange nothing"
NO_STRAGGLER = "no rank waited, or ranks have no common clock"
NO_SPEEDUP = "there is none, for the reason in `no_speedup_reason` of results.csv"
NO_SERIAL_RUN = "the workload has no serial run"
NO_CERTIFICATE = "the run has no certificate"

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
    CsvColumn("strategy", _component("strategy"), WITH_PARAMETERS),
    CsvColumn("transport", lambda row: row.transport, "what carries the bytes"),
    CsvColumn(
        "partitioner",
        lambda row: row.partitioner_label,
        WITH_PARAMETERS,
        empty="every node trains on the whole training set",
    ),
    CsvColumn("dataset", lambda row: row.workload.dataset, WITH_PARAMETERS),
    CsvColumn("model", lambda row: row.workload.model, WITH_PARAMETERS),
    CsvColumn("optimizer", lambda row: row.workload.optimizer, WITH_PARAMETERS),
    _field("nodes"),
    _field("seed"),
    _field("lr"),
    _field("batch_size", "samples"),
    _field("epochs"),
    _field("threads"),
    CsvColumn("runtime", lambda row: row.result.runtime, "where the nodes ran: `docker` or `local`"),
    CsvColumn("cores", lambda row: written(row.result.cores), "cores that the nodes shared"),
    CsvColumn(
        "train_s", lambda row: row.train_s, "training time of the slowest rank, without evaluation", "s"
    ),
    CsvColumn(
        "speedup", lambda row: row.speedup, "time of the serial run / time of this run", empty=NO_SPEEDUP
    ),
    CsvColumn("efficiency", lambda row: row.efficiency, "speedup / ranks", empty=NO_SPEEDUP),
    CsvColumn(
        "work_cpu_s",
        lambda row: row.work_cpu_s,
        "CPU time without communication and waiting, of the rank with most",
        "s",
        "ranks are on GPUs",
    ),
    CsvColumn(
        "cpu_time_speedup",
        lambda row: row.cpu_time_speedup,
        "serial CPU time / CPU time on the critical path",
        empty=NO_SERIAL_RUN,
    ),
    CsvColumn(
        "baseline",
        lambda row: " ".join(row.baseline.keys) if row.baseline else None,
        "keys of the serial runs that this run is compared with",
        empty=NO_SERIAL_RUN,
    ),
    CsvColumn(
        "no_speedup_reason",
        lambda row: row.no_speedup,
        "why there is no speedup",
        empty="there is one",
    ),
    CsvColumn("accuracy", lambda row: row.accuracy, "test accuracy of the final weights", "0 … 1"),
    CsvColumn(
        "accuracy_difference",
        lambda row: row.accuracy_difference,
        "accuracy − accuracy of the serial run",
        "−1 … 1",
        NO_SERIAL_RUN,
    ),
    CsvColumn("test_loss", lambda row: row.test_loss, "loss of the final weights on the test split"),
    CsvColumn(
        "local_accuracy_min",
        lambda row: min(row.local_accuracies, default=None),
        "of the nodes' models before the final average: the lowest",
        "0 … 1",
        "the strategy does not average at the end",
    ),
    CsvColumn(
        "local_accuracy_mean",
        lambda row: fmean(row.local_accuracies) if row.local_accuracies else None,
        "as `local_accuracy_min`, the mean",
        "0 … 1",
        "the strategy does not average at the end",
    ),
    CsvColumn(
        "local_accuracy_max",
        lambda row: max(row.local_accuracies, default=None),
        "as `local_accuracy_min`, the highest",
        "0 … 1",
        "the strategy does not average at the end",
    ),
    CsvColumn("steps", lambda row: row.steps, "optimizer steps of the rank that took most"),
    CsvColumn("samples_per_s", lambda row: row.samples_per_s, "samples of all replicas / `train_s`", "1/s"),
    CsvColumn("data_s", _phase("data"), "loading and augmenting batches, mean over ranks", "s"),
    CsvColumn(
        "compute_s", _phase("compute"), "forward and backward pass and optimizer, mean over ranks", "s"
    ),
    CsvColumn("communicate_s", _phase("communicate"), "moving bytes, mean over ranks", "s"),
    CsvColumn("wait_s", _phase("wait"), "waiting for other ranks, mean over ranks", "s"),
    CsvColumn(
        "cpu_contention_s",
        _phase("cpu_contention"),
        "work without a core, mean over ranks",
        "s",
        "ranks have several threads",
    ),
    CsvColumn("other_s", _phase("other"), "the rest of `train_s`, mean over ranks", "s"),
    CsvColumn(
        "evaluate_s", _phase("evaluate"), "evaluation, which is not in `train_s`, mean over ranks", "s"
    ),
    CsvColumn(
        "coverage",
        lambda row: row.coverage,
        "share of the training set that a node used in epoch 1",
        "0 … 1",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "overlap",
        lambda row: row.overlap,
        "share of the training set that several nodes used in epoch 1",
        "0 … 1",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "coverage_whole_run",
        lambda row: row.coverage_whole_run,
        "as `coverage`, in all epochs",
        "0 … 1",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "overlap_whole_run",
        lambda row: row.overlap_whole_run,
        "as `overlap`, in all epochs",
        "0 … 1",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "js_divergence_mean_bits",
        lambda row: row.js_mean,
        "Jensen–Shannon divergence of a node's labels from those of the training set, epoch 1: mean",
        "bits",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "js_divergence_max_bits",
        lambda row: row.js_max,
        "as `js_divergence_mean_bits`, the largest",
        "bits",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "js_divergence_whole_run_max_bits",
        lambda row: row.js_whole_run,
        "as `js_divergence_max_bits`, over all epochs",
        "bits",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "samples_per_rank_min",
        lambda row: min(row.node_samples, default=None),
        "samples of the training rank with fewest in epoch 1",
        "",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "samples_per_rank_max",
        lambda row: max(row.node_samples, default=None),
        "samples of the training rank with most in epoch 1",
        "",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "certificate_verified",
        lambda row: row.verified,
        "whether the ranks trained on the samples of the partition",
        empty=NO_CERTIFICATE,
    ),
    CsvColumn(
        "peak_memory_mib",
        lambda row: row.peak_memory_mb,
        "the largest peak of a rank",
        "MiB",
        "the system has no /proc",
    ),
    CsvColumn("startup_s", lambda row: row.startup_s, "start of the run to the first training step", "s"),
    CsvColumn("teardown_s", lambda row: row.teardown_s, "last training step to the result", "s"),
    CsvColumn(
        "run_wall_s", lambda row: row.result.wall_s, "the whole run, with start-up and evaluation", "s"
    ),
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
    CsvColumn(
        "bytes_sent_per_rank", lambda row: row.bytes_sent_per_rank, "counted payload, mean over ranks", "B"
    ),
    CsvColumn("containers", metric("count"), "number of containers with nodes", "", NO_CONTAINERS),
    CsvColumn(
        "container_sent_bytes_mean",
        metric("sent_bytes"),
        "sent on the network interface, mean over containers",
        "B",
        NO_CONTAINERS,
    ),
    CsvColumn(
        "container_cpu_s_mean",
        metric("cpu_s"),
        "CPU time of all processes, mean over containers",
        "s",
        NO_CONTAINERS,
    ),
    CsvColumn(
        "container_throttled_s_max",
        metric("throttled_s"),
        "time in which the CPU quota stopped the container, summed over cores; maximum",
        "s",
        NO_CONTAINERS,
    ),
    CsvColumn(
        "container_memory_peak_mib_max",
        metric("memory_peak_mb"),
        "peak memory with cached files; maximum",
        "MiB",
        f"{NO_CONTAINERS}; a warm container needed no more than in an earlier run",
    ),
    CsvColumn(
        "container_memory_limit_mib", metric("memory_limit_mb"), "memory limit", "MiB", NO_CONTAINERS
    ),
    CsvColumn(
        "image",
        lambda row: row.result.environment.get("image"),
        "the image, and the hash of the sources it was built from",
        "",
        "nodes were local processes",
    ),
    CsvColumn(
        "consensus_distance",
        consensus_distance,
        "root mean square distance of the replicas from their mean, after the last epoch",
        empty="replicas do not differ",
    ),
    CsvColumn(
        "bytes_sent_per_rank_per_step",
        bytes_per_step,
        "`bytes_sent_per_rank` / `steps`",
        "B",
        NO_EXCHANGE_IN_STEPS,
    ),
    CsvColumn(
        "link",
        lambda row: row.link_label or None,
        "the links that the sweep file requests",
        "",
        "it requests none",
    ),
    CsvColumn(
        "link_latency_s",
        links.latency_s,
        "measured before training, median over the links",
        "s",
        "no link was measured",
    ),
    CsvColumn(
        "link_bytes_per_s",
        links.bytes_per_s,
        "measured before training, median over the links",
        "B/s",
        "no link was measured",
    ),
    CsvColumn(
        "exchange_s_per_step",
        exchange_s_per_step,
        "(`communicate_s` + `wait_s`) / `steps`",
        "s",
        NO_EXCHANGE_IN_STEPS,
    ),
    CsvColumn(
        "earth_movers_distance_mean",
        distance_mean,
        "of a node's labels from those of the training set, epoch 1: mean",
        "0 … 2",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "earth_movers_distance_max",
        distance_max,
        "as `earth_movers_distance_mean`, the largest",
        "0 … 2",
        NO_CERTIFICATE,
    ),
    CsvColumn(
        "staleness_mean",
        lambda row: row.staleness,
        "updates by other ranks between a rank's pull and its push, mean over gradients",
        empty="gradients are never stale",
    ),
    CsvColumn(
        "staleness_max",
        lambda row: row.staleness_max,
        "as `staleness_mean`, the largest",
        "",
        "gradients are never stale",
    ),
    _field("batch_per"),
    CsvColumn("step_s", partition.step_s, "`train_s` / `steps`", "s"),
    CsvColumn(
        "parameters_per_rank_max", partition.parameters, "parameters of the part that a rank holds; maximum"
    ),
    CsvColumn(
        "state_bytes_per_rank_max",
        lambda row: row.state_bytes,
        "weights, gradient and optimizer state of a rank; maximum",
        "B",
        NOT_RECORDED,
    ),
    CsvColumn(
        "activation_bytes_per_rank_max",
        partition.activation_bytes,
        "activations stored for the backward pass in the first step; maximum over ranks",
        "B",
        NOT_RECORDED,
    ),
    CsvColumn(
        "load_balance",
        partition.load_balance,
        "mean / maximum over ranks of busy time: 1 if all have equally much to do",
        "0 … 1",
        ONE_RANK,
    ),
    CsvColumn(
        "split_points",
        lambda row: " ".join(row.split_points) or None,
        "the first block of every partition but the first",
        "",
        NO_STAGES,
    ),
    CsvColumn(
        "bubble_share",
        partition.bubble,
        "share of time that stages wait, mean over stages",
        "0 … 1",
        NO_STAGES,
    ),
    CsvColumn(
        "bubble_share_formula",
        partition.bubble_formula,
        "(S − 1)/(M + S − 1) for S stages and M micro-batches",
        "0 … 1",
        NO_STAGES,
    ),
    CsvColumn(
        "split_point_bytes_per_step_max",
        partition.split_point_bytes_per_step,
        "payload over the busiest split point",
        "B",
        NO_STAGES,
    ),
    CsvColumn(
        "augmentation",
        lambda row: row.workload.augmentation,
        WITH_PARAMETERS,
    ),
    CsvColumn(
        "node_speed",
        _node_speed,
        "speed of each node, separated by spaces",
        "",
        "all nodes are equally fast",
    ),
    CsvColumn(
        "straggler_rank", _straggler("rank"), "the rank that the others waited for most", "", NO_STRAGGLER
    ),
    CsvColumn(
        "straggler_share_of_time",
        _straggler("share_of_time"),
        "share of its time that another rank waited for `straggler_rank`, mean",
        "0 … 1",
        NO_STRAGGLER,
    ),
    CsvColumn(
        "straggler_share_of_waiting",
        _straggler("share_of_waiting"),
        "the share of `straggler_rank` in all waiting",
        "0 … 1",
        NO_STRAGGLER,
    ),
    _field("lr_scaling"),
    _field("warm_up_epochs"),
    CsvColumn(
        "lr_first_epoch", first_lr, "the learning rate of the first epoch, as used", "", NOT_RECORDED
    ),
    CsvColumn("lr_last_epoch", last_lr, "the learning rate of the last epoch, as used", "", NOT_RECORDED),
    _field("target_accuracy", "0 … 1", NO_TARGET),
    _field("patience", "epochs"),
    CsvColumn("target_reached", target_reached, "whether the target accuracy was reached", "", NO_TARGET),
    CsvColumn(
        "time_to_target_s",
        time_to_target_s,
        "time to the end of the first of the epochs that reached the target",
        "s",
        "the target was not reached",
    ),
    CsvColumn("epochs_trained", last_epoch, "number of epochs that the run trained for"),
    CsvColumn("vary", lambda row: " ".join(row.run.vary), "what the seed varies", "", "it varies nothing"),
    CsvColumn(
        "checkpoint_s",
        _phase("checkpoint"),
        "writing checkpoints, mean over ranks",
        "s",
        "the run takes no checkpoints",
    ),
    _field("checkpoint_epochs", "epochs", "the run takes no checkpoints"),
    _field("checkpoint_steps", "steps", "the run takes no checkpoints"),
    CsvColumn("faults", lambda row: row.faults_label or None, "what was injected", "", "nothing was"),
    CsvColumn("faults_injected", lambda row: len(row.result.faults), "how many faults fired"),
    _field("on_loss"),
    _field("restarts"),
    CsvColumn("restarted", lambda row: row.result.restarted, "how often the ranks were restarted"),
    CsvColumn(
        "elapsed_s",
        lambda row: row.elapsed_s,
        "first training step to the last, with evaluation, lost work and restarts",
        "s",
        NOT_RECORDED,
    ),
    CsvColumn(
        "repeated_steps", lambda row: row.repeated_steps, "steps trained again after restarts", "steps"
    ),
    CsvColumn(
        "samples_lost",
        lambda row: row.samples_lost,
        "samples of lost nodes on which no node trained",
        "samples",
    ),
    CsvColumn(
        "order",
        lambda row: row.result.order,
        "position among the runs that the command executed, from 0",
        "",
        NOT_RECORDED,
    ),
    CsvColumn("log", lambda row: row.log, "the log that may say more about the cause", "", "there is none"),
    CsvColumn(
        "cpu_s_per_sample",
        lambda row: row.cpu_per_sample,
        "CPU time of work of all ranks per sample",
        "s",
        "ranks are on GPUs",
    ),
    CsvColumn(
        "cpu_s_per_sample_of_serial",
        lambda row: row.cpu_per_sample_of_serial,
        "`cpu_s_per_sample` / that of the serial run",
        "",
        NO_SERIAL_RUN,
    ),
    CsvColumn("loss", _component("loss"), WITH_PARAMETERS),
)

CLOCK = CsvColumn[Row](
    "clock", lambda row: row.clock, "on which the report compares the run: `wall` or `cluster`"
)

# The same runs in cluster time.
CLUSTER_COLUMNS: tuple[CsvColumn[Row], ...] = (
    CsvColumn("cluster_s", lambda row: row.train_s, "as `train_s`, in cluster time", "s"),
    CsvColumn("cluster_speedup", lambda row: row.speedup, "as `speedup`, in cluster time", "", NO_SPEEDUP),
    CsvColumn(
        "cluster_efficiency", lambda row: row.efficiency, "as `efficiency`, in cluster time", "", NO_SPEEDUP
    ),
    *(
        CsvColumn(f"cluster_{phase}_s", _phase(phase), f"as `{phase}_s`, in cluster time", "s")
        for phase in ("data", "compute", "communicate", "wait", "other")
    ),
    CsvColumn(
        "cluster_exchange_s_per_step",
        exchange_s_per_step,
        "as `exchange_s_per_step`, in cluster time",
        "s",
        NO_EXCHANGE_IN_STEPS,
    ),
    CsvColumn("cluster_step_s", partition.step_s, "as `step_s`, in cluster time", "s"),
    CsvColumn(
        "cluster_bubble_share", partition.bubble, "as `bubble_share`, in cluster time", "0 … 1", NO_STAGES
    ),
    CsvColumn(
        "cluster_time_to_target_s",
        time_to_target_s,
        "as `time_to_target_s`, in cluster time",
        "s",
        "the target was not reached",
    ),
    CsvColumn(
        "cluster_straggler_rank",
        _straggler("rank"),
        "as `straggler_rank`, in cluster time",
        "",
        "no rank waited",
    ),
)
RESULT_COLUMNS = (*WALL_COLUMNS, CLOCK, *CLUSTER_COLUMNS)


@dataclass(frozen=True)
class Epoch:
    """An epoch of an ok run. points: of its ranks. before_s: wall time before it. samples: of all ranks."""

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
    CsvColumn("lr", lambda epoch: epoch.points[0].lr, "the learning rate of the epoch", "", NOT_RECORDED),
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
