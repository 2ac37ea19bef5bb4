"""Grades, tables and the commands of `course`, without starting any process."""

from __future__ import annotations

import csv
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.course.assignments import KITS, names
from orchestrator.course.checks import Check, Failure
from orchestrator.course.containers import SUBMISSION
from orchestrator.course.grading import ABSENT, Grade, Grader, Reason, Score
from orchestrator.course.student import Student
from orchestrator.course.submissions import obstacle, submissions_of
from orchestrator.course.table import gradebook, reasons, table
from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.docker.sandbox import confined
from orchestrator.sandbox.base import Limits, Sandbox, SandboxError
from trainer.core.frames import frame

# Grading


class Idle(Sandbox):
    """A process that is ready, and says nothing more. `opened` lists all."""

    def __init__(self, opened: list[Idle], broken: str = "") -> None:
        self._opened, self._broken = opened, broken
        self._data = frame({"ready": True})
        self.closed = False

    def open(self) -> None:
        if self._broken:
            raise SandboxError(self._broken)
        self._opened.append(self)

    def read(self, count: int, timeout_s: float) -> bytes:
        data, self._data = self._data[:count], self._data[count:]
        return data

    def write(self, data: bytes, timeout_s: float) -> None:
        pass

    def ending(self) -> str:
        return "ended"

    def close(self) -> None:
        self.closed = True


def made_check(points: int, function: Any, file: str = "a.py", **fields: Any) -> Check:
    return Check(function, file, points, f"{points} points", "law", "reason", **fields)


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    (tmp_path / "ana").mkdir()
    (tmp_path / "ana" / "a.py").touch()
    return tmp_path / "ana"


def grade(submission: Path, *checks: Check, opened: list[Idle] | None = None) -> Grade:
    made: list[Idle] = [] if opened is None else opened
    return Grader(checks, lambda _: Idle(made)).grade("ana", submission)


def test_points_are_those_of_the_checks_that_pass(submission: Path) -> None:
    def fails(student: Student, n: int) -> None:
        if n > 1:
            raise Failure("wrong", "1", "2")

    def is_never_called(student: Student) -> None:
        raise AssertionError

    cases = [{"n": 1}, {"n": 2}, {"n": 3}]
    found = grade(
        submission,
        made_check(1, lambda student: None),
        made_check(2, fails, cases=cases),
        made_check(4, is_never_called, file="b.py"),
        made_check(8, lambda student, n: None, cases=cases),
    )
    assert (found.points, found.possible, found.error) == (9, 15, None)
    assert [score.points for score in found.scores] == [1, 0, 0, 8]
    smallest = Reason(case="n=2", problem="wrong", expected="1", got="2")
    absent = Reason(case="", problem=ABSENT, expected="", got="")
    assert [score.failure for score in found.scores] == [None, smallest, absent, None]


def test_a_result_that_a_check_cannot_use_fails_it(submission: Path) -> None:
    found = grade(submission, made_check(1, lambda student: [][0]))
    failure = found.scores[0].failure
    assert failure
    assert "IndexError" in failure.problem
    assert found.error is None


def test_a_process_serves_checks_until_one_breaks_it(submission: Path) -> None:
    def breaks(student: Student) -> None:
        student.call("f")

    opened: list[Idle] = []
    passes = made_check(1, lambda student: None)
    found = grade(submission, passes, passes, made_check(1, breaks), passes, passes, opened=opened)
    assert found.points == 4
    assert len(opened) == 2
    assert all(each.closed for each in opened)


def test_a_sandbox_that_cannot_start_is_no_fault_of_the_submission(submission: Path) -> None:
    check = made_check(1, lambda student: None)
    (found,) = Grader([check], lambda _: Idle([], "no engine")).grade_all({"ana": submission}, 1)
    assert (found.error, found.points, found.scores) == ("no engine", 0, [])


