"""Runtime `slurm` on the cluster of slurm/cluster, which needs root to hide a directory from a node."""

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

import numpy as np
import pytest

from orchestrator.results.store import RunPaths, SweepPaths, read_record, read_result
from orchestrator.runtimes.slurm.commands import pmix_trouble, queued
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import SCRIPT
from orchestrator.sweeps.yaml import parse_yaml
from tests.support.command_line import PROJECT, start_sweep
from tests.support.processes import wait_until
from tests.support.runs import SMALL, event_files
from tests.support.slurm_cluster import START_AGAIN, Cluster, slurm_missing

MISSING = slurm_missing()
SWEEP = f"""
name: smoke
base:
  dataset: {SMALL["dataset"]}
  model: {SMALL["model"]}
  lr: 0.1
  epochs: 2
  timeout_s: 120
  save_weights: true
slurm: {{partition: debug}}
blocks:
  - base: {{nodes: 2}}
    axes: {{strategy: [ddp, local_sgd], transport: [gloo, mpi]}}
    skip: [{{strategy: ddp, transport: mpi}}, {{strategy: local_sgd, transport: gloo}}]
""".replace("'", "")
HANGING = """
name: hanging
base: {strategy: {name: fault_injection, work_s: 300}, timeout_s: 300, nodes: 2, transport: gloo}
slurm: {partition: debug}
blocks: [{}]
"""

# Trains for 13 s on a fast machine: longer than Slurm takes to preempt it.
REQUEUED = f"""
name: requeued
base:
  dataset: {SMALL["dataset"]}
  model: {SMALL["model"]}
  lr: 0.1
  strategy: {{name: local_sgd, local_steps: 3}}
  transport: gloo
  nodes: 2
  epochs: 1000
  checkpoint_epochs: 999
  timeout_s: 120
blocks: [{{}}]
""".replace("'", "")

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    assert queued() == []


@pytest.fixture(scope="module")
def smoke(cluster: Cluster) -> Iterator[Path]:
    """The results of the same sweep, by runtime."""
    with TemporaryDirectory(prefix="sy-") as directory:
        sweep = Path(directory) / "smoke.yml"
        sweep.write_text(SWEEP)
        for runtime in ("slurm", "local"):
            done = cluster.shardyard(
                *("sweep", sweep, "--runtime", runtime, "--out", Path(directory) / runtime),
                *("--data-dir", Path(directory) / "data", "--no-warm-up-run"),
                *(("--shared-network",) if runtime == "local" else ()),
            )
            assert done.returncode == 0, done.stdout + done.stderr
        yield Path(directory)


def test_same_sweep_has_the_same_weights(smoke: Path) -> None:
    keys = read_record(SweepPaths(smoke / "slurm")).keys
    assert len(keys) == 2
    for key in keys:
        found = {name: RunPaths(smoke / name / key) for name in ("slurm", "local")}
        results = {name: read_result(paths.result) for name, paths in found.items()}
        assert all(result and result.status == "ok" for result in results.values())
        slurm, local = (np.load(found[name].weights) for name in ("slurm", "local"))
        np.testing.assert_array_equal(slurm, local)


def test_doctor_tries_the_launches(cluster: Cluster) -> None:
    done = cluster.shardyard("doctor")
    said = " ".join(done.stdout.split())
    assert "debug (default): 4 nodes" in said
    assert "`mpi: mpirun` works" in said
    assert "`mpi: pmix` " + ("works" if pmix_trouble() is None else "fails") in said


