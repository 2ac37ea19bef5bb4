"""The shipped assignments, and writing them for a course."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.errors import InputError, output_error
from trainer.core.registry import suggestion

KITS = Path(__file__).with_name("kits")  # a directory per shipped assignment
HANDOUT = "handout"  # what students get
HIDDEN = "hidden"
REFERENCE, WRONG = Path("solutions", "reference"), Path("solutions", "wrong")


def names() -> list[str]:
    """The shipped assignments, in alphabetical order."""
    return sorted(path.name for path in KITS.iterdir() if (path / HANDOUT).is_dir())


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
    targets = {directory: name} if name else {directory / each: each for each in known}
    try:
        if directory.is_dir() and any(directory.iterdir()):
            raise InputError(f"{directory}: has files, which would be mixed with the assignment's")
        for target, each in targets.items():
            _copy(KITS / each, target, solutions)
    except OSError as error:
        raise output_error(directory, error, "DIRECTORY") from error
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _copy(source: Path, target: Path, solutions: bool) -> None:
    """Copy one assignment."""
    _copy_files(source / HANDOUT, target)
    if not solutions:
        return
    _copy_files(source / HIDDEN, target / HIDDEN)
    _copy_files(source / REFERENCE, target / REFERENCE)
    # A wrong solution has one wrong file; the others are those of the reference.
    for wrong in (source / WRONG).iterdir():
        _copy_files(source / REFERENCE, target / WRONG / wrong.name)
        _copy_files(wrong, target / WRONG / wrong.name)


def _copy_files(source: Path, target: Path) -> None:
    """Copy contents, without the times and permissions of the installation."""
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