def test_submissions_are_graded_at_the_same_time(submission: Path) -> None:
    both = threading.Barrier(2, timeout=30)  # passes if two submissions are in the check at once
    check = made_check(1, lambda student: both.wait())
    grades = [*Grader([check], lambda _: Idle([])).grade_all({"a": submission, "b": submission}, 2)]
    assert [each.points for each in grades] == [1, 1]


def test_sandboxes_are_closed_if_grading_is_abandoned(submission: Path) -> None:
    opened: list[Idle] = []
    check = made_check(1, lambda student: None)
    grades = Grader([check], lambda _: Idle(opened)).grade_all({"a": submission, "b": submission}, 1)
    next(grades)
    grades.close()
    assert all(each.closed for each in opened)


def test_submissions_are_named_by_directory_or_path(tmp_path: Path) -> None:
    for name in ("x/ana", "y/ana", "y/ben"):
        (tmp_path / name).mkdir(parents=True)
    paths = [tmp_path / name for name in ("x/ana", "y/ana", "y/ben", "x/../y/ben")]
    assert [*submissions_of(paths)] == [str(tmp_path / "x/ana"), str(tmp_path / "y/ana"), "ben"]
    with pytest.raises(InputError, match="none: no such directory"):
        submissions_of([tmp_path / "none"])


# The table


def made_grade(name: str, *points: int, error: str | None = None) -> Grade:
    failure = Reason(case="n=2", problem="p" * 200, expected="x", got="y")
    scores = [
        Score(
            file=f"task_number_{number}.py",
            title="title",
            law="law",
            reason="reason",
            points=each,
            possible=2,
            seconds=0.1,
            failure=None if each else failure,
        )
        for number, each in enumerate(points)
    ]
    return Grade(submission=name, points=sum(points), possible=8, error=error, scores=scores)


def printed(*grades: Grade) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(table(grades))
    for each in grades:
        for line in reasons(each):
            console.print(line)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_table_fits_80_columns() -> None:
    full, partial = made_grade("ana", 2, 2, 2, 2), made_grade("a_student_with_a_long_name_" * 2, 2, 0, 2, 0)
    lines = printed(full, partial, made_grade("[bold]x", error="no engine"))
    assert max(map(len, lines)) <= 80
    cells = lines[[line.startswith("ana") for line in lines].index(True)].split()
    assert cells == ["ana", "2/2", "2/2", "2/2", "2/2", "8/8"]
    text = "\n".join(lines)
    assert text.count("task_number_1.py: title (0 of 2)") == 1
    assert "[bold]x" in text
    assert "not graded: no engine" in text


def test_an_equal_reason_is_given_once_for_a_file() -> None:
    grade = made_grade("ana", 0)
    other = grade.scores[0].model_copy(update={"title": "other"})
    both = grade.model_copy(update={"scores": [*grade.scores, other]})
    assert "\n".join(printed(both)).count("law") == 1


def test_reasons_are_those_of_lost_points() -> None:
    assert [*reasons(made_grade("ana", 2, 2))] == []
    assert len([*reasons(made_grade("ana", 2, 0))]) == 3  # name, check, reason


def test_the_gradebook_has_the_points_of_the_table_and_none_of_what_was_not_graded() -> None:
    grades = [made_grade("ana", 2, 0), made_grade("ben, b", 2, 2), made_grade("carl", error="no engine")]
    header, *lines = csv.reader(io.StringIO(gradebook(grades)))
    files = ["task_number_0.py", "task_number_1.py"]
    assert header == ["submission", *files, "points", "possible", "feedback"]
    assert [line[:5] for line in lines] == [
        ["ana", "2", "0", "2", "8"],
        ["ben, b", "2", "2", "4", "8"],
        ["carl", "", "", "", "8"],
    ]
    assert [line[5].split(":")[0] for line in lines] == ["task_number_1.py", "", "not graded"]


# Containers


