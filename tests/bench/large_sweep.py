"""Made-up results of a large sweep: 500 runs of 20 strategies and transports on up to 64 nodes.

Every record is built and checked by the model with which a sweep stores it. Cluster times and the windows
of timelines are stored too, as after a sweep, so a report does not replay traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.replay.described import described, software_of
from orchestrator.replay.run import ClusterTime, RankTime, write_cluster_time
from orchestrator.replay.windows import Part, Steps, Window, Windows
from orchestrator.results.records import (
    Certificate,
    CertifiedPart,
    EpochPoint,
    LinkResult,
    RankResult,
    RunResult,
)
from orchestrator.results.store import SweepPaths, SweepRecord, write_atomic
from orchestrator.runtimes import RUNTIMES
from trainer.core.event_schema import CoverageRecord
from trainer.spec.run_spec import RunSpec

OVER_MPI_AND_GLOO = (
    *("one_shot", "local_sgd", "diloco", "gossip"),
    *("all_reduce", "all_gather", "reduce_broadcast", "parameter_server"),
)
PAIRS = [
    *((strategy, transport) for strategy in OVER_MPI_AND_GLOO for transport in ("mpi", "gloo")),
    ("async_parameter_server", "rpc"),
    *((strategy, "gloo") for strategy in ("ddp", "zero1", "fsdp")),
]
ON_FEW_NODES = 9  # of the pairs were also run on 4 nodes, so that there are 50 configurations
SEEDS, EPOCHS, SAMPLES = 10, 10, 60_000
STEPS = 940  # of all ranks in an epoch
CORES = 16.0
ENVIRONMENT = {"cores": CORES, "torch": "2.13.0"}


def specs(seeds: int = SEEDS) -> Iterator[RunSpec]:
    """The runs: serial, every pair on 16 and 64 nodes, and the first ones on 4."""
    configurations: list[dict[str, Any]] = [{"strategy": "serial"}]
    for number, (strategy, transport) in enumerate(PAIRS):
        on = (4, 16, 64) if number < ON_FEW_NODES else (16, 64)
        configurations += [{"strategy": strategy, "transport": transport, "nodes": nodes} for nodes in on]
    common = {"dataset": "mnist", "model": "lenet", "epochs": EPOCHS}
    for configuration in configurations:
        for seed in range(seeds):
            yield RunSpec.model_validate({**configuration, **common, "seed": seed})


def write_large_sweep(directory: Path, seeds: int = SEEDS) -> SweepPaths:
    """Write the results directory. Raises OSError."""
    paths, keys = SweepPaths(directory), list[str]()
    for order, spec in enumerate(specs(seeds)):
        result = a_result(spec, order)
        keys.append(result.key)
        write_atomic(paths.run(result.key).result, result.model_dump_json(indent=1) + "\n")
        time = a_cluster_time(result)
        write_cluster_time(paths.run(result.key), time)
        if spec.seed == seeds - 1:  # its time is the longest, so its timeline is drawn
            write_atomic(paths.run(result.key).timeline, "[]\n")
            write_atomic(paths.run(result.key).windows, windows_of(time).model_dump_json() + "\n")
    texts = {"name": "large", "description": "Made-up results of a large sweep.", "source": "name: large\n"}
    record = SweepRecord.model_validate(
        {**texts, "overrides": [], "keys": keys, "environment": ENVIRONMENT}
    )
    write_atomic(paths.record, record.model_dump_json())
    return paths


def a_result(spec: RunSpec, order: int) -> RunResult:
    """A result with made-up times, which grow with the strategy's number, the nodes and the seed."""
    draws, size = Random(spec.key), spec.world_size
    workers = size - spec.strategy.servers
    number = PAIRS.index((spec.name_of("strategy"), spec.transport)) if size > 1 else 0
    slower = 1 + 0.01 * spec.seed
    work_s = 60.0 / workers * slower
    exchange_s = 0.0 if size == 1 else (0.4 + 0.1 * number) * slower
    train_s = work_s * max(1.0, size / CORES) + exchange_s
    accuracy = 0.97 - 0.002 * number - 0.0005 * size + draws.gauss(0, 0.003)
    ranks = [_rank(spec, rank, train_s, work_s, exchange_s, accuracy, draws) for rank in range(size)]
    links = [LinkResult(source=0, to=to, latency_s=8e-5, bytes_per_s=3e9) for to in range(1, size)]
    return RunResult(
        key=spec.key,
        status="ok",
        cause=None,
        spec=spec.model_dump(mode="json"),
        topology=spec.topology,
        runtime="local",
        runtime_info=RUNTIMES.load("local").info,
        node_kind="local processes",
        started_at=1_780_000_000.0 + 90 * order,
        wall_s=train_s + 3,
        startup_s=2.0,
        teardown_s=0.5,
        elapsed_s=train_s + 1,
        cores=CORES,
        order=order,
        flags=[],
        ranks=ranks,
        epochs=[_point(rank, epoch, draws) for rank in ranks for epoch in range(1, EPOCHS + 1)],
        certificate=_certificate(spec, workers, draws),
        links=links,
        environment=ENVIRONMENT,
    )


