"""Mistakes in command lines of README.md and docs/: each runs as printed, or says what tries it instead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import filterfalse
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT, environment
from tests.support.pages import FENCE, write_files
from tests.support.processes import private_network_missing

pytestmark = pytest.mark.nightly

PAGES = sorted([PROJECT / "README.md", *PROJECT.glob("docs/**/*.md")])
OURS = re.compile(r"make |(\S*/)?python -m orchestrator |shardyard (?!--)")
# Commands that are not run here, and what tries them, or the nearest that it does.
ELSEWHERE = {
    # They need an engine or Slurm, or they install packages.
    r"make engine\b": "tests/unit/project/test_engine_helper.py",
    r"make image\b": "tests/unit/orchestrator/runtimes/docker/test_image.py",
    r"make slurm-cluster\b": "tests/unit/project/test_slurm_helper.py",
    r".*--runtime docker": "tests/smoke/test_sweep_in_containers.py",
    r".*--runtime slurm|.*SLURM_CONF|sinfo": "tests/integration/test_slurm_runtime.py",
    r"shardyard course grade ": "tests/attacks/test_course.py",
    r"shardyard check \./mine\.py$": "tests/integration/test_check_command.py",
    r"export SHARDYARD_|torchrun |mpirun |srun ": "tests/integration/test_launchers_start.py",
    # They need a cluster or a registry. Tests check the files that these programs read.
    r"docker (tag|push|save) |enroot |helm |kind |kubectl ": (
        "tests/unit/orchestrator/export/test_export_sweeps.py"
    ),
    # They serve a page until they are interrupted.
    r"shardyard watch |.*--watch": "tests/browser/test_watch_page.py",
    # They train or measure for minutes. Tests run shorter ones, and load those of the pages.
    r"shardyard model wide_resnet ": "tests/unit/orchestrator/commands/test_model_command.py",
    r"shardyard lab (?!.*--dry-run)": "tests/unit/project/test_docs.py",
    r"make sweep$|shardyard sweep( [a-z_]+)?( --nodes .*| --repeat .*)?$": (
        "tests/unit/orchestrator/sweeps/test_sweep.py"
    ),
    r"shardyard sweep mine.yml": "tests/unit/project/test_docs.py",
    r"shardyard run .*--repeat": "tests/unit/orchestrator/commands/test_run_command.py",
    r"shardyard (predict|calibrate) ": "tests/integration/test_predict.py",
    r"shardyard plan ": "tests/integration/test_pages.py",
    r"make mutants ": "tests/unit/project/test_docs.py",
    # They read the results of such runs.
    r"shardyard replay ": "tests/unit/orchestrator/replay/test_replay_run.py",
    # They need a downloaded dataset.
    r".*partitions --dataset mnist ": "tests/unit/orchestrator/commands/test_partitions.py",
}
# Pages whose own tests run all their commands and look at what they write.
OWN_TESTS = {
    "docs/comparing.md": "tests/integration/test_pages.py",
    "docs/export.md": "tests/integration/test_export_formats.py",
    "docs/kubernetes.md": "tests/integration/test_pages.py",
    "docs/teaching.md": "tests/integration/test_course.py",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def commands(page: Path) -> list[str]:
    """Its command lines: all of a shell's block, those after `$` of a console's, ours of others."""
    found = []
    for language, text in FENCE.findall(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines():
            command = " ".join(line.partition(" #")[0].split())
            if language == "console":
                found += [command.removeprefix("$ ")] if command.startswith("$ ") else []
            elif command and (language in ("sh", "bash") or (not language and OURS.match(command))):
                found.append(command)
    return found


def elsewhere(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in ELSEWHERE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the repository's folder, whose virtual environment has the packages of this one."""
    copy = tmp_path / "shardyard"

    def ignored(directory: str, names: list[str]) -> set[str]:
        local = {"data", "results", "tests"} if Path(directory) == PROJECT else set()
        return {name for name in names if name.startswith(".") or name in local}

    shutil.copytree(PROJECT, copy, ignore=ignored)
    venv = copy / ".venv"
    venv.mkdir()
    for each in Path(sys.prefix).iterdir():
        if not each.name.startswith("ready"):
            (venv / each.name).symlink_to(each)
    (venv / "ready").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "shardyard").write_text('#!/bin/sh\nexec python -m orchestrator "$@"\n')
    (programs / "shardyard").chmod(0o755)
    return copy


PAGES_WITH_COMMANDS = [page for page in PAGES if any(not elsewhere(each) for each in commands(page))]
RUN_HERE = [page for page in PAGES_WITH_COMMANDS if name_of(page) not in OWN_TESTS]


@pytest.mark.skipif(private_network_missing() is not None, reason="local nodes share the network here")
@pytest.mark.timeout(1800)  # for a page
@pytest.mark.parametrize("page", RUN_HERE, ids=name_of)
def test_commands_run_as_printed(page: Path, folder: Path) -> None:
    write_files(page, folder)
    outer = {"ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"}  # of a make around this test
    path = f"{folder.parent / 'programs'}:{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    own = {key: value for key, value in environment(PATH=path).items() if key not in outer}
    for command in filterfalse(elsewhere, commands(page)):
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=own, capture_output=True, text=True, timeout=900
        )
        shown = f"{command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, shown
        assert "Traceback" not in shown


def test_commands_that_are_not_run_here_exist_and_are_covered() -> None:
    shown = {command for page in PAGES for command in commands(page)}
    for pattern, test in ELSEWHERE.items():
        assert any(re.match(pattern, command) for command in shown), pattern
        assert (PROJECT / test).is_file(), test
    for page, test in OWN_TESTS.items():
        assert PROJECT / page in PAGES_WITH_COMMANDS, page
        assert (PROJECT / test).is_file(), test
    run = {each for page in RUN_HERE for each in commands(page) if not elsewhere(each)}
    assert {"shardyard labs", "shardyard check ./topics.py"} <= run
