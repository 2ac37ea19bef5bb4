"""Mistakes in what finished runs show: costs of steps, which clock counts, what is no evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.prediction.evidence import Unusable, evidence_of
from orchestrator.prediction.measured_cluster import MeasuredCluster, TransportCosts, measured_cluster
from orchestrator.prediction.target import read_learned
from orchestrator.results.records import LinkResult, RunResult
from orchestrator.results.store import RunPaths
from tests.support.traces import builders
from tests.unit.orchestrator.replay.test_replay_run import results_directory
from tests.unit.report_support import a_run, with_certificate, with_epochs
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.time_model.cluster import ANY_COLLECTIVE, SoftwareCost

GLOO = LinkResult(source=0, to=1, latency_s=1e-4, bytes_per_s=2e9)


def measured(
    path: Path, slower: float = 1.0, strategy: str = "all_reduce", **fields: Any
) -> tuple[RunPaths, RunResult]:
    """Two epochs of two whole batches of 10 samples and one of 4, which costs 60 %, then half a second.

    A whole batch costs rank r (r + 1) · slower / 10 s, and the first one five times as much.
    """
    own = {"nodes": 2, "transport": "gloo", "batch_size": 10, **fields}
    run = a_run(strategy, **own).model_copy(update={"links": [GLOO]})
    assert run.certificate
    part, paths = run.certificate.parts[0], RunPaths(path / run.key)
    paths.directory.mkdir()
    for rank, trace in enumerate(builders(2, run=run.key)):
        for epoch, first in ((1, 5.0), (2, 1.0)):
            trace.add(Kind.EPOCH, peer=epoch)
            for share in (first, 1.0, 0.6):
                trace.work(share * (rank + 1) * slower / 10).add(Kind.STEP)
        file = trace_path(paths.directory, rank)
        file.write_bytes(encode_trace(trace.timed(Kind.BARRIER, 0.0, 0.5).trace()))
    parts = [
        part.model_copy(update={"rank": rank, "epoch": epoch, "samples": 24})
        for rank in (0, 1)
        for epoch in (1, 2)
    ]
    return paths, with_certificate(run, parts=parts)


def test_steps_cost_what_they_cost_with_a_core_for_each_rank(tmp_path: Path) -> None:
    runs = [measured(tmp_path), measured(tmp_path, 2.0, seed=1, train_s=5.0)]
    runs += [
        measured(tmp_path, 2.25, lr=0.5, cores=1),
        measured(tmp_path, runtime="docker", cpus=0.5, lr=0.2),
    ]
    found = evidence_of(runs, [Unusable("broken", "why")])
    assert found.unusable == [Unusable("broken", "why")]
    *same, shared, quota = [run for each in found.configurations for run in each.runs]
    assert [each.key for each in same] == [result.key for _, result in runs[:2]]
    for each, clock, numbers in (
        (same[0], "wall", [8.0, 0.1, 0.2, 0.6]),
        (same[1], "wall", [5.0, 0.2, 0.4, 1.2]),
        (shared, "cluster", [9.2 * 0.3 + 0.5, 0.15, 0.3, 0.9]),  # its work took half as long again
        (quota, "wall", [8.0, 0.1, 0.2, 0.6]),
    ):
        assert [each.seconds, *each.steps_s, each.first_s] == pytest.approx(numbers, rel=1e-3)
        assert [share for pair in each.partial for share in pair] == pytest.approx(2 * [0.4, 0.6])
        assert (each.clock, each.own_bytes_per_s, each.epochs) == (clock, GLOO.bytes_per_s, 2)
        assert (each.cluster.cpu_inflation, each.cluster.overhead_s) == ([], GLOO.latency_s / 2)
    costs = [(each.per_step_s, each.per_sample_s, each.first_s) for each in found.configurations]
    usual = pytest.approx(
        (0.225 / 3, 0.225 * 2 / 3 / 10, 0.9)
    )  # a third of a step is the same for any batch
    assert costs == [usual, usual, pytest.approx((0.05, 0.01, 0.6))]
    results = [result for _, result in runs[:2]]
    exchanges = {name: [SoftwareCost(bytes=0, seconds=0.5)] for name in ("barrier", ANY_COLLECTIVE)}
    gloo = TransportCosts(message_s=1e-4, bytes_per_s=2e9, exchanges=exchanges)
    expected = MeasuredCluster(runtime="local", nodes="local processes", transports={"gloo": gloo})
    assert measured_cluster(results, evidence_of(runs[:2]).costs) == expected
    assert measured_cluster(results, evidence_of([]).costs) is None


def virtual(run: RunResult, **changes: Any) -> RunResult:
    info = replace(run.runtime_info, simulates_time=True, **changes)
    return run.model_copy(update={"runtime_info": info})


def test_steps_of_a_server_are_no_steps_of_those_that_train(tmp_path: Path) -> None:
    (found,) = evidence_of([measured(tmp_path, strategy="parameter_server")]).configurations
    assert found.runs[0].steps_s == pytest.approx([0.2])
    assert [found.server_s, found.first_s] == pytest.approx([0.1, 0.8])


def test_runs_that_say_nothing_about_others_are_no_evidence(tmp_path: Path) -> None:
    paths, run = measured(tmp_path)
    faults = [{"kill": {"node": 1}, "at": {"epoch": 2}}]
    for other, reason in (
        (virtual(run), "its nodes are virtual"),
        (a_run("all_reduce", nodes=2, transport="gloo", faults=faults), "it had faults or restarts"),
        (run.model_copy(update={"restarted": 1}), "it had faults or restarts"),
        (a_run("all_reduce", nodes=2, transport="memory"), "its ranks are threads of one interpreter"),
        (a_run("all_reduce", nodes=2, transport="gloo", seed=9), "the run recorded no traces"),
    ):
        place = paths if "traces" not in reason else RunPaths(tmp_path / "none")
        assert evidence_of([(place, other)]).unusable == [Unusable(place.directory.name, reason)], reason


def test_virtual_nodes_that_trained_to_a_target_show_its_epochs(tmp_path: Path) -> None:
    real, asked = a_run("serial", target_accuracy=0.9, patience=1), {"target_accuracy": 0.8, "patience": 1}
    trained = with_epochs(virtual(a_run("serial", **asked)), target_reached=True)
    others = [real, virtual(a_run("serial")), virtual(a_run("serial", **asked, seed=1), trains=False)]
    failed = virtual(a_run("serial", **asked, seed=2, status="failed", cause="x"))
    paths = results_directory(tmp_path, others=[*others, failed, trained])
    paths.run(real.key).result.write_text("{")
    assert read_learned(paths) == [trained]
    paths.run(trained.key).result.unlink()
    with pytest.raises(InputError, match="no finished run of virtual nodes has a target_accuracy"):
        read_learned(paths)
