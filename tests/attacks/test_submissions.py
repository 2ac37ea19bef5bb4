"""Attacks of graded submissions on the grader, without containers: rows, limits and the terminal."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.course import grade
from orchestrator.commands.options import GradeOptions
from orchestrator.commands.sweep import text_console
from orchestrator.course import grading as module
from orchestrator.course import submissions
from orchestrator.course.checks import Check, load_checks
from orchestrator.course.grading import Grade, Grader
from orchestrator.course.student import Student
from orchestrator.course.submissions import obstacle, submissions_of
from orchestrator.errors import InputError
from orchestrator.sandbox.base import Sandbox
from tests.attacks.conftest import Scripted
from trainer.core.frames import frame

NAMES = ["es\x1b[2Jc", "a\n[3/3] x: ok", r"a\n[3/3] x: ok", "tab\t", "\u202e", os.fsdecode(b"bad \xff")]


def passes(student: Student) -> None: ...


def calls(student: Student) -> None:
    student.call("answer", lambda values: None)


def made(directory: Path, name: str) -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "answer.py").touch()
    return directory / name


def graded(
    *paths: Path,
    checks: tuple[Callable[[Student], Any], ...] = (passes,),
    sent: bytes = b"",
    make: Callable[[Path], Sandbox] | None = None,
    seconds: float = 5.0,
) -> dict[str, Grade]:
    """The grades by name. sent: what the process of a submission sends, again and again."""
    sandbox = make or (lambda path: Scripted(sent, endless=bool(sent)))
    each = [Check(check, "answer.py", 1, "title", "law", "reason", seconds=seconds) for check in checks]
    grader = Grader(each, sandbox, lambda path: obstacle(path, other_user=False))
    return {found.submission: found for found in grader.grade_all(submissions_of(paths), 2)}


def test_names_are_different_lines_on_terminal_in_json_and_in_the_gradebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [made(tmp_path / "all", name) for name in NAMES]
    assert [*submissions_of([*paths, paths[0]]).values()] == paths
    assert all(name.isprintable() for name in submissions_of(paths))
    tests = tmp_path / "checks.py"
    forges = "raise Failure('p\\n[3/3] x: ok\\x1b[2J', 'e\\n[3/3] x: ok', 'g\\r[3/3] x: ok')"
    check = "@check('answer.py', points=1, title='t', law='l', reason='r')"
    tests.write_text(f"from shardyard.course import Failure, check\n{check}\ndef f(student): {forges}\n")
    console, book = text_console(io.StringIO()), tmp_path / "grades.csv"
    console.width = 400  # no line is wrapped
    for as_json in (False, True):
        assert (
            grade(
                [*paths[:2], *paths[4:]],
                [tests],
                GradeOptions("local", 2, as_json=as_json, csv_file=book),
                console,
            )
            == 0
        )
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue() + capsys.readouterr().out + book.read_text()
    assert not {"\x1b", "\r", "\u202e"} & {*printed}
    assert not any(line.lstrip().startswith("[3/3]") for line in printed.splitlines())


def test_links_are_rows_of_their_own_and_are_not_followed(tmp_path: Path) -> None:
    right = made(tmp_path, "right")
    (tmp_path / "eve").symlink_to("right")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("borrowed", "pipe"):
        (made(tmp_path, name) / "answer.py").unlink()
    (tmp_path / "borrowed" / "answer.py").symlink_to(right / "answer.py")
    os.mkfifo(tmp_path / "pipe" / "answer.py")
    (tmp_path / "file").touch()
    found = graded(*tmp_path.iterdir())
    assert {name for name, each in found.items() if each.error} == {"eve", "nowhere", "file"}
    assert {name for name, each in found.items() if each.points} == {"right"}


@pytest.fixture
def eve(tmp_path: Path) -> Iterator[Path]:
    path = made(tmp_path, "eve")
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("name", ["d" * 200, "d"], ids=["long", "short"])
def test_nested_directories_are_named(name: str, eve: Path) -> None:
    at = os.open(eve, os.O_RDONLY)
    for _ in range(600):  # also with a path that is too long for one call
        os.mkdir(name, dir_fd=at)
        above, at = at, os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(above)
    os.close(at)
    error = str(graded(eve)["eve"].error)
    assert ("too long" if len(name) > 1 else "nested too deeply") in error
    assert len(error) < 1000


def test_files_without_number_are_not_all_looked_at(eve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MAX_ENTRIES", 20)
    for number in range(30):
        (eve / str(number)).touch()
    assert "20" in str(graded(eve)["eve"].error)


@pytest.mark.parametrize("values", [b"[]", b"{}", b"1", b'""'])
def test_a_frame_of_many_values_is_not_read(values: bytes, eve: Path) -> None:
    body = b'{"call":0,"result":[' + b",".join([values] * 1_000_000) + b"]}"
    found = graded(eve, checks=(calls,), sent=len(body).to_bytes(4, "big") + body)["eve"]
    assert "values" in str(found.scores[0].failure)


def test_a_check_ends_in_time_whatever_it_gets(eve: Path) -> None:
    """Messages that are valid, come at once and never end."""
    lists: list[list[int]] = [[]] * 100_000
    ask = frame({"call": 0, "ask": 1, "function": 0, "arguments": [lists], "named": {"dict": []}})
    began = time.monotonic()
    found = graded(eve, checks=(calls, calls), sent=ask, seconds=0.5)
    assert time.monotonic() - began < 8
    assert found["eve"].points == 0


def test_all_checks_together_have_a_limit(eve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_S", 0.0)
    checks = [lambda student: time.sleep(0.35)] * 2
    found = graded(eve, checks=(*checks, passes), seconds=0.2)["eve"]
    assert [score.points for score in found.scores] == [1, 1, 0]
    assert "0.6 s" in str(found.scores[2].failure)


def test_an_error_in_a_check_fails_the_check(eve: Path) -> None:
    def exits(student: Student) -> None:
        raise SystemExit(0)

    assert [score.points for score in graded(eve, checks=(exits, passes))["eve"].scores] == [0, 1]


def test_an_unforeseen_error_is_that_of_one_submission(eve: Path, tmp_path: Path) -> None:
    def make(path: Path) -> Sandbox:
        if path.name == "eve":
            raise RuntimeError("odd\n[3/3] x: ok")
        return Scripted()

    found = graded(eve, made(tmp_path, "right"), make=make)
    assert found["right"].points == 1
    assert "RuntimeError" in str(found["eve"].error)
    assert str(found["eve"].error).isprintable()


@pytest.mark.parametrize("statement", ["raise SystemExit(0)", "exit()", "raise BaseException('x')"])
def test_a_tests_file_that_ends_is_an_error_that_names_it(statement: str, tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(f"\n{statement}\n")
    with pytest.raises(InputError, match=r"checks\.py:2: "):
        load_checks([tmp_path / "checks.py"])
