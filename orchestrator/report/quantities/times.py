"""Training time on a clock, its phases, and the times beside it."""

from __future__ import annotations

from orchestrator.replay.described import MAX_CONTENTION
from orchestrator.report.formats import percent, ratio, seconds, short
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import SERIAL, Row, quotient
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.results.limits import counted, may_have_cores


def _phase(phase: str, title: str = "") -> Quantity:
    """Mean seconds over the ranks. Those that have a title are of an exchange, which one rank has not."""
    return Quantity(
        seconds, lambda row: row.seconds.get(phase), title, only=lambda row: row.shape.ranks > 1
    )


def wall_by_cluster(row: Row) -> float | None:
    """Wall time / cluster time; None without either."""
    if row.cluster is None or row.is_virtual:
        return None
    return quotient(row.wall.train_s, row.cluster.train_s)


def _had_cores(row: Row) -> bool:
    """Whether each rank, one or several, could have a core to itself and waited for none."""
    result = row.wall_result
    able = may_have_cores(row.run, result.runtime_info, result.cores)
    return able and row.without_core <= MAX_CONTENTION


def _why_they_differ(group: Group, span: str) -> str:
    """Why wall and cluster time of a configuration may differ."""
    wall = group.first.wall
    ranks, cores = wall.shape.ranks, wall.result.cores
    if wall.link_not_enforced:
        return "without the requested links"
    if wall.shares_cores:
        return f"{ranks} ranks on {counted(cores, 'core')}"
    if all(_had_cores(row) for row in group.ok_rows):
        return "a core for each rank"
    return "other load or a quota in some runs"


def exchange_s(row: Row) -> float:
    """Communication and waiting, mean over ranks."""
    return row.seconds.get("communicate", 0.0) + row.seconds.get("wait", 0.0)


def _exchange_share(row: Row) -> float | None:
    training = sum(value for phase, value in row.seconds.items() if phase != "evaluate")
    return exchange_s(row) / training if training else None


def speedup_of_means(group: Group, serial: Group) -> float:
    return Times.train_s.mean_of(serial) / Times.train_s.mean_of(group)


class Times:
    """Times, and what compares them."""

    train_s = Quantity(seconds, lambda row: row.train_s, "Training time", ratio=True, timed=True)
    wall_s = Quantity(
        seconds, lambda row: None if row.is_virtual else row.wall.train_s, "Wall time", ratio=True
    )
    cluster_s = Quantity(
        seconds, lambda row: row.cluster.train_s if row.cluster else None, "Cluster time", ratio=True
    )
    wall_by_cluster = Quantity(
        ratio, wall_by_cluster, "Wall / cluster time", ratio=True, detail=_why_they_differ
    )
    step_s = Quantity(
        seconds,
        lambda row: row.train_s / row.steps if row.train_s and row.steps else None,
        "Time per step",
        ratio=True,
        timed=True,
    )
    speedup = Quantity(ratio, lambda row: row.speedup, "Speedup", ratio=True, of_means=speedup_of_means)
    efficiency = Quantity(
        percent,
        lambda row: row.speedup and row.speedup / row.shape.ranks,
        "Efficiency",
        ratio=True,
        of_means=lambda group, serial: speedup_of_means(group, serial) / group.shape.ranks,
    )
    cpu_time_speedup = Quantity(
        ratio,
        lambda row: quotient(row.serials(lambda each: each.work_cpu_s, timed=True), row.result.path_cpu_s),
        "CPU-time speedup",
        ratio=True,
        only=lambda row: row.clock == "wall",
    )
    work_cpu_s = Quantity(seconds, lambda row: row.work_cpu_s)
    cpu_s_per_sample = Quantity(seconds, lambda row: row.cpu_per_sample)
    cpu_s_per_sample_of_serial = Quantity(
        ratio,
        lambda row: row.of_serial(lambda each: each.cpu_per_sample),
        "CPU time per sample (of serial)",
        ratio=True,
        only=lambda row: row.strategy != SERIAL,
    )
    steps = Quantity(short, lambda row: row.steps)
    samples_per_s = Quantity(
        ratio, lambda row: row.result.samples_per_s if row.timed else None, "Samples/s"
    )
    data_s = _phase("data")
    compute_s = _phase("compute")
    communicate_s = _phase("communicate", "Communication")
    hidden_s = Quantity(
        seconds,
        lambda row: row.replayed.mean("overlapped") if row.replayed else None,
        "Hidden communication",
        only=lambda row: bool(row.replayed and row.replayed.mean("overlapped")),
    )
    wait_s = _phase("wait", "Waiting")
    cpu_contention_s = _phase("cpu_contention")
    other_s = _phase("other")
    evaluate_s = _phase("evaluate")
    checkpoint_s = _phase("checkpoint")
    exchange_share = Quantity(percent, _exchange_share, "Exchange share")
    startup_s = Quantity(seconds, lambda row: row.result.startup_s, "Start-up")
    teardown_s = Quantity(seconds, lambda row: row.result.teardown_s, "Teardown")
    run_wall_s = Quantity(seconds, lambda row: row.result.wall_s, of_failed=True)
    elapsed_s = Quantity(
        seconds, lambda row: None if row.disturbed else row.result.elapsed_s, ratio=True, timed=True
    )
