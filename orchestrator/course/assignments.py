"""The shipped assignments, and writing them for a course.

An assignment has each task once, as its reference solution. What students get of it, and wrong solutions,
follow from the reference: a skeleton lacks the lines between two marks, and a mistake is a few edits. Files
of hidden tests can begin with public ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import InputError, output_error
from orchestrator.shipped import COURSES
from trainer.core.registry import suggestion

SOLUTION = re.compile(r"^( *)# solution: ([^\n]*)\n(.*?) *# end of solution\n", re.MULTILINE | re.DOTALL)
HIDDEN = "\n\n# Hidden: students get the tests above.\n"
Files = dict[str, str]  # texts by path


def names() -> list[str]:
    """The shipped assignments, in alphabetical order."""
    return sorted(path.parent.name for path in COURSES.glob("*/mistakes.yml"))


def edited(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """A text with some parts replaced.

    Args:
        text: the text.
        edits: what is replaced, and by what. `...` in the former stands for any text.

    Raises:
        ValueError: What is to be replaced is not in the text, or several times.
    """
    for old, new in edits:
        found = [*re.finditer(".*?".join(map(re.escape, old.split("..."))), text, re.DOTALL)]
        if len(found) != 1:
            raise ValueError(f"{old!r} is in the text {len(found)} times, and must be in it once")
        text = text[: found[0].start()] + new + text[found[0].end() :]
    return text


def _texts(directory: Path) -> Files:
    paths = (path for path in directory.rglob("*") if path.suffix in (".md", ".py", ".yml"))
    return {str(path.relative_to(directory)): path.read_text("utf-8") for path in paths}


def files(name: str, solutions: bool = True) -> Files:
    """The texts of an assignment. solutions: with hidden tests, reference and wrong solutions."""
    directory = COURSES / name
    mistakes: dict[str, Any] = yaml.safe_load((directory / "mistakes.yml").read_text("utf-8"))
    marked = _texts(directory / "reference")
    skeleton = r'\1raise NotImplementedError("\2")' + "\n"
    found = {path: SOLUTION.sub(skeleton, text) for path, text in marked.items()}
    for file, edits in mistakes.get("handed_out", {}).items():
        found[file] = edited(marked[file], edits)
    found |= _texts(directory / "handout")
    found["README.md"] += (COURSES / "work.md").read_text("utf-8")
    tests = _texts(directory / "hidden")
    for path, text in tests.items():
        public, mark, _ = text.partition(HIDDEN)
        found |= {f"tests/{path}": public} if mark else {}
    if solutions:
        reference = {path: SOLUTION.sub(r"\3", text) for path, text in marked.items()}
        found |= _below("hidden", tests) | _below("solutions/reference", reference)
        wrong = ((file, *each) for file, named in mistakes["wrong"].items() for each in named.items())
        for file, mistake, (what, *edits) in wrong:
            text = f"# The mistake: {what}\n" + edited(reference[file], edits)
            found |= _below(f"solutions/wrong/{mistake}", reference | {file: text})
    return found


def _below(directory: str, texts: Files) -> Files:
    return {f"{directory}/{path}": text for path, text in texts.items()}


def write(directory: Path, name: str | None, solutions: bool) -> list[Path]:
    """Write assignments for students.

    Args:
        directory: has to be new or empty.
        name: the name of an assignment; None: all, each in a directory of its own.
        solutions: also write the hidden tests and the solutions, beside what students get.

    Returns:
        The written files.

    Raises:
        InputError: There is no such assignment, or the directory has files.
        StorageError: The disk is full.
    """
    known = names()
    if name is not None and name not in known:
        raise InputError(
            f"--assignment {name}: no such assignment{suggestion(name, known)}; known: {', '.join(known)}"
        )
    texts = files(name, solutions) if name else {}
    for each in () if name else known:
        texts |= _below(each, files(each, solutions))
    try:
        if directory.is_dir() and any(directory.iterdir()):
            raise InputError(f"{directory}: has files, which would be mixed with the assignment's")
        return sorted(_written(directory, texts))
    except OSError as error:
        raise output_error(directory, error, "DIRECTORY") from error


def _written(directory: Path, texts: Files) -> Iterator[Path]:
    for path, text in texts.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        yield place
