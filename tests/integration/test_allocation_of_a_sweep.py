"""Mistakes of runtime `slurm` with one allocation for a sweep: warm nodes, and what ends them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.commands import queued
from tests.integration.test_slurm_runtime import DEBUG, HANGING, MISSING, RUN, hanging, no_job_is_left
from tests.support.command_line import Running, end
from tests.support.processes import wait_until
from tests.support.runs import RunCache, event_files, results_in, write_sweep
from tests.support.slurm_cluster import Cluster
from trainer.node.lead import SILENCE_S

__all__ = ["no_job_is_left"]  # a fixture

SHARED = {**DEBUG, "allocation": "sweep"}
FAILS = {"name": "fault_injection", "fault": "kill", "rank": 1}
BLOCKS = (
    {"base": {"strategy": "all_reduce"}, "axes": {"transport": ["mpi", "rpc"]}},
    {"processes_per_node": 2, "strategy": "local_sgd", "checkpoint_epochs": 1},
    {"save_weights": False, "strategy": FAILS},
)

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


def sweep_file(directory: Path, **slurm: str) -> Path:
    return write_sweep(directory / "sweep.yml", RUN, *BLOCKS, slurm=SHARED | slurm)


def test_dry_run_prints_the_allocation_once(cluster: Cluster, tmp_path: Path) -> None:
    sweep, out = sweep_file(tmp_path), tmp_path / "out"
    plain = ("sweep", sweep, "--runtime", "slurm", "--out", out, "--shared-network", "--dry-run")
    done = cluster.shardyard(*plain, "-v", code=0)
    assert done.stdout.count("#SBATCH --nodes=") == 1
    assert done.stdout.count("python -m trainer.node lead ") == 1
    assert done.stdout.count("mpi_rank.py") == 2  # runs over mpi
    assert not out.exists()
    sweep_file(tmp_path, partition="nope")
    assert "'nope'" in cluster.shardyard(*plain, code=2).stderr


def test_all_runs_share_one_allocation_and_have_the_weights_of_local_runs(
    cluster: Cluster, run_cache: RunCache, tmp_path: Path
) -> None:
    options = ("--data-dir", tmp_path / "data", "--shared-network")
    out = cluster.swept(sweep_file(tmp_path), tmp_path / "out", *options, code=1)
    assert (out / "allocation" / "job.sh").exists()
    found = sorted(results_in(out), key=lambda each: each.status)
    assert [each.status for each in found] == ["failed"] + ["ok"] * 3
    assert "the process with all 2 nodes was killed by SIGKILL" in str(found[0].cause)
    for result in found:
        assert (result.warm, result.runtime_info.warm, result.nodes_replaced) == (True, True, None)
    for result in found[1:]:
        same = run_cache.get(**result.run.model_dump())
        np.testing.assert_array_equal(np.load(RunPaths(out / result.key).weights), same.weights)


@dataclass(frozen=True)
class Sweep:
    """A sweep in progress."""

    process: Running
    directory: Path

    def job_during(self, seed: int) -> str:
        """The number of the allocation, once all ranks of this seed's run have started."""
        started = f"*-s{seed}-*/live/rank-1.jsonl"
        wait_until(lambda: any(path.match(started) for path in event_files(self.directory)))
        (job,) = queued()
        return job.number

    def result(self, seed: int) -> RunResult:
        (found,) = (each for each in results_in(self.directory) if each.run.seed == seed)
        return found


@contextmanager
def started(directory: Path) -> Iterator[Sweep]:
    """Of five runs, one after the other, that last long enough to be disturbed."""
    run = HANGING | {"strategy": {"name": "fault_injection", "work_s": 4}, "timeout_s": 120}
    seeds = {"axes": {"seed": [0, 1, 2, 3, 4]}}
    with hanging(directory, run, blocks=[seeds], slurm=SHARED) as running:
        yield Sweep(running, directory / "out")


def processes_of(job: str, module: str) -> list[psutil.Process]:
    """The processes of a job that run a module."""
    found = []
    for process in psutil.process_iter():
        try:
            if module in process.cmdline() and process.environ().get("SLURM_JOB_ID") == job:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_on_yard2(job: str, module: str) -> None:
    """Its ranks have the same command as a warm parent; they are younger."""
    there = (each for each in processes_of(job, module) if each.environ()["SLURMD_NODENAME"] == "yard2")
    min(there, key=psutil.Process.create_time).kill()


@pytest.mark.nightly
def test_losses_cost_at_most_their_run(cluster: Cluster, tmp_path: Path) -> None:
    with started(tmp_path) as sweep:
        first = sweep.job_during(seed=0)
        kill_on_yard2(first, "trainer.warm")
        assert sweep.job_during(seed=1) == first
        kill_on_yard2(first, "trainer.node")
        second = sweep.job_during(seed=2)
        subprocess.run(["scancel", second], check=True)
        third = sweep.job_during(seed=3)
        assert len({first, second, third}) == 3
        assert sweep.job_during(seed=4) == third
        end(sweep.process)
        assert processes_of(third, "trainer.warm") == []
    results = [sweep.result(seed) for seed in range(4)]
    assert [each.status for each in results] == ["ok", "ok", "failed", "ok"]
    cancelled = f"job {second} was cancelled"
    assert results[2].cause == cancelled
    for result, reason in zip(
        results,
        [
            r"the process of warm nodes of node 1 was killed by SIGKILL during the run",
            r"node 1 was killed together with its agent, .* during the run",
            "None",
            cancelled,
        ],
        strict=True,
    ):
        assert re.match(reason, str(result.nodes_replaced))
    assert any("warm nodes were replaced" in flag for flag in results[0].flags)


@pytest.mark.nightly
def test_allocation_ends_without_its_orchestrator(cluster: Cluster, tmp_path: Path) -> None:
    with started(tmp_path) as sweep:
        job = sweep.job_during(seed=0)
        assert processes_of(job, "trainer.warm")
    wait_until(lambda: not queued(), SILENCE_S + 30)
    assert processes_of(job, "trainer.warm") == []
