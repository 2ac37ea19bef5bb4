"""Mistakes in runs of real nodes beside virtual ones: which compare, on which clock, with whose costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.replay.real_nodes import Calibrated, calibrated
from orchestrator.results.real_nodes import RealRuns, calibrate_virtual_nodes, read_real_runs
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, UnusableFile, write_atomic
from tests.unit.orchestrator.replay.test_replay_described import beside_load, exchanging
from tests.unit.report_support import a_record, a_run


def on_virtual_nodes(result: RunResult, **environment: float) -> RunResult:
    info = replace(result.runtime_info, simulates_time=True)
    changes = {"runtime": "virtual", "runtime_info": info, "environment": environment}
    return result.model_copy(update=changes)


class Directories:
    """The results directories of real and of virtual nodes."""

    def __init__(self, path: Path) -> None:
        self.real, self.virtual = SweepPaths(path / "real"), SweepPaths(path / "virtual")

    def real_run(self, seconds: float = 1.0, **fields: Any) -> RunResult:
        return exchanging(self.real, seconds, nodes=2, **fields)

    def virtual_run(self, price: dict[str, float] | None = None, **fields: Any) -> RunResult:
        """A run whose traces are stored, with a barrier that takes what the model says."""
        return on_virtual_nodes(exchanging(self.virtual, 0.0, nodes=2, **fields), **price or {})

    def compared(self, real: list[RunResult], *results: RunResult) -> Calibrated:
        runs = RealRuns("../real", [(self.real.run(each.run.key), each) for each in real])
        return calibrated(self.virtual, [(each.run.key, each) for each in results], runs)


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(tmp_path)


def test_a_run_is_compared_with_the_costs_of_others_and_reported_with_all(directories: Directories) -> None:
    real = [directories.real_run(seconds, seed=seed) for seed, seconds in enumerate((1.0, 3.0))]
    ours = [directories.virtual_run(seed=seed) for seed in (0, 1, 2)]
    found = directories.compared(real, *ours)
    assert [*found.times] == [each.run.key for each in ours[:2]]
    assert [each.predicted_s for each in found.times.values()] == pytest.approx([3.0, 1.0], abs=0.01)
    assert [each.seconds for each in found.times.values()] == [each.train_s for each in real]
    first, *others = (found.cluster(each) for each in ours)
    assert first is not None
    assert others == [first, first]
    assert found.showing("gloo") == 2
    mpi = on_virtual_nodes(a_run("all_reduce", transport="mpi", nodes=2))
    assert (found.showing("mpi"), found.cluster(mpi)) == (0, None)


def test_real_times_are_wall_times_only_where_these_are_of_the_described_cluster(
    directories: Directories,
) -> None:
    fields: list[dict[str, Any]] = [{}, {"link": {"latency_ms": 500}}, {"lr": 0.5}]
    real = [directories.real_run(**each) for each in fields]
    real[2] = beside_load(real[2])
    times = directories.compared(real, *(directories.virtual_run(**each) for each in fields)).times
    assert [each.clock for each in times.values()] == ["wall", "cluster", "cluster"]
    assert [*times.values()][1].seconds == pytest.approx(1.5, abs=0.01)  # local nodes have no shaped links


def test_runs_that_should_not_take_as_long_are_not_compared(directories: Directories) -> None:
    quota = {"seed": 2, "cpus": 0.5, "runtime": "docker"}
    real = [directories.real_run(), directories.real_run(seed=1), directories.real_run(**quota)]
    ours = directories.virtual_run()
    priced = directories.virtual_run({"seconds_per_sample": 0.01}, seed=1)
    assert {*directories.compared(real, ours, priced, directories.virtual_run(**quota)).times} == {
        ours.run.key
    }
    early = ours.model_copy(update={"epochs": ours.epochs[:-1]})
    assert early.epochs
    assert directories.compared(real, early).times == {}


def test_directories_that_calibrate_nothing_are_refused(tmp_path: Path) -> None:
    def directory(name: str, *results: RunResult) -> SweepPaths:
        paths = SweepPaths(tmp_path / name)
        write_atomic(paths.record, a_record(results).model_dump_json())
        for each in results:
            write_atomic(paths.run(each.key).result, each.model_dump_json())
        return paths

    run = a_run("ddp", nodes=2)
    ours, local = directory("ours", on_virtual_nodes(run)), directory("local", run)
    mixed = directory("mixed", run, a_run("ddp", nodes=3, runtime="docker"))
    for virtual, real, reason in (
        (ours, ours, r"--real .*ours has no finished runs on real nodes"),
        (ours, mixed, r"--real .*mixed has runs on several runtimes: local, docker; allowed: one"),
        (ours, SweepPaths(tmp_path), r"--real .*no sweep\.json"),
        (local, local, r"--real .*: .*local has no finished runs on virtual nodes"),
    ):
        with pytest.raises(InputError, match=reason):
            calibrate_virtual_nodes(virtual, real.directory)
    assert read_real_runs(ours) is None
    calibrate_virtual_nodes(ours, local.directory)
    found = read_real_runs(ours)
    assert found is not None
    assert (found.directory, found.runtime, len(found.runs)) == ("../local", "local", 1)
    local.record.unlink()
    with pytest.raises(UnusableFile, match=r"real_nodes\.json: names \.\./local, which cannot be used"):
        read_real_runs(ours)
