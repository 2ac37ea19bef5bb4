"""Mistakes in the shipped assignments, and in what they are made of. Submissions are threads."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.course.assignments import edited, files, names, write
from orchestrator.course.checks import load_checks
from orchestrator.course.grading import Grade, Grader
from orchestrator.sandbox.base import Sandbox, receive, send, shut
from trainer.course.worker import Worker

# Ranks of a skeleton still send when its grading is over.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class InThread(Sandbox):
    """Runs a submission in a thread of this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> None:
        self._own, other = socket.socketpair()
        with other:  # which ends with its streams
            self._streams = other.makefile("rb"), other.makefile("wb")
        self._worker = Worker(self._directory, *self._streams)
        self._thread = Thread(target=self._worker.serve)
        self._thread.start()

    def read(self, count: int, timeout_s: float) -> bytes:
        return receive(self._own, count, timeout_s)

    def write(self, data: bytes, timeout_s: float) -> None:
        send(self._own, data, timeout_s)

    def ending(self) -> str:
        return "ended"

    def close(self) -> None:
        shut(self._own)
        self._thread.join()
        for stream in self._streams:
            with suppress(OSError):  # what has not been read
                stream.close()
        self._worker._reset()  # the next submission has files of the same names


@pytest.mark.parametrize("edit", [("none", ""), ("b", ""), ("a...z", "")])
def test_an_edit_of_what_is_not_there_once_is_refused(edit: tuple[str, str]) -> None:
    assert edited("a b\n(b) c", [("b\n...c", "d"), ("a ", "")]) == "d"
    with pytest.raises(ValueError, match="times"):
        edited("a b\n(b) c", [edit])


@pytest.mark.parametrize("assignment", names())
def test_all_files_are_written_without_marks_and_each_mistake_changes_one(assignment: str) -> None:
    found = files(assignment)
    reference = {
        path.removeprefix("solutions/reference/"): text
        for path, text in found.items()
        if path.startswith("solutions/reference/")
    }
    assert reference.keys() <= files(assignment, solutions=False).keys()
    for path, text in found.items():
        assert "# end of solution" not in text
        if path.endswith(".py"):
            compile(text, path, "exec")
    wrong = {path.split("/")[2] for path in found if path.startswith("solutions/wrong/")}
    for each in wrong:
        changed = [path for path in reference if found[f"solutions/wrong/{each}/{path}"] != reference[path]]
        assert len(changed) == 1, each


def graded(*directories: Path, tests: Path) -> list[Grade]:
    grader = Grader(load_checks([tests]), InThread)
    return [grader.grade(each.name, each) for each in directories]


@pytest.mark.slow
@pytest.mark.parametrize("assignment", names())
def test_hidden_and_public_tests_pass_the_reference_and_what_students_repair_but_no_skeleton(
    assignment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    own = tmp_path / assignment
    write(own, assignment, solutions=True)
    reference = own / "solutions" / "reference"
    skeletons = {path.name for path in own.glob("*.py") if "NotImplementedError" in path.read_text()}
    assert skeletons
    unchanged, right = graded(own, reference, tests=own / "hidden")
    handout, repaired = graded(own, reference, tests=own / "tests")
    for grade in (right, repaired):
        assert {each.title: each.failure for each in grade.scores if each.failure} == {}
    assert unchanged.points == 0
    for each in handout.scores:
        assert (each.file in skeletons) == bool(each.failure)
        assert not each.failure or "NotImplementedError" in each.failure.problem
