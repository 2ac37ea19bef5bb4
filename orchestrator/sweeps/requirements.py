"""The `requirements` of a sweep: packages that users' components need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from orchestrator.errors import InputError
from trainer.core.regular_files import read_regular, why_unread

MAX_BYTES = 2**20


def read_requirements(path: Path) -> list[Requirement]:
    """The packages of a requirements file.

    Raises:
        InputError: It cannot be read, or has other lines than packages and comments.
    """
    try:
        lines = read_regular(path, MAX_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"requirements: {path}: {why_unread(error)}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(Requirement(text))
        except InvalidRequirement as error:
            raise InputError(
                f"{path}:{number}: {text!r} is no package; allowed: lines such as `name` and `name==1.2`"
            ) from error
    return found


def missing(requirements: list[Requirement]) -> list[str]:
    """The packages that this Python lacks, or has in another version."""
    return [f"{each}{_installed(each)}" for each in requirements if not _is_met(each)]


def _is_met(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _installed(requirement: Requirement) -> str:
    try:
        return f" (installed: {version(requirement.name)})"
    except PackageNotFoundError:
        return ""
