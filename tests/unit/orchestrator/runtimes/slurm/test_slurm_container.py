"""Ranks in containers: the command lines. No container engine runs here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm import commands, container
from orchestrator.runtimes.slurm.container import NO_CONTAINER, OTHER_SOURCES, check_of_image, digest_of
from orchestrator.runtimes.slurm.options import Container, SlurmOptions
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.runtimes.slurm.script import Job, environment, launcher, mounts, render
from orchestrator.runtimes.slurm.states import JobState, error_of
from orchestrator.shipped import ROOT
from trainer.spec.run_spec import RunSpec

RESULTS = Path("/shared/results/sweep/run")
APPTAINER = Container(engine="apptainer", image="/shared/trainer.sif")
PYXIS = Container(engine="pyxis", image="registry.site#lab/trainer:1")
EXIT_OF_IMAGE = 5


def job(chosen: Container, data: str = "/shared/data", **fields: Any) -> Job:
    spec = RunSpec.model_validate({"strategy": "ddp", "transport": "gloo", "nodes": 2, **fields})
    options = SlurmOptions(container=chosen)
    return Job(spec, RunPaths(RESULTS), Path(data), options, "name", "owner", "token")


def test_apptainer() -> None:
    argv = list(launcher(job(APPTAINER)))
    start = argv.index("apptainer")
    assert argv[0] == "srun"
    assert "--kill-on-bad-exit=1" in argv[:start]
    assert argv[start : start + 3] == ["apptainer", "exec", "--no-home"]
    assert argv[start + 3] == f"--bind=/shared/data:/shared/data:ro,{RESULTS}:{RESULTS}:rw"
    assert argv[start + 4 :] == ["/shared/trainer.sif", "/opt/venv/bin/python", "-m", "trainer"]


def test_pyxis() -> None:
    argv = list(launcher(job(PYXIS)))
    assert argv[0] == "srun"
    assert argv[-3:] == ["/opt/venv/bin/python", "-m", "trainer"]
    assert {
        "--container-image=registry.site#lab/trainer:1",
        f"--container-mounts=/shared/data:/shared/data:ro,{RESULTS}:{RESULTS}:rw",
        "--no-container-mount-home",
        "--no-container-entrypoint",
    } <= set(argv[:-3])


@pytest.mark.parametrize("chosen", [APPTAINER, PYXIS])
def test_directory_in_another_is_mounted_after_it(chosen: Container) -> None:
    for data, first in ((RESULTS / "data", RESULTS), (RESULTS.parent, RESULTS.parent)):
        binds = next(each for each in launcher(job(chosen, str(data))) if ":ro" in each)
        assert binds.partition("=")[2].startswith(f"{first}:")


def test_users_code_is_mounted_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(APPTAINER)
    assert made.paths.code not in mounts(made)
    monkeypatch.setattr(RunSpec, "has_imports", True)
    assert mounts(made)[made.paths.code] is False


@pytest.mark.parametrize("chosen", [APPTAINER, PYXIS])
def test_variables_are_those_of_the_image(chosen: Container) -> None:
    found = environment(job(chosen))
    assert found["PYTHONPATH"] == "/opt/shardyard"
    outside = environment(replace(job(chosen), options=SlurmOptions()))
    assert {**found, "PYTHONPATH": outside["PYTHONPATH"]} == outside


@pytest.mark.parametrize("chosen", [APPTAINER, PYXIS])
def test_script_checks_the_image_before_it_starts_ranks(chosen: Container) -> None:
    script = render(job(chosen))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.index(f"exit {OTHER_SOURCES}") < script.index("exec srun")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources as an image has them: the requirements are beside the package."""
    trainer = ROOT / "trainer"
    shutil.copytree(trainer, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "trainer" / "requirements.txt").rename(tmp_path / "requirements.txt")
    monkeypatch.setattr(container, "SOURCES", str(tmp_path))
    monkeypatch.setattr(container, "PYTHON", sys.executable)
    return tmp_path


def check(chosen: Container, stubs: str = "") -> subprocess.CompletedProcess[str]:
    """Run the check. srun and apptainer are stubs that only start the command."""
    skip = "while [[ $1 == --* ]]; do shift; done"
    found = f'srun() {{ {skip}; "$@"; }}; apptainer() {{ shift; {skip}; shift; "$@"; }}\n{stubs}\n'
    return subprocess.run(
        ["bash"],
        input=found + "\n".join(check_of_image(chosen)),
        env={**os.environ, "SLURM_JOB_NUM_NODES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("chosen", [APPTAINER, PYXIS])
def test_image_with_the_same_sources(image: Path, chosen: Container) -> None:
    done = check(chosen)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("file", ["trainer/core/clock.py", "requirements.txt"])
def test_image_with_other_sources(image: Path, file: str) -> None:
    with open(image / file, "a") as source:
        source.write("# changed\n")
    done = check(APPTAINER)
    assert done.returncode == OTHER_SOURCES
    found = digest_of(str(image / "trainer"), str(image / "requirements.txt"))
    cause = str(error_of("7", JobState("FAILED", code=done.returncode), done.stdout))
    assert found in cause
    assert container.own_digest() in cause


def test_container_that_does_not_start(image: Path) -> None:
    done = check(APPTAINER, f"apptainer() {{ return {EXIT_OF_IMAGE}; }}")
    assert done.returncode == NO_CONTAINER


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (
            "slurmstepd-yard2: error: execve(): apptainer: No such file or directory\n"
            "srun: error: yard2: task 1: Exited with exit code 2\n",
            "apptainer: No such file",
        ),
        (
            "srun: error: yard1: task 0: Exited with exit code 255\n"
            "FATAL:   could not open image /x.sif: no such file\n",
            "could not open image /x.sif",
        ),
        (
            "srun: unrecognized option '--container-image=/x.sqsh'\n"
            'Try "srun --help" for more information\n',
            "--container-image",
        ),
        ("", "log"),
    ],
)
def test_cause_is_what_the_engine_says(log: str, named: str) -> None:
    assert named in str(error_of("7", JobState("FAILED", code=NO_CONTAINER), log))


def test_transport_mpi_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "try_submission", lambda options: None)
    monkeypatch.setattr(commands, "partitions", list)
    runtime = SlurmRuntime()
    runtime.configure(SlurmOptions(container=PYXIS))
    spec = {"strategy": "all_reduce", "transport": "mpi", "nodes": 2}
    assert "slurm.container" in str(runtime.unsupported_reason(RunSpec.model_validate(spec)))
    assert runtime.unsupported_reason(RunSpec.model_validate({**spec, "transport": "gloo"})) is None


@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_path_that_cannot_be_mounted_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    runtime = SlurmRuntime()
    runtime.configure(SlurmOptions(container=APPTAINER))
    made = job(APPTAINER)
    with pytest.raises(InputError, match=name):
        runtime.plan(made.spec, RunPaths(tmp_path / name / "run"), made.data_dir)


def test_words_of_the_image_are_one_argument() -> None:
    chosen = Container(engine="apptainer", image="docker://x;touch$IFS/y")
    line = render(job(chosen)).splitlines()[-1]
    assert "docker://x;touch$IFS/y" in shlex.split(line)
