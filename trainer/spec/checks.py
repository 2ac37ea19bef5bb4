"""Checks across the fields of a run, in the order in which they apply.

Each check returns an error or None. The type of the error is the name of the field to change; its message
names the values and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic_core import PydanticCustomError

from trainer.aggregation.mean import MeanAggregation
from trainer.compression.none import NoneCompression
from trainer.core.registry import ImportedComponent
from trainer.core.strategy import Interval, runs_on
from trainer.data.base import image_error
from trainer.spec.batches import batch_error, warm_up_error
from trainer.spec.faults import Fault
from trainer.spec.fields import RunFields
from trainer.spec.link import Link
from trainer.spec.node_speed import speeds_by_node
from trainer.spec.registries import (
    AGGREGATIONS,
    ATTACKS,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    STRATEGIES,
    TRANSPORTS,
)

CHECK_ERROR_TYPES = frozenset(RunFields.model_fields)  # of the errors: the fields to change

MAX_CONTINUING = 128  # nodes of a run with `on_loss: continue`: events list its partition

CheckError = PydanticCustomError | None


def transport(run: RunFields) -> CheckError:
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


def processes_per_node(run: RunFields) -> CheckError:
    if run.topology != "rpc" or run.processes_per_node == 1:
        return None
    return PydanticCustomError(
        "processes_per_node",
        "{processes} is not allowed over {transport}, where each node is one rank; allowed: 1",
        {"processes": run.processes_per_node, "transport": run.transport},
    )


def world_size(run: RunFields) -> CheckError:
    low, high = run.strategy.min_nodes, run.strategy.max_nodes
    if runs_on(run.strategy, run.world_size):
        return None
    limits = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    return PydanticCustomError(
        _size_field(run, high),
        "{strategy} cannot run on {ranks}; allowed: {limits}",
        {"strategy": run.name_of("strategy"), "ranks": run.size_label, "limits": limits},
    )


def node_speed(run: RunFields) -> CheckError:
    if run.node_speed is None:
        return None
    try:
        speeds_by_node(run.node_speed, run.nodes)
    except ValueError as error:
        return _error("node_speed", str(error))
    if run.topology != "single" and not run.on_gpu:
        return None
    reason = (
        "ranks compute on GPUs, which a CPU quota does not limit"
        if run.on_gpu
        else "all nodes share one CPU quota"
    )
    return PydanticCustomError(
        "node_speed",
        "over {transport} {reason}; allowed: null, or another transport",
        {"transport": run.transport, "reason": reason},
    )


def link(run: RunFields) -> CheckError:
    if run.link is None:
        return None
    reason = run.link.problem(run.nodes)
    if not run.link.canonical:
        reason = f"states nothing; allowed: null, or some of {', '.join(Link.model_fields)}"
    elif run.nodes > 1 and run.topology == "single":
        reason = f"over {run.transport} all ranks share one node's memory; allowed: null"
    elif run.nodes > 1 and run.on_gpu:
        reason = f"over {run.transport} GPUs need not use the network; allowed: null"
    return _error("link", reason)


def model(run: RunFields) -> CheckError:
    reason = run.model.validation_error(run.dataset.shape) or _tokens_error(run) or _types_error(run)
    if reason is None:
        return None
    return PydanticCustomError(
        "model",
        "{model} cannot train on {dataset}: {reason}",
        {"model": run.name_of("model"), "dataset": run.name_of("dataset"), "reason": reason},
    )


def _tokens_error(run: RunFields) -> str | None:
    """Users' models are tried together with their datasets when a sweep is loaded."""
    tokens = run.dataset.input_type == "int64"
    if isinstance(run.model, ImportedComponent) or tokens == run.model.takes_tokens:
        return None
    if not tokens:
        return "it takes tokens, and the inputs are other numbers"
    allowed = ", ".join(name for name in MODELS.entries if MODELS.load(name).takes_tokens)
    return f"its inputs are tokens; models of tokens: {allowed}"


def _compresses(run: RunFields) -> bool:
    compression = getattr(run.strategy, "compression", None)
    return compression is not None and not isinstance(compression, NoneCompression)


