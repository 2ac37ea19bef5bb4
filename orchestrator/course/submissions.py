"""The submissions that are graded: their names, and why one is not graded. Follows no links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from shlex import quote
from stat import S_ISDIR

from orchestrator.errors import InputError
from trainer.core.record import cut, one_line

MAX_DEPTH = 50  # directories in each other
MAX_ENTRIES = 100_000  # files and directories
MAX_NAME = 200  # characters of a path in a message


def submissions_of(paths: Sequence[Path]) -> dict[str, Path]:
    """Submissions by name: that of the directory, or the path where names are equal. Raises InputError.

    Names are printable lines. Each path has a name of its own, except one that is given twice.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(f"SUBMISSION {path}: no such directory")
    places = list(dict.fromkeys(map(_place, paths)))
    names = [one_line(place.name) for place in places]
    found: dict[str, Path] = {}
    for name, place in zip(names, places, strict=True):
        label = name if names.count(name) == 1 else one_line(str(place))
        alike = (f"{label} ({number})" for number in count(2))
        found[label if label not in found else next(each for each in alike if each not in found)] = place
    return found


def _place(path: Path) -> Path:
    """The absolute path. Links on the way to it are resolved, and it may be one itself."""
    return path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name


def obstacle(directory: Path, other_user: bool) -> str | None:
    """Why a submission cannot be graded; None if it can.

    other_user: another user reads the files, who can read only what all users can.
    """
    if directory.is_symlink():
        return "it is a symbolic link, which is not followed"
    if not directory.is_dir():
        return "it is no directory"
    try:
        for number, (path, mode, depth) in enumerate(_contents(directory)):
            if depth > MAX_DEPTH:
                return f"its directories are nested too deeply; allowed: at most {MAX_DEPTH} levels"
            if number > MAX_ENTRIES:
                return f"it has too many files and directories; allowed: at most {MAX_ENTRIES:,}"
            needed = 0o5 if S_ISDIR(mode) else 0o4
            if other_user and mode & needed != needed:
                chmod = f"chmod -R o+rX {quote(str(directory))}"
                return f"{_shown(path)}: the user that runs it cannot read it; {one_line(chmod)}"
    except OSError as error:
        return f"{_shown(error.filename)}: {error.strerror}"
    return None


def _contents(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Path, mode and depth of a directory and of everything in it but links."""
    yield str(directory), directory.stat().st_mode, 0
    left = [(str(directory), 1)]
    while left:
        at, depth = left.pop()
        with os.scandir(at) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield entry.path, entry.stat(follow_symlinks=False).st_mode, depth
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, depth + 1))


def _shown(path: str) -> str:
    return cut(one_line(path), MAX_NAME)
