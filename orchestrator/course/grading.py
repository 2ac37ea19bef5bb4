"""Grade submissions: run every check on each of them, in sandboxes, several submissions at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Annotated

from pydantic import AfterValidator

from orchestrator.course.checks import Check, Failure, Values, case_text
from orchestrator.course.student import Student
from orchestrator.sandbox.base import READY_S, Channel, Ended, Sandbox, SandboxError, TimedOut
from trainer.core.record import Record, cut, one_line
from trainer.core.regular_files import open_below

ABSENT = "the file is missing"
MAX_TEXT = 1000  # characters of a text that a submission may have written


def shown(text: str) -> str:
    """A text that a submission may have written, as one line of limited length."""
    return cut(one_line(text), MAX_TEXT)


Text = Annotated[str, AfterValidator(shown)]


class Reason(Record):
    """Why a check failed. case: the smallest input on which it failed; empty if there is one case."""

    case: Text = ""
    problem: Text
    expected: Text = ""
    got: Text = ""

    def __str__(self) -> str:
        return f"with {self.case}: {self.problem}" if self.case else self.problem


class Score(Record):
    """The result of one check. failure: None if it passed."""

    file: str
    title: str
    law: str
    reason: str
    points: int
    possible: int
    seconds: float
    failure: Reason | None


class Grade(Record):
    """The result of one submission. error: why it was not graded, or None."""

    submission: str
    points: int
    possible: int
    error: Text | None
    scores: list[Score]


class Grader:
    """Grades submissions, each with limits of its own.

    Args:
        checks: what each is graded by.
        make_sandbox: the sandbox of one, not yet started.
        obstacle: why one cannot be graded; None if it can.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        make_sandbox: Callable[[Path], Sandbox],
        obstacle: Callable[[Path], str | None] = lambda _: None,
    ) -> None:
        self._checks, self._make, self._obstacle = checks, make_sandbox, obstacle
        # A submission that stops in every check has all its limits, and time to start as often.
        self._seconds = sum(check.seconds for check in checks) + READY_S
        self._stopped = Event()
        self._channels: dict[str, Channel] = {}

    def grade_all(self, submissions: dict[str, Path], jobs: int) -> Generator[Grade]:
        """Grade them, `jobs` at once; yield each as it is finished. After an exception, nothing runs."""
        pool = ThreadPoolExecutor(jobs)
        try:
            futures = [pool.submit(self.grade, *each) for each in submissions.items()]
            for future in as_completed(futures):
                with suppress(CancelledError):
                    yield future.result()
        finally:
            self._stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for channel in [*self._channels.values()]:
                channel.close()
            pool.shutdown(wait=True)

    def grade(self, name: str, directory: Path) -> Grade:
        """Grade one submission."""
        scores: list[Score] = []
        deadline = time.monotonic() + self._seconds
        try:
            error = self._obstacle(directory)
            for each in () if error else self._checks:
                scores.append(self._score(name, directory, each, deadline))  # noqa: PERF401  (some remain)
        except SandboxError as trouble:
            error = str(trouble)
        except Exception as trouble:  # whatever it is, the others are graded
            error = f"{type(trouble).__name__}: {trouble}"
        finally:
            self._close(name)
        return Grade(
            submission=name,
            points=sum(score.points for score in scores),
            possible=sum(check.points for check in self._checks),
            error=error,
            scores=scores,
        )

    def _score(self, name: str, directory: Path, check: Check, deadline: float) -> Score:
        started = time.monotonic()
        failure: Reason | None = Reason(problem=f"the {self._seconds:g} s for all its tests are over")
        if started < deadline:
            failure = self._failure(name, directory, check)
        return Score(
            file=check.file,
            title=check.title,
            law=check.law,
            reason=check.reason,
            points=0 if failure else check.points,
            possible=check.points,
            seconds=round(time.monotonic() - started, 3),
            failure=failure,
        )

    def _failure(self, name: str, directory: Path, check: Check) -> Reason | None:
        """Why the submission fails the check; None if it passes. Raises SandboxError."""
        try:
            open_below(directory, check.file).close()
        except FileNotFoundError:
            return Reason(problem=ABSENT)
        except OSError as error:
            return Reason(problem=f"{check.file}: {error.strerror}")
        student = Student(self._channel(name, directory), check.file, check.seconds)
        case: Values = {}
        try:
            for case in check.cases:
                check.function(student, **case)
        except Failure as error:
            at = case_text(case)
            return Reason(case=at, problem=error.problem, expected=error.expected, got=error.got)
        except SandboxError:
            raise
        except BaseException as error:  # such as an index into a list that is too short; also SystemExit
            text = f"the check cannot use what it returned ({type(error).__name__}: {error})"
            return Reason(case=case_text(case), problem=text)
        finally:
            if not student.intact:
                self._close(name)
        return None

    def _channel(self, name: str, directory: Path) -> Channel:
        """A channel to a process that has imported no file of the submission."""
        if (channel := self._channels.get(name)) and not self._stopped.is_set():
            try:
                channel.renew()
                channel.send({"reset": True}, time.monotonic() + READY_S)  # import its files again
                return channel
            except (Ended, TimedOut):  # code that returned has ended the process later
                self._close(name)
        if not self._stopped.is_set():
            self._channels[name] = channel = Channel(self._make(directory))
            if not self._stopped.is_set():
                return channel
            channel.close()
        raise SandboxError("grading was stopped")

    def _close(self, name: str) -> None:
        if channel := self._channels.pop(name, None):
            channel.close()
