"""Attacks of graded submissions on the grader itself, which need no container.

The promise: each submission has its own row and its own limits, whatever it does, and nothing of it
controls the terminal.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.course import grade
from orchestrator.commands.sweep import text_console
from orchestrator.course import grading as module
from orchestrator.course import submissions
from orchestrator.course.checks import Check, load_checks, shown
from orchestrator.course.grading import Grade, Grader
from orchestrator.course.local import local_sandbox
from orchestrator.course.student import Student
from orchestrator.course.submissions import obstacle, submissions_of
from orchestrator.errors import InputError
from orchestrator.sandbox.base import Limits, Sandbox
from tests.support.hostile_submissions import RIGHT
from trainer.core.frames import frame

NAMES = ["es\x1b[2Jc", "a\n[3/3] x: ok", r"a\n[3/3] x: ok", "tab\t", "\u202e", os.fsdecode(b"bad \xff")]


def made(directory: Path, name: str) -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "answer.py").write_text(RIGHT)
    return directory / name


def passes(number: int = 1, seconds: float = 5.0, check: Any = None) -> list[Check]:
    calls = check or (lambda student: student.call("answer", [1.0]))
    return [
        Check(calls, "answer.py", 1, f"check {each}", "law", "reason", seconds=seconds)
        for each in range(number)
    ]


def graded(paths: Sequence[Path], checks: Sequence[Check], make: Any = None) -> dict[str, Grade]:
    grader = Grader(
        checks,
        make or (lambda path: local_sandbox(path, Limits())),
        lambda path: obstacle(path, other_user=False),
    )
    return {each.submission: each for each in grader.grade_all(submissions_of(paths), 2)}


class Scripted(Sandbox):
    """A process that is ready and then sends these messages, again and again the last one."""

    def __init__(self, *messages: bytes) -> None:
        super().__init__()
        self._frames = iter([frame({"ready": True}), *messages])
        self._last = messages[-1]
        self._data = b""
        self.sent = 0

    def open(self) -> None: ...

    def read(self, count: int, timeout_s: float) -> bytes:
        self._data = self._data or next(self._frames, self._last)
        data, self._data = self._data[:count], self._data[count:]
        self.sent += len(data)
        return data

    def write(self, data: bytes, timeout_s: float) -> None: ...

    def ending(self) -> str:
        return "ended"

    def close(self) -> None: ...


# Names and rows


def test_each_directory_has_a_name_of_its_own_that_is_one_printable_line(tmp_path: Path) -> None:
    paths = [made(tmp_path, name) for name in NAMES]
    found = submissions_of([*paths, paths[0]])
    assert [*found.values()] == paths
    assert all(name.isprintable() for name in found)


def test_names_reach_terminal_json_and_gradebook_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [made(tmp_path / "all", name) for name in NAMES]
    tests = tmp_path / "checks.py"
    tests.write_text(
        "from shardyard.course import Failure, check\n\n\n"
        "@check('answer.py', points=1, title='t', law='l', reason='r')\n"
        "def f(student):\n"
        "    raise Failure('p\\n[3/3] x: ok\\x1b[2J', 'e\\n[3/3] x: ok', 'g\\r[3/3] x: ok')\n"
    )
    console, book = text_console(io.StringIO()), tmp_path / "grades.csv"
    console.width = 400  # no line is wrapped
    for as_json in (False, True):
        assert grade(paths, [tests], "local", 2, Limits(), as_json, console, csv_file=book) == 0
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue() + capsys.readouterr().out + book.read_text()
    assert not {"\x1b", "\r", "\u202e"} & {*printed}
    assert not any(line.lstrip().startswith("[3/3]") for line in printed.splitlines())


def test_links_are_rows_of_their_own_and_are_not_followed(tmp_path: Path) -> None:
    right = made(tmp_path, "right")
    (tmp_path / "eve").symlink_to("right")
    (tmp_path / "nowhere").symlink_to("gone")
    borrowed = made(tmp_path, "borrowed")
    (borrowed / "answer.py").unlink()
    (borrowed / "answer.py").symlink_to(right / "answer.py")
    pipe = made(tmp_path, "pipe")
    (pipe / "answer.py").unlink()
    os.mkfifo(pipe / "answer.py")
    (tmp_path / "file").touch()
    found = graded(sorted(path for path in tmp_path.iterdir()), passes())
    assert {name: (each.points, each.error is None) for name, each in found.items()} == {
        "right": (1, True),
        "borrowed": (0, True),
        "pipe": (0, True),
        "eve": (0, False),
        "nowhere": (0, False),
        "file": (0, False),
    }


# Files


def nested(directory: Path, name: str, levels: int) -> None:
    """Directories in each other, with paths of any length."""
    at = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    path = made(tmp_path, "deep")
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(("name", "levels"), [("d" * 200, 600), ("d", 600)], ids=["long", "short"])
def test_nested_directories_stop_no_other_submission(
    name: str, levels: int, deep: Path, tmp_path: Path
) -> None:
    nested(deep, name, levels)
    found = graded([deep, made(tmp_path, "right")], passes())
    assert found["right"].points == 1
    error = str(found["deep"].error)
    assert "nested too deeply" in error or "too long" in error
    assert len(error) < 1000


def test_files_without_number_are_not_all_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MAX_ENTRIES", 20)
    many = made(tmp_path, "many")
    for number in range(30):
        (many / str(number)).touch()
    found = graded([many, made(tmp_path, "right")], passes())
    assert "20" in str(found["many"].error)
    assert found["right"].points == 1


# Messages and time


@pytest.mark.parametrize("values", [b"[]", b"{}", b"1", b'""'])
def test_a_frame_of_many_values_is_not_read(values: bytes, tmp_path: Path) -> None:
    body = b'{"call":0,"result":[' + b",".join([values] * 1_000_000) + b"]}"
    flood = len(body).to_bytes(4, "big") + body
    grade = graded([made(tmp_path, "eve")], passes(5), lambda _: Scripted(flood))["eve"]
    assert grade.points == 0
    assert all("values" in score.failure.problem for score in grade.scores if score.failure)


def test_a_check_ends_in_time_whatever_it_gets(tmp_path: Path) -> None:
    """Messages that are valid, come at once and never end."""
    lists = [[]] * 100_000  # type: ignore[var-annotated]
    ask = frame({"call": 0, "ask": 1, "function": 0, "arguments": [lists], "named": {"dict": []}})

    def answers(student: Student) -> None:
        student.call("answer", lambda values: None)

    began = time.monotonic()
    found = graded([made(tmp_path, "eve")], passes(2, seconds=1.0, check=answers), lambda _: Scripted(ask))
    assert time.monotonic() - began < 10
    assert found["eve"].points == 0


def test_all_checks_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_S", 0.0)
    checks = [*passes(2, 0.2, lambda student: time.sleep(0.3)), *passes(1, 0.1)]
    grade = graded([made(tmp_path, "eve")], checks, lambda _: Scripted(frame({})))["eve"]
    assert [score.points for score in grade.scores] == [1, 1, 0]
    assert grade.scores[2].failure
    assert "0.5 s" in grade.scores[2].failure.problem


def test_a_long_value_is_shown_shortened() -> None:
    assert len(shown("x " * 10**7)) < 200


# Tests and surprises


@pytest.mark.parametrize("error", [SystemExit(0), KeyError("x"), BaseException("x")])
def test_an_error_in_a_check_fails_the_check(error: BaseException, tmp_path: Path) -> None:
    def raises(student: Student) -> None:
        raise error

    grade = graded([made(tmp_path, "a")], [*passes(1, check=raises), *passes()])["a"]
    assert [score.points for score in grade.scores] == [0, 1]


def test_an_unforeseen_error_is_that_of_one_submission(tmp_path: Path) -> None:
    def makes(path: Path) -> Sandbox:
        if path.name == "eve":
            raise RuntimeError("odd\n[3/3] x: ok")
        return local_sandbox(path, Limits())

    found = graded([made(tmp_path, "eve"), made(tmp_path, "right")], passes(), makes)
    assert found["right"].points == 1
    assert "RuntimeError" in str(found["eve"].error)
    assert str(found["eve"].error).isprintable()


@pytest.mark.parametrize("statement", ["raise SystemExit(0)", "exit()", "raise BaseException('x')"])
def test_a_tests_file_that_ends_is_an_error_that_names_it(statement: str, tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(f"\n{statement}\n")
    with pytest.raises(InputError, match=r"checks\.py, line 2: "):
        load_checks([tmp_path / "checks.py"])
