"""Mistakes of runtime `slurm` on the cluster of slurm/cluster, which needs root to hide a directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.commands import pmix_trouble, queued
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import SCRIPT
from orchestrator.sweeps.yaml import parse_yaml
from tests.support.command_line import Running, end, start_sweep
from tests.support.pages import blocks
from tests.support.processes import wait_until
from tests.support.runs import SMALL, RunCache, digests, event_files, only_result, results_in, write_sweep
from tests.support.slurm_cluster import START_AGAIN, Cluster, slurm_missing

MISSING = slurm_missing()
DEBUG = {"partition": "debug"}
RUN: dict[str, Any] = {**SMALL, "nodes": 2, "save_weights": True}
OVER_MPI = {"strategy": "local_sgd", "transport": "mpi"}
HANGING: dict[str, Any] = {
    "strategy": {"name": "fault_injection", "work_s": 300},
    "timeout_s": 300,
    "nodes": 2,
    "transport": "gloo",
}
# Trains for 13 s on a fast machine: longer than Slurm takes to preempt it.
REQUEUED = {
    **SMALL,
    "strategy": {"name": "local_sgd", "local_steps": 3},
    "transport": "gloo",
    "nodes": 2,
    "epochs": 1000,
    "checkpoint_epochs": 999,
}

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    assert queued() == []


@pytest.fixture(scope="module")
def smoke(cluster: Cluster) -> Iterator[Path]:
    """The results of a sweep."""
    with TemporaryDirectory(prefix="sy-") as name:
        home = Path(name)
        ddp = {"strategy": "ddp", "transport": "gloo"}
        sweep = write_sweep(home / "smoke.yml", RUN, ddp, OVER_MPI, slurm=DEBUG)
        yield cluster.swept(sweep, home / "slurm", "--data-dir", home / "data")


def test_runs_have_the_weights_of_local_runs_and_results_know_the_cluster(
    smoke: Path, run_cache: RunCache
) -> None:
    found = results_in(smoke)
    assert [result.status for result in found] == ["ok"] * 2
    for result in found:
        paths = RunPaths(smoke / result.key)
        same = run_cache.get(**result.run.model_dump())
        np.testing.assert_array_equal(np.load(paths.weights), same.weights)
        assert result.environment["slurm"]
        assert result.cores == os.cpu_count()
        assert not paths.live.exists()
        assert paths.log("node-0").exists()


def test_doctor_tries_the_launches(cluster: Cluster) -> None:
    said = " ".join(cluster.shardyard("doctor").stdout.split())
    assert "debug (default): 4 nodes" in said
    assert "`mpi: mpirun` works" in said
    assert "`mpi: pmix` " + ("works" if pmix_trouble() is None else "fails") in said


@pytest.mark.nightly
def test_ranks_of_pmix_have_the_same_weights(cluster: Cluster, smoke: Path, tmp_path: Path) -> None:
    if trouble := pmix_trouble():
        pytest.skip(f"srun --mpi=pmix does not start: {trouble}")
    sweep = write_sweep(tmp_path / "pmix.yml", RUN, OVER_MPI, slurm={"mpi": "pmix"})
    out = cluster.swept(sweep, tmp_path / "out", "--data-dir", tmp_path / "data")
    key = only_result(out).key
    assert "--mpi=pmix" in (RunPaths(out / key).directory / SCRIPT).read_text()
    pmix, mpirun = (np.load(RunPaths(home / key).weights) for home in (out, smoke))
    np.testing.assert_array_equal(pmix, mpirun)


@pytest.mark.nightly
def test_examples_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    (options,) = blocks("docs/slurm.md", "yaml")
    SlurmOptions.model_validate(parse_yaml(options, "docs/slurm.md")["slurm"])
    (commands,) = blocks("docs/slurm.md", "bash")
    ours = re.findall(r"^shardyard (\w+) (.*)$", commands, re.MULTILINE)
    assert [command for command, _ in ours] == ["sweep", "run"]
    for number, (command, arguments) in enumerate(ours):
        out = tmp_path / str(number)
        places = ("--out", out, "--data-dir", tmp_path / "data")
        cluster.shardyard(command, *arguments.split(), *places, code=0)
        assert out.exists() is (command == "run")


@pytest.mark.parametrize(
    ("options", "nodes", "named"),
    [
        ({"partition": "nope"}, 2, ["slurm.partition: 'nope'", "debug", "short"]),
        ({}, 9, ["nodes: 9", "debug has 4 nodes"]),
        ({"constraint": "quantum"}, 2, ["slurm.constraint: 'quantum'", "feature"]),
        ({"partition": "short", "time": "60"}, 2, ["slurm.time: '60'", "short", "10:00"]),
        ({"arguments": ["--nonsense"]}, 2, ["slurm.arguments", "--nonsense"]),
    ],
)
def test_refused_before_anything_starts(
    cluster: Cluster, tmp_path: Path, options: dict[str, Any], nodes: int, named: list[str]
) -> None:
    sweep = write_sweep(tmp_path / "sweep.yml", HANGING | {"nodes": nodes}, slurm=options)
    done = cluster.shardyard("sweep", sweep, "--runtime", "slurm", "--out", tmp_path / "out", code=2)
    assert [each for each in named if each not in done.stderr.lower()] == []
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_path_that_is_not_shared(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.hidden is None:
        pytest.skip("only root can hide a directory from a node")
    sweep = write_sweep(tmp_path / "sweep.yml", HANGING | {"nodes": 4}, slurm=DEBUG)
    result = only_result(cluster.swept(sweep, cluster.hidden / "results", code=1))
    assert result.status == "failed"
    assert re.search("^yard4 does not see .*--out", str(result.cause))


@contextmanager
def hanging(directory: Path, base: dict[str, Any] = HANGING, **others: Any) -> Iterator[Running]:
    """The orchestrator of a sweep whose first run has started to train and does not end soon."""
    sweep = write_sweep(directory / "sweep.yml", base, **others)
    running = start_sweep(sweep, directory / "out", "--runtime", "slurm", "--no-warm-up-run")
    try:
        wait_until(lambda: event_files(directory / "out"))
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_sweep_leaves_no_job(cluster: Cluster, tmp_path: Path, number: signal.Signals) -> None:
    with hanging(tmp_path, slurm=DEBUG) as running:
        (job,) = queued()
        end(running, number)
    if number == signal.SIGKILL:
        assert [each.number for each in queued()] == [job.number]
        cluster.shardyard("clean", code=0)


def test_cancelled_job_is_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    with hanging(tmp_path, slurm=DEBUG) as running:
        (job,) = queued()
        subprocess.run(["scancel", job.number], check=True, env=cluster.environment)
        assert running.wait(timeout=60) == 1
    result = only_result(tmp_path / "out")
    assert (result.status, result.cause) == ("failed", f"job {job.number} was cancelled")


@pytest.mark.nightly
def test_signalled_and_preempted_run_resumes(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm signals the job as before its time limit, and later preempts it."""

    def slurm(*argv: str) -> str:
        return subprocess.check_output(argv, env=cluster.environment, text=True)

    def requeued() -> bool:
        return "BeginTime" in slurm("squeue", "--noheader", f"--jobs={job.number}", "--format=%r")

    def trains() -> bool:
        return bool([*tmp_path.glob("out/*/live/stop")])

    def start_again() -> None:
        slurm("scontrol", "update", f"JobId={job.number}", START_AGAIN)

    with hanging(tmp_path, REQUEUED) as running:
        (job,) = queued()
        wait_until(trains)
        slurm("scancel", "--batch", "--signal=USR1", job.number)
        wait_until(requeued)
        shutil.rmtree(next(iter(tmp_path.glob("out/*/live/stop"))))
        start_again()
        wait_until(trains)
        urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        slurm("sbatch", *urgent)
        wait_until(requeued)
        wait_until(lambda: len(queued()) == 1)
        start_again()
        assert running.wait(timeout=120) == 0
    cluster.swept(tmp_path / "sweep.yml", tmp_path / "local", runtime="local")
    slurms, locals_ = (only_result(tmp_path / name) for name in ("out", "local"))
    assert (slurms.status, slurms.restarted, locals_.restarted) == ("ok", 2, 0)
    assert digests(slurms) == digests(locals_)
    mine, undisturbed = (
        [(rank.steps, rank.samples, rank.bytes_sent) for rank in each.ranks] for each in (slurms, locals_)
    )
    assert mine == undisturbed
    assert slurms.certificate == locals_.certificate
    flags = [flag for flag in slurms.flags if flag.startswith("requeue ")]
    assert ["time limit" in flags[0], "SIGTERM" in flags[1]] == [True, True]
