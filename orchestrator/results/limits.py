"""Cores and limits of a run's nodes, and flags about their effect on times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from orchestrator.results.records import RankResult, RuntimeInfo
from trainer.core.cgroup import NodeUsage
from trainer.spec.run_spec import NODE_LIMITS, RunSpec

QUOTA_TOLERANCE = 0.02  # an engine writes a quota in whole microseconds
SLACK_S = 0.3  # CPU seconds beyond a quota that its period of 100 ms and the resolution of CPU time explain


def cores_wanted(run: RunSpec, runtime: RuntimeInfo) -> float:
    """Cores that the nodes of a run may use at once, in total.

    A quota bounds a node whatever runs in it; without one, every rank computes with all its threads.
    """
    last = run.world_size - 1
    each = run.cpus if runtime.enforces_limits else float(run.processes_per_node * run.threads)
    slow = each if run.bottleneck_cpus is None else min(each, run.cpus_for(last))
    return round((run.nodes - 1) * each + slow, 6)  # no excess from floating-point rounding


def shares_cores(run: RunSpec, runtime: RuntimeInfo, cores: float) -> bool:
    """Whether the nodes of a run shared one machine's cores and wanted more than it has."""
    return runtime.shares_cores and not run.on_gpu and cores_wanted(run, runtime) > cores


def speedup_limit(run: RunSpec, runtime: RuntimeInfo, cores: float) -> float:
    """Upper bound of the wall-clock speedup: `cores` / cores of the serial run.

    The serial run counts as one core, or less under a quota or on a smaller machine. With several threads
    it may use more than one core; how much more is unknown.
    """
    serial = min(1.0, cores, run.cpus) if runtime.enforces_limits else min(1.0, cores)
    return cores / serial


def limit_flags(run: RunSpec, runtime: RuntimeInfo, cores: float) -> Iterator[str]:
    """Flags about the comparison of times, as sentences."""
    enforced = runtime.enforces_limits
    if shares_cores(run, runtime, cores):
        limit = f"{speedup_limit(run, runtime, cores):.3g}"
        advice = "compare CPU work time instead"
        if enforced:
            each = [counted(run.cpus, "cpu")]
            fitting = floor(100 * cores / run.nodes) / 100
            advice += f", or give each node fewer cpus ({fitting:g})" if fitting else ""
        else:
            ranks = [counted(run.processes_per_node, "rank")] if run.processes_per_node > 1 else []
            each = [*ranks, counted(run.threads, "thread")]
        demand = " × ".join([counted(run.nodes, "node"), *each]) + slower(run)
        limit = f"wall-clock speedup cannot exceed {limit}"
        yield f"{demand} shared {counted(cores, 'core')}: {limit}; {advice}"
    threads = run.processes_per_node * run.threads
    if enforced and run.processes_per_node > 1 and threads > run.cpus:
        yield (
            f"the {run.processes_per_node} ranks of a node shared its {counted(run.cpus, 'cpu')}: "
            f"cpus {threads} would give every thread a core"
        )
    changed = [name for name in NODE_LIMITS if getattr(run, name) != RunSpec.model_fields[name].default]
    if changed and not enforced:
        values = ", ".join(f"{name} {written(getattr(run, name))}" for name in changed)
        were = "was" if len(changed) == 1 else "were"
        yield f"the runtime does not enforce limits: {values} {were} not enforced"


def slower(run: RunSpec) -> str:
    """`, the last at 0.25 cpu`; empty where all nodes are equal."""
    return "" if run.bottleneck_cpus is None else f", the last at {written(run.bottleneck_cpus)} cpu"


def bottleneck_flags(
    run: RunSpec, runtime: RuntimeInfo, ranks: Sequence[RankResult], usage: Sequence[NodeUsage]
) -> Iterator[str]:
    """Flag a run with a slower last node, and whether its CPU quota was applied.

    The usage record states the quota; the ranks' own CPU time shows whether it was enforced.
    """
    wanted, node = run.bottleneck_cpus, f"node {run.nodes - 1}"
    if wanted is None:
        return
    others = f"{counted(run.cpus, 'cpu')} each" if runtime.enforces_limits else "no limit"
    yield (
        f"nodes differ: CPU quota {written(wanted)} for {node}, {others} for the others; no speedup is "
        "reported, because no serial run has such nodes"
    )
    applied = [each.cpus for each in usage if any(run.is_bottleneck(rank) for rank in each.ranks)]
    if not applied or applied[0] is None:
        yield f"CPU quota {written(wanted)} for {node} is not confirmed"
    elif abs(applied[0] - wanted) > QUOTA_TOLERANCE * wanted:
        yield f"CPU quota for {node} was {written(applied[0])}, not {written(wanted)}"
    slow_ranks = [rank for rank in ranks if run.is_bottleneck(rank.rank)]
    used_s = sum(rank.work_cpu_s or 0.0 for rank in slow_ranks)
    train_s = max((rank.train_s for rank in slow_ranks), default=0.0)
    if used_s > 1.1 * wanted * train_s + SLACK_S:
        yield (
            f"{node} used {used_s:.3g} s of CPU time in {train_s:.3g} s of training: CPU quota "
            f"{written(wanted)} was not enforced"
        )


def memory_limit_mb(run: RunSpec) -> int:
    """Memory limit of each container in MiB; with topology single, that of all nodes together."""
    return run.memory_mb * (run.nodes if run.topology == "single" else 1)


def memory_flags(run: RunSpec, usage: Sequence[NodeUsage]) -> Iterator[str]:
    """Flag processes that the kernel killed for lack of memory in a run that finished nevertheless."""
    rest = "finished after a restart" if run.restarts else "finished without them"
    for node in sorted(usage, key=lambda each: each.name):
        if node.out_of_memory:
            yield (
                f"{_container(run, node)} needed more than {memory_limit_mb(run):,} MiB of memory: the "
                f"kernel killed {node.out_of_memory} of its processes, and the run {rest}"
            )


def _container(run: RunSpec, node: NodeUsage) -> str:
    if not node.ranks:
        return node.name
    if run.topology == "single" and run.nodes > 1:
        return "the container of all nodes"
    return f"node {min(node.ranks) // run.processes_per_node}"


def counted(number: float, noun: str) -> str:
    """`1 core`, `1.5 cores`."""
    return f"{written(number)} {noun}{'' if number == 1 else 's'}"


def written(number: float) -> str:
    """2.0 as `2`, 1.5 as `1.5`."""
    return str(number).removesuffix(".0")
