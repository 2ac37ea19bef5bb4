"""The script of a job. RENEW_GOLDEN=1 writes the golden ones again."""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import Job, directives, job_name, launcher, render
from orchestrator.runtimes.slurm.times import seconds_of
from trainer.spec.run_spec import RunSpec

GOLDEN = Path(__file__).resolve().parents[4] / "golden"
DIRECTORY = Path("/shared/results/my sweep/ddp-100%")


def job(options: SlurmOptions | None = None, **fields: Any) -> Job:
    spec = RunSpec.model_validate({"strategy": "ddp", "transport": "gloo", "nodes": 2, **fields})
    paths = RunPaths(DIRECTORY)
    return Job(
        spec=spec,
        paths=paths,
        data_dir=Path("/shared/data"),
        options=options or SlurmOptions(),
        name=job_name(paths),
        owner="shardyard 12 34/56 pid:[78]",
        token="0123abcd",
        mpirun=Path("/shared/venv/bin/mpirun"),
    )


@pytest.fixture(autouse=True)
def shared_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/shared/venv/bin/python")
    monkeypatch.setattr("orchestrator.runtimes.slurm.script.python_path", lambda: "/shared/shardyard")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("slurm_ddp.sh", job(SlurmOptions(partition="gpu,long", gres="gpu:1", arguments=["--qos=high"]))),
        ("slurm_checkpoints.sh", job(checkpoint_epochs=1, timeout_s=3600.0)),
        ("slurm_mpi.sh", job(strategy="all_reduce", transport="mpi", processes_per_node=2)),
    ],
)
def test_golden_script(name: str, made: Job) -> None:
    script = render(made)
    if os.environ.get("RENEW_GOLDEN"):
        (GOLDEN / name).write_text(script)
    assert script == (GOLDEN / name).read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_all_ranks_of_one_process_are_one_task() -> None:
    threads = job(strategy="all_reduce", transport="memory", nodes=3)
    assert {"--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=3"} <= set(directives(threads))
    assert "--ntasks=1" in launcher(threads)


def test_time_limit_leaves_room_for_the_timeout() -> None:
    assert "--time=4" in directives(job(timeout_s=61.0))
    assert "--time=1:00:00" in directives(job(SlurmOptions(time="1:00:00")))


def test_pmix_replaces_mpirun() -> None:
    mpi = job(strategy="all_reduce", transport="mpi")
    assert launcher(mpi)[0] == "/shared/venv/bin/mpirun"
    pmix = launcher(replace(mpi, options=SlurmOptions(mpi="pmix")))
    assert (pmix[0], "--mpi=pmix" in pmix) == ("srun", True)


def test_own_options_cannot_be_arguments() -> None:
    options = (each.removeprefix("--").partition("=")[0] for each in directives(job()))
    for name in {*options} - {"time"}:
        with pytest.raises(ValueError, match=name):
            SlurmOptions(arguments=[f"--{name}=1"])


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("1:00:05", 3605),
        ("2-1", 176400),
        ("2-1:30", 178200),
        ("1-0:0:9", 86409),
        ("2-00:00:00", 172800),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
    ],
)
def test_seconds_of_a_time_limit(time: str, seconds: float) -> None:
    assert seconds_of(time) == seconds


def test_warning_comes_early_in_short_jobs() -> None:
    options = SlurmOptions(time="2")
    assert {"--requeue", "--signal=B:USR1@30"} <= set(directives(job(options, checkpoint_epochs=1)))
    assert "--no-requeue" in directives(job(options))
    assert "--no-requeue" in directives(job(SlurmOptions(requeues=0), checkpoint_epochs=1))


@pytest.mark.parametrize(
    ("restarts", "ranks", "code", "requeued"),
    [
        (None, "exit 3", 3, False),
        (0, "touch $SHARDYARD_STOP/saved", 0, True),
        (10, "touch $SHARDYARD_STOP/saved", 0, True),
        (11, "touch $SHARDYARD_STOP/saved", 69, False),
        (0, "touch $SHARDYARD_STOP/preempted; exit 0", 0, True),
        (0, "touch $SHARDYARD_STOP/preempted $SHARDYARD_STOP/finished", 0, False),
    ],
)
def test_stopped_run_is_requeued(
    tmp_path: Path, restarts: int | None, ranks: str, code: int, requeued: bool
) -> None:
    """The part of the script that follows the checks. The ranks are a stub, which has saved or not."""
    made = replace(job(checkpoint_epochs=1), paths=RunPaths(tmp_path))
    script = render(made)
    first = script.index("# The run continues")
    stubs = f"srun() {{ mkdir -p $SHARDYARD_STOP; {ranks}; }}\nexec() {{ exit 0; }}\n"
    stubs += "scontrol() { case $1 in requeue) echo requeued;; *) answer; esac; }\n"
    stubs += "answer() { [ ! -e $SHARDYARD_STOP/preempted ] || echo ' PreemptTime=2026-11-24T01 '; }\n"
    environment = {**os.environ, "SLURM_JOB_ID": "7"}
    if restarts is not None:
        environment["SLURM_RESTART_COUNT"] = str(restarts)
    done = subprocess.run(
        ["bash"], input=stubs + script[first:], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("requeued" in done.stdout) is requeued


@pytest.mark.parametrize("seen", [True, False])
def test_check_of_the_path(tmp_path: Path, seen: bool) -> None:
    """The script ends before Python is started where the file is not there. srun is a stub."""
    made = replace(job(), paths=RunPaths(tmp_path / "a sweep's" / "run"))
    made.paths.live.mkdir(parents=True)
    (made.paths.live / "token").write_text(made.token if seen else "another")
    stubs = 'srun() { while [[ $1 == --* ]]; do shift; done; "$@"; }; scontrol() { echo node7; }\n'
    stubs += "exec() { echo started; }\n"
    done = subprocess.run(
        ["bash"],
        input=stubs + render(made),
        env={
            **os.environ,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURMD_NODENAME": "node7",
            "SLURM_JOB_NODELIST": "node7",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if seen else 66), done.stderr
    assert ("started" in done.stdout) is seen
    assert (f"node7 does not see {tmp_path}" in done.stdout) is not seen
