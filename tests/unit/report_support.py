"""Shared by the tests of the report: results, records and comparisons, without training."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from orchestrator import report
from orchestrator.replay.described import described
from orchestrator.replay.run import ClusterTime, RankTime
from orchestrator.replay.windows import Part, Steps, Window, Windows
from orchestrator.report import formats, write_report
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.kind import Subject
from orchestrator.report.figures.style import Style
from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import Comparison, WorkloadView, compare
from orchestrator.report.model.rows import Row
from orchestrator.report.model.timelines import slowest_runs
from orchestrator.report.plots import Plot, draw
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.render import html, markdown
from orchestrator.report.render.csv_tables import result_lines
from orchestrator.report.render.page import page_of as content_of
from orchestrator.report.render.tables import Column, table_of
from orchestrator.report.renderer import Drawings, Renderer
from orchestrator.report.topics import asked_by, find
from orchestrator.report.verdict import Verdict, verdicts
from orchestrator.results.csv_text import csv_text
from orchestrator.results.records import (
    Certificate,
    CertifiedPart,
    EpochPoint,
    LinkResult,
    RankResult,
    RunResult,
    Status,
)
from orchestrator.results.store import SweepPaths, SweepRecord, write_atomic
from orchestrator.runtimes import RUNTIMES
from trainer.core.event_schema import CoverageRecord
from trainer.models.lenet import LeNet
from trainer.spec.run_spec import RunSpec

T = TypeVar("T")

NODE_KINDS = {"local": "local processes", "docker": "containers of Docker 26.1.5"}
ONE_SHOT_ALONE = {"name": "one_shot", "init": "independent"}
FAILED: dict[str, Any] = {"status": "failed", "cause": "node 1: gone"}


def a_run(
    strategy: str | dict[str, Any] = "serial",
    *,
    train_s: float = 8.0,
    work_cpu_s: float | None = None,
    accuracy: float | None = 0.9,
    own: Sequence[float] = (),
    communicate_s: float = 0.0,
    bytes_sent: float = 1e6,
    steps: int = 90,
    cores: float = 8,
    status: Status = "ok",
    cause: str | None = None,
    flags: Sequence[str] = (),
    coverage: float = 1.0,
    overlap: float = 0.0,
    runtime: str = "local",
    verified: bool = True,
    digests: Sequence[str] = (),
    staleness: Sequence[tuple[float, int]] = (),
    samples: int = 600,
    **fields: Any,
) -> RunResult:
    """A result as the sweep runner writes it, with equal ranks. fields: of its spec.

    samples: of all replicas in an epoch, equally many of each label.
    own: accuracies of local models. digests: of the ranks' weights. staleness: mean and maximum per worker.
    """
    spec = RunSpec.model_validate({"strategy": strategy, "seed": 0, "epochs": 2, **fields})
    size, servers = spec.world_size, spec.strategy.servers
    stale = [*[(None, None)] * servers, *(staleness or [(None, None)] * (size - servers))]
    leading = [rank for rank in range(size) if spec.strategy.reports_samples(rank, size)]
    seconds = {"data": 0.1, "communicate": communicate_s, "wait": 0.0, "evaluate": 1.0, "other": 0.0}
    ranks = [
        RankResult(
            rank=rank,
            steps=steps,
            samples=100 if rank in leading else 0,
            train_s=train_s,
            work_cpu_s=train_s if work_cpu_s is None else work_cpu_s,
            seconds={**seconds, "compute": train_s - 0.1 - communicate_s},
            bytes_sent=bytes_sent,
            accuracy=accuracy,
            test_loss=0.3,
            local_accuracy=own[rank] if own else None,
            weights_digest=digests[rank] if digests else "same" if rank in leading else None,
            parameters=1000,
            peak_memory_mb=300.0,
            staleness_mean=stale[rank][0],
            staleness_max=stale[rank][1],
        )
        for rank in range(size)
    ]
    scores = {"loss": 0.5, "test_loss": 0.5}
    points = [
        EpochPoint(rank=rank, epoch=epoch, train_s=train_s * epoch / 2, accuracy=0.4 * epoch, **scores)
        for rank in range(size)
        for epoch in (1, 2)
    ]
    shares = {
        "coverage": coverage,
        "coverage_so_far": coverage,
        "overlap": overlap,
        "overlap_so_far": overlap,
    }
    of_each = samples // len(leading)
    part = {"epoch": 1, "samples": of_each, "labels": [of_each // 10] * 10, "js_divergence_so_far": 0.0}
    certificate = Certificate(
        verified=verified,
        splits=[CoverageRecord(epoch=epoch, digest="d", **shares) for epoch in (1, 2)],
        parts=[CertifiedPart(rank=rank, digest="p", js_divergence=rank / 100, **part) for rank in leading],
    )
    return RunResult(
        key=spec.key,
        status=status,
        cause=cause,
        spec=spec.model_dump(mode="json"),
        topology=spec.topology,
        runtime=runtime,
        runtime_info=RUNTIMES.load(runtime).info,
        node_kind=NODE_KINDS[runtime],
        started_at=1_700_000_000.0,
        wall_s=train_s + 3,
        startup_s=2.0,
        teardown_s=0.5,
        cores=cores,
        flags=list(flags),
        ranks=ranks,
        epochs=points,
        certificate=certificate if status == "ok" else None,
    )


def with_ranks(run: RunResult, *of_each: dict[str, Any], **of_all: Any) -> RunResult:
    """The run with these fields of all ranks, and of each in their order."""
    changed = zip(run.ranks, of_each or [{}] * len(run.ranks), strict=True)
    return run.model_copy(update={"ranks": [rank.model_copy(update=of_all | own) for rank, own in changed]})


def beside_load(run: RunResult, share: float) -> RunResult:
    """The run, of which each rank waited for a core during this share of its time."""
    return with_ranks(run, seconds={**run.ranks[0].seconds, "cpu_contention": share * (run.train_s or 0)})


def with_epochs(
    run: RunResult, change: Callable[[EpochPoint], dict[str, Any]] = lambda _: {}, **of_all: Any
) -> RunResult:
    """The run with these fields of all points, and those that follow from each."""
    points = [point.model_copy(update=of_all | change(point)) for point in run.epochs]
    return run.model_copy(update={"epochs": points})


def with_certificate(run: RunResult, **fields: Any) -> RunResult:
    assert run.certificate
    return run.model_copy(update={"certificate": run.certificate.model_copy(update=fields)})


def on_360_images(run: RunResult) -> RunResult:
    """The run, with what is known about its test set."""
    return with_ranks(run, test_samples=360, chance_accuracy=0.1)


def in_parts(
    run: RunResult,
    parameters: Sequence[int],
    *,
    activations: Sequence[int] = (),
    seconds: Sequence[dict[str, float]] = (),
    **of_each: Sequence[Any],
) -> RunResult:
    """The run with these numbers of parameters per rank, one momentum value each, and other fields."""
    changes = [
        {
            "parameters": count,
            "state_bytes": dict.fromkeys(("weights", "gradient", "optimizer"), 4 * count),
            "activation_bytes": activations[at] if activations else 1000,
            **({"seconds": dict.fromkeys(run.ranks[at].seconds, 0.0) | seconds[at]} if seconds else {}),
            **{name: values[at] for name, values in of_each.items() if values},
        }
        for at, count in enumerate(parameters)
    ]
    return with_ranks(run, *changes)


def a_pipeline(
    split_point: str = "flatten", *, requested: bool = True, step_s: float = 0.05, **fields: Any
) -> RunResult:
    """A pipeline of two stages of lenet: stage 0 is busy for 3 s and waits for 1 s, stage 1 the reverse.

    requested: whether the spec gives the split point. The run has 90 steps.
    """
    names = LeNet().names
    at = names.index(split_point)
    strategy = {
        "name": "pipeline",
        **({"split_points": [split_point]} if requested else {}),
        **fields.pop("more", {}),
    }
    run = a_run(strategy, nodes=2, train_s=90 * step_s, **fields)
    return in_parts(
        run,
        [600, 400],
        blocks=[names[:at], names[at:]],
        bytes_to=[[0, 9_000], [18_000, 0]],
        seconds=[{"compute": 3.0, "wait": 1.0, "evaluate": 5.0}, {"compute": 1.0, "wait": 3.0}],
        activations=[5000, 2000],
    )


def a_record(results: Sequence[RunResult], pending: Sequence[str] = (), **fields: Any) -> SweepRecord:
    return SweepRecord(
        **{
            "name": "trial",
            "description": "",
            "source": "name: trial\n",
            "overrides": [],
            "keys": [*(result.key for result in results), *pending],
            "environment": {"cores": 8, "torch": "2.13.0"},
            **fields,
        }
    )


def in_cluster_time(
    result: RunResult,
    cluster_s: float,
    communicate_s: float = 0.0,
    wait_s: float = 0.0,
    inflation: float | None = None,
) -> ClusterTime:
    """A replay in which all ranks do the same, and wait for rank 0."""
    run = result.run
    ranks = [
        RankTime(
            work_s={"data": 0.1, "compute": cluster_s - 0.1 - communicate_s - wait_s, "other": 0.0},
            communicate_s=communicate_s,
            wait_s=wait_s,
            wait_s_by_rank=[wait_s, *[0.0] * (run.world_size - 1)],
            idle_s=0.0,
            overlapped_s=0.0,
        )
        for _ in range(run.world_size)
    ]
    return ClusterTime(
        run=result.key,
        cluster=described(result, {}).model_copy(
            update={"cpu_inflation": [] if inflation is None else [inflation] * run.world_size}
        ),
        cluster_s=cluster_s,
        epoch_ends_s=[cluster_s / 2, cluster_s],
        ranks=ranks,
        bubble=None,
        records=100,
    )


def a_comparison(
    *results: RunResult, pending: Sequence[str] = (), clusters: Sequence[ClusterTime] = (), **fields: Any
) -> Comparison:
    """Of these results. fields: of the sweep's record."""
    return compare(
        a_record(results, pending, **fields),
        [(result.key, result) for result in results],
        clusters={cluster.run: cluster for cluster in clusters},
    )


