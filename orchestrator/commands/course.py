"""The commands of `course`: write an assignment, and grade submissions."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from pwd import getpwnam

from rich.console import Console
from rich.progress import Progress

from orchestrator.commands.options import GradeOptions
from orchestrator.commands.sweep import INTERRUPTED
from orchestrator.course import gradescope
from orchestrator.course.checks import load_checks
from orchestrator.course.grading import Grade, Grader
from orchestrator.course.process import contained, local
from orchestrator.course.submissions import obstacle, submissions_of
from orchestrator.course.table import gradebook, reasons, table
from orchestrator.errors import InputError
from orchestrator.results.store import check_output, write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from orchestrator.sandbox.base import Limits, Program
from trainer.core.registry import suggestion

RUNTIME_NAMES = ("docker", "local")
FAILED = 1  # exit code


def grade(
    paths: Sequence[Path], tests: Sequence[Path], options: GradeOptions, console: Console, own: bool = False
) -> int:
    """Grade submissions and print their scores. Returns the exit code: 0 if all were graded.

    own: the submissions are one's own. What they print is shown, and lost points are exit code 1.
    """
    csv_file, user = options.csv_file, options.user
    if csv_file:
        check_output(csv_file, "--csv")
    submissions = submissions_of([path.resolve() for path in paths] if own else paths)
    files = gradescope.places(options.results, submissions) if options.results else {}
    for file in files.values():
        check_output(file, "--gradescope")
    checks = load_checks(tests)
    used, limits = _runtime(options.runtime, user), Limits(options.memory_mb, options.processes)

    def why_not(directory: Path) -> str | None:
        return None if own else obstacle(directory, other_user=used.confines or bool(user))

    def program(directory: Path) -> Program:
        return contained(directory, limits) if used.confines else local(directory, limits, own, user)

    try:
        used.sandbox(program(Path()))  # raises InputError if there can be none
        grader = Grader(checks, lambda path: used.sandbox(program(path)), why_not)
        grades = _graded(submissions, grader, options.jobs)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; nothing is left running")
        return INTERRUPTED
    finally:
        used.remove_sandboxes()
        used.close()
    if options.as_json:
        print(json.dumps({"submissions": [each.model_dump() for each in grades]}, indent=2))
    else:
        console.print(table(grades), soft_wrap=False)
        for line in (line for each in grades for line in reasons(each)):
            console.print(line, soft_wrap=False)
    if csv_file:
        write_atomic(csv_file, gradebook(grades))
    if files:
        gradescope.write(grades, files, options.visibility)
    lost = own and any(each.points < each.possible for each in grades)
    return FAILED if lost or any(each.error for each in grades) else 0


def _runtime(name: str, user: str) -> Runtime:
    """Where submissions run. Raises InputError if they cannot."""
    if name not in RUNTIME_NAMES:
        known = ", ".join(RUNTIME_NAMES)
        hint = suggestion(name, RUNTIME_NAMES)
        raise InputError(f"--runtime {name}: no such runtime{hint}; known: {known}")
    found = RUNTIMES.load(name)()
    if reason := found.unavailable_reason():
        raise InputError(f"--runtime {name}: {reason}; or --runtime local, for code that you trust")
    if user:
        _check_user(user, found)
    found.clean()
    return found


def _check_user(user: str, runtime: Runtime) -> None:
    """Raises InputError unless local processes can have the rights of this user."""
    try:
        getpwnam(user)
    except KeyError:
        raise InputError(f"--user {user}: there is no such user") from None
    if runtime.confines or os.geteuid() != 0:
        raise InputError(f"--user {user}: only with --runtime local, and if root runs this command")


def _graded(submissions: dict[str, Path], grader: Grader, jobs: int | None) -> list[Grade]:
    """The grades in the order of the submissions."""
    found: dict[str, Grade] = {}
    with Progress(console=Console(stderr=True), transient=True, disable=len(submissions) == 1) as progress:
        task = progress.add_task("grading", total=len(submissions))
        with closing(grader.grade_all(submissions, jobs or os.cpu_count() or 1)) as grades:
            for each in grades:
                found[each.submission] = each
                progress.advance(task)
    return [found[name] for name in submissions]
