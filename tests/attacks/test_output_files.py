"""Outputs that a user names and that are no files: a command replaces none, and says so before its work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands import compare, course, partitions
from orchestrator.commands.options import RunOptions
from orchestrator.errors import InputError
from orchestrator.results.store import write_atomic

OTHERS: dict[str, Callable[[Path], object]] = {
    "device": lambda path: path.symlink_to("/dev/full"),
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("elsewhere"),
    "file/": lambda path: path.parent.rmdir() or path.parent.touch(),  # type: ignore[func-returns-value]
}
COMMANDS = [
    ["course", "grade", ".", "--tests", ".", "--runtime", "local", "--csv", "FILE"],
    ["calibrate", "FILE", "--runtime", "local"],
    ["compare", "a", "b", "--out", "FILE"],
    ["partitions", "--out", "DIRECTORY"],
]


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if a command begins to work."""

    def worked(*_: object) -> None:
        raise AssertionError("the work has started")

    monkeypatch.setattr(RunOptions, "execute", worked)
    monkeypatch.setattr(course, "submissions_of", worked)
    monkeypatch.setattr(compare, "compared", worked)
    monkeypatch.setattr(partitions, "preview", worked)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_regular_file_stays(tmp_path: Path, kind: str) -> None:
    for command in COMMANDS:
        file = tmp_path / command[0] / ("partitions.csv" if command[0] == "partitions" else "out.md")
        file.parent.mkdir()
        OTHERS[kind](file)
        place = file.parent if kind == "file/" else file
        before = place.lstat().st_mode, place.lstat().st_ino
        given = {"FILE": str(file), "DIRECTORY": str(file.parent)}
        reason = "cannot be written" if kind == "file/" else "is a "
        refused = CliRunner().invoke(app, [given.get(each, each) for each in command]).exception
        assert isinstance(refused, InputError)
        assert str(refused).startswith(f"{file}: {reason}")
        assert (place.lstat().st_mode, place.lstat().st_ino) == before


def test_a_file_that_cannot_be_written_is_named_instead_of_its_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Read-only") as raised:
        write_atomic(tmp_path / "file", "text")
    assert raised.value.filename == str(tmp_path / "file")


def test_calibrate_refuses_nodes_without_links_before_its_runs(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["calibrate", str(tmp_path / "file"), "--runtime", "virtual"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--runtime virtual: ")