def windowed(comparison: Comparison) -> Comparison:
    """The comparison with a window for each of its slowest runs that has a cluster time."""
    runs = [run for workload in comparison.workloads for run in slowest_runs(comparison.view(workload))]
    times = [comparison.clusters.get(run.first.key) for run in runs]
    windows = {time.run: a_window(time) for time in times if isinstance(time, ClusterTime)}
    return replace(comparison, windows=windows)


def a_window(time: ClusterTime) -> Windows:
    """Two steps, in which rank 0 waits for the others."""
    step = [("compute", 0.0, 1.0), ("wait", 1.0, 1.5), ("communicate", 1.5, 2.0)]
    parts = [
        Part(phase=phase, start_s=start + begin, end_s=end + begin)  # type: ignore[arg-type]
        for begin in (4.0, 6.0)
        for phase, start, end in step
    ]
    window = Window(start_s=4.0, end_s=8.0, ranks=[parts] * len(time.ranks))
    steps = Steps(first=3, last=4, of=9, exchange=False)
    return Windows(run=time.run, cluster=time.cluster, steps=steps, wall=window, replayed=window)


def only_view(comparison: Comparison) -> WorkloadView:
    """Its only workload."""
    (workload,) = comparison.workloads
    return comparison.view(workload)


def view_of(*results: RunResult) -> WorkloadView:
    return only_view(a_comparison(*results))


