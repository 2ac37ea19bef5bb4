"""The commands of docs/kubernetes.md that need no cluster run, as does torchrun in docs/launchers.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import PROJECT, environment
from trainer.core.events import EventReader

pytestmark = pytest.mark.nightly


def blocks(page: str, language: str) -> list[str]:
    text = (PROJECT / "docs" / page).read_text()
    return [block for found, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text) if found == language]


def run(folder: Path, *command: str) -> str:
    """Run a command in a directory, with this Python first on the path. Returns its output."""
    inherited = environment()
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, "PATH": path, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_exports_of_the_page_run(tmp_path: Path) -> None:
    sweep, fetch = blocks("kubernetes.md", "yaml")
    (tmp_path / "mine.yml").write_text(sweep)
    (commands,) = blocks("kubernetes.md", "")
    written = {}
    for line in commands.splitlines():
        output = run(tmp_path, sys.executable, *shlex.split(line)[1:])
        written[shlex.split(line)[5 + 1]] = output.count("added: ")
    assert written == {"kubernetes": 4, "kubeflow": 4, "skypilot": 3}  # runs, and what they share
    assert {path.name for path in (tmp_path / "export" / "mine").iterdir()} == {*written}
    for block in blocks("kubernetes.md", "sh"):
        run(tmp_path, "bash", "-n", "-c", block)
    validate = pytest.importorskip("kubernetes_validate", reason="requirements-dev.txt has it").validate
    validate(yaml.safe_load(fetch), "1.37", strict=True)


def test_the_page_s_first_line_says_what_was_not_done() -> None:
    first = (PROJECT / "docs" / "kubernetes.md").read_text().partition("\n")[0]
    assert "validated, not run on a cluster" in first


def test_torchrun_of_the_page_trains(tmp_path: Path) -> None:
    (spec,) = blocks("launchers.md", "json")
    (tmp_path / "spec.json").write_text(spec)
    output = run(tmp_path, "bash", "-e", "-c", blocks("launchers.md", "sh")[0])
    ended = {event.rank for event in EventReader(tmp_path / "out").new() if event.kind == "done"}
    assert ended == {0, 1}, output