@pytest.mark.nightly
def test_ranks_of_pmix_have_the_same_weights(cluster: Cluster, smoke: Path, tmp_path: Path) -> None:
    if trouble := pmix_trouble():
        pytest.skip(f"srun --mpi=pmix does not start: {trouble}")
    sweep = tmp_path / "pmix.yml"
    base, _, _ = SWEEP.partition("slurm:")
    one = "{nodes: 2, strategy: local_sgd, transport: mpi}"
    sweep.write_text(f"{base}slurm: {{mpi: pmix}}\nblocks: [{{base: {one}}}]\n")
    done = cluster.shardyard(
        *("sweep", sweep, "--runtime", "slurm", "--out", tmp_path / "out"),
        *("--data-dir", smoke / "data", "--no-warm-up-run"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (key,) = read_record(SweepPaths(tmp_path / "out")).keys
    script = RunPaths(tmp_path / "out" / key).directory / SCRIPT
    assert "--mpi=pmix" in script.read_text()
    pmix, mpirun = (np.load(RunPaths(home / key).weights) for home in (tmp_path / "out", smoke / "slurm"))
    np.testing.assert_array_equal(pmix, mpirun)


@pytest.mark.nightly
def test_examples_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "slurm.md").read_text()
    (options,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page)
    SlurmOptions.model_validate(parse_yaml(options, "docs/slurm.md")["slurm"])
    (commands,) = re.findall(r"(?ms)^```bash\n(.*?)^```$", page)
    ours = re.findall(r'^make (\w+) ARGS="(.*)"$', commands, re.MULTILINE)
    assert [command for command, _ in ours] == ["sweep", "run"]
    for number, (command, arguments) in enumerate(ours):
        out = tmp_path / str(number)
        done = cluster.shardyard(command, *arguments.split(), "--out", out, "--data-dir", tmp_path / "data")
        assert done.returncode == 0, done.stdout + done.stderr
        assert out.exists() is (command == "run")


def test_results_know_their_cluster(smoke: Path) -> None:
    for key in read_record(SweepPaths(smoke / "slurm")).keys:
        paths = RunPaths(smoke / "slurm" / key)
        result = read_result(paths.result)
        assert result is not None
        assert result.environment["slurm"]
        assert result.cores == os.cpu_count()
        assert not paths.live.exists()
        assert paths.log("node-0").exists()


@pytest.mark.parametrize(
    ("options", "nodes", "named"),
    [
        ("{partition: nope}", 2, ["slurm.partition: 'nope'", "debug", "short"]),
        ("{}", 9, ["nodes: 9", "debug has 4 nodes"]),
        ("{constraint: quantum}", 2, ["slurm.constraint: 'quantum'", "feature"]),
        ("{partition: short, time: '60'}", 2, ["slurm.time: '60'", "short", "10:00"]),
        ("{arguments: [--nonsense]}", 2, ["slurm.arguments", "--nonsense"]),
    ],
)
def test_refused_before_anything_starts(
    cluster: Cluster, tmp_path: Path, options: str, nodes: int, named: list[str]
) -> None:
    sweep = tmp_path / "sweep.yml"
    sweep.write_text(
        re.sub("slurm: .*", f"slurm: {options}", HANGING.replace("nodes: 2", f"nodes: {nodes}"))
    )
    done = cluster.shardyard("sweep", sweep, "--runtime", "slurm", "--out", tmp_path / "out")
    assert done.returncode == 2, done.stdout
    for each in named:
        assert each in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_path_that_is_not_shared(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.hidden is None:
        pytest.skip("only root can hide a directory from a node")
    sweep = tmp_path / "sweep.yml"
    sweep.write_text(HANGING.replace("nodes: 2", "nodes: 4"))
    out = cluster.hidden / "results"
    done = cluster.shardyard("sweep", sweep, "--runtime", "slurm", "--out", out)
    assert done.returncode == 1, done.stdout + done.stderr
    (key,) = read_record(SweepPaths(out)).keys
    result = read_result(RunPaths(out / key).result)
    assert result is not None
    assert result.status == "failed"
    assert re.search("^yard4 does not see .*--out", str(result.cause))


@contextmanager
def hanging(cluster: Cluster, directory: Path, content: str = HANGING) -> Iterator[subprocess.Popen[str]]:
    """The orchestrator of a run that has started to train and does not end soon."""
    sweep = directory / "sweep.yml"
    sweep.write_text(content)
    running = start_sweep(sweep, directory / "out", "--runtime", "slurm", "--no-warm-up-run")
    try:
        wait_until(lambda: event_files(directory / "out"))
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_sweep_leaves_no_job(cluster: Cluster, tmp_path: Path, number: int) -> None:
    with hanging(cluster, tmp_path) as running:
        (job,) = queued()
        running.send_signal(number)
        assert running.wait(timeout=60) == (130 if number == signal.SIGINT else -number)
    if number == signal.SIGKILL:
        assert [each.number for each in queued()] == [job.number]
        assert cluster.shardyard("clean").returncode == 0


def test_cancelled_job_is_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    with hanging(cluster, tmp_path) as running:
        (job,) = queued()
        subprocess.run(["scancel", job.number], check=True, env=cluster.environment)
        assert running.wait(timeout=60) == 1
    (found,) = tmp_path.glob("out/*/result.json")
    result = read_result(found)
    assert result is not None
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

    with hanging(cluster, tmp_path, REQUEUED) as running:
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
    done = cluster.shardyard(
        *("sweep", tmp_path / "sweep.yml", "--runtime", "local", "--out", tmp_path / "local"),
        "--no-warm-up-run",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    slurms, locals_ = (
        read_result(next(iter(tmp_path.glob(f"{name}/*/result.json")))) for name in ("out", "local")
    )
    assert slurms is not None
    assert locals_ is not None
    assert (slurms.status, slurms.restarted, locals_.restarted) == ("ok", 2, 0)
    for mine, undisturbed in zip(slurms.ranks, locals_.ranks, strict=True):
        assert mine.weights_digest == undisturbed.weights_digest
        assert (mine.steps, mine.samples) == (undisturbed.steps, undisturbed.samples)
        assert mine.bytes_sent == undisturbed.bytes_sent
    assert slurms.certificate == locals_.certificate
    flags = [flag for flag in slurms.flags if flag.startswith("requeue ")]
    assert ["time limit" in flags[0], "SIGTERM" in flags[1]] == [True, True]
