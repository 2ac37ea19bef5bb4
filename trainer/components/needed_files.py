"""Which files a component needs: those that it opens, and those that its modules import."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

# Where software is installed, which may lie below a user's directory.
NOT_USERS = [Path(__file__).parents[1]]
NOT_USERS += [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path]
STATED = ("torch", "torchvision", "trainer")  # packages whose version an environment or the product states


class OpenedFiles:
    """Records which files this process opens, among them those that a component needs."""

    def __init__(self) -> None:
        self._found = set[str | bytes]()
        sys.addaudithook(self._record)

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            self._found.add(arguments[0])

    @property
    def paths(self) -> set[Path]:
        """Those that are files, as absolute paths."""
        paths = {Path(os.path.abspath(os.fsdecode(name))) for name in self._found}
        return {path for path in paths if path.is_file()}

    def needed(self, directory: Path, module: str, data_dir: Path) -> set[Path]:
        """The files of a directory that a component of a module there needs, without data and software."""
        others = [other for other in (*NOT_USERS, data_dir) if other != directory]
        others = [other for other in others if other.is_relative_to(directory)]
        loaded = (
            getattr(each, "__file__", None) for each in [*sys.modules.values()]
        )  # maybe from bytecode
        found = self.paths | {Path(file) for file in loaded if file} | imported_files(directory, module)
        return {
            path
            for path in found
            if path.is_relative_to(directory)
            and path.suffix != ".pyc"
            and not any(path.is_relative_to(other) for other in others)
        }


def imported_files(directory: Path, module: str) -> set[Path]:
    """The files of a directory that a module of it imports anywhere, also inside of functions."""
    finder = ModuleFinder(path=[str(directory)], excludes=["trainer", "shardyard"])
    if module.endswith(".py"):
        finder.run_script(str(directory / module))
    else:
        with suppress(ImportError):  # an installed module
            finder.import_hook(module)
    files = (getattr(found, "__file__", None) for found in finder.modules.values())
    return {Path(file) for file in files if file}


def installed_digest(called: Any, files: Collection[Path]) -> str:
    """16 hex digits that identify the sources of an installed component; empty for one of these files.

    They are those of its whole package, unless its version is stated elsewhere.
    """
    name = getattr(called, "__module__", "")
    origin = getattr(sys.modules.get(name), "__file__", None)
    if not origin or Path(origin) in files:
        return ""
    sources, top = [Path(origin)], sys.modules.get(name.partition(".")[0])
    if top is not None and top.__name__ not in STATED:
        sources += [path for place in getattr(top, "__path__", ()) for path in Path(place).rglob("*.py")]
    found = sha256()
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
