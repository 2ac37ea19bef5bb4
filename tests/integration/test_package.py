"""The wheel: it provides the command `shardyard`, which works outside a checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.runtimes.docker.image import source_digest
from orchestrator.shipped import sweep_names
from tests.support.command_line import PROJECT, Done, run
from tests.support.runs import write_sweep

pytestmark = pytest.mark.nightly

Shardyard = Callable[..., Done]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel installed; the dependencies are those of the tests."""
    directory = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = ["wheel", str(PROJECT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory)]
    subprocess.run([*pip, *wheel], check=True, timeout=120)
    (built,) = directory.glob("shardyard-*.whl")

    venv.create(directory / "env", with_pip=False)
    python = directory / "env" / "bin" / "python"
    (site,) = (directory / "env" / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(built)], check=True)
    return python


@pytest.fixture
def shardyard(python: Path, tmp_path: Path) -> Shardyard:
    """Run the installed command in a directory outside of any checkout."""

    command = python.parent / "shardyard"
    return lambda *arguments, **variables: run(
        [command, *arguments], tmp_path, 240, PYTHONPATH="", **variables
    )


def test_the_command_prints_its_version_help_and_completion(shardyard: Shardyard) -> None:
    assert shardyard("--version").stdout.split() == ["shardyard", __version__]
    assert shardyard("-h").returncode == 0
    completion = shardyard(_SHARDYARD_COMPLETE="source_bash")
    assert completion.returncode == 0
    assert "complete -o default -F" in completion.stdout


def test_shipped_sweeps_are_found_by_name(shardyard: Shardyard) -> None:
    planned = shardyard("sweep", "quickstart", "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    unknown = shardyard("sweep", "quickstrat", "--dry-run")
    assert unknown.returncode == 2
    assert all(name in unknown.stderr for name in ["quickstrat", *sweep_names()])
    assert shardyard("lab", "hogwild", "--dry-run").returncode == 0


def test_assignments_are_written_and_their_tests_run(shardyard: Shardyard) -> None:
    assert shardyard("course", "new", "out", "--assignment", "one_model", "--solutions").returncode == 0
    done = shardyard("course", "test", "out/solutions/reference", "--tests", "out/tests")
    assert done.returncode == 0, done.stderr
    assert "5/5" in done.stdout


def test_a_sweep_runs_and_writes_its_report(shardyard: Shardyard, tmp_path: Path) -> None:
    run = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1}
    dataset = {"name": "synthetic", "samples": 64, "test_samples": 16}
    write_sweep(tmp_path / "mine.yml", {**run, "dataset": dataset, "model": {"name": "mlp", "hidden": [8]}})
    done = shardyard("sweep", "mine.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results" / "mine" / "report.html").exists()


def test_the_trainer_image_is_built_from_the_same_sources(python: Path, tmp_path: Path) -> None:
    code = "from orchestrator.runtimes.docker.image import source_digest; print(source_digest())"
    done = run([python, "-c", code], tmp_path, PYTHONPATH="")
    assert done.stdout.strip() == source_digest()


def test_without_an_environment_one_line_names_the_missing_package() -> None:
    # -S leaves out site-packages, as a Python in which nothing is installed.
    done = run([sys.executable, "-S", "-m", "orchestrator"], PROJECT)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "'typer'" in done.stderr