def _types_error(run: RunFields) -> str | None:
    """What computes with float32 alone."""
    other = next(((kind, name) for kind, name in run.model.types.items() if kind != "float32"), None)
    if other is None:
        return None
    fields = {
        "compression": _compresses(run),
        "on_loss: continue": run.on_loss == "continue",
        "clip_norm": run.clip_norm is not None and other[0].startswith("complex"),
    }
    field = next((field for field, used in fields.items() if used), None)
    return field and f"{field} needs float32, and {other[1]} is {other[0]}"


def loss(run: RunFields) -> CheckError:
    """Check registered components: users' ones are tried together when a sweep is loaded."""
    if run.loss.weighted and run.strategy.splits_samples and run.nodes > 1:
        return PydanticCustomError(
            "loss",
            "{loss} gives samples weights, and the ranks of {strategy} divide each sample; allowed: a loss "
            "without weights, or another strategy",
            {"loss": run.name_of("loss"), "strategy": run.name_of("strategy")},
        )
    if run.loss.takes_classes or isinstance(run.dataset, ImportedComponent):
        return None
    allowed = [other for other in LOSSES.entries if LOSSES.load(other).takes_classes]
    return PydanticCustomError(
        "loss",
        "{loss} needs targets of the outputs' shape, and {dataset} has classes; allowed: {allowed}",
        {"loss": run.name_of("loss"), "dataset": run.name_of("dataset"), "allowed": ", ".join(allowed)},
    )


def batch_size(run: RunFields) -> CheckError:
    if run.batch_per != "run" or run.batch_size % run.num_replicas == 0:
        return None
    return PydanticCustomError(
        "batch_size",
        "{batch} samples per step of the run are not a multiple of the {replicas} replicas that share them",
        {"batch": run.batch_size, "replicas": run.num_replicas},
    )


def accumulate(run: RunFields) -> CheckError:
    if run.accumulate == 1:
        return None
    name, reason = run.name_of("strategy"), None
    if "micro_batches" in type(run.strategy).model_fields:
        reason = f"{name} has micro-batches of its own; allowed: 1, and {name}.micro_batches"
    elif not run.strategy.uses_replica:
        reason = f"{name} has no micro-batches; allowed: 1, or strategy {run.strategy.equivalent}"
    elif run.accumulate > run.batch_per_replica:
        samples = run.batch_per_replica
        reason = f"a replica has {samples} samples per step; allowed: 1 to {samples}"
    elif run.model.has_synchronous_layers:
        reason = "layers with sync_batch need the whole batch; allowed: 1, or another norm"
    return _error("accumulate", reason and f"{run.accumulate} micro-batches: {reason}")


def clip_norm(run: RunFields) -> CheckError:
    if run.clip_norm is None or run.strategy.uses_replica:
        return None
    return PydanticCustomError(
        "clip_norm",
        "{norm} is not possible: ranks of {strategy} do not know the norm of the whole gradient; allowed: "
        "null, or strategy {allowed}",
        {"norm": run.clip_norm, "strategy": run.name_of("strategy"), "allowed": run.strategy.equivalent},
    )


def strategy(run: RunFields) -> CheckError:
    reason = run.strategy.validation_error(run.model, run.world_size, run.batch_per_replica)
    if run.strategy.cuts_model and run.world_size > 1 and run.model.indivisible:
        reason = f"it splits the model, and {run.model.indivisible}"
    if run.strategy.every_gradient and run.model.conditional:
        reason = (
            f"it needs a gradient of every parameter in each step, and {run.model.conditional} gets one "
            f"from some samples alone; allowed: {run.strategy.equals or run.strategy.equivalent}"
        )
    tokens, ranks = run.dataset.shape[0], run.world_size
    if reason is None and run.strategy.splits_samples and tokens % ranks:
        reason = (
            f"each rank has the same number of tokens of a sample, and {tokens} is no multiple of {ranks}"
        )
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