def row_of(comparison: Comparison, strategy: str, seed: int = 0) -> Row:
    return next(row for row in comparison.rows if row.strategy == strategy and row.seed == seed)


def repeated(
    strategy: str | dict[str, Any], values: Sequence[float], what: str = "train_s", **fields: Any
) -> list[RunResult]:
    """One run per value of the quantity `what`, each with its own seed."""
    return [a_run(strategy, seed=seed, **{what: value}, **fields) for seed, value in enumerate(values)]


def around(mean: float, step: float = 0.001, seeds: int = 5) -> list[float]:
    """Values of so many seeds, `step` apart."""
    return [mean + step * (seed - (seeds - 1) / 2) for seed in range(seeds)]


def with_measured_link(run: RunResult, latency_s: float, bytes_per_s: float) -> RunResult:
    """The run, with what rank 0 measured of its link to rank 1."""
    link = LinkResult(source=0, to=1, latency_s=latency_s, bytes_per_s=bytes_per_s)
    return run.model_copy(update={"links": [link]})


def csv_lines(comparison: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(csv_text(*result_lines(comparison)).splitlines()))


def findings_of(comparison: Comparison, kind: str) -> list[Finding]:
    """The findings of a kind."""
    return [finding for finding in find(comparison) if finding.kind == kind]


