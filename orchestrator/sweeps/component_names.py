"""What a component's name in a sweep file refers to: a registered component, or what is imported."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from trainer.core.registry import is_import_path, shortened
from trainer.core.regular_files import read_regular
from trainer.spec.registries import REGISTRIES

CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f]")  # control characters
GROUPS = {"loss": "losses", "strategy": "strategies"}  # entry points; the others have an s


@dataclass(frozen=True)
class ImportName:
    """What a component's name in a sweep file refers to.

    label: its name in reports and in the run key. directory: the one with the module's file. module,
    attribute: what is imported; a module that is a file ends in .py.
    """

    label: str
    directory: Path
    module: str
    attribute: str

    @classmethod
    def of(cls, field: str, name: str, directory: Path) -> ImportName | None:
        """The import that a name of a field means; None if it is that of a registered component."""
        if name in REGISTRIES[field].entries:
            return None
        if name.endswith(".py"):
            defined = _defined(directory / Path(name).expanduser())
            raise ValueError(f"names a file alone; write {name}:NAME{defined}")
        if not is_import_path(name):
            path = REGISTRIES[field].paths.get(name) or _entry_points(field).get(name)
            if path is None:
                return None
            module, _, attribute = path.partition(":")
            return cls(name, directory, module, attribute)
        module, _, attribute = name.rpartition(":")
        is_file = module.endswith(".py")
        if not attribute.isidentifier() or not (
            is_file or all(part.isidentifier() for part in module.split("."))
        ):
            raise ValueError("no import path; allowed: FILE.py:NAME, PACKAGE.MODULE:NAME, torchvision:NAME")
        if not is_file:
            return cls(name, directory, module, attribute)
        file = (directory / Path(module).expanduser()).resolve()
        if CONTROL.search(str(file)):
            raise ValueError(f"there are control characters in {str(file)!r}")
        if not file.is_file():
            raise ValueError(f"{file} is no regular file" if file.exists() else f"there is no file {file}")
        return cls(f"{_short(file, directory)}:{attribute}", file.parent, file.name, attribute)


def _short(file: Path, directory: Path) -> str:
    """The file's path, from `directory` if it is below it."""
    return str(file.relative_to(directory) if file.is_relative_to(directory) else file)


def _defined(file: Path) -> str:
    """The classes and functions that a file defines, for a message; the file is not run."""
    try:
        statements = ast.parse(read_regular(file)).body
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [each.name for each in statements if isinstance(each, kinds) and not each.name.startswith("_")]
    return f"; it defines {shortened(names)}" if names else ""


@lru_cache
def _entry_points(field: str) -> dict[str, str]:
    """Components of installed packages: name -> import path."""
    return {
        each.name: each.value for each in entry_points(group=f"shardyard.{GROUPS.get(field, field + 's')}")
    }


def is_users(field: str, value: Any) -> bool:
    """Whether a value of a field names a user's component. Reads no file."""
    name = form_of(value).get("name")
    if not isinstance(name, str) or name in REGISTRIES[field].entries:
        return False
    return is_import_path(name) or name in {**REGISTRIES[field].paths, **_entry_points(field)}


def short_path(name: str) -> str:
    """`mine.py:Net` for `./mine.py:Net`, as runs name it; other names stay."""
    module, _, attribute = name.rpartition(":")
    return f"{os.path.normpath(module)}:{attribute}" if module.endswith(".py") else name


def from_here(value: Any) -> Any:
    """A value of an option: an import path of a file counts from the current directory, not the sweep's."""
    form = form_of(value)
    module, _, attribute = str(form.get("name", "")).rpartition(":")
    if not module.endswith(".py"):
        return value
    name = f"{Path(module).expanduser().absolute()}:{attribute}"
    return {**form, "name": name} if isinstance(value, dict) else name


def form_of(value: Any) -> dict[str, Any]:
    """The mapping form of a component's value: its name, and parameters beside it."""
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else {}