def aggregation(run: RunFields) -> CheckError:
    rule = run.aggregation
    vectors = run.replicas_in_step
    if rule is None or vectors >= rule.least:
        return None
    return PydanticCustomError(
        "strategy",
        "aggregation {rule} needs {least} vectors or more, and {ranks} give {vectors}; allowed: more "
        "nodes{in_each}, or another aggregation",
        {
            "rule": AGGREGATIONS.label(rule),
            "least": rule.least,
            "ranks": _training_ranks(run),
            "vectors": vectors,
            "in_each": " in each round" if run.strategy.rounds else "",
        },
    )


def synchronous_layers(run: RunFields) -> CheckError:
    if not run.model.has_synchronous_layers or run.world_size == 1 or run.strategy.synchronous:
        return None
    allowed = [other for other in STRATEGIES.entries if STRATEGIES.load(other).synchronous]
    return PydanticCustomError(
        "model",
        "{model} with sync_batch communicates in every batch, but ranks of {strategy} {reason}; "
        "allowed: {allowed}, or another norm",
        {
            "model": run.name_of("model"),
            "strategy": run.name_of("strategy"),
            "reason": "share one model" if run.strategy.partitions_model else "do not step together",
            "allowed": ", ".join(allowed),
        },
    )


def precision(run: RunFields) -> CheckError:
    if run.precision == "float32" or not run.strategy.trains:
        return None
    reason = None
    if not run.strategy.autocasts:
        reason = f"ranks of {run.name_of('strategy')} exchange activations, which are float32"
    elif run.model.has_synchronous_layers and run.world_size > 1:
        reason = f"layers of {run.name_of('model')} with sync_batch exchange statistics, which are float32"
    return _error("precision", reason and f"{run.precision} is not possible: {reason}; allowed: float32")


def recompute(run: RunFields) -> CheckError:
    if run.recompute == "none" or not run.strategy.trains:
        return None
    reason = run.strategy.recompute_error(run.recompute)
    if reason:
        reason = f"{run.name_of('strategy')}: {reason}"
    elif run.recompute == "selective" and not run.model.has_attention:
        reason = f"{run.name_of('model')} has no attention; allowed: none, full"
    elif run.model.has_synchronous_layers and run.world_size > 1:
        reason = f"{run.name_of('model')} with sync_batch communicates in a forward pass; allowed: none"
    return _error("recompute", reason and f"recompute {run.recompute} is not possible with {reason}")


def optimizer(run: RunFields) -> CheckError:
    strategy = run.strategy
    if strategy.optimizers and run.name_of("optimizer") not in strategy.optimizers:
        return PydanticCustomError(
            "optimizer",
            "the mathematics of {strategy} is not that of {optimizer}; allowed: {allowed}",
            {
                "strategy": run.name_of("strategy"),
                "optimizer": run.name_of("optimizer"),
                "allowed": ", ".join(strategy.optimizers),
            },
        )
    divides = strategy.partitions_model or strategy.shards_state or not strategy.full_gradients
    reason = None
    if run.optimizer.groups_by_place and strategy.partitions_model:
        reason = "groups weights by their place in the model, and ranks of {strategy} have a part of it"
    elif run.optimizer.couples_tensors and divides:
        reason = "steps by the gradients of all tensors, and ranks of {strategy} have some of them"
    if reason and run.world_size > 1:
        return PydanticCustomError(
            "optimizer",
            f"{{optimizer}} {reason}; allowed: another strategy, such as all_reduce",
            {"optimizer": run.name_of("optimizer"), "strategy": run.name_of("strategy")},
        )
    if strategy.trains and (unfit := run.optimizer.validation_error(run.model)):
        return PydanticCustomError(
            "optimizer",
            f"{{optimizer}} {unfit}; allowed: another optimizer, such as adamw, or another model",
            {"optimizer": run.name_of("optimizer"), "model": run.name_of("model")},
        )
    if strategy.full_gradients or not run.optimizer.layerwise:
        return None
    allowed = [other for other in OPTIMIZERS.entries if not OPTIMIZERS.load(other).layerwise]
    return PydanticCustomError(
        "optimizer",
        "{optimizer} needs the whole gradient of each layer, but ranks of {strategy} hold shards of it; "
        "allowed: {allowed}",
        {
            "optimizer": run.name_of("optimizer"),
            "strategy": run.name_of("strategy"),
            "allowed": ", ".join(allowed),
        },
    )


