"""Open regular files only: a pipe or a device may never answer, and a link leads out of a directory.

`open_below` and `read_below` are for files that others may have written: nodes, users' components, and
whoever made a results directory. `open_regular` and `read_regular` are for paths that the user gives, where
links are fine. `own_directories` is for places where other users can create files, such as /tmp.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # O_NONBLOCK: a pipe opens at once
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class RefusedFile(OSError):
    """A path that is not read. `strerror` says what it is, without the path."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(None, reason, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def why_unread(error: OSError | ValueError) -> str:
    """Why a file cannot be read, without its path."""
    return getattr(error, "strerror", None) or str(error)


def open_below(directory: Path | int, relative: str) -> BufferedReader:
    """Open a regular file below a directory for reading, through no symbolic link at any level.

    Args:
        directory: a path, which may contain links, or a descriptor, which stays open.
        relative: names joined by `/`, without empty ones, `.` and `..`.

    Raises:
        RefusedFile: `relative` is no such path, or names something else than a regular file.
        OSError: the file cannot be opened; FileNotFoundError: it does not exist.
    """
    parts = relative.split("/")
    if any(part in ("", ".", "..") for part in parts) or not _is_encodable(relative):
        raise RefusedFile(ascii(relative), "is not a path below a directory")
    path = Path(relative) if isinstance(directory, int) else directory / relative
    with ExitStack() as opened:
        if isinstance(directory, int):
            at = directory
        else:
            at = _open(str(directory), os.O_DIRECTORY, path)
            opened.callback(os.close, at)
        for part in parts[:-1]:
            at = _open(part, os.O_DIRECTORY | os.O_NOFOLLOW, path, at)
            opened.callback(os.close, at)
        return _regular(_open(parts[-1], os.O_NOFOLLOW, path, at), path)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; links are followed. Raises as `open_below`."""
    return _regular(_open(str(path), 0, path), path)


def read_below(directory: Path | int, relative: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, opened as by `open_below`. Raises RefusedFile also if it is too large."""
    return _content(open_below(directory, relative), relative, max_bytes)


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """The content of a file, opened as by `open_regular`. Raises RefusedFile also if it is too large."""
    return _content(open_regular(path), path, max_bytes)


def own_directories(parent: Path, prefix: str) -> Iterator[Path]:
    """The directories in `parent` whose names begin so and that belong to this user; no links."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):  # it has just been removed
                status = entry.stat(follow_symlinks=False)
                if (
                    entry.name.startswith(prefix)
                    and stat.S_ISDIR(status.st_mode)
                    and status.st_uid == os.geteuid()
                ):
                    yield parent / entry.name


def other_kind(path: Path) -> str | None:
    """What is at the path if it is no regular file, in words; None for one, and if nothing is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISREG(mode) else _kind(mode)


def _content(opened: BufferedReader, path: Path | str, max_bytes: int | None) -> bytes:
    """Read a file and close it."""
    with opened as file:
        if max_bytes is None:
            return file.read()
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content = file.read(max_bytes + 1)
            if len(content) <= max_bytes:  # it may be growing
                return content
    raise RefusedFile(path, f"is larger than {max_bytes:,} bytes")


def _is_encodable(name: str) -> bool:
    """Whether a file can have the name."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        return False


def _open(name: str, flags: int, path: Path, at: int | None = None) -> int:
    """Open a file, or a directory on the way to it, in the directory `at`. path: its name in errors."""
    wants_directory = bool(flags & os.O_DIRECTORY)
    try:
        return os.open(name, _READ | flags, dir_fd=at)
    except OSError as error:
        error.filename = str(path)
        try:
            mode = os.stat(name, dir_fd=at, follow_symlinks=not flags & os.O_NOFOLLOW).st_mode
        except OSError:
            raise error from None
        if stat.S_ISDIR(mode) if wants_directory else stat.S_ISREG(mode):
            raise
        if wants_directory:
            raise RefusedFile(path, f"is in {name}, which is {_kind(mode)}, not a directory") from None
        raise RefusedFile(path, f"is {_kind(mode)}, not a regular file") from None


def _regular(descriptor: int, path: Path) -> BufferedReader:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise RefusedFile(path, f"is {_kind(mode)}, not a regular file")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a special file")
