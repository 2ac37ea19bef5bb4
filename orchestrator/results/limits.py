"""Cores and limits of a run's nodes, and flags about their effect on times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor

from orchestrator.results.records import LinkResult, RankResult, RunResult, RuntimeInfo
from trainer.core.cgroup import NodeUsage
from trainer.spec.run_spec import NODE_LIMITS, RunSpec

QUOTA_TOLERANCE = 0.02  # an engine writes a quota in whole microseconds
MAX_NAMED = 3  # slower nodes, by number
LEAST_BANDWIDTH = 0.7  # share of the requested bandwidth below which a run is flagged
# How many times as long other load may make a run. The error of cluster time was measured beside a load
# that made wall times up to 2.17 times as long, and is unknown beside more: "Accuracy" in
# docs/cluster_time.md, and tests/bench/clock_load.py of commit d1f43bb7.
MAX_SLOWDOWN = 2.17
SLACK_S = 0.3  # CPU seconds beyond a quota that its period of 100 ms and the resolution of CPU time explain


def cores_wanted(run: RunSpec, runtime: RuntimeInfo) -> float:
    """Cores that the nodes of a run may use at once, in total.

    A quota bounds a node whatever runs in it; without one, every rank computes with all its threads.
    """
    each = run.cpus if runtime.enforces_limits else float(run.processes_per_node * run.threads)
    return round(each * sum(run.node_speeds), 6)  # no excess from floating-point rounding


def rank_quota(run: RunSpec, runtime: RuntimeInfo) -> float:
    """The CPU quota of a rank in cores, at most 1; 1 where the runtime enforces none."""
    return min(1.0, run.cpus / run.processes_per_node) if runtime.enforces_limits else 1.0


def shares_cores(run: RunSpec, runtime: RuntimeInfo, cores: float) -> bool:
    """Whether the nodes of a run shared one machine's cores and wanted more than it has."""
    return runtime.shares_cores and not run.on_gpu and cores_wanted(run, runtime) > cores


def may_have_cores(run: RunSpec, runtime: RuntimeInfo, cores: float) -> bool:
    """Whether each rank could have a core to itself: equal nodes without a quota, on enough cores."""
    enough = not shares_cores(run, runtime, cores)
    return enough and rank_quota(run, runtime) >= 1 and not run.slower_nodes


def shows_load(result: RunResult) -> bool:
    """Whether other load shows in a run: each rank, one or several, could have a core to itself.

    Threads wait for each other, and an injected fault can make a rank sleep, as if they had no core.
    """
    run = result.run
    waits = run.on_gpu or run.ranks_are_threads or run.faults
    return not waits and may_have_cores(run, result.runtime_info, result.cores)


def is_disturbed(result: RunResult) -> bool:
    """Whether other load slowed a run by more than `MAX_SLOWDOWN`."""
    return shows_load(result) and (1 - result.without_core) * MAX_SLOWDOWN < 1


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
        advice = "compare cluster times"
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


def link_flags(run: RunSpec, runtime: RuntimeInfo, measured: Sequence[LinkResult]) -> Iterator[str]:
    """Flags about links that are not as requested, as sentences."""
    if run.link is None or not run.has_links:
        return
    if not runtime.shapes_links:
        yield "link requested, not enforced: times are those of this machine's links; see cluster time"
        return
    shares = []
    for each in measured:
        nodes = each.source // run.processes_per_node, each.to // run.processes_per_node
        mbit = run.link.path(*nodes).bandwidth_mbit if nodes[0] != nodes[1] else None
        if mbit is not None:
            shares.append((each.bytes_per_s * 8 / 1e6 / mbit, mbit, *nodes))
    if shares and (worst := min(shares))[0] < LEAST_BANDWIDTH:
        share, mbit, source, to = worst
        yield (
            f"from node {source} to node {to}, large messages over {run.transport} reached "
            f"{share * mbit:.3g} of the {mbit:g} Mbit/s requested"
        )


def slower(run: RunSpec) -> str:
    """`, node 3 at speed 0.25`; empty where all nodes are equal."""
    return f", {speeds_label(run.slower_nodes)}" if run.slower_nodes else ""


def speeds_label(slower_nodes: Mapping[int, float]) -> str:
    """`node 3 at speed 0.25`, or with many slower nodes `5 nodes at speed 0.1 to 0.5`; empty for none."""
    if len(slower_nodes) > MAX_NAMED:
        low, high = min(slower_nodes.values()), max(slower_nodes.values())
        speeds = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return f"{len(slower_nodes)} nodes at speed {speeds}"
    by_speed: dict[float, list[str]] = {}
    for node, speed in slower_nodes.items():
        by_speed.setdefault(speed, []).append(str(node))
    return ", ".join(
        f"node{'s' if len(nodes) > 1 else ''} {' and '.join(nodes)} at speed {speed:g}"
        for speed, nodes in by_speed.items()
    )


def node_speed_flags(
    run: RunSpec, runtime: RuntimeInfo, ranks: Sequence[RankResult], usage: Sequence[NodeUsage]
) -> Iterator[str]:
    """Flag a run whose nodes differ in speed, and whether the CPU quotas of the slower ones were applied.

    The usage record states the quota; the ranks' own CPU time shows whether it was enforced.
    """
    if not run.slower_nodes:
        return
    if runtime.simulates_time:
        speeds = speeds_label(run.slower_nodes)
        yield f"nodes differ: {speeds}; no speedup is reported, because no serial run has such nodes"
        return
    others = f"{counted(run.cpus, 'cpu')} each" if runtime.enforces_limits else "no limit"
    quotas = {
        node: run.container_cpus(node) if runtime.enforces_limits else run.throttle_cpus(node)
        for node in run.slower_nodes
    }
    named = " and ".join(f"{quota:g} for node {node}" for node, quota in [*quotas.items()][:MAX_NAMED])
    more = f" and {len(quotas) - MAX_NAMED} others" if len(quotas) > MAX_NAMED else ""
    yield (
        f"nodes differ: CPU quota {named}{more}, {others} for the full-speed nodes; no speedup is "
        "reported, because no serial run has such nodes"
    )
    for node, quota in quotas.items():
        yield from _quota_flags(run, node, quota, ranks, usage)


def _quota_flags(
    run: RunSpec, slow: int, wanted: float, ranks: Sequence[RankResult], usage: Sequence[NodeUsage]
) -> Iterator[str]:
    """Flag one slower node whose CPU quota was not applied or not enforced."""
    node = f"node {slow}"
    applied = [each.cpus for each in usage if any(run.node_of(rank) == slow for rank in each.ranks)]
    if not applied or applied[0] is None:
        yield f"CPU quota {wanted:g} for {node} is not confirmed"
    elif abs(applied[0] - wanted) > QUOTA_TOLERANCE * wanted:
        yield f"CPU quota for {node} was {written(applied[0])}, not {wanted:g}"
    slow_ranks = [rank for rank in ranks if run.node_of(rank.rank) == slow]
    used_s = sum(rank.work_cpu_s or 0.0 for rank in slow_ranks)
    train_s = max((rank.train_s for rank in slow_ranks), default=0.0)
    if used_s > 1.1 * wanted * train_s + SLACK_S:
        yield (
            f"{node} used {used_s:.3g} s of CPU time in {train_s:.3g} s of training: CPU quota "
            f"{wanted:g} was not enforced"
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