def target_accuracy(run: RunFields) -> CheckError:
    if run.target_accuracy is None or (run.strategy.trains and run.strategy.evaluates_together):
        return None
    reason = "whose ranks evaluate different models" if run.strategy.trains else "which does not train"
    return PydanticCustomError(
        "target_accuracy",
        "{target} is not allowed with {strategy}, {reason}; allowed: null",
        {"target": run.target_accuracy, "strategy": run.name_of("strategy"), "reason": reason},
    )


def patience(run: RunFields) -> CheckError:
    if run.target_accuracy is None and run.patience > 1:
        return PydanticCustomError(
            "patience",
            "{patience} has no effect without target_accuracy; allowed: 1",
            {"patience": run.patience},
        )
    if run.patience > run.epochs:
        return PydanticCustomError(
            "patience",
            "{patience} consecutive epochs are more than epochs; allowed: 1 to {epochs}",
            {"patience": run.patience, "epochs": run.epochs},
        )
    return None


def warm_up(run: RunFields) -> CheckError:
    if run.warm_up_epochs <= run.epochs:
        return None
    return PydanticCustomError(
        "warm_up_epochs",
        "{warm_up} epochs of warm-up are more than epochs; allowed: 0 to {epochs}",
        {"warm_up": run.warm_up_epochs, "epochs": run.epochs},
    )


def lr_schedule(run: RunFields) -> CheckError:
    name, (steps, epochs) = run.name_of("lr_schedule"), run.lr_schedule.warm_up
    reason = None
    if epochs >= run.epochs:
        reason = f"{epochs} epochs of warm-up leave none of {run.epochs}; allowed: 0 to {run.epochs - 1}"
    elif (steps or epochs) and run.warm_up_epochs:
        reason = f"has a warm-up beside warm_up_epochs: {run.warm_up_epochs}; allowed: one of the two"
    elif not run.strategy.uses_replica and (name != "constant" or steps or epochs):
        strategy, other = run.name_of("strategy"), run.strategy.equivalent
        reason = f"{strategy} has one rate in an epoch; allowed: constant, or strategy {other}"
    return _error("lr_schedule", reason and f"{name}: {reason}")


def samples(run: RunFields) -> CheckError:
    count, servers = run.dataset.train_samples, run.strategy.servers
    if not run.strategy.uses_partition or run.num_replicas <= count:
        return None
    return PydanticCustomError(
        _size_field(run, count + servers),
        "{ranks} are more than the {samples} training samples of {dataset}",
        {"ranks": _training_ranks(run), "samples": count, "dataset": run.name_of("dataset")},
    )


def partitioner_error(run: RunFields) -> str | None:
    """Return why the partitioner cannot divide the dataset among the replicas, or None."""
    if run.partitioner.needs_classes and run.dataset.class_count < 2:
        return "it assigns samples by their class, and these have no classes"
    if run.partitioner.transforms_images and (error := image_error(run.dataset.shape)):
        return error
    samples, classes = run.dataset.train_samples, run.dataset.class_count
    return run.partitioner.validation_error(samples, classes, run.num_replicas)


def partitioner(run: RunFields) -> CheckError:
    reason = partitioner_error(run)
    if not run.strategy.uses_partition or not reason:
        return None
    return PydanticCustomError(
        "partitioner",
        "{partitioner} cannot partition {dataset} among {ranks}: {reason}",
        {
            "partitioner": run.name_of("partitioner"),
            "dataset": run.name_of("dataset"),
            "ranks": _training_ranks(run),
            "reason": reason,
        },
    )


