"""Files that ship with Shardyard: sweeps, assignments, compose files and the sources of the trainer image.

In a checkout they lie beside the packages; an installed wheel has them as package data (pyproject.toml).
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import InputError
from trainer.core.registry import suggestion

# The directory from which `trainer` and `orchestrator` are imported.
IMPORT_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE_DATA = Path(__file__).resolve().parent / "shipped_files"
ROOT = _PACKAGE_DATA if _PACKAGE_DATA.is_dir() else IMPORT_ROOT

SWEEPS = ROOT / "sweeps"
LABS = SWEEPS / "labs"
COMPOSE = ROOT / "compose"
COURSES = ROOT / "courses"
STANDARD_INPUT = Path("/dev/stdin")


def in_checkout() -> bool:
    """Whether the packages are imported from a git checkout of Shardyard."""
    return ROOT == IMPORT_ROOT and (ROOT / ".git").exists()


def command(name: str) -> str:
    """How a message names a command that a user can run next: `make image`, installed `shardyard image`."""
    return f"make {name}" if ROOT == IMPORT_ROOT else f"shardyard {name}"


def sweep_names() -> list[str]:
    """The shipped sweeps, in alphabetical order."""
    return sorted(path.stem for path in SWEEPS.glob("*.yml"))


def find_sweep(name: str) -> Path:
    """The sweep file that a command line names: a path, `-`, or the name of a shipped sweep.

    The name of a shipped sweep is no path, even if the current directory has a file or directory of this
    name, such as results; `./quickstart` is one.

    Raises:
        InputError: There is neither such a file nor such a sweep.
    """
    if name == "-":
        return STANDARD_INPUT
    known = sweep_names()
    if name in known:
        return SWEEPS / f"{name}.yml"
    path = Path(name)
    if os.path.exists(name) or path.suffix or len(path.parts) > 1:
        return path
    hint = suggestion(name, known)
    raise InputError(f"{name!r}: no such file or shipped sweep{hint}; shipped: {', '.join(known)}")


def python_path() -> str:
    """PYTHONPATH of processes that import these sources: their directory, then the user's own value."""
    return os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
