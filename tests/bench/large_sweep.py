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

from orchestrator.replay.run import ClusterTime, write_cluster_time
from orchestrator.results.records import (
    Certificate,
    CertifiedPart,
    EpochPoint,
    LinkResult,
    RankResult,
    RunResult,
)
from orchestrator.results.store import SweepPaths, SweepRecord, write_atomic
from tests.unit.report_support import a_run, a_window, in_cluster_time, with_ranks
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
WORK = ("data", "compute", "other")
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
            write_atomic(paths.run(result.key).windows, a_window(time).model_dump_json() + "\n")
    texts = {"name": "large", "description": "Made-up results of a large sweep.", "source": "name: large\n"}
    record = SweepRecord.model_validate(
        {**texts, "overrides": [], "keys": keys, "environment": ENVIRONMENT}
    )
    write_atomic(paths.record, record.model_dump_json())
    return paths


def a_result(spec: RunSpec, order: int) -> RunResult:
    """A result with made-up times, which grow with the strategy's number, the nodes and the seed."""
    draws, size, servers = Random(spec.key), spec.world_size, spec.strategy.servers
    workers = size - servers
    number = PAIRS.index((spec.name_of("strategy"), spec.transport)) if size > 1 else 0
    slower = 1 + 0.01 * spec.seed
    work_s = 60.0 / workers * slower
    exchange_s = 0.0 if size == 1 else (0.4 + 0.1 * number) * slower
    train_s = work_s * max(1.0, size / CORES) + exchange_s
    accuracy = min(0.97 - 0.002 * number - 0.0005 * size + draws.gauss(0, 0.003), 1.0)
    stale = spec.name_of("strategy") == "async_parameter_server"
    run = a_run(
        spec.model_dump()["strategy"],
        **spec.model_dump(mode="json", exclude_defaults=True, exclude={"strategy"}),
        train_s=train_s,
        work_cpu_s=work_s,
        accuracy=accuracy,
        own=[accuracy - 0.1] * size if spec.name_of("strategy") == "one_shot" else (),
        bytes_sent=0.0 if size == 1 else 1e6 * EPOCHS * (1 + size / 64),
        steps=STEPS * EPOCHS // workers,
        cores=CORES,
        staleness=[(size / 2, 2 * size)] * workers if stale else (),
    )
    seconds = {"data": work_s * 0.05, "compute": work_s * 0.9, "other": work_s * 0.05, "evaluate": 1.0}
    seconds |= dict.fromkeys(("communicate", "wait"), exchange_s / 2)
    seconds["cpu_contention"] = train_s - work_s - exchange_s
    run = with_ranks(
        run,
        *(
            {
                "samples": SAMPLES * EPOCHS // workers if rank >= servers else 0,
                "peak_memory_mb": 300 + draws.random(),
                "wait_s_by_rank": waits(rank, size, exchange_s / 2, draws) if size > 1 else None,
            }
            for rank in range(size)
        ),
        seconds=seconds,
        test_samples=10_000,
        chance_accuracy=0.1135,
        parameters=61_706,
        state_bytes=dict.fromkeys(("weights", "gradient", "optimizer"), 246_824),
        activation_bytes=1_998_852,
    )
    others = {
        "order": order,
        "started_at": 1_780_000_000.0 + 90 * order,
        "elapsed_s": train_s + 1,
        "epochs": [_point(rank, epoch, draws) for rank in run.ranks for epoch in range(1, EPOCHS + 1)],
        "certificate": _certificate(spec, workers, draws),
        "links": [LinkResult(source=0, to=to, latency_s=8e-5, bytes_per_s=3e9) for to in range(1, size)],
        "environment": ENVIRONMENT,
    }
    return RunResult.model_validate({**run.model_dump(), **others})


def waits(rank: int, size: int, waited_s: float, draws: Random) -> list[float]:
    """Seconds that a rank waits for each of the others."""
    found = [0.0 if other == rank else draws.random() for other in range(size)]
    return [waited_s * each / sum(found) for each in found]


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
        fields = {"rank": rank, "samples": each, "labels": labels, "digest": "75ad0baa150b9917"}
        fields |= dict.fromkeys(("js_divergence", "js_divergence_so_far"), divergence)
        fields["earth_movers_distance"] = divergence * 10
        parts += [CertifiedPart.model_validate({**fields, "epoch": epoch}) for epoch in epochs]
    splits = [CoverageRecord(epoch=epoch, digest="9fa256554915898e", **shares) for epoch in epochs]
    return Certificate(verified=True, splits=splits, parts=parts)


def a_cluster_time(result: RunResult) -> ClusterTime:
    """The run's times without the contention for cores, on the cluster that a report describes."""
    seconds = result.ranks[0].seconds
    exchanges = {"communicate_s": seconds["communicate"], "wait_s": seconds["wait"]}
    return in_cluster_time(
        result, sum(seconds[each] for each in WORK) + sum(exchanges.values()), **exchanges
    )
