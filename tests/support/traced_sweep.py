"""A results directory with runs that have traces, in which tests damage files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.results.records import LinkResult, RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.traces import builders
from tests.unit.report_support import a_record, a_run
from trainer.core.trace import Kind, Trace, encode_trace, trace_path

STEPS = 4


def traced_run(seed: int) -> RunResult:
    """A run of two nodes over gloo, which calibrates cluster time."""
    links = [LinkResult(source=0, to=1, latency_s=1e-4, bytes_per_s=1e9)]
    run = a_run("all_reduce", nodes=2, transport="gloo", seed=seed)
    return run.model_copy(update={"links": links})


def traces_of(result: RunResult) -> list[Trace]:
    """What its ranks have done."""
    run = result.run
    ranks = builders(run.world_size, run.transport, run=run.key)
    for rank in ranks:
        for epoch in range(1, run.epochs + 1):
            rank.add(Kind.EPOCH, peer=epoch)
            for _ in range(STEPS):
                rank.work(0.01).add(Kind.ALL_REDUCE, 1000, cpu_s=0.001).add(Kind.STEP)
            rank.add(Kind.BARRIER)
    return [rank.trace() for rank in ranks]


def traced_sweep(directory: Path, runs: int = 3) -> tuple[SweepPaths, list[RunResult]]:
    """Write a finished sweep, with the traces of its runs."""
    paths = SweepPaths(directory)
    results = [traced_run(seed) for seed in range(runs)]
    write_atomic(paths.record, a_record(results).model_dump_json())
    for result in results:
        files = paths.run(result.key)
        write_atomic(files.spec, result.run.model_dump_json())
        write_atomic(files.result, result.model_dump_json())
        for trace in traces_of(result):
            write_trace(files.directory, trace)
    return paths, results


def write_trace(directory: Path, trace: Trace) -> Path:
    path = trace_path(directory, trace.header.rank)
    path.write_bytes(encode_trace(trace))
    return path


def with_record(trace: Trace, at: int, **changed: float) -> Trace:
    """The trace with other values in one record, and a checksum that is right."""
    records = trace.records.copy()
    for field, value in changed.items():
        records[field][at] = np.array(value).astype(records.dtype[field])
    return Trace(trace.header, records)
