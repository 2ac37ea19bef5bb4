"""The script of a job. RENEW_GOLDEN=1 writes the golden ones again."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.script import Job, directives, job_name, launcher, render
from orchestrator.sweeps.slurm import SlurmOptions
from trainer.spec.run_spec import RunSpec

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
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
