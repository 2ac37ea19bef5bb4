"""results.csv and epochs.csv: raw numbers for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

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
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.results.limits import written
from trainer.spec.run_spec import NODE_LIMITS

Value = str | int | float | bool | None

# Phases of the trainer's clock. The training time does not include evaluation.
PHASES = ("data", "compute", "communicate", "wait", "cpu_contention", "other", "evaluate")
REPLAYED = ("data", "compute", "communicate", "wait", "other")  # phases of cluster time


def _node_speed(row: Row) -> Value:
    """The speeds of the nodes, separated by spaces; None if all are equal."""
    run = row.run
    return " ".join(f"{speed:g}" for speed in run.node_speeds) if run.slower_nodes else None


# Programs read these files: add columns at the end, and do not rename them.
#
# All times on the wall clock, whichever clock is the report's.
WALL_COLUMNS: dict[str, Callable[[Row], Value]] = {
    "key": lambda row: row.key,
    "status": lambda row: row.status,
    "cause": lambda row: row.cause,
    "strategy": lambda row: component_label(row.run, "strategy"),
    "transport": lambda row: row.transport,
    "partitioner": lambda row: row.partitioner_label,
    "dataset": lambda row: row.workload.dataset,
    "model": lambda row: row.workload.model,
    "optimizer": lambda row: row.workload.optimizer,
    "nodes": lambda row: row.run.nodes,
    "seed": lambda row: row.seed,
    "lr": lambda row: row.run.lr,
    "batch_size": lambda row: row.run.batch_size,
    "epochs": lambda row: row.run.epochs,
    "threads": lambda row: row.run.threads,
    "runtime": lambda row: row.result.runtime,
    "cores": lambda row: written(row.result.cores),
    "train_s": lambda row: row.train_s,
    "speedup": lambda row: row.speedup,
    "efficiency": lambda row: row.efficiency,
    "work_cpu_s": lambda row: row.work_cpu_s,
    "cpu_time_speedup": lambda row: row.cpu_time_speedup,
    "baseline": lambda row: " ".join(row.baseline.keys) if row.baseline else None,
    "no_speedup_reason": lambda row: row.no_speedup,
    "accuracy": lambda row: row.accuracy,
    "accuracy_difference": lambda row: row.accuracy_difference,
    "test_loss": lambda row: row.test_loss,
    "local_accuracy_min": lambda row: min(row.local_accuracies, default=None),
    "local_accuracy_mean": lambda row: fmean(row.local_accuracies) if row.local_accuracies else None,
    "local_accuracy_max": lambda row: max(row.local_accuracies, default=None),
    "steps": lambda row: row.steps,
    "samples_per_s": lambda row: row.samples_per_s,
    # Empty for nodes of several ranks: bytes are counted per rank, and a node sends less than their sum.
    "bytes_sent_per_node": lambda row: (
        row.bytes_sent_per_rank if row.shape.processes_per_node == 1 else None
    ),
    **{f"{phase}_s": lambda row, phase=phase: row.seconds.get(phase) for phase in PHASES},  # type: ignore[misc]
    "coverage": lambda row: row.coverage,
    "overlap": lambda row: row.overlap,
    "coverage_whole_run": lambda row: row.coverage_whole_run,
    "overlap_whole_run": lambda row: row.overlap_whole_run,
    "js_divergence_mean_bits": lambda row: row.js_mean,
    "js_divergence_max_bits": lambda row: row.js_max,
    "js_divergence_whole_run_max_bits": lambda row: row.js_whole_run,
    "samples_per_rank_min": lambda row: min(row.node_samples, default=None),
    "samples_per_rank_max": lambda row: max(row.node_samples, default=None),
    "certificate_verified": lambda row: row.verified,
    "peak_memory_mib": lambda row: row.peak_memory_mb,
    "startup_s": lambda row: row.startup_s,
    "teardown_s": lambda row: row.teardown_s,
    "run_wall_s": lambda row: row.result.wall_s,
    "replicas_equal": lambda row: row.replicas_equal,
    "flags": lambda row: "; ".join(row.result.flags),
    "processes_per_node": lambda row: row.run.processes_per_node,
    "ranks": lambda row: row.run.world_size,
    **{name: lambda row, name=name: getattr(row.run, name) for name in NODE_LIMITS},  # type: ignore[misc]
    "bytes_sent_per_rank": lambda row: row.bytes_sent_per_rank,
    # Counted by the kernel; empty unless nodes were containers.
    "containers": metric("count"),
    "container_sent_bytes_mean": metric("sent_bytes"),
    "container_cpu_s_mean": metric("cpu_s"),
    "container_throttled_s_max": metric("throttled_s"),
    "container_memory_peak_mib_max": metric("memory_peak_mb"),
    "container_memory_limit_mib": metric("memory_limit_mb"),
    "image": lambda row: row.result.environment.get("image"),
    "consensus_distance": consensus_distance,
    "bytes_sent_per_rank_per_step": bytes_per_step,
    "link": lambda row: row.link_label or None,
    # Measured before training, over the run's transport; medians over the links.
    "link_latency_s": links.latency_s,
    "link_bytes_per_s": links.bytes_per_s,
    "exchange_s_per_step": exchange_s_per_step,
    # Between the labels of a node and of the whole set, 0 … 2, in epoch 1.
    "earth_movers_distance_mean": distance_mean,
    "earth_movers_distance_max": distance_max,
    "staleness_mean": lambda row: row.staleness,
    "staleness_max": lambda row: row.staleness_max,
    "batch_per": lambda row: row.run.batch_per,
    "step_s": partition.step_s,
    # Maxima over ranks, apart from the load balance.
    "parameters_per_rank_max": partition.parameters,
    "state_bytes_per_rank_max": lambda row: row.state_bytes,
    "activation_bytes_per_rank_max": partition.activation_bytes,
    "load_balance": partition.load_balance,
    # For models that are split into stages.
    "split_points": lambda row: " ".join(row.split_points) or None,
    "bubble_share": partition.bubble,
    "bubble_share_formula": partition.bubble_formula,
    "split_point_bytes_per_step_max": partition.split_point_bytes_per_step,
    "augmentation": lambda row: row.workload.augmentation,
    "node_speed": _node_speed,
    "straggler_rank": lambda row: found.rank if (found := _straggler(row)) else None,
    "straggler_share_of_time": lambda row: found.share_of_time if (found := _straggler(row)) else None,
    "straggler_share_of_waiting": lambda row: (
        found.share_of_waiting if (found := _straggler(row)) else None
    ),
    "lr_scaling": lambda row: row.run.lr_scaling,
    "warm_up_epochs": lambda row: row.run.warm_up_epochs,
    # As used in training.
    "lr_first_epoch": first_lr,
    "lr_last_epoch": last_lr,
    "target_accuracy": lambda row: row.run.target_accuracy,
    "patience": lambda row: row.run.patience,
    "target_reached": target_reached,
    "time_to_target_s": time_to_target_s,
    "epochs_trained": last_epoch,
    "vary": lambda row: " ".join(row.run.vary),
    "checkpoint_s": lambda row: row.seconds.get("checkpoint"),
    "checkpoint_epochs": lambda row: row.run.checkpoint_epochs,
    "checkpoint_steps": lambda row: row.run.checkpoint_steps,
    "faults": lambda row: row.faults_label or None,
    "faults_injected": lambda row: len(row.result.faults),
    "on_loss": lambda row: row.run.on_loss,
    "restarts": lambda row: row.run.restarts,
    "restarted": lambda row: row.result.restarted,
    "elapsed_s": lambda row: row.elapsed_s,
    "repeated_steps": lambda row: row.repeated_steps,
    "samples_lost": lambda row: row.samples_lost,
    "order": lambda row: row.result.order,
    "log": lambda row: row.log,
    "cpu_s_per_sample": lambda row: row.cpu_per_sample,
    "cpu_s_per_sample_of_serial": lambda row: row.cpu_per_sample_of_serial,
}


# The same runs in cluster time; empty for runs without one.
CLUSTER_COLUMNS: dict[str, Callable[[Row], Value]] = {
    "cluster_s": lambda row: row.train_s,
    "cluster_speedup": lambda row: row.speedup,
    "cluster_efficiency": lambda row: row.efficiency,
    **{f"cluster_{phase}_s": lambda row, phase=phase: row.seconds.get(phase) for phase in REPLAYED},  # type: ignore[misc]
    "cluster_exchange_s_per_step": exchange_s_per_step,
    "cluster_step_s": partition.step_s,
    "cluster_bubble_share": partition.bubble,
    "cluster_time_to_target_s": time_to_target_s,
    "cluster_straggler_rank": lambda row: found.rank if (found := _straggler(row)) else None,
}
RESULT_COLUMNS = (*WALL_COLUMNS, "clock", *CLUSTER_COLUMNS)


def _columns(row: Row) -> dict[str, Value]:
    """A line of results.csv. clock: the one on which the report compares the runs of this workload."""
    wall = {name: value(row.wall) for name, value in WALL_COLUMNS.items()}
    cluster = {name: value(row.cluster) if row.cluster else None for name, value in CLUSTER_COLUMNS.items()}
    return wall | {"clock": row.clock} | cluster


def _straggler(row: Row) -> Straggler | None:
    return straggler_of(wait_shares(row))


def results_csv(comparison: Comparison) -> str:
    """results.csv: one line per run. Failed and unusable ones have a cause, pending ones only a key."""
    rows = {row.key: row for row in comparison.rows}
    lines: list[dict[str, Value]] = []
    for key in comparison.record.keys:
        row = rows.get(key)
        if row is None:
            why = comparison.unusable.get(key)
            lines.append({"key": key, "status": "unusable" if why else "pending", "cause": why})
        else:
            lines.append({name: _as_csv(value) for name, value in _columns(row).items()})
    return _table(RESULT_COLUMNS, lines)


EPOCH_COLUMNS = (
    "key",
    "strategy",
    "nodes",
    "seed",
    "epoch",
    "train_s",
    "lr",
    "loss",
    "accuracy",
    "test_loss",
    "samples_per_s",
)


def epochs_csv(comparison: Comparison) -> str:
    """epochs.csv: one line per ok run and epoch, in the order of the sweep file."""
    return _table(EPOCH_COLUMNS, [line for row in comparison.rows for line in _epoch_lines(row.wall)])


def _epoch_lines(row: Row) -> Iterator[dict[str, Value]]:
    """One line per epoch.

    train_s: seconds since the start of training, of the slowest rank. loss: mean over ranks of their last
    batch. accuracy, test_loss: mean over the ranks' models.
    """
    certificate = row.result.certificate
    before_s = 0.0
    for epoch in range(1, (row.result.last_epoch or 0) + 1) if row.ok else ():
        points = [point for point in row.result.epochs if point.epoch == epoch]
        losses = [point.loss for point in points if point.loss is not None]
        samples = (
            sum(part.samples for part in certificate.parts if part.epoch == epoch) if certificate else 0
        )
        train_s = max(point.train_s for point in points)
        yield {
            "key": row.key,
            "strategy": component_label(row.run, "strategy"),
            "nodes": row.run.nodes,
            "seed": row.seed,
            "epoch": epoch,
            "train_s": train_s,
            "lr": points[0].lr,
            "loss": fmean(losses) if losses else None,
            "accuracy": fmean(point.accuracy for point in points),
            "test_loss": fmean(point.test_loss for point in points),
            "samples_per_s": samples / (train_s - before_s) if samples and train_s > before_s else None,
        }
        before_s = train_s


def _table(columns: Sequence[str], lines: Sequence[Mapping[str, Value]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _as_csv(value: Value) -> Value:
    return str(value).lower() if isinstance(value, bool) else value
