"""The commands of `course`: write an assignment, and grade submissions."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from orchestrator.commands.sweep import INTERRUPTED
from orchestrator.course.checks import Check, load_checks
from orchestrator.course.grading import Grade, Grader
from orchestrator.course.local import local_sandbox
from orchestrator.course.submissions import obstacle, submissions_of
from orchestrator.course.table import gradebook, reasons, table
from orchestrator.errors import InputError
from orchestrator.results.store import check_output, write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.sandbox.base import Limits
from trainer.core.registry import suggestion

RUNTIME_NAMES = ("docker", "local")
FAILED = 1  # exit code


def grade(
    paths: Sequence[Path],
    tests: Sequence[Path],
    runtime: str,
    jobs: int | None,
    limits: Limits,
    as_json: bool,
    console: Console,
    own: bool = False,
    csv_file: Path | None = None,
) -> int:
    """Grade submissions and print their scores. Returns the exit code: 0 if all were graded.

    own: the submissions are one's own. What they print is shown, and lost points are exit code 1.
    csv_file: where the gradebook is written.
    """
    if csv_file:
        check_output(csv_file, "--csv")
    submissions = submissions_of([path.resolve() for path in paths] if own else paths)
    checks = load_checks(tests)
    if runtime not in RUNTIME_NAMES:
        raise InputError(
            f"--runtime {runtime}: no such runtime{suggestion(runtime, RUNTIME_NAMES)}; "
            f"known: {', '.join(RUNTIME_NAMES)}"
        )
    try:
        if runtime == "docker":
            grades = _in_containers(submissions, checks, jobs, limits)
        else:
            RUNTIMES.load("local")().clean()
            grader = Grader(
                checks,
                lambda path: local_sandbox(path, limits, prints=own),
                lambda path: None if own else obstacle(path, other_user=False),
            )
            grades = _graded(submissions, grader, jobs)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; nothing is left running")
        return INTERRUPTED
    if as_json:
        print(json.dumps({"submissions": [each.model_dump() for each in grades]}, indent=2))
    else:
        console.print(table(grades), soft_wrap=False)
        for each in grades:
            for line in reasons(each):
                console.print(line, soft_wrap=False)
    if csv_file:
        write_atomic(csv_file, gradebook(grades))
    lost = own and any(each.points < each.possible for each in grades)
    return FAILED if lost or any(each.error for each in grades) else 0


def _in_containers(
    submissions: dict[str, Path], checks: Sequence[Check], jobs: int | None, limits: Limits
) -> list[Grade]:
    from orchestrator.course.containers import ContainerSandboxes

    sandboxes = ContainerSandboxes()
    try:
        grader = Grader(
            checks,
            lambda path: sandboxes.sandbox(path, limits),
            lambda path: obstacle(path, other_user=True),
        )
        return _graded(submissions, grader, jobs)
    finally:
        sandboxes.close()


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
