"""Training time on a clock, its phases, and the times beside it."""

from __future__ import annotations

from orchestrator.replay.described import has_cores
from orchestrator.report import formats
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import SERIAL, Row, quotient
from orchestrator.report.quantities.quantity import NUMBER, RATIO, SECONDS, SHARE, Quantity, Unit, named
from orchestrator.report.statistics.intervals import ratio_interval
from orchestrator.results.limits import counted

NO_SPEEDUP = "there is none, for the reason in `no_speedup_reason` of results.csv"
NO_SERIAL_RUN = "the workload has no serial run"
NO_CHECKPOINTS = "the run takes no checkpoints"
NOT_RECORDED = "the result is older than the column"
ON_GPUS = "ranks are on GPUs"


def _phase(phase: str, meaning: str, title: str = "", empty: str = "") -> Quantity:
    return Quantity(
        SECONDS,
        lambda row: row.seconds.get(phase),
        title,
        f"{meaning}, mean over ranks",
        empty,
        # Phases that have a title are those of an exchange.
        only=lambda row: row.shape.ranks > 1,
    )


def wall_by_cluster(row: Row) -> float | None:
    """Wall time / cluster time; None without either."""
    if row.cluster is None or row.is_virtual:
        return None
    return quotient(row.wall.train_s, row.cluster.train_s)


def _why_they_differ(group: Group, span: str) -> str:
    """Why wall and cluster time of a configuration may differ."""
    wall = group.first.wall
    ranks, cores = wall.shape.ranks, wall.result.cores
    if wall.link_not_enforced:
        return "without the requested links"
    if wall.shares_cores:
        return f"{ranks} ranks on {counted(cores, 'core')}"
    if ranks == 1 or all(has_cores(row.wall.result) for row in group.ok_rows):
        return "a core for each rank"
    return "other load or a quota in some runs"


def _interval_of_time(group: Group) -> tuple[float, float] | None:
    """The interval of the geometric mean; None with too few seeds."""
    return ratio_interval([row.train_s for row in group.ok_rows if row.train_s])


def exchange_s(row: Row) -> float:
    """Communication and waiting, mean over ranks."""
    return row.seconds.get("communicate", 0.0) + row.seconds.get("wait", 0.0)


def _exchange_share(row: Row) -> float | None:
    training = sum(value for phase, value in row.seconds.items() if phase != "evaluate")
    return exchange_s(row) / training if training else None


TIMES = named(
    train_s=Quantity(
        SECONDS,
        lambda row: row.train_s,
        "Training time",
        "training time of the slowest rank, without evaluation",
        ratio=True,
        interval=_interval_of_time,
        timed=True,
    ),
    wall_s=Quantity(
        SECONDS, lambda row: None if row.is_virtual else row.wall.train_s, "Wall time", ratio=True
    ),
    cluster_s=Quantity(
        SECONDS,
        lambda row: row.cluster.train_s if row.cluster else None,
        "Cluster time",
        "as `train_s`, in cluster time",
        ratio=True,
    ),
    wall_by_cluster=Quantity(
        RATIO, wall_by_cluster, "Wall / cluster time", ratio=True, detail=_why_they_differ
    ),
    step_s=Quantity(
        SECONDS,
        lambda row: row.train_s / row.steps if row.train_s and row.steps else None,
        "Time per step",
        "`train_s` / `steps`",
        ratio=True,
        timed=True,
    ),
    speedup=Quantity(
        RATIO,
        lambda row: row.speedup,
        "Speedup",
        "time of the serial run / time of this run",
        NO_SPEEDUP,
        ratio=True,
    ),
    efficiency=Quantity(
        Unit("", formats.percent),
        lambda row: row.speedup and row.speedup / row.shape.ranks,
        "Efficiency",
        "speedup / ranks",
        NO_SPEEDUP,
        ratio=True,
    ),
    cpu_time_speedup=Quantity(
        RATIO,
        lambda row: quotient(row.baseline.work_cpu_s, row.result.path_cpu_s) if row.baseline else None,
        "CPU-time speedup",
        "serial CPU time / CPU time on the critical path",
        NO_SERIAL_RUN,
        ratio=True,
        # Where cluster time is the headline, it replaces this estimate by CPU time.
        only=lambda row: row.clock == "wall",
    ),
    work_cpu_s=Quantity(
        SECONDS,
        lambda row: row.work_cpu_s,
        meaning="CPU time without communication and waiting, of the rank with most",
        empty=ON_GPUS,
    ),
    cpu_s_per_sample=Quantity(
        SECONDS,
        lambda row: row.cpu_per_sample,
        meaning="CPU time of work of all ranks per sample",
        empty=ON_GPUS,
    ),
    cpu_s_per_sample_of_serial=Quantity(
        RATIO,
        lambda row: quotient(row.cpu_per_sample, row.baseline.cpu_per_sample) if row.baseline else None,
        "CPU time per sample (of serial)",
        "`cpu_s_per_sample` / that of the serial run",
        NO_SERIAL_RUN,
        ratio=True,
        only=lambda row: row.strategy != SERIAL,
    ),
    steps=Quantity(NUMBER, lambda row: row.steps, meaning="optimizer steps of the rank that took most"),
    samples_per_s=Quantity(
        Unit("1/s", formats.ratio),
        lambda row: row.result.samples_per_s if row.timed else None,
        "Samples/s",
        "samples of all replicas / `train_s`",
    ),
    data_s=_phase("data", "loading and augmenting batches"),
    compute_s=_phase("compute", "forward and backward pass and optimizer"),
    communicate_s=_phase("communicate", "moving bytes", "Communication"),
    wait_s=_phase("wait", "waiting for other ranks", "Waiting"),
    cpu_contention_s=_phase("cpu_contention", "work without a core", empty="ranks have several threads"),
    other_s=_phase("other", "the rest of `train_s`"),
    evaluate_s=_phase("evaluate", "evaluation, which is not in `train_s`"),
    checkpoint_s=_phase("checkpoint", "writing checkpoints", empty=NO_CHECKPOINTS),
    exchange_share=Quantity(SHARE, _exchange_share, "Exchange share"),
    startup_s=Quantity(
        SECONDS, lambda row: row.result.startup_s, "Start-up", "start of the run to the first training step"
    ),
    teardown_s=Quantity(
        SECONDS, lambda row: row.result.teardown_s, "Teardown", "last training step to the result"
    ),
    run_wall_s=Quantity(
        SECONDS,
        lambda row: row.result.wall_s,
        meaning="the whole run, with start-up and evaluation",
        of_failed=True,
    ),
    elapsed_s=Quantity(
        SECONDS,
        lambda row: row.result.elapsed_s,
        meaning="first training step to the last, with evaluation, lost work and restarts",
        empty=NOT_RECORDED,
        ratio=True,
        timed=True,
    ),
)
