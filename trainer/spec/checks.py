"""Whether the fields of a RunSpec fit together: one check each, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from trainer.spec.checkpoint_checks import checkpoints, restarts
from trainer.spec.registries import OPTIMIZERS, STRATEGIES

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec

# Types of the errors: each is the name of the field to change.
CHECK_ERROR_TYPES = (
    "transport",
    "nodes",
    "processes_per_node",
    "bottleneck_cpus",
    "model",
    "partitioner",
    "strategy",
    "batch_size",
    "augmentation",
    "optimizer",
    "target_accuracy",
    "patience",
    "checkpoint_epochs",
    "checkpoint_steps",
    "restarts",
)

CheckError = PydanticCustomError | None


def transport(run: RunSpec) -> CheckError:
    if run.transport in run.strategy.transports:
        return None
    return PydanticCustomError(
        "transport",
        "{strategy} cannot use {transport}; allowed: {allowed}",
        {
            "strategy": run.name_of("strategy"),
            "transport": run.transport,
            "allowed": ", ".join(run.strategy.transports),
        },
    )


def processes_per_node(run: RunSpec) -> CheckError:
    if run.topology != "rpc" or run.processes_per_node == 1:
        return None
    return PydanticCustomError(
        "processes_per_node",
        "{processes} is not allowed over {transport}, where a node is one rank; it must be 1",
        {"processes": run.processes_per_node, "transport": run.transport},
    )


def world_size(run: RunSpec) -> CheckError:
    low, high = run.strategy.min_nodes, run.strategy.max_nodes
    if low <= run.world_size and (high is None or run.world_size <= high):
        return None
    limits = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    return PydanticCustomError(
        _too_many(run, high),
        "{strategy} cannot run on {ranks}; allowed: {limits}",
        {"strategy": run.name_of("strategy"), "ranks": run.size_label, "limits": limits},
    )


def bottleneck(run: RunSpec) -> CheckError:
    slow = run.bottleneck_cpus
    if slow is None:
        return None
    reason = None
    if run.nodes < 2:
        reason = "a run on one node has no other that could wait for it"
    elif slow >= run.cpus:
        reason = f"it must be less than cpus, which is {run.cpus:g}"
    elif run.topology == "single":
        reason = f"over {run.transport} all nodes share one quota"
    elif run.on_gpu:
        reason = f"over {run.transport} ranks compute on GPUs, which no quota of cores holds back"
    if reason is None:
        return None
    return PydanticCustomError(
        "bottleneck_cpus",
        "the last node cannot be held to {slow} cpus: {reason}",
        {"slow": f"{slow:g}", "reason": reason},
    )


def model(run: RunSpec) -> CheckError:
    reason = run.model.validation_error(run.dataset.shape)
    if reason is None:
        return None
    return PydanticCustomError(
        "model",
        "{model} cannot learn from {dataset}: {reason}",
        {"model": run.name_of("model"), "dataset": run.name_of("dataset"), "reason": reason},
    )


def batch_size(run: RunSpec) -> CheckError:
    if run.batch_per != "run" or run.batch_size % run.num_replicas == 0:
        return None
    return PydanticCustomError(
        "batch_size",
        "{batch} samples per step of the run are not a multiple of the {parts} that share them",
        {"batch": run.batch_size, "parts": run.num_replicas},
    )


def strategy(run: RunSpec) -> CheckError:
    reason = run.strategy.validation_error(run.model, run.world_size, run.batch_per_replica)
    if reason is None:
        return None
    return PydanticCustomError(
        "strategy",
        "{strategy} cannot train {model} on {ranks}: {reason}",
        {
            "strategy": run.name_of("strategy"),
            "model": run.name_of("model"),
            "ranks": run.size_label,
            "reason": reason,
        },
    )


def norm(run: RunSpec) -> CheckError:
    if not run.model.has_synchronous_layers or run.world_size == 1 or run.strategy.synchronous:
        return None
    together = [other for other in STRATEGIES.entries if STRATEGIES.load(other).synchronous]
    return PydanticCustomError(
        "model",
        "{model} with sync_batch meets in every batch, ranks of {strategy} {do}; "
        "allowed: {allowed}, or another norm",
        {
            "model": run.name_of("model"),
            "strategy": run.name_of("strategy"),
            "do": "hold a model together" if run.strategy.partitions_model else "go through them apart",
            "allowed": ", ".join(together),
        },
    )


def optimizer(run: RunSpec) -> CheckError:
    if run.strategy.full_gradients or not run.optimizer.layerwise:
        return None
    allowed = [other for other in OPTIMIZERS.entries if not OPTIMIZERS.load(other).layerwise]
    return PydanticCustomError(
        "optimizer",
        "{optimizer} needs each layer's whole gradient, of which ranks of {strategy} have parts; "
        "allowed: {allowed}",
        {
            "optimizer": run.name_of("optimizer"),
            "strategy": run.name_of("strategy"),
            "allowed": ", ".join(allowed),
        },
    )


def target_accuracy(run: RunSpec) -> CheckError:
    if run.target_accuracy is None or (run.strategy.trains and run.strategy.evaluates_together):
        return None
    why = "whose ranks evaluate a model each" if run.strategy.trains else "which trains nothing"
    return PydanticCustomError(
        "target_accuracy",
        "{target} is not allowed with {strategy}, {why}; it must be null",
        {"target": run.target_accuracy, "strategy": run.name_of("strategy"), "why": why},
    )


def patience(run: RunSpec) -> CheckError:
    if run.target_accuracy is None and run.patience > 1:
        return PydanticCustomError(
            "patience",
            "{patience} is for a target_accuracy, and there is none; it must be 1",
            {"patience": run.patience},
        )
    if run.patience > run.epochs:
        return PydanticCustomError(
            "patience",
            "{patience} epochs in a row are more than the {epochs} of the run",
            {"patience": run.patience, "epochs": run.epochs},
        )
    return None


def samples(run: RunSpec) -> CheckError:
    count, servers = run.dataset.train_samples, run.strategy.servers
    if not run.strategy.uses_partition or run.num_replicas <= count:
        return None
    return PydanticCustomError(
        _too_many(run, count + servers),
        "{ranks} are more than the {samples} training samples of {dataset}",
        {"ranks": _who_trains(run), "samples": count, "dataset": run.name_of("dataset")},
    )


def partitioner(run: RunSpec) -> CheckError:
    reason = run.partitioner.validation_error(
        run.dataset.train_samples, run.dataset.class_count, run.num_replicas
    )
    if not run.strategy.uses_partition or not reason:
        return None
    return PydanticCustomError(
        "partitioner",
        "{partitioner} cannot split {dataset} among {ranks}: {reason}",
        {
            "partitioner": run.name_of("partitioner"),
            "dataset": run.name_of("dataset"),
            "ranks": _who_trains(run),
            "reason": reason,
        },
    )


def augmentation(run: RunSpec) -> CheckError:
    reason = run.augmentation.validation_error(run.dataset.shape)
    if reason is None:
        return None
    return PydanticCustomError(
        "augmentation",
        "{augmentation} cannot change {dataset}: {reason}",
        {
            "augmentation": run.name_of("augmentation"),
            "dataset": run.name_of("dataset"),
            "reason": reason,
        },
    )


CHECKS: tuple[Callable[[RunSpec], CheckError], ...] = (
    transport,
    processes_per_node,
    world_size,
    bottleneck,
    model,
    batch_size,
    strategy,
    norm,
    optimizer,
    target_accuracy,
    patience,
    samples,
    partitioner,
    augmentation,
    checkpoints,
    restarts,
)


def _who_trains(run: RunSpec) -> str:
    return (f"{run.num_replicas} workers of " if run.strategy.servers else "") + run.size_label


def _too_many(run: RunSpec, most: int | None) -> str:
    """The field to blame for a number of ranks that is not allowed."""
    return "processes_per_node" if most is not None and run.nodes <= most < run.world_size else "nodes"