def _rank(
    spec: RunSpec,
    rank: int,
    train_s: float,
    work_s: float,
    exchange_s: float,
    accuracy: float,
    draws: Random,
) -> RankResult:
    size, servers = spec.world_size, spec.strategy.servers
    trains, workers = rank >= servers, size - servers
    waits = [0.0 if other == rank else draws.random() for other in range(size)]
    waited_s = exchange_s / 2
    share = waited_s / sum(waits) if size > 1 else 0.0
    stale = spec.name_of("strategy") == "async_parameter_server" and trains
    seconds = {"data": work_s * 0.05, "compute": work_s * 0.9, "other": work_s * 0.05, "evaluate": 1.0}
    seconds |= {"communicate": exchange_s - waited_s, "wait": waited_s}
    return RankResult(
        rank=rank,
        steps=STEPS * EPOCHS // workers,
        samples=SAMPLES * EPOCHS // workers if trains else 0,
        train_s=train_s,
        work_cpu_s=work_s,
        seconds={**seconds, "cpu_contention": train_s - work_s - exchange_s},
        bytes_sent=0.0 if size == 1 else 1e6 * EPOCHS * (1 + size / 64),
        accuracy=min(max(accuracy, 0.0), 1.0),
        test_loss=0.3,
        test_samples=10_000,
        chance_accuracy=0.1135,
        local_accuracy=accuracy - 0.1 if spec.name_of("strategy") == "one_shot" else None,
        weights_digest="0123456789abcdef" if trains else None,
        parameters=61_706,
        peak_memory_mb=300 + draws.random(),
        staleness_mean=size / 2 if stale else None,
        staleness_max=2 * size if stale else None,
        state_bytes=dict.fromkeys(("weights", "gradient", "optimizer"), 246_824),
        activation_bytes=1_998_852,
        wait_s_by_rank=[share * wait for wait in waits] if size > 1 else None,
    )


def _point(rank: RankResult, epoch: int, draws: Random) -> EpochPoint:
    return EpochPoint(
        rank=rank.rank,
        epoch=epoch,
        train_s=rank.train_s * epoch / EPOCHS,
        loss=2.3 * exp(-epoch / 4) + draws.random() / 100 if rank.samples else None,
        accuracy=(rank.accuracy or 0.0) * (1 - exp(-epoch / 2)),
        test_loss=2.3 * exp(-epoch / 4),
        lr=0.02,
    )


def _certificate(spec: RunSpec, workers: int, draws: Random) -> Certificate:
    each, epochs = SAMPLES // workers, range(1, EPOCHS + 1)
    labels = [each // 10] * 10
    shares = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
    parts = []
    for rank in range(spec.strategy.servers, spec.world_size):
        divergence = draws.random() / 100
        distances = dict.fromkeys(("js_divergence", "js_divergence_so_far"), divergence)
        distances["earth_movers_distance"] = divergence * 10
        fields = {
            "rank": rank,
            "samples": each,
            "labels": labels,
            "digest": "75ad0baa150b9917",
            **distances,
        }
        parts += [CertifiedPart.model_validate({**fields, "epoch": epoch}) for epoch in epochs]
    splits = [CoverageRecord(epoch=epoch, digest="9fa256554915898e", **shares) for epoch in epochs]
    return Certificate(verified=True, splits=splits, parts=parts)


def a_cluster_time(result: RunResult) -> ClusterTime:
    """The run's times without the contention for cores, on the cluster that a report describes."""
    ranks = [
        RankTime(
            work_s={phase: rank.seconds[phase] for phase in ("data", "compute", "other")},
            communicate_s=rank.seconds["communicate"],
            wait_s=sum(rank.wait_s_by_rank or []),
            wait_s_by_rank=rank.wait_s_by_rank or [0.0],
            idle_s=0.0,
            overlapped_s=0.0,
        )
        for rank in result.ranks
    ]
    cluster_s = sum(ranks[0].work_s.values()) + ranks[0].communicate_s + ranks[0].wait_s
    return ClusterTime(
        run=result.key,
        cluster=described(result, software_of([result])),
        cluster_s=cluster_s,
        epoch_ends_s=[cluster_s * epoch / EPOCHS for epoch in range(1, EPOCHS + 1)],
        ranks=ranks,
        bubble=None,
        records=4 * STEPS * EPOCHS,
    )


def windows_of(time: ClusterTime) -> Windows:
    """Eight steps of every rank, each with work, waiting and communication."""
    step_s, draws, tracks = 0.01, Random(time.run), []
    for _ in time.ranks:
        parts: list[Part] = []
        for start in (step * step_s for step in range(8)):
            worked, waited = start + step_s * (0.4 + 0.2 * draws.random()), start + 0.7 * step_s
            parts += [
                Part(phase="compute", start_s=start, end_s=worked),
                Part(phase="wait", start_s=worked, end_s=waited),
                Part(phase="communicate", start_s=waited, end_s=start + step_s),
            ]
        tracks.append(parts)
    window = Window(start_s=0.0, end_s=8 * step_s, ranks=tracks)
    steps = Steps(first=1, last=8, of=STEPS, exchange=False)
    return Windows(run=time.run, cluster=time.cluster, steps=steps, wall=window, replayed=window)
