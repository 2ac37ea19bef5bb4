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
from orchestrator.results.store import SweepPaths, UnusableFile
from tests.unit.orchestrator.replay.test_replay_described import beside_load, exchanging
from tests.unit.report_support import a_run, write_page

PRICED = {"seconds_per_sample": 0.01}


def real_runs(directory: Path, *results: RunResult) -> RealRuns:
    paths = SweepPaths(directory)
    return RealRuns("../real", [(paths.run(result.run.key), result) for result in results])


def virtual(paths: SweepPaths, environment: dict[str, Any] | None = None, **fields: Any) -> RunResult:
    """A run of virtual nodes whose traces are stored, with a barrier that takes what the model says."""
    return on_virtual_nodes(exchanging(paths, 0.0, **fields), environment)


def on_virtual_nodes(result: RunResult, environment: dict[str, Any] | None = None) -> RunResult:
    info = replace(result.runtime_info, simulates_time=True)
    return result.model_copy(
        update={"runtime": "virtual", "runtime_info": info, "environment": environment or {}}
    )


class Directories:
    """The results directories of real and of virtual nodes."""

    def __init__(self, path: Path) -> None:
        self.real, self.virtual = SweepPaths(path / "real"), SweepPaths(path / "virtual")

    def compared(self, real: list[RunResult], *results: RunResult) -> Calibrated:
        runs = real_runs(self.real.directory, *real)
        return calibrated(self.virtual, [(each.run.key, each) for each in results], runs)


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(tmp_path)


def test_a_run_is_compared_with_the_costs_of_others_and_reported_with_all(directories: Directories) -> None:
    real = [exchanging(directories.real, each, nodes=2, seed=seed) for seed, each in enumerate((1.0, 3.0))]
    ours = [virtual(directories.virtual, nodes=2, seed=seed) for seed in (0, 1, 2)]
    found = directories.compared(real, *ours)
    predicted = [found.times[each.run.key].predicted_s for each in ours[:2]]
    assert predicted == pytest.approx([3.0, 1.0], abs=0.01)
    assert [found.times[each.run.key].seconds for each in ours[:2]] == [each.train_s for each in real]
    assert ours[2].run.key not in found.times
    clusters = [found.cluster(each) for each in ours]
    assert clusters[0] is not None
    assert all(each == clusters[0] for each in clusters)
    assert found.showing("gloo") == 2


def test_real_times_are_wall_times_only_where_these_are_of_the_described_cluster(
    directories: Directories,
) -> None:
    link = {"latency_ms": 500}  # that local processes do not have
    real = [
        exchanging(directories.real, 1.0, nodes=2),
        exchanging(directories.real, 1.0, nodes=2, link=link),
        beside_load(exchanging(directories.real, 1.0, nodes=2, lr=0.5)),
    ]
    ours = [
        virtual(directories.virtual, nodes=2),
        virtual(directories.virtual, nodes=2, link=link),
        virtual(directories.virtual, nodes=2, lr=0.5),
    ]
    times = directories.compared(real, *ours).times
    assert [times[each.run.key].clock for each in ours] == ["wall", "cluster", "cluster"]
    assert times[ours[1].run.key].seconds == pytest.approx(1.5, abs=0.01)


def test_runs_that_should_not_take_as_long_are_not_compared(directories: Directories) -> None:
    fields: list[dict[str, Any]] = [
        {"nodes": 2},
        {"nodes": 2, "seed": 1},
        {"nodes": 2, "seed": 2, "cpus": 0.5, "runtime": "docker"},
    ]
    real = [exchanging(directories.real, 1.0, **each) for each in fields]
    ours = [
        virtual(directories.virtual, **fields[0]),
        virtual(directories.virtual, PRICED, **fields[1]),
        virtual(directories.virtual, **fields[2]),
    ]
    assert {*directories.compared(real, *ours).times} == {ours[0].run.key}
    before = [point for point in ours[0].epochs if point.epoch < ours[0].run.epochs]
    assert before
    early = ours[0].model_copy(update={"epochs": before})
    assert directories.compared(real, early).times == {}


def test_a_transport_that_no_run_shows_costs_what_is_described(directories: Directories) -> None:
    real = [exchanging(directories.real, 1.0, nodes=2)]
    mpi = on_virtual_nodes(a_run("all_reduce", transport="mpi", nodes=2))
    found = directories.compared(real, mpi)
    assert (found.showing("mpi"), found.cluster(mpi)) == (0, None)


def test_directories_that_calibrate_nothing_are_refused(tmp_path: Path) -> None:
    ours = write_page(tmp_path / "ours", on_virtual_nodes(a_run("ddp", nodes=2)))
    local = write_page(tmp_path / "local", a_run("ddp", nodes=2))
    mixed = write_page(tmp_path / "mixed", a_run("ddp", nodes=2), a_run("ddp", nodes=3, runtime="docker"))
    for directory, reason in (
        (ours, r"--real .*ours has no finished runs on real nodes"),
        (mixed, r"--real .*mixed has runs on several runtimes: local, docker; allowed: one"),
        (SweepPaths(tmp_path), r"--real .*no sweep\.json"),
    ):
        with pytest.raises(InputError, match=reason):
            calibrate_virtual_nodes(ours, directory.directory)
    with pytest.raises(InputError, match=r"--real .*: .*local has no finished runs on virtual nodes"):
        calibrate_virtual_nodes(local, local.directory)
    assert read_real_runs(ours) is None
    calibrate_virtual_nodes(ours, local.directory)
    found = read_real_runs(ours)
    assert found is not None
    assert (found.directory, found.runtime, len(found.runs)) == ("../local", "local", 1)
    local.record.unlink()
    with pytest.raises(UnusableFile, match=r"real_nodes\.json: names \.\./local, which cannot be used"):
        read_real_runs(ours)
