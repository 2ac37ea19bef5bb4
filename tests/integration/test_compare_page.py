"""The page docs/comparing.md: its sweep, its commands, and what they write."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT, run_cli

pytestmark = pytest.mark.nightly

PAGE = (PROJECT / "docs" / "comparing.md").read_text()
BLOCKS = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", PAGE)


def commands() -> list[list[str]]:
    """The page's commands without `make`: `sweep`, `compare` and their arguments."""
    lines = [line for language, block in BLOCKS if not language for line in block.splitlines()]
    found = [re.fullmatch(r'make (\w+) ARGS="(.*)"', line) for line in lines]
    return [[each[1], *shlex.split(each[2])] for each in found if each]


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (sweep,) = (block for language, block in BLOCKS if language == "yaml")
    (tmp_path / "small.yml").write_text(sweep)
    outputs: dict[str, str] = {}
    for command in commands():
        done = run_cli(*command, directory=tmp_path, timeout_s=200)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs[" ".join(command)] = done.stdout
    assert [command[0] for command in commands()] == ["sweep", "sweep", "compare", "compare"]
    *_, printed, _ = outputs.values()
    assert "serial" in printed
    assert "local_sgd" in printed
    assert printed.count("→") >= 4  # time and accuracy of each configuration
    assert "<table" in (tmp_path / "changes.html").read_text()
    assert (tmp_path / "changes.md").read_text().startswith("# ")
