"""Conditions under which compared configurations were trained, and where they differ.

Groups of one workload have the same dataset, model, epochs and limits of a node. Their other conditions
follow from the strategy, the number of replicas and what happened in the runs. A strategy may also have a
learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.report.formats import JOIN, by_value, count, listed, percent, whole
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import updates
from trainer.spec.run_spec import RunSpec

MAX_NAMED = 3  # configurations with one value, in a sentence


@dataclass(frozen=True)
class Difference:
    """A condition that compared groups do not share.

    A group that has no value, because it was not recorded or has no effect, is under none of them.
    """

    condition: str  # a key of CONDITIONS
    values: dict[str, tuple[Group, ...]]  # the groups by the value, as text

    @property
    def statement(self) -> str:
        """`global batch differs`."""
        return f"{self.condition} {'differ' if self.condition in _PLURALS else 'differs'}"

    def named(self, view: WorkloadView) -> dict[str, list[str]]:
        """The names of the groups by their value, most of them as `all others`."""
        return _names_by_value(view, self.values, MAX_NAMED)


def samples_per_epoch(row: Row) -> float | None:
    """Samples trained on in an epoch, of all replicas, mean over epochs; None without a certificate."""
    certificate = row.result.certificate if row.ok else None
    samples = {(part.epoch, part.rank): part.samples for part in certificate.parts} if certificate else {}
    epochs = {epoch for epoch, _ in samples}
    return sum(samples.values()) / len(epochs) if epochs else None


def global_batch(run: RunSpec) -> int:
    """Samples that all replicas take in a step; the fewest if rounds differ in their replicas."""
    return run.batch_per_replica * run.replicas_in_step


def scales_beyond_the_rule(run: RunSpec) -> bool:
    """Whether lr is scaled with the number of batches although an update of the model uses one of them.

    The rules for large batches (Goyal et al. 2017, Sec. 2.1; Krizhevsky 2014, Sec. 3.2) are about a step on
    the mean gradient of all batches.
    """
    scaled = run.lr_scaling != "none" and run.batch_multiplier > 1
    return scaled and not run.strategy.updates_use_global_batch


def _range_of(metric: Metric, write: Callable[[float], str]) -> Callable[[Group], str | None]:
    """The range of a number over the seeds of a group; None if it was not recorded."""

    def value(group: Group) -> str | None:
        found = group.over(metric)
        return found.range(write) if found else None

    return value


def _seeds(group: Group) -> str | None:
    """`0 to 4`, `0 and 2`; None if seeds vary nothing."""
    if not group.first.run.vary:
        return None
    seeds = sorted({row.seed for row in group.ok_rows})
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed([str(seed) for seed in seeds])


def _initial_weights(group: Group) -> str | None:
    if group.first.is_sampled:
        return None
    independent = getattr(group.first.run.strategy, "init", "broadcast") == "independent"
    return "each rank's own" if independent and group.shape.ranks > 1 else "rank 0's"


def _evaluated_model(group: Group) -> str | None:
    """What the accuracy of a run is measured on; None without one."""
    if group.first.is_sampled:
        return None
    differ = any(row.replicas_equal is False for row in group.ok_rows)
    return "rank 0's replica, which differs from others" if differ else "the final model"


def _evaluated_after_epochs(group: Group) -> str | None:
    """What the accuracy after an epoch is measured on; None without one."""
    if group.first.is_sampled:
        return None
    strategy, rows = group.first.run.strategy, group.ok_rows
    if not strategy.evaluates_together and group.shape.ranks > 1:
        return "shared model, by each rank" if strategy.shares_model else "each rank's own model"
    averaged = any(point.consensus_distance is not None for row in rows for point in row.result.epochs)
    return "average of the replicas" if averaged else "the common model"


def _node_limits(group: Group) -> str | None:
    """How the limits of the workload hold: topology `single` runs all nodes in one container."""
    result, nodes = group.first.result, group.shape.nodes
    if not result.runtime_info.enforces_limits:
        return None
    together = result.topology == "single" and nodes > 1
    return f"one container with those of {count(nodes, 'node')}" if together else "per node"


def _global_batch(group: Group) -> str:
    """`96`, or `96 in updates of 32` if an update uses the batch of one replica."""
    run = group.first.run
    update = global_batch(run) if run.strategy.updates_use_global_batch else run.batch_per_replica
    batch = whole(global_batch(run))
    return batch if update == global_batch(run) else f"{batch} in updates of {whole(update)}"


def _lr_rule(group: Group) -> str | None:
    """None with one batch per step, whose rate no rule changes."""
    run = group.first.run
    if run.batch_multiplier == 1:
        return None
    warm_up = f" with {count(run.warm_up_epochs, 'warm-up epoch')}" if run.warm_up_epochs else ""
    return f"{run.lr_scaling}{warm_up}"


def _warm_up(group: Group) -> str | None:
    """None where it is a part of the scaling."""
    run = group.first.run
    if not run.warm_up_epochs:
        return "none"
    return count(run.warm_up_epochs, "epoch") if run.batch_multiplier == 1 else None


# The conditions of a comparison, by name, with the value of a group. First those that matter most.
CONDITIONS: dict[str, Callable[[Group], str | None]] = {
    "global batch": _global_batch,
    "updates of the model": _range_of(updates, whole),
    "learning rate": lambda group: f"{group.first.run.lr:g}",
    "learning-rate scaling": _lr_rule,
    "warm-up": _warm_up,
    "samples per epoch": _range_of(samples_per_epoch, whole),
    "coverage": _range_of(Q.coverage_whole_run.of, percent),
    "initial weights": _initial_weights,
    "evaluated model": _evaluated_model,
    "seeds": _seeds,
    "test images": _range_of(lambda row: row.test_samples, whole),
    "node limits": _node_limits,
    "model evaluated after epochs": _evaluated_after_epochs,
}
# What follows from another condition, and so is stated only where groups that share the latter differ.
_IMPLIED_BY = {"updates of the model": "global batch"}
_PLURALS = {
    "samples per epoch",
    "seeds",
    "initial weights",
    "test images",
    "node limits",
    "updates of the model",
}


def compared_groups(view: WorkloadView) -> list[Group]:
    """Serial and the candidates that findings rank."""
    return [*([view.serial] if view.serial else []), *view.ranked_candidates]


def differences(view: WorkloadView) -> list[Difference]:
    """The conditions in which the compared groups of a workload differ, in the order of CONDITIONS."""
    groups, found = compared_groups(view), []
    for condition in CONDITIONS:
        if condition == "seeds" and view.staged:  # as asked for
            continue
        values = _values(groups, condition)
        if len(values) > 1 and not _implied(groups, condition):
            found.append(Difference(condition, values))
    return found


def _implied(groups: Sequence[Group], condition: str) -> bool:
    """Whether groups that share what the condition follows from share the condition, too."""
    if (other := _IMPLIED_BY.get(condition)) is None:
        return False
    alike = _values(groups, other).values()
    return all(len(_values(each, condition)) < 2 for each in alike)


def stated_conditions(view: WorkloadView) -> str:
    """What is stated for every workload: global batch, learning-rate scaling and tuning."""
    groups = compared_groups(view)
    if not groups:
        return ""

    def named(condition: str) -> str:
        return by_value(_names_by_value(view, _values(groups, condition)))

    rules, rates = _values(groups, "learning-rate scaling"), _values(groups, "learning rate")
    scaling = named("learning-rate scaling") if len(rules) > 1 else next(iter(rules), "none")
    rate = f"{view.workload.lr:g} for all, not tuned per strategy"
    if len(rates) > 1:
        rate = f"{named('learning rate')}{_tuned(groups)}"
    batch = f"Global batch at {view.shape.label}: {named('global batch')}"
    return f"{batch}. Learning rate: {rate}; scaling: {scaling}."


def _tuned(groups: Sequence[Group]) -> str:
    """`; sign_sgd was tried with 3`: what a comparison with the best of several rates does not show."""
    tried: dict[str, set[float]] = {}
    for group in groups:
        tried.setdefault(component_label(group.first.run, "strategy"), set()).add(group.first.run.lr)
    several = [f"{name} was tried with {len(rates)}" for name, rates in tried.items() if len(rates) > 1]
    return f"; {listed(several)}" if several else ""


def unequal_conditions(comparison: Comparison) -> list[str]:
    """A line for each difference of each workload, for a terminal."""
    lines = [
        f"{view.workload.label}: at {view.shape.label}, {each.statement}: {by_value(each.named(view))}"
        for view in map(comparison.view, comparison.workloads)
        for each in differences(view)
    ]
    return [line.replace(JOIN, " ") for line in lines]


def _values(groups: Sequence[Group], condition: str) -> dict[str, tuple[Group, ...]]:
    """The groups by their value of a condition, in order."""
    found: dict[str, tuple[Group, ...]] = {}
    for group in groups:
        value = CONDITIONS[condition](group)
        if value is not None:
            found[value] = (*found.get(value, ()), group)
    return found


def _names_by_value(
    view: WorkloadView, values: dict[str, tuple[Group, ...]], max_named: int | None = None
) -> dict[str, list[str]]:
    """The names of the groups of each value. max_named: name so many, and no longer majority."""
    compared = [group for groups in values.values() for group in groups]
    most = max(values.values(), key=len)
    found = {}
    for value, groups in values.items():
        names = _names(view, groups, compared)
        if max_named is not None and len(names) > max_named:
            if groups is most:
                names = ["all others"]
            elif len(names) > max_named + 1:
                names = [*names[:max_named], f"{len(names) - max_named} more"]
        found[value] = names
    return found


def _names(view: WorkloadView, groups: Sequence[Group], compared: Sequence[Group]) -> list[str]:
    """Strategies by label; by name where other groups of that label are not included."""
    elsewhere = {group.strategy_label for group in compared if group not in groups}
    return list(
        dict.fromkeys(
            view.name(group) if group.strategy_label in elsewhere else group.strategy_label
            for group in groups
        )
    )