def smallest_batch(run: RunFields) -> CheckError:
    """Check parts whose sizes do not depend on labels. The loader checks all."""
    count, parts = run.dataset.train_samples, run.num_replicas
    if not run.strategy.trains or (run.strategy.uses_partition and not run.partitioner.even_parts):
        return None
    sizes = [count] * parts
    if run.strategy.uses_partition:
        sizes = [(count - part - 1) // parts + 1 for part in range(parts)]
    return _error("lr_schedule", warm_up_error(run, sizes)) or _error("batch_size", batch_error(run, sizes))


def augmentation(run: RunFields) -> CheckError:
    reason = run.augmentation.validation_error(run.dataset.shape)
    if reason is None:
        return None
    return PydanticCustomError(
        "augmentation",
        "{augmentation} cannot augment {dataset}: {reason}",
        {"augmentation": run.name_of("augmentation"), "dataset": run.name_of("dataset"), "reason": reason},
    )


def checkpoints(run: RunFields) -> CheckError:
    if not run.checkpoints:
        return None
    interval: Interval = "epochs" if run.checkpoint_steps is None else "steps"
    field, name = f"checkpoint_{interval}", run.name_of("strategy")
    if run.checkpoint_epochs is not None and run.checkpoint_steps is not None:
        return PydanticCustomError(
            field,
            "{steps} excludes checkpoint_epochs, which is {epochs}; allowed: one of the two",
            {"steps": run.checkpoint_steps, "epochs": run.checkpoint_epochs},
        )
    if run.checkpoint_epochs is not None and run.checkpoint_epochs >= run.epochs:
        return PydanticCustomError(
            field,
            "{every} is not less than the {epochs} epochs of the run; allowed: null, or less",
            {"every": run.checkpoint_epochs, "epochs": run.epochs},
        )
    if not run.strategy.checkpoint_intervals:
        allowed = [other for other in STRATEGIES.entries if STRATEGIES.load(other).checkpoint_intervals]
        return PydanticCustomError(
            field,
            "{strategy} cannot resume from a checkpoint; allowed: null, or one of {allowed}",
            {"strategy": name, "allowed": ", ".join(allowed)},
        )
    if interval not in run.strategy.checkpoint_intervals:
        return PydanticCustomError(
            field,
            "ranks of {strategy} do not step together; allowed: null, or checkpoint_epochs instead",
            {"strategy": name},
        )
    if run.strategy.not_checkpointed and run.world_size > 1:
        return PydanticCustomError(
            field,
            "{strategy} cannot resume with this compression: a checkpoint does not contain "
            "{not_checkpointed}; allowed: null, or another compression",
            {"strategy": name, "not_checkpointed": run.strategy.not_checkpointed},
        )
    return None


def restarts(run: RunFields) -> CheckError:
    if not run.restarts:
        return None
    if run.node_speed is not None:
        return PydanticCustomError(
            "restarts",
            "{restarts} is not allowed with node_speed, a limit of the first attempt; allowed: 0",
            {"restarts": run.restarts},
        )
    if run.topology == "ddp":
        return None
    allowed = [name for name in TRANSPORTS.entries if TRANSPORTS.load(name).topology == "ddp"]
    return PydanticCustomError(
        "restarts",
        "{restarts} is not allowed over {transport}, whose ranks torchrun does not start; allowed: 0, or "
        "transport {allowed}",
        {"restarts": run.restarts, "transport": run.transport, "allowed": ", ".join(allowed)},
    )


def faults(run: RunFields) -> CheckError:
    if not run.faults:
        return None
    reason = None
    if not run.strategy.trains:
        reason = f"{run.name_of('strategy')} does not train"
    elif run.topology == "single":
        reason = f"over {run.transport} all nodes share one process or its memory"
    if reason is not None:
        return PydanticCustomError(
            "faults",
            "{count} faults are not possible: {reason}; allowed: none",
            {"count": len(run.faults), "reason": reason},
        )
    for index, fault in enumerate(run.faults):
        if problem := _fault_problem(run, fault):
            return PydanticCustomError(
                "faults",
                "fault {index}, {action}: {problem}",
                {"index": index, "action": fault.action, "problem": problem},
            )
    return None


def _fault_problem(run: RunFields, fault: Fault) -> str | None:
    """What in a fault does not fit the run: the field, its value and what is allowed."""
    effect, at = fault.effect, fault.at
    if fault.node >= run.nodes:
        return f"node is {fault.node}; allowed: 0 to {run.nodes - 1}"
    if at.epoch is not None and at.epoch > run.epochs:
        return f"at.epoch is {at.epoch}; allowed: 1 to {run.epochs}, the epochs of the run"
    for name, seconds in {**effect.durations, "at.second": at.second}.items():
        if seconds is not None and seconds > run.timeout_s:
            return f"{name} is {seconds:g}; allowed: at most timeout_s, which is {run.timeout_s:g}"
    if fault.kill and fault.kill.return_after is not None and run.on_loss != "continue":
        return (
            f"return_after is {fault.kill.return_after:g}, but on_loss is {run.on_loss}; "
            "allowed: null, or on_loss: continue"
        )
    if not effect.drops_packets:
        return None
    if run.on_gpu:
        return f"not possible over {run.transport}, which does not need TCP; allowed: kill, pause, slow"
    if run.nodes < 2:
        return "a single node receives nothing from others; allowed: nodes 2 or more"
    if run.processes_per_node > 1:
        return "not possible with several ranks per node; allowed: processes_per_node 1"
    return None


def on_loss(run: RunFields) -> CheckError:
    if run.on_loss == "stop":
        return None
    name, reason = run.name_of("strategy"), None
    elastic = run.strategy.elastic_transports
    if not elastic:
        others = [other for other in STRATEGIES.entries if STRATEGIES.load(other).elastic_transports]
        allowed = f"stop{', or one of ' if others else ''}{', '.join(others)}"
        reason = f"{name} cannot continue without a node; allowed: {allowed}"
    elif run.transport not in elastic:
        reason = (
            f"{name} cannot continue without a node over {run.transport}; allowed: stop, or transport "
            f"{', '.join(elastic)}"
        )
    else:
        reason = _obstacle_to_continue(run)
    if reason is None and _compresses(run):
        reason = f"{name} with a compression cannot continue without a node; allowed: stop"
    if reason is None:
        return None
    return PydanticCustomError("on_loss", "{wanted}: {reason}", {"wanted": run.on_loss, "reason": reason})


def byzantine(run: RunFields) -> CheckError:
    reason = _byzantine_problem(run) if run.byzantine else None
    return _error("byzantine", reason)


def _byzantine_problem(run: RunFields) -> str | None:
    """Why the run cannot have its Byzantine nodes, and what is allowed; or None."""
    assert run.byzantine is not None  # noqa: S101  (checked by the caller)
    try:
        nodes = run.byzantine_nodes
    except ValueError as error:
        return f"nodes: {error}"
    name, rule, attack = run.name_of("strategy"), run.aggregation, run.byzantine.attack
    if rule is None:
        allowed = [
            other for other in STRATEGIES.entries if "aggregation" in STRATEGIES.load(other).model_fields
        ]
        return f"{name} has no aggregation to attack; allowed: null, or one of {', '.join(allowed)}"
    if _compresses(run):
        return f"{name} compresses what an attack would change; allowed: null, or compression: none"
    serving = {run.node_of(rank) for rank in range(run.strategy.servers)}
    if attacked := serving & {*nodes}:
        return f"nodes: node {min(attacked)} is the server of {name}; allowed: the other nodes"
    vectors, count = run.num_replicas, len(run.byzantine_ranks)
    if count == vectors:
        return f"nodes: all {run.nodes} nodes are Byzantine; allowed: at least one honest node"
    if run.checkpoints and not run.strategy.synchronous:
        return "a checkpoint does not contain the weights at the start of a round; allowed: no checkpoints"
    fewest = run.replicas_in_step
    tolerated = rule.tolerated(fewest)
    if tolerated is not None and count > tolerated:
        return (
            f"nodes: {min(count, fewest)} of {fewest} vectors can be Byzantine, and "
            f"{AGGREGATIONS.label(rule)} tolerates {tolerated}; allowed: at most {tolerated}, or another "
            "aggregation"
        )
    if attack.needs_classes and (not run.loss.takes_classes or run.dataset.class_count < 2):
        return (
            f"attack: {ATTACKS.name_of(attack)} changes classes, and the targets of "
            f"{run.name_of('dataset')} with loss {run.name_of('loss')} are none; allowed: other attacks"
        )
    if run.strategy.rounds and attack.counts_vectors:
        return (
            f"attack: {ATTACKS.label(attack)} depends on the number of vectors, which participation "
            "changes; allowed: a stated z"
        )
    problem = attack.validation_error(vectors, count)
    return f"attack: {ATTACKS.label(attack)}: {problem}" if problem else None


def debug(run: RunFields) -> CheckError:
    if not run.debug or run.on_loss == "stop":
        return None
    return PydanticCustomError(
        "debug",
        "exchanges are not compared with on_loss: {on_loss}; allowed: false, or on_loss: stop",
        {"on_loss": run.on_loss},
    )


def _obstacle_to_continue(run: RunFields) -> str | None:
    """The field because of which the others cannot continue without a node: its value, what is allowed."""
    if run.restarts:
        return f"restarts is {run.restarts}, which starts all nodes again; allowed: stop, or restarts: 0"
    if run.checkpoints:
        return "the run writes checkpoints of all nodes; allowed: stop, or a run without checkpoints"
    if run.save_weights:
        return (
            "save_weights saves those of node 0, which can be lost; allowed: stop, or save_weights: false"
        )
    if not isinstance(run.aggregation, MeanAggregation | None):
        return (
            f"aggregation is {AGGREGATIONS.name_of(run.aggregation)}, and a lost node takes a slice of all "
            "vectors with it; allowed: stop, or aggregation: mean"
        )
    if run.byzantine:
        return "byzantine nodes are given; allowed: stop, or byzantine: null"
    if run.processes_per_node > 1:
        return f"processes_per_node is {run.processes_per_node}; allowed: stop, or processes_per_node: 1"
    if not 2 <= run.nodes <= MAX_CONTINUING:
        return f"nodes is {run.nodes}; allowed: stop, or 2 to {MAX_CONTINUING} nodes"
    if run.topology == "rpc" and run.return_after:
        return f"a node cannot return over {run.transport}; allowed: stop, or no return_after"
    returning = [run.faults[each].node for each in run.return_after]
    slow = next((node for node in returning if node in run.slower_nodes), None)
    if slow is not None:
        return (
            f"node_speed limits the first process of node {slow}, and not the one that returns; "
            f"allowed: stop, or no return_after of node {slow}"
        )
    if run.target_accuracy is not None and run.return_after:
        return (
            "a node that returns does not know whether the target was reached; allowed: stop, or no target"
        )
    return None


def participation(run: RunFields) -> CheckError:
    rounds = run.strategy.rounds
    if rounds is None:
        return None
    reason = rounds.participation.error(run.num_replicas)
    if reason is None and run.lr_scaling != "none":
        reason = (
            f"not possible with lr_scaling: {run.lr_scaling}, which is for the batches of all ranks; "
            "allowed: null, or lr_scaling: none"
        )
    if reason is None and run.on_loss != "stop":
        reason = f"not possible with on_loss: {run.on_loss}; allowed: null, or on_loss: stop"
    if reason is None:
        return None
    name = run.name_of("strategy")
    return PydanticCustomError(
        "strategy", "{strategy}, participation: {reason}", {"strategy": name, "reason": reason}
    )


CHECKS: tuple[Callable[[RunFields], CheckError], ...] = (
    transport,
    processes_per_node,
    world_size,
    node_speed,
    link,
    model,
    loss,
    batch_size,
    accumulate,
    clip_norm,
    strategy,
    participation,
    aggregation,
    synchronous_layers,
    precision,
    recompute,
    optimizer,
    target_accuracy,
    patience,
    warm_up,
    lr_schedule,
    samples,
    partitioner,
    smallest_batch,
    augmentation,
    checkpoints,
    restarts,
    faults,
    on_loss,
    debug,
    byzantine,
)


def _error(field: str, reason: str | None) -> CheckError:
    """The error of a field; None without a reason."""
    return PydanticCustomError(field, "{reason}", {"reason": reason}) if reason else None


def _training_ranks(run: RunFields) -> str:
    return (f"{run.num_replicas} workers of " if run.strategy.servers else "") + run.size_label


def _size_field(run: RunFields, most: int | None) -> str:
    """The field to change when the number of ranks is not allowed, at most `most`."""
    return "processes_per_node" if most is not None and run.nodes <= most < run.world_size else "nodes"
