"""Checkpoints: what a rank needs so as to go on, in files that are whole or absent and prove it.

DIRECTORY/epoch-00002-step-0000013/rank-3.pt   a line of JSON (whose, which code's, a SHA-256), then torch's
DIRECTORY/resumed                              a line for each time that the run went on from one
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

VERSION = 1
DRAFT = ".draft"
RESUMED = "resumed"
KEPT = 2  # the last one, and the one before in case the last is damaged
SOURCES = Path(__file__).resolve().parents[1]


class CheckpointError(Exception):
    """A checkpoint that cannot be written, or is none. The message says why."""


class Position(NamedTuple):
    """How far a run has come: whole epochs, evaluated, and steps of the one after them."""

    epochs: int
    steps: int

    @property
    def number(self) -> float:
        """It as one number, exact in a float64; a later position has a larger one."""
        return float(self.epochs * 2**32 + self.steps)


@cache  # a file that is changed later is not what this process has loaded
def source_digest() -> str:
    """16 hex digits that name the trainer's sources."""
    digest = sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        for part in (str(path.relative_to(SOURCES)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


class Checkpoints:
    """One rank's checkpoints of one run, the newest few. Ranks may share the directory."""

    def __init__(self, directory: Path, run: str, rank: int, ranks: int) -> None:
        self.directory, self._rank = directory, rank
        self._whose = {"version": VERSION, "run": run, "rank": rank, "ranks": ranks}

    def open(self) -> None:
        """Make the directory, before there is anything to lose. Raises CheckpointError."""
        with self._writing():
            _make(self.directory)
            source_digest()

    def write(self, position: Position, state: dict[str, Any]) -> int:
        """Keep the state, of plain values and tensors; how many bytes it took. Raises CheckpointError."""
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        payload = buffer.getbuffer()
        header = {
            **self._whose,
            "position": position,
            "torch": str(torch.__version__),
            "sources": source_digest(),
            "time": time.time(),
            "sha256": sha256(payload).hexdigest(),
        }
        path = self._path(position)
        draft = path.with_suffix(DRAFT)
        with self._writing():
            _make(path.parent)
            with open(draft, "wb", opener=_no_link) as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            _sync(path.parent)
            return path.stat().st_size

    def read(self, position: Position) -> tuple[dict[str, Any], float]:
        """The state, and when it was taken (seconds since 1970).

        Raises CheckpointError if it is damaged, or if another torch or other sources have written it: then
        the row would name code that has done a part of the work only.
        """
        import torch

        header, payload = self._opened(position)
        if header.get("sha256") != sha256(payload).hexdigest():
            raise CheckpointError("it is damaged: its checksum is wrong")
        if (by := header.get("torch")) != torch.__version__:
            raise CheckpointError(f"it was written with torch {by}, and this is {torch.__version__}")
        if (by := header.get("sources")) != source_digest():
            these = source_digest()
            raise CheckpointError(f"other sources of the trainer wrote it ({by}; these are {these})")
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        return state, float(header["time"])

    def _opened(self, position: Position) -> tuple[dict[str, Any], bytes]:
        try:
            first, _, payload = self._path(position).read_bytes().partition(b"\n")
            header = json.loads(first)
            if not isinstance(header, dict):
                raise ValueError
        except OSError as error:
            raise CheckpointError(f"it cannot be read: {error.strerror}") from error
        except ValueError:
            raise CheckpointError("it is damaged: it does not begin as a checkpoint does") from None
        for name, expected in {**self._whose, "position": list(position)}.items():
            if header.get(name) != expected:
                raise CheckpointError(f"it is another's: its {name} is {header.get(name)}, not {expected}")
        return header, payload

    def positions(self) -> list[Position]:
        """Of this rank's checkpoints, intact or not, the newest first. Raises CheckpointError."""
        found = []
        try:
            for directory in self.directory.iterdir():
                match = re.fullmatch(r"epoch-(\d+)-step-(\d+)", directory.name)
                if match and (directory / self._name).exists():
                    found.append(Position(int(match[1]), int(match[2])))
        except FileNotFoundError:  # nobody has made the directory yet
            return []
        except OSError as error:  # not to be taken for none: the run would lose what it has done
            raise CheckpointError(
                f"checkpoints cannot be looked for in {self.directory}: {error.strerror}"
            ) from error
        return sorted(found, reverse=True)

    def keep(self, position: Position | None) -> None:
        """Remove those beyond `position`, and of the others all but the newest; None: remove all.

        With all of them goes the count of how often the run went on. Raises CheckpointError.
        """
        if position is None:
            with self._writing():
                (self.directory / RESUMED).unlink(missing_ok=True)
        others = [each for each in self.positions() if position and each <= position]
        for doomed in {*self.positions()} - {*others[:KEPT]}:
            path = self._path(doomed)
            with self._writing():
                path.unlink(missing_ok=True)
                path.with_suffix(DRAFT).unlink(missing_ok=True)  # of a rank that was killed in mid-write
            with suppress(OSError):  # other ranks' are still there
                path.parent.rmdir()

    def note_resumed(self) -> int:
        """Note that the run goes on from one; how often it has by now. Raises CheckpointError."""
        with (
            self._writing(),
            open(self.directory / RESUMED, "a+", encoding="utf-8", opener=_no_link) as file,
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
                f"checkpoints cannot be kept in {self.directory}: {error.strerror}"
            ) from error


def _make(directory: Path) -> None:
    """Make a directory that those may write to who may write to the one that it is in.

    What containers are given is open to all, since a node is nobody in particular; what processes write to
    is the user's alone.
    """
    with suppress(FileExistsError):
        directory.mkdir(parents=True)
        directory.chmod(directory.parent.stat().st_mode & 0o777)


def _no_link(path: str, flags: int) -> int:
    """Open a file to write to, and no link to another that somebody has put in its place."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _sync(directory: Path) -> None:
    """Let the names in the directory survive a power cut, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