def test_a_container_has_nothing_but_the_submission(tmp_path: Path) -> None:
    asked = confined(
        ["trainer.course", SUBMISSION], Limits(512, 64, 32), {tmp_path: SUBMISSION}, {"A": "1"}
    )
    assert asked["entrypoint"] == ["python", "-m", "trainer.course", SUBMISSION]
    assert asked["environment"] == {"A": "1"}
    assert asked["network_mode"] == "none"
    assert asked["cap_drop"] == ["ALL"]
    assert asked["security_opt"] == ["no-new-privileges:true"]
    assert (asked["read_only"], asked["user"]) == (True, "10001:10001")
    assert asked["mem_limit"] == asked["memswap_limit"] == "512m"
    assert (asked["pids_limit"], asked["nano_cpus"]) == (64, 10**9)
    assert [*asked["tmpfs"]] == ["/tmp"]
    assert "size=32m" in asked["tmpfs"]["/tmp"]
    assert asked["labels"] == {LABEL: identity()}
    (mount,) = asked["mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == (str(tmp_path), SUBMISSION, True)
    assert not {"privileged", "devices", "ports", "volumes", "cap_add"} & asked.keys()


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
    tmp_path.chmod(0o700)
    found = str(obstacle(tmp_path, other_user=True))
    assert found.startswith(f"{tmp_path}: ")
    assert f"chmod -R o+rX {tmp_path}" in found


# Commands


def refused(*arguments: str | Path) -> str:
    error = CliRunner().invoke(app, ["course", *map(str, arguments)]).exception
    assert isinstance(error, InputError)
    return str(error)


def test_new_writes_all_assignments_without_solutions(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["course", "new", str(tmp_path / "out")])
    assert done.exit_code == 0
    written = {Path(line).relative_to(tmp_path / "out") for line in done.output.splitlines()}
    assert {path.parts[0] for path in written} == {*names()}
    assert {*names()} == {"data_and_replicas", "one_model", "transformer"}
    tasks = {path.name for path in written if len(path.parts) == 2}
    assert {"partitioner.py", "all_reduce.py", "local_sgd.py", "pipeline.py", "tensor_parallel.py"} <= tasks
    assert {"README.md", "sweep.yml", "report.md"} <= tasks
    assert not {"hidden", "solutions", "__pycache__"} & {part for path in written for part in path.parts}
    assert all((tmp_path / "out" / path).is_file() for path in written)


@pytest.mark.parametrize("name", names())
def test_new_writes_one_assignment_with_solutions(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["course", "new", str(tmp_path), "--assignment", name, "--solutions"])
    assert done.exit_code == 0
    assert {"README.md", "tests", "hidden", "solutions"} <= {path.name for path in tmp_path.iterdir()}
    handout = {path.name for path in (KITS / name / "handout").glob("*.py")}
    for solution in [*(tmp_path / "solutions" / "wrong").iterdir(), tmp_path / "solutions" / "reference"]:
        assert {path.name for path in solution.iterdir()} == handout, solution.name


def test_new_refuses_unknown_names_and_directories_with_files(tmp_path: Path) -> None:
    message = refused("new", tmp_path / "out", "--assignment", "one_modle")
    assert all(name in message for name in ("one_modle", "did you mean 'one_model'", *names()))
    (tmp_path / "mine.py").touch()
    assert str(tmp_path) in refused("new", tmp_path)
    assert "is not a directory" in refused("new", tmp_path / "mine.py")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_grade_refuses_bad_input_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "ana").mkdir()
    tests = KITS / "one_model" / "hidden"
    assert "none: no such directory" in refused("grade", tmp_path / "none", "--tests", tests)
    assert "--tests" in refused("grade", tmp_path / "ana", "--tests", tmp_path / "none")
    assert "--csv" in refused("grade", tmp_path / "ana", "--tests", tests, "--csv", tmp_path)
    message = refused("grade", tmp_path / "ana", "--tests", tests, "--runtime", "dokcer")
    assert "docker, local" in message
