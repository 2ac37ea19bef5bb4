"""Reading files of a run that others may be writing: logs as they grow, and whole files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from trainer.core.record import printable
from trainer.core.regular_files import open_below

FIRST_BYTES = 2**15  # of a log, from its end, when it is opened
MOST_BYTES = 2**17  # of a log that are read at once; of more, only the end is shown
LINE_CHARACTERS = 2000  # of a longer line, only the beginning is shown


def log_names(directory: Path) -> list[str]:
    """The logs of a run, without their ending, in natural order: node-2 before node-10.

    None if the directory of the run is a link.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        names = os.listdir(opened)
    finally:
        os.close(opened)
    logs = [
        name.removesuffix(".log") for name in names if name.endswith(".log") and printable(name) == name
    ]
    return sorted(logs, key=_parts)


def _parts(name: str) -> list[str | int]:
    """Text and numbers in turn, so that each is compared with its like."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]+)", name))]


@dataclass(frozen=True)
class LogPart:
    """What is new in a log. restarted: it replaces all that was shown before."""

    lines: list[str]
    restarted: bool


class LogTail:
    """The last lines of a log, and then the lines that are added; reads no byte twice."""

    def __init__(self, directory: Path, relative: str) -> None:
        """relative: its path below a directory. It is read through no links."""
        self._directory, self._relative = directory, relative
        self._name = relative.rpartition("/")[2]
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._rest = b""  # a line that has not ended
        self._trouble = ""

    def new(self, complete: bool = False) -> LogPart:
        """The lines since the last call. complete: no more will come, so the last one has ended, too."""
        try:
            part = self._new(complete)
        except OSError as error:
            trouble = f"{self._name} cannot be read: {error.strerror}"
            known, self._trouble = trouble == self._trouble, trouble
            return LogPart([] if known else [trouble], restarted=not known)
        part, self._trouble = LogPart(part.lines, part.restarted or bool(self._trouble)), ""
        return part

    def _new(self, complete: bool) -> LogPart:
        with open_below(self._directory, self._relative) as file:
            status = os.fstat(file.fileno())
            restarted = (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset
            if restarted:
                self._file, self._offset, self._rest = (status.st_dev, status.st_ino), 0, b""
            skipped = status.st_size - self._offset > (FIRST_BYTES if restarted else MOST_BYTES)
            if skipped:
                self._offset, self._rest = status.st_size - FIRST_BYTES, b""
            file.seek(self._offset)
            data = file.read(MOST_BYTES)
        self._offset += len(data)
        if skipped:
            data = data.partition(b"\n")[2] or data  # it may start within a line
        *whole, rest = (self._rest + data).split(b"\n")
        if rest and (complete or len(rest) > LINE_CHARACTERS):
            whole, rest = [*whole, rest], b""
        self._rest = rest
        before = [f"… earlier lines are in {self._name} …"] if skipped else []
        return LogPart([*before, *map(_shown, whole)], restarted)


def _shown(line: bytes) -> str:
    """A line as text, with visible escapes for control characters."""
    text = line.removesuffix(b"\r").decode(errors="replace")
    more = len(text) - LINE_CHARACTERS
    return printable(text[:LINE_CHARACTERS]) + (f" … {more} more characters" if more > 0 else "")