def finding_of(comparison: Comparison, kind: str) -> Finding:
    """The only finding of a kind."""
    (finding,) = findings_of(comparison, kind)
    return finding


def cells(columns: Sequence[Column[T]], items: Sequence[T]) -> list[dict[str, str]]:
    """For each item, the text and detail of every column shown, by key of the column, with plain spaces."""
    table = table_of("", columns, items)
    return [
        {
            head.key: " | ".join(filter(None, [cell.text, cell.detail])).replace(formats.JOIN, " ")
            for head, cell in zip(table.heads, line.cells, strict=True)
        }
        for line in table.lines
    ]


def undrawn(specs: Sequence[Any]) -> Drawings:
    """Empty figures, and a page without Vega."""
    return Drawings(['<svg width="1" height="1" viewBox="0 0 1 1"></svg>'] * len(specs), "")


class NoRenderer(Renderer):
    """Draws empty figures at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def draw(self, specs: Sequence[dict[str, Any]]) -> Future[Drawings]:
        drawn = Future[Drawings]()
        drawn.set_result(undrawn(specs))
        return drawn


@contextmanager
def unrendered_figures() -> Iterator[None]:
    """Reports are written with empty figures: to render them takes most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "Renderer", NoRenderer)
        yield


def verdicts_of(comparison: Comparison) -> list[Verdict]:
    return verdicts(comparison, asked_by(comparison).decided())


def subject_of(comparison: Comparison) -> Subject:
    """What figures of its first workload are about."""
    claims, style = asked_by(comparison).decided(), Style(comparison.groups)
    return Subject(comparison.view(comparison.workloads[0]), comparison, style, claims)


def plots_of(comparison: Comparison) -> list[Plot]:
    """All figures."""
    return draw(comparison, asked_by(comparison).decided())


def page_of(
    comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot] | None = None
) -> str:
    """The page with empty figures; plots: all of the comparison if not given."""
    shown = plots_of(comparison) if plots is None else plots
    page = content_of(comparison, findings, asked_by(comparison).decided(), shown)
    return html.render(page, shown, undrawn(shown))


def text_of(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot] = ()) -> str:
    """report.md."""
    return markdown.render(content_of(comparison, findings, asked_by(comparison).decided(), plots))


def write_page(directory: Path, *results: RunResult, **fields: Any) -> SweepPaths:
    """As `write_sweep`, with empty figures."""
    with unrendered_figures():
        return write_sweep(directory, *results, **fields)


def write_sweep(
    directory: Path, *results: RunResult, pending: Sequence[str] = (), **fields: Any
) -> SweepPaths:
    """Write the files of a finished sweep, then its report."""
    paths = SweepPaths(directory)
    write_atomic(paths.record, a_record(results, pending, **fields).model_dump_json())
    for result in results:
        write_atomic(paths.run(result.key).result, result.model_dump_json())
    write_report(paths)
    return paths


def value(row: Row, name: str) -> float | None:
    """A quantity of a run."""
    return QUANTITIES[name].of(row)


SERIAL = a_run(train_s=8.0, accuracy=0.9)
FAST = a_run("all_reduce", nodes=2, train_s=5.0, work_cpu_s=4.0, accuracy=0.85)


def points(chart: Chart | None) -> list[dict[str, Any]]:
    """The records of a chart's data set with the most fields of each, in order."""
    assert chart is not None
    return list(max(chart.spec["datasets"].values(), key=lambda records: (len(records[0]), len(records))))


def records_of(chart: Chart | None) -> list[dict[str, Any]]:
    """All records that a figure draws, in the order of its layers."""
    assert chart is not None
    return [record for data in chart.spec["datasets"].values() for record in data]


def layers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All views of a specification that draw marks."""
    inner = [each for name in ("layer", "hconcat", "concat") for each in spec.get(name, [])]
    inner += [spec["spec"]] if "spec" in spec else []
    return [found for each in inner for found in layers(each)] if inner else [spec]


def marks_of(spec: dict[str, Any]) -> set[str]:
    return {layer["mark"]["type"] for layer in layers(spec)}


def scale(chart: Chart | None, channel: str) -> dict[str, Any]:
    """The scale of a channel in the first layer that has one."""
    assert chart is not None
    encodings = [layer.get("encoding", {}).get(channel, {}) for layer in layers(chart.spec)]
    return next(dict(each["scale"]) for each in encodings if each.get("scale"))
