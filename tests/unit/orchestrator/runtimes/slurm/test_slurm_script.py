"""Mistakes in scripts of jobs, allocations and containers: options, quotes, requeues, shared directory."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm import allocation_script, container
from orchestrator.runtimes.slurm.allocation_script import AllocationJob, home, is_warm, plan, site
from orchestrator.runtimes.slurm.container import NO_CONTAINER, OTHER_SOURCES, check_of_image
from orchestrator.runtimes.slurm.options import Container, SlurmOptions
from orchestrator.runtimes.slurm.script import (
    Job,
    directives,
    environment,
    job_name,
    launcher,
    mounts,
    render,
)
from orchestrator.runtimes.slurm.states import JobState, error_of
from tests.unit.golden import assert_reviewed
from trainer.core.sources import digest_of
from trainer.node import mpi_rank
from trainer.spec.run_spec import RunSpec

REAL_PYTHON = sys.executable
RUN = RunPaths(Path("/shared/results/my sweep/ddp-100%"))
OWNER, TOKEN, MPIRUN = "shardyard 12 34/56 pid:[78]", "0123abcd", Path("/shared/venv/bin/mpirun")
MPI: dict[str, Any] = {"strategy": "all_reduce", "transport": "mpi"}
THREADS: dict[str, Any] = {"strategy": "all_reduce", "transport": "memory"}
APPTAINER = SlurmOptions(container=Container(engine="apptainer", image="/trainer.sif;$IFS"))
PYXIS = SlurmOptions(container=Container(engine="pyxis", image="lab/trainer:1"))


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "transport": "gloo", "nodes": 2, **fields})


def job(options: SlurmOptions | None = None, paths: RunPaths = RUN, **fields: Any) -> Job:
    data, chosen = Path("/shared/data"), options or SlurmOptions()
    return Job(run(**fields), paths, data, chosen, job_name(paths), OWNER, TOKEN, MPIRUN)


RUNS = [run(), run(**MPI, nodes=3, processes_per_node=2, timeout_s=61.0), run(**THREADS, nodes=5)]


def allocation(**options: Any) -> AllocationJob:
    made, minutes = SlurmOptions(allocation="sweep", **options), allocation_script.time_limit(RUNS, None)
    return AllocationJob(RUNS, RUN.allocation, made, OWNER, TOKEN, minutes)


@pytest.fixture(autouse=True)
def shared_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/shared/venv/bin/python")
    for name in ("script", "allocation_script"):
        place = f"orchestrator.runtimes.slurm.{name}.python_path"
        monkeypatch.setattr(place, lambda: "/shared/shardyard")
    monkeypatch.setattr(mpi_rank, "__file__", "/shared/shardyard/trainer/node/mpi_rank.py")


SCRIPTS: dict[str, Callable[[], str]] = {
    "ddp": lambda: render(job(SlurmOptions(partition="gpu,long", gres="gpu:1", arguments=["--qos=high"]))),
    "checkpoints": lambda: render(job(checkpoint_epochs=1, timeout_s=3600.0)),
    "mpi": lambda: render(job(**MPI, processes_per_node=2)),
    "allocation": lambda: allocation_script.render(allocation(partition="long", arguments=["--qos=high"])),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_golden_script(name: str) -> None:
    script = SCRIPTS[name]()
    assert_reviewed(f"slurm_{name}.sh", script)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


PYTHON, OF_IMAGE = "/shared/venv/bin/python -m trainer", "/opt/venv/bin/python -m trainer"
MOUNTS = f"'/shared/data:/shared/data:ro,{RUN.directory}:{RUN.directory}:rw'"
SRUN = "srun --ntasks={} --distribution=block --mpi={} --kill-on-bad-exit=1"
TWO, OF_PYXIS = SRUN.format(2, "none"), f"--container-image=lab/trainer:1 --container-mounts={MOUNTS}"


@pytest.mark.parametrize(
    ("made", "command"),
    [
        (job(**THREADS, nodes=3), f"{SRUN.format(1, 'none')} {PYTHON}"),
        (job(SlurmOptions(mpi="pmix"), **MPI, nodes=3), f"{SRUN.format(3, 'pmix')} {PYTHON}"),
        (job(SlurmOptions(mpi="pmix"), nodes=3), f"{SRUN.format(3, 'none')} {PYTHON}"),
        (replace(job(**MPI), mpirun=None), f"mpirun -n 2 --map-by ppr:1:node --bind-to none {PYTHON}"),
        (job(APPTAINER), f"{TWO} apptainer exec --no-home --bind={MOUNTS} '/trainer.sif;$IFS' {OF_IMAGE}"),
        (job(PYXIS), f"{TWO} {OF_PYXIS} --no-container-mount-home --no-container-entrypoint {OF_IMAGE}"),
    ],
    ids=["threads", "pmix", "pmix without mpi", "mpirun of the path", "apptainer", "pyxis"],
)
def test_command_of_the_ranks(made: Job, command: str) -> None:
    assert list(launcher(made)) == shlex.split(command)
    assert shlex.split(render(made).splitlines()[-1]) == ["exec", *launcher(made)]  # quoted


def test_options_of_a_job() -> None:
    threads = {"--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=3"}
    assert threads <= {*directives(job(**THREADS, nodes=3))}
    assert "--time=4" in directives(job(timeout_s=61.0))
    assert {"--time=1:00:00", "--no-requeue"} <= {*directives(job(SlurmOptions(time="1:00:00")))}
    short = directives(job(SlurmOptions(time="2"), checkpoint_epochs=1))
    assert {"--requeue", "--signal=B:USR1@30"} <= {*short}
    assert "--no-requeue" in directives(job(SlurmOptions(requeues=0), checkpoint_epochs=1))
    for option in {*directives(job())} - {"--time=12"}:  # which users cannot set themselves
        with pytest.raises(ValueError, match=option.partition("=")[0]):
            SlurmOptions(arguments=[option])


def test_allocation_fits_every_run() -> None:
    found = plan(allocation())
    assert found.count == 3
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=6", "--relative={number}"} <= {*found.agent}
    assert "--time=1:00:00" in allocation_script.directives(allocation(time="1:00:00"))
    runs = [run(timeout_s=900.0), run(timeout_s=960.5)]
    assert [allocation_script.time_limit(runs, allowed) for allowed in (None, 60, 10)] == [34, 34, 10]
    warm = [(MPI, None), (MPI, "mpirun"), (MPI, "pmix"), ({}, "pmix")]
    assert [is_warm(run(**each), SlurmOptions(mpi=mpi)) for each, mpi in warm] == [True, True, False, True]


@pytest.mark.parametrize(("mpi", "launcher", "named"), [(None, "mpirun", None), ("pmix", "srun", "pmix")])
def test_ranks_of_mpi_become_what_the_agent_of_their_node_says(
    mpi: str | None, launcher: str, named: str | None
) -> None:
    found = site(job(SlurmOptions(mpi=mpi), **MPI), TOKEN)
    assert Path(found.mpirun[0]).name == launcher
    assert found.variables.get("SHARDYARD_LAUNCHER") == named
    shim = ["/shared/venv/bin/python", "-S", "-E", mpi_rank.__file__]
    assert found.mpirun[-8:] == ["bash", "-c", f'exec "$@" {home(TOKEN)}/rank.json', "bash", *shim]
    assert not site(job(), TOKEN).mpirun


def test_containers_have_the_code_of_users_and_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(APPTAINER)
    outside = environment(replace(made, options=SlurmOptions()))
    assert environment(made) == {**outside, "PYTHONPATH": "/opt/shardyard"}
    for data, first in ((RUN.directory / "data", RUN.directory), (RUN.directory.parent,) * 2):
        binds = next(each for each in launcher(replace(made, data_dir=data)) if ":ro" in each)
        assert binds.startswith(f"--bind={first}:")  # what is inside another one is mounted after it
    assert made.paths.code not in mounts(made)
    monkeypatch.setattr(RunSpec, "has_imports", True)
    assert mounts(made)[made.paths.code] is False


def test_image_must_have_our_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "image"
    for trainer, requirements in ((tmp_path / "trainer",) * 2, (image / "trainer", image)):
        (trainer / "core").mkdir(parents=True)
        (trainer / "core" / "clock.py").write_text("now = 1\n")
        (requirements / "requirements.txt").write_text("torch\n")
    expected = digest_of(str(tmp_path / "trainer"), str(tmp_path / "trainer" / "requirements.txt"))
    monkeypatch.setattr(container, "own_digest", lambda: expected)
    monkeypatch.setattr(container, "SOURCES", str(image))
    _, step, ending = check_of_image(Container(engine="apptainer", image="/x.sif"))
    assert (
        ending
        == f"case $? in 0) ;; {OTHER_SOURCES}) exit {OTHER_SOURCES} ;; *) exit {NO_CONTAINER} ;; esac"
    )
    check = [REAL_PYTHON, "-S", "-c", shlex.split(step)[-1]]
    assert subprocess.run(check, capture_output=True, check=True).stdout == b""
    for changed in ("trainer/core/clock.py", "requirements.txt"):
        (image / changed).write_text(f"changed = {changed!r}\n")
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == OTHER_SOURCES
        found = digest_of(str(image / "trainer"), str(image / "requirements.txt"))
        cause = str(error_of("7", JobState("FAILED", code=OTHER_SOURCES), done.stdout))
        assert cause.startswith(f"image has sources {found} and not {expected};")
