'''How tests of an assignment are written: a check is a function with points and cases.

    @check("partitioner.py", points=2, cases=[(2, 2), (10, 3)])
    def no_overlap(student, samples, parts):
        """Every sample is in at most one part.

        A sample on two nodes counts twice in an average.
        """
        split = student.call("MyPartitioner.partition", labels, parts, Seed(0))
        equal(len(set(np.concatenate(split))), samples, "different samples")

The function runs in the grader's process, the student's code elsewhere: `student` calls it.
'''

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import InputError
from trainer.core.user_code import ImportFailure, load_module

MAX_WHOLE = 4  # values of an array that is shown as a whole; of a longer one, the first wrong value
MAX_SHOWN = 120  # characters of a value in a reason
Values = Mapping[str, Any]


class Failure(Exception):
    """A check fails.

    Attributes:
        problem: what is wrong, in words. expected, got: the values, as text; empty if there are none.
    """

    def __init__(self, problem: str, expected: str = "", got: str = "") -> None:
        super().__init__(problem)
        self.problem, self.expected, self.got = problem, expected, got


@dataclass(frozen=True)
class Check:
    """One check of one file.

    Attributes:
        function: called with the student's code and the values of a case. Raises Failure.
        file: a file of the submission. points: those for passing all cases.
        title: its title in tables. law: what holds. reason: why it has to hold.
        cases: the cases from small to large, so that the first that fails is the smallest.
        seconds: limit of all cases together.
    """

    function: Callable[..., None]
    file: str
    points: int
    title: str
    law: str
    reason: str
    cases: Sequence[Values] = field(default=({},))
    seconds: float = 10.0


def check(
    file: str,
    *,
    points: int,
    title: str = "",
    law: str = "",
    reason: str = "",
    cases: Sequence[Values | tuple[Any, ...]] = ({},),
    seconds: float = 10.0,
) -> Callable[[Callable[..., None]], Check]:
    """Make a function a check, with the attributes of Check.

    By default, its name is the title, and the two paragraphs of its docstring are law and reason. A case
    can be a tuple: the values of the parameters after `student`, in their order.
    """
    if not file.endswith(".py") or "/" in file:
        raise ValueError(f"file {file!r}: expected the name of a Python file of the submission")

    def made(function: Callable[..., None]) -> Check:
        stated, *more = (" ".join(each.split()) for each in (function.__doc__ or "").split("\n\n"))
        own = title or function.__name__.replace("_", " ")
        if points < 1 or seconds <= 0 or not cases or not (law or stated):
            raise ValueError(f"check {own!r}: points, seconds, cases and a law must be given, and above 0")
        _, *names = inspect.signature(function).parameters
        named = [dict(zip(names, each, strict=True)) if isinstance(each, tuple) else each for each in cases]
        because = reason or " ".join(more)
        return Check(function, file, points, own, law or stated, because, named, seconds)

    return made


def equal(got: Any, expected: Any, what: str = "") -> None:
    """Fail unless both are equal; of arrays, also in shape."""
    try:
        same = bool(np.array_equal(got, expected))
    except (ValueError, TypeError):  # ragged lists
        same = False
    if not same:
        raise Failure(what or "the result is wrong", shown(expected), shown(got))


def close(got: Any, expected: Any, what: str = "", tolerance: float = 1e-6) -> None:
    """Fail unless numbers or arrays are equal up to rounding, in shape too.

    tolerance: relative to the largest expected absolute value, or to 1 if that is larger.
    """
    wanted = np.asarray(expected, dtype=float)
    try:
        found = np.asarray(got, dtype=float)
    except (ValueError, TypeError):
        raise Failure(what or "the result is no array of numbers", shown(expected), shown(got)) from None
    if found.shape != wanted.shape:
        raise Failure(
            f"{what or 'the result'}: the shape is wrong", f"shape {wanted.shape}", f"shape {found.shape}"
        )
    bound = tolerance * max(1.0, float(np.abs(wanted).max(initial=0)))
    wrong = ~(np.abs(found - wanted) <= bound)  # also true for nan
    if not wrong.any():
        return
    if wanted.size <= MAX_WHOLE:
        raise Failure(what or "the result is wrong", shown(wanted), shown(found))
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    place = f" at {list(first)}, the first of {wrong.sum()} wrong values of {wrong.size}"
    raise Failure(what or "the result is wrong", f"{wanted[first]:.6g}{place}", f"{found[first]:.6g}")


def holds(condition: bool, problem: str, expected: Any = "", got: Any = "") -> None:
    """Fail unless the condition holds."""
    if not condition:
        raise Failure(problem, _text(expected), _text(got))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def shown(value: Any) -> str:
    """A value as text of one line, shortened."""
    if isinstance(value, np.ndarray):
        text = np.array2string(value, precision=5, threshold=12, separator=", ", max_line_width=10**6)
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(shown(item) for item in value[:12])}{', …' if len(value) > 12 else ''}]"
    elif isinstance(value, float):
        text = f"{value:.6g}" if math.isfinite(value) else str(value)
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    text = " ".join(text[: 4 * MAX_SHOWN].split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def case_text(case: Values) -> str:
    """`samples=5, parts=2`; empty for a check without cases."""
    return ", ".join(f"{name}={shown(value)}" for name, value in case.items())


def load_checks(paths: Sequence[Path]) -> list[Check]:
    """The checks in Python files, and in those of directories. Raises InputError."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(path.glob("*.py"))
        elif path.is_file() and path.suffix == ".py":
            files.append(path)
        else:
            raise InputError(f"--tests {path}: no such directory or Python file")
    found = [each for file in files for each in _checks_of(file)]
    if not found:
        raise InputError(f"--tests {', '.join(map(str, paths))}: there are no checks; see docs/teaching.md")
    return found


def _checks_of(file: Path) -> list[Check]:
    try:
        module = load_module(file.parent.resolve(), file.name)
    except ImportFailure as error:
        raise InputError(f"--tests {file}: {error}") from error
    del sys.modules[module.__name__]  # a file of another directory can have this name
    return [value for value in vars(module).values() if isinstance(value, Check)]
