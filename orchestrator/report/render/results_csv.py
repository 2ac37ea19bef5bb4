"""results.csv: one line per run, raw numbers, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from statistics import fmean

from orchestrator.report.metrics import model_partition as cut
from orchestrator.report.metrics.communication import (
    bytes_per_step,
    consensus_distance,
    exchange_s_per_step,
)
from orchestrator.report.metrics.containers import metric
from orchestrator.report.metrics.data_partition import distance_max, distance_mean
from orchestrator.report.metrics.learning import (
    first_rate,
    last_epoch,
    last_rate,
    target_reached,
    time_to_target_s,
)
from orchestrator.report.metrics.stragglers import Waited, most_waited_for, shares_of
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.results.limits import written
from trainer.spec.run_spec import NODE_LIMITS

Cell = str | int | float | bool | None

# From the trainer's clock; evaluation is no part of the training time.
PHASES = ("data", "compute", "communicate", "wait", "cpu_contention", "other", "evaluate")

# Names are a promise to those who read the file with a program: add at the end, never rename.
COLUMNS: dict[str, Callable[[Row], Cell]] = {
    "key": lambda row: row.key,
    "status": lambda row: row.status,
    "cause": lambda row: row.cause,
    "strategy": lambda row: component_label(row.run, "strategy"),
    "transport": lambda row: row.transport,
    "partitioner": lambda row: row.partitioner_label,
    "dataset": lambda row: row.work.dataset,
    "model": lambda row: row.work.model,
    "optimizer": lambda row: row.work.optimizer,
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
    "work_speedup": lambda row: row.work_speedup,
    "baseline": lambda row: " ".join(row.baseline.keys) if row.baseline else None,
    "no_speedup_because": lambda row: row.no_speedup,
    "accuracy": lambda row: row.accuracy,
    "accuracy_difference": lambda row: row.accuracy_difference,
    "test_loss": lambda row: row.test_loss,
    "own_accuracy_min": lambda row: min(row.local_accuracies, default=None),
    "own_accuracy_mean": lambda row: fmean(row.local_accuracies) if row.local_accuracies else None,
    "own_accuracy_max": lambda row: max(row.local_accuracies, default=None),
    "steps": lambda row: row.steps,
    "samples_per_s": lambda row: row.samples_per_s,
    # Counted by rank: what leaves a node of several ranks is less than their sum.
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
    "samples_per_node_min": lambda row: min(row.node_samples, default=None),
    "samples_per_node_max": lambda row: max(row.node_samples, default=None),
    "certificate_verified": lambda row: row.verified,
    "peak_memory_mib": lambda row: row.peak_memory_mb,
    "startup_s": lambda row: row.startup_s,
    "teardown_s": lambda row: row.teardown_s,
    "wall_s": lambda row: row.result.wall_s,
    "replicas_equal": lambda row: row.replicas_equal,
    "flags": lambda row: "; ".join(row.result.flags),
    "processes_per_node": lambda row: row.run.processes_per_node,
    "ranks": lambda row: row.run.world_size,
    **{name: lambda row, name=name: getattr(row.run, name) for name in NODE_LIMITS},  # type: ignore[misc]
    "bytes_sent_per_rank": lambda row: row.bytes_sent_per_rank,
    # What the kernel counted; empty where nodes were no containers.
    "containers": metric("count"),
    "container_sent_bytes_mean": metric("sent_bytes"),
    "container_cpu_s_mean": metric("cpu_s"),
    "container_throttled_s_max": metric("throttled_s"),
    "container_memory_peak_mib_max": metric("memory_peak_mb"),
    "container_memory_limit_mib": metric("memory_limit_mb"),
    "image": lambda row: row.result.environment.get("image"),
    "consensus_distance": consensus_distance,
    "bytes_sent_per_rank_and_step": bytes_per_step,
    "exchange_s_per_step": exchange_s_per_step,
    # Of a node's labels from the whole set's, 0 … 2, in epoch 1.
    "earth_movers_distance_mean": distance_mean,
    "earth_movers_distance_max": distance_max,
    "staleness_mean": lambda row: row.staleness,
    "staleness_max": lambda row: row.staleness_max,
    "batch_per": lambda row: row.run.batch_per,
    "step_s": cut.step_s,
    # Of the rank that has most.
    "parameters_per_rank_max": cut.parameters,
    "held_bytes_per_rank_max": cut.state_bytes,
    "activation_bytes_per_rank_max": cut.activation_bytes,
    "balance": cut.balance,
    # Of models cut into stages.
    "split_points": lambda row: " ".join(cut.split_points(row)) or None,
    "bubble": cut.bubble,
    "bubble_formula": cut.bubble_formula,
    "cut_bytes_per_step_max": cut.cut_bytes_per_step,
    "augmentation": lambda row: row.work.augmentation,
    "bottleneck_cpus": lambda row: row.run.bottleneck_cpus,
    "most_waited_for_rank": lambda row: waited.rank if (waited := _waited(row)) else None,
    "most_waited_for_share_of_time": lambda row: waited.of_time if (waited := _waited(row)) else None,
    "most_waited_for_share_of_waiting": lambda row: waited.of_waiting if (waited := _waited(row)) else None,
    "lr_scaling": lambda row: row.run.lr_scaling,
    "warm_up_epochs": lambda row: row.run.warm_up_epochs,
    # As they were used.
    "lr_first_epoch": first_rate,
    "lr_last_epoch": last_rate,
    "target_accuracy": lambda row: row.run.target_accuracy,
    "patience": lambda row: row.run.patience,
    "target_reached": target_reached,
    "time_to_target_s": time_to_target_s,
    "epochs_trained": last_epoch,
    "checkpoint_s": lambda row: row.seconds.get("checkpoint"),
    "checkpoint_epochs": lambda row: row.run.checkpoint_epochs,
    "checkpoint_steps": lambda row: row.run.checkpoint_steps,
}


def _waited(row: Row) -> Waited | None:
    return most_waited_for(shares_of(row))


def results_csv(comparison: Comparison) -> str:
    """The file's text. Failed runs have a status and a cause, pending ones only a key and a status."""
    rows = {row.key: row for row in comparison.rows}
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for key in comparison.record.keys:
        row = rows.get(key)
        if row is None:
            writer.writerow({"key": key, "status": "pending"})
        else:
            writer.writerow({name: _written(value(row)) for name, value in COLUMNS.items()})
    return text.getvalue()


def _written(value: Cell) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value
