"""The command `export`: results, or the runs of a sweep, in the files of other programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.export.base import Exported, Options

NO_OPTIONS = Options()


def export(source: Path, to: str, out: Path | None, options: Options = NO_OPTIONS) -> Iterator[str]:
    """Export to a format, and yield lines on what was done. Raises InputError."""
    try:
        exporter = EXPORTERS.load(to)()
    except PydanticCustomError as error:
        raise InputError(f"--to {to}: {error}") from error
    exporter.check_options(options)
    changes: Counter[str] = Counter()
    remarks: list[str] = []
    for each in exporter.export(source, out, options):
        if isinstance(each, Exported):
            changes[each.change] += 1
            yield f"{each.change}: {each.name}"
        elif changes:
            remarks.append(each)
        else:
            yield each
    yield ", ".join(f"{number} {change}" for change, number in changes.items()) or "nothing to export"
    yield from remarks
