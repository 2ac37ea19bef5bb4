"""Mistakes in grading: points, whose fault an error is, processes that are left, what containers reach."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import threading
from pathlib import Path
from pwd import getpwuid
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.course.assignments import names
from orchestrator.course.checks import Check, Failure
from orchestrator.course.grading import ABSENT, Grade, Grader, Reason
from orchestrator.course.process import SUBMISSION, contained, local
from orchestrator.course.student import Student
from orchestrator.course.submissions import obstacle
from orchestrator.course.table import gradebook, table
from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.docker.sandbox import confined
from orchestrator.sandbox.base import Limits, SandboxError
from orchestrator.sandbox.local import LocalSandbox
from orchestrator.shipped import COURSES
from tests.unit.orchestrator.course.test_course_checks import Scripted

# Grading


def made_check(points: int, function: Any, file: str = "a.py", **fields: Any) -> Check:
    return Check(function, file, points, f"{points} points", "law", "reason", **fields)


PASSES = made_check(1, lambda student: None)


class Graded:
    """Grades a submission with one file, of processes that are ready and say nothing more."""

    def __init__(self, directory: Path) -> None:
        self.opened: list[Scripted] = []
        self.submissions = {"a": directory, "b": directory}
        (directory / "a.py").touch()

    def by(self, *checks: Check) -> Grader:
        def make(_: Path) -> Scripted:
            self.opened.append(Scripted())
            return self.opened[-1]

        return Grader(checks, make)


def test_points_are_those_of_the_checks_that_pass(tmp_path: Path) -> None:
    def fails(student: Student, n: int) -> None:
        if n > 1:
            raise Failure("wrong", "1", "2")

    def is_never_called(student: Student) -> None:
        raise AssertionError

    cases = [{"n": 1}, {"n": 2}, {"n": 3}]
    grader = Graded(tmp_path).by(
        PASSES,
        made_check(2, fails, cases=cases),
        made_check(4, is_never_called, file="b.py"),
        made_check(8, lambda student, n: None, cases=cases),
        made_check(16, lambda student: [][0]),
    )
    found = grader.grade("ana", tmp_path)
    assert (found.points, found.possible, found.error) == (9, 31, None)
    assert [score.points for score in found.scores] == [1, 0, 0, 8, 0]
    smallest = Reason(case="n=2", problem="wrong", expected="1", got="2")
    absent = Reason(problem=ABSENT)
    *failures, unusable = [score.failure for score in found.scores]
    assert failures == [None, smallest, absent, None]
    assert "IndexError" in str(unusable)


def test_a_process_serves_checks_until_one_breaks_it(tmp_path: Path) -> None:
    breaks, graded = made_check(1, lambda student: student.call("f")), Graded(tmp_path)
    assert graded.by(PASSES, PASSES, breaks, PASSES, PASSES).grade("ana", tmp_path).points == 4
    assert [each.closed for each in graded.opened] == [True, True]
    for error, text in ((SandboxError("no engine"), "no engine"), (OSError("full"), "OSError: full")):
        grade = Grader([PASSES, breaks], Mock(side_effect=error)).grade("ana", tmp_path)
        assert grade == Grade(submission="ana", points=0, possible=2, error=text, scores=[])


def test_submissions_are_graded_at_once_and_closed_if_that_is_abandoned(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)  # passes if two submissions are in the check at once
    check, graded = made_check(1, lambda student: both.wait()), Graded(tmp_path)
    assert [each.points for each in graded.by(check).grade_all(graded.submissions, 2)] == [1, 1]
    abandoned = graded.by(PASSES).grade_all(graded.submissions, 1)
    next(abandoned)
    abandoned.close()
    assert all(each.closed for each in graded.opened)


# The table


def made_grade(name: str, *points: int, error: str | None = None) -> Grade:
    about = {"title": "t", "law": "l", "reason": "r", "possible": 2, "seconds": 0.1}
    lost = {"case": "n=2", "problem": "wrong", "expected": "x", "got": "y"}
    scores = [
        {**about, "file": f"task_{at // 2}.py", "points": each, "failure": None if each else lost}
        for at, each in enumerate(points)
    ]
    found = {"submission": name, "points": sum(points), "possible": 8, "error": error, "scores": scores}
    return Grade.model_validate(found)


def test_the_gradebook_has_the_points_of_the_table_and_none_of_what_was_not_graded() -> None:
    grades = [made_grade("ana", 2, 0, 2), made_grade("ben, b", 2, 2, 2), made_grade("carl", error="oh")]
    assert [*csv.reader(io.StringIO(gradebook(grades)))] == [
        ["submission", "task_0.py", "task_1.py", "points", "possible", "feedback"],
        ["ana", "2", "2", "4", "8", "task_0.py: t (0 of 2): with n=2: wrong"],
        ["ben, b", "4", "2", "6", "8", ""],
        ["carl", "", "", "", "8", "not graded: oh"],
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(table(grades))
    rows = [line.split() for line in str(console.file.getvalue()).splitlines()]  # type: ignore[attr-defined]
    assert rows[1] == ["ana", "2/4", "2/2", "4/8"]


# Containers


def test_a_container_has_nothing_but_the_submission(tmp_path: Path) -> None:
    asked = confined(contained(tmp_path, Limits(512, 64, 32)))
    expected = {
        "entrypoint": ["python", "-m", "trainer.course", SUBMISSION],
        "environment": dict.fromkeys([f"{each}_NUM_THREADS" for each in ("OMP", "OPENBLAS", "MKL")], "1"),
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "user": "10001:10001",
        "mem_limit": "512m",
        "memswap_limit": "512m",
        "pids_limit": 64,
        "nano_cpus": 10**9,
        "labels": {LABEL: identity()},
    }
    assert expected.items() <= asked.items()
    assert [*asked["tmpfs"]] == ["/tmp"]
    assert "size=32m" in asked["tmpfs"]["/tmp"]
    (mount,) = asked["mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == (str(tmp_path), SUBMISSION, True)
    assert not {"privileged", "devices", "ports", "volumes", "cap_add"} & asked.keys()


def test_a_local_process_has_the_rights_of_the_stated_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Mock(side_effect=OSError("not started"))
    monkeypatch.setattr(subprocess, "Popen", started)
    me = getpwuid(os.getuid())
    for user, rights in (
        (me.pw_name, {"user": me.pw_name, "group": me.pw_gid, "extra_groups": []}),
        ("", {}),
    ):
        sandbox = LocalSandbox(local(tmp_path, Limits(), user=user))
        with pytest.raises(OSError, match="not started"):
            sandbox.open()
        sandbox.close()
        asked = started.call_args.kwargs
        assert {name: asked[name] for name in ("user", "group", "extra_groups") if name in asked} == rights


def test_files_that_the_containers_user_cannot_read_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o755)
    file = tmp_path / "sub" / "a.py"
    file.touch(mode=0o644)
    (tmp_path / "link").symlink_to(tmp_path / "none")
    tmp_path.chmod(0o755)
    assert obstacle(tmp_path, other_user=True) is None
    file.chmod(0o600)
    assert str(obstacle(tmp_path, other_user=True)).startswith(f"{file}: ")
    assert obstacle(tmp_path, other_user=False) is None
    tmp_path.chmod(0o744)
    found = str(obstacle(tmp_path, other_user=True))
    assert found.startswith(f"{tmp_path}: ")
    assert f"chmod -R o+rX {tmp_path}" in found


# Commands


def test_new_writes_all_assignments_without_solutions(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["course", "new", str(tmp_path / "out")])
    assert done.exit_code == 0
    written = {Path(line).relative_to(tmp_path / "out") for line in done.output.splitlines()}
    assert all((tmp_path / "out" / path).is_file() for path in written)
    for name in names():
        assert {path.name for path in written if path.parts[0] == name} >= {"README.md", "sweep.yml"}
    assert not {"hidden", "solutions", "__pycache__"} & {part for path in written for part in path.parts}


def test_bad_input_is_refused_before_anything_is_written_or_started(tmp_path: Path) -> None:
    (tmp_path / "ana").mkdir()
    (tmp_path / "mine.py").touch()
    grade = ["grade", tmp_path / "ana", "--tests"]
    tests = COURSES / "one_model" / "hidden"
    for arguments, facts in (
        (["new", tmp_path / "out", "--assignment", "one_modle"], ["did you mean 'one_model'", *names()]),
        (["new", tmp_path], [str(tmp_path)]),
        (["grade", tmp_path / "none", "--tests", tests], ["none: no such directory"]),
        ([*grade, tmp_path / "none"], ["--tests"]),
        ([*grade, tests, "--csv", tmp_path], ["--csv"]),
        ([*grade, tests, "--runtime", "dokcer"], ["docker, local"]),
        ([*grade, tests, "--runtime", "local", "--user", "no-such-user"], ["--user no-such-user"]),
        ([*grade, tests, "--gradescope", tmp_path / "mine.py"], ["--gradescope"]),
    ):
        error = CliRunner().invoke(app, ["course", *map(str, arguments)]).exception
        assert isinstance(error, InputError)
        assert all(fact in str(error) for fact in facts)
    assert {path.name for path in tmp_path.iterdir()} == {"ana", "mine.py"}
