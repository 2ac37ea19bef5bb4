"""Checkpoints on disk: written atomically, verified by checksum.

DIRECTORY/epoch-00002-step-0000013/rank-3.pt  a line of JSON (run, rank, versions, SHA-256), then torch.save
DIRECTORY/resumed                             a line for each time the run resumed
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from trainer.core.record import Amount, Record, checked, parse_object
from trainer.core.regular_files import read_below

VERSION = 1
TEMPORARY = ".tmp"
RESUMED = "resumed"
KEPT = 2  # the last one, and one before it in case the last is damaged
SOURCES = Path(__file__).resolve().parents[1]


class CheckpointError(Exception):
    """A checkpoint cannot be written or read. The message says why."""


class Header(Record):
    """The first line of a checkpoint.

    sources: the digest of the trainer's sources. time: seconds since 1970. sha256: that of what
    follows.
    """

    version: int
    run: str
    rank: int
    ranks: int
    position: list[int]
    torch: str
    sources: str
    time: Amount
    sha256: str


class Position(NamedTuple):
    """A run's position: complete (evaluated) epochs, and steps of the next one."""

    epochs: int
    steps: int

    @property
    def number(self) -> float:
        """One number, exact in a float64, that increases with the position."""
        return float(self.epochs * 2**32 + self.steps)


@cache  # files may change after this process has loaded them
def source_digest() -> str:
    """16 hex digits that identify the trainer's sources."""
    digest = sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        for part in (str(path.relative_to(SOURCES)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


class CheckpointStore:
    """The newest checkpoints of one rank of one run. Ranks share the directory."""

    def __init__(self, directory: Path, run: str, rank: int, ranks: int) -> None:
        self.directory, self._rank = directory, rank
        self._identity = {"version": VERSION, "run": run, "rank": rank, "ranks": ranks}

    def open(self) -> None:
        """Create the directory. Raises CheckpointError."""
        with self._writing():
            _make_directory(self.directory)
            source_digest()

    def write(self, position: Position, state: dict[str, Any]) -> int:
        """Write a state of plain values and tensors. Returns its size in bytes. Raises CheckpointError."""
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        header = {
            **self._identity,
            "position": position,
            "torch": str(torch.__version__),
            "sources": source_digest(),
            "time": time.time(),
            "sha256": sha256(buffer.getbuffer()).hexdigest(),
        }
        path = self._path(position)
        temporary = path.with_suffix(TEMPORARY)
        with self._writing(), buffer.getbuffer() as payload:
            _make_directory(path.parent)
            with open(temporary, "wb", opener=_no_symlink) as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_directory(path.parent)
            return path.stat().st_size

    def read(self, position: Position) -> tuple[dict[str, Any], float]:
        """The state, and the time it was written (seconds since 1970).

        Raises CheckpointError if it is damaged, or if another version of torch or of the trainer wrote it:
        a result must come from one version of the code.
        """
        import torch

        header, payload = self._read_file(position)
        if header.sha256 != sha256(payload).hexdigest():
            raise CheckpointError("damaged: the checksum is wrong")
        if header.torch != torch.__version__:
            raise CheckpointError(f"written with torch {header.torch}; this is torch {torch.__version__}")
        if header.sources != source_digest():
            these = source_digest()
            raise CheckpointError(f"written by trainer sources {header.sources}; these are {these}")
        try:
            state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        except Exception as error:  # what torch raises depends on the content
            raise CheckpointError(f"damaged: torch cannot load it ({type(error).__name__})") from error
        if not isinstance(state, dict):
            raise CheckpointError("damaged: its state is not a dictionary")
        return state, header.time

    def _read_file(self, position: Position) -> tuple[Header, bytes]:
        try:
            path = self._path(position)
            first, _, payload = read_below(path.parent, path.name).partition(b"\n")
            header = checked(Header, parse_object(first, "header"), "header")
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CheckpointError(f"damaged: {error}") from None
        for name, expected in {**self._identity, "position": list(position)}.items():
            if (found := getattr(header, name)) != expected:
                raise CheckpointError(f"its {name} is {found}, not {expected}")
        return header, payload

    def positions(self) -> list[Position]:
        """Positions of this rank's checkpoints, intact or not, newest first. Raises CheckpointError."""
        found = []
        try:
            for directory in self.directory.iterdir():
                match = re.fullmatch(r"epoch-([0-9]+)-step-([0-9]+)", directory.name)
                if match and (directory / self._name).exists():
                    found.append(Position(int(match[1]), int(match[2])))
        except FileNotFoundError:  # the directory does not exist yet
            return []
        except OSError as error:  # an empty list would discard the run's work
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be listed: {error.strerror}"
            ) from error
        return sorted(found, reverse=True)

    def prune(self, position: Position | None) -> None:
        """Remove checkpoints after `position`, and old ones before it. Raises CheckpointError.

        None removes all checkpoints, and the count of resumptions.
        """
        if position is None:
            with self._writing():
                (self.directory / RESUMED).unlink(missing_ok=True)
        others = [each for each in self.positions() if position and each <= position]
        for obsolete in {*self.positions()} - {*others[:KEPT]}:
            path = self._path(obsolete)
            with self._writing():
                path.unlink(missing_ok=True)
                path.with_suffix(TEMPORARY).unlink(missing_ok=True)  # left by a rank killed while writing
            with suppress(OSError):  # it still holds other ranks' files
                path.parent.rmdir()

    def record_resumption(self) -> int:
        """Record that the run resumes. Returns how many times it has. Raises CheckpointError."""
        with (
            self._writing(),
            open(self.directory / RESUMED, "a+", encoding="utf-8", opener=_no_symlink) as file,
        ):
            file.write(f"{time.time()}\n")
            file.seek(0)
            return len(file.readlines())

    @property
    def _name(self) -> str:
        return f"rank-{self._rank}.pt"

    def _path(self, position: Position) -> Path:
        return self.directory / f"epoch-{position.epochs:05}-step-{position.steps:07}" / self._name

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be written: {error.strerror}"
            ) from error


def _make_directory(directory: Path) -> None:
    """Create a directory with the permissions of its parent.

    Containers, which run under an unprivileged UID, get a parent that is open to all; local processes
    write into the user's private directory.
    """
    with suppress(FileExistsError):
        directory.mkdir(parents=True)
        directory.chmod(directory.parent.stat().st_mode & 0o777)


def _no_symlink(path: str, flags: int) -> int:
    """Open a file for writing, but do not follow a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _sync_directory(directory: Path) -> None:
    """Flush the directory's entries to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
