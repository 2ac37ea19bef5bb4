"""Copies of the files of users' components, from which nodes read them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import psutil

from trainer.core.regular_files import RefusedFile, open_below, own_directories
from trainer.core.whole_number import MAX_PID, whole_number

MOST_BYTES = 2**30  # of the files of a component
PREFIX = "shardyard-code-"
BLOCK = 2**20  # bytes that are copied at once


class StagedCode:
    """A private directory of this process with a folder for each set of files, named after their content.

    It ends with this object.

    Attributes:
        directory: the directory with the folders. All users may read it, since nodes in containers have
            another one. Only this user can reach it, and containers that mount the directory itself.
    """

    def __init__(self) -> None:
        _remove_stale()
        private = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, private, True)
        self.directory = private / "code"
        self.directory.mkdir(mode=0o755)
        self.directory.chmod(0o755)  # whatever the umask

    def add(
        self, directory: Path, files: Sequence[str], more: str, readable_by_all: bool
    ) -> dict[str, str]:
        """Copy files of a directory to a folder of their own. Returns their digests by their paths.

        The paths come from a process that runs users' code: each must be a regular file below `directory`,
        and no part of its path a link.

        Args:
            more: what identifies the code beside its files.
            readable_by_all: refuse files that only their user may read: who names them has another user.

        Raises:
            RefusedFile: A file must not be copied, or they have more than MOST_BYTES.
            OSError: One cannot be read.
        """
        new, digests, size = self.directory / "new", dict[str, str](), 0
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o755)
        for name in files:
            with open_below(directory, name) as file:
                if readable_by_all and not os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                    raise RefusedFile(directory / name, "is not readable by the user of the nodes")
                found = sha256()
                (new / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                with (new / name).open("xb") as copy:
                    while block := file.read(BLOCK):
                        size += len(block)
                        if size > MOST_BYTES:
                            raise RefusedFile(directory, _too_large())
                        found.update(block)
                        copy.write(block)
            digests[name] = found.hexdigest()
        folder = self.directory / digest(digests, more)
        shutil.rmtree(folder, ignore_errors=True)
        _let_all_read(new)
        new.rename(folder)
        return digests

    def unite(self, folders: Mapping[str, Iterable[str]], name: str) -> None:
        """Make the folder `name` of the files of several folders, each given with its files."""
        united = self.directory / name
        for folder, files in () if united.is_dir() else folders.items():
            for file in files:
                (united / file).parent.mkdir(parents=True, exist_ok=True)
                if not (united / file).exists():
                    (united / file).hardlink_to(self.directory / folder / file)
        _let_all_read(united)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file beside the folders; nodes do not get it."""
        path = self.directory / name
        with path.open("xb") as file:
            file.write(data)
        path.chmod(0o644)
        return path

    def copy_to(self, directory: Path, folders: Iterable[str]) -> None:
        """Copy folders to a directory from which nodes read them, which must be in a private one."""
        directory.mkdir(mode=0o755, exist_ok=True)
        directory.chmod(0o755)
        for folder in folders:
            if not (directory / folder).exists():
                partial = directory / f".{folder}"
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(self.directory / folder, partial)
                partial.rename(directory / folder)


def _too_large() -> str:
    return (
        f"has more than {MOST_BYTES / 2**30:g} GiB of files that it reads; keep data in the data "
        "directory, which it gets as `data_dir`"
    )


def _let_all_read(folder: Path) -> None:
    """Let other users read what can be reached in the folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def digest(files: Mapping[str, str], more: str = "") -> str:
    """16 hex digits that identify the names of files and the digests of their content."""
    lines = [f"{file}\0{content}\0" for file, content in sorted(files.items())]
    return sha256("".join([more, *lines]).encode()).hexdigest()[:16]


def _remove_stale() -> None:
    """Remove the directories of this user's processes that were killed."""
    for path in own_directories(Path(tempfile.gettempdir()), PREFIX):
        pid = whole_number(path.name.removeprefix(PREFIX).partition("-")[0], MAX_PID)
        if pid is not None and not psutil.pid_exists(pid):
            shutil.rmtree(path, ignore_errors=True)
