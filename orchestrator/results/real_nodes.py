"""Where the runs of real nodes are that calibrate the times of virtual ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.errors import InputError, output_error
from orchestrator.results.records import RunResult
from orchestrator.results.store import (
    RunPaths,
    SweepPaths,
    UnusableFile,
    finished_runs,
    read_stored,
    write_atomic,
)
from trainer.core.json_files import JsonLimits, read_json_below
from trainer.core.record import Record, one_line

LIMITS = JsonLimits(bytes=2**13, values=2**10)  # of the file


class RealNodes(Record):
    """The results directory of real nodes.

    Attributes:
        directory: relative to that of the virtual nodes.
    """

    version: Literal[1] = 1
    directory: Annotated[str, Field(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class RealRuns:
    """Finished runs of real nodes, each with its files; at least one, and all on one runtime.

    Attributes:
        directory: their results directory, as a report names it.
    """

    directory: str
    runs: Sequence[tuple[RunPaths, RunResult]]

    @property
    def runtime(self) -> str:
        return self.runs[0][1].runtime

    @property
    def node_kind(self) -> str:
        """What their nodes are, such as `local processes`."""
        return self.runs[0][1].node_kind


def _finished(paths: SweepPaths, virtual: bool) -> list[tuple[RunPaths, RunResult]]:
    """The finished runs of a results directory on virtual or on real nodes. Raises InputError."""
    found, _ = finished_runs(paths)  # what cannot be read calibrates nothing
    return [each for each in found if each[1].runtime_info.simulates_time == virtual]


def _real_runs(directory: Path, name: str) -> RealRuns:
    """The finished runs of a results directory. Raises InputError if none is on real nodes."""
    found = _finished(SweepPaths(directory), virtual=False)
    if not found:
        raise InputError(f"{name} has no finished runs on real nodes")
    if len(runtimes := {result.runtime: None for _, result in found}) > 1:
        raise InputError(f"{name} has runs on several runtimes: {', '.join(runtimes)}; allowed: one")
    return RealRuns(name, found)


def calibrate_virtual_nodes(paths: SweepPaths, directory: Path) -> None:
    """Store where the runs of real nodes are that calibrate those of virtual ones. Raises InputError."""
    try:
        _real_runs(directory, str(directory))
    except InputError as error:
        raise InputError(f"--real {error}") from error
    if not _finished(paths, virtual=True):
        raise InputError(f"--real {directory}: {paths.directory} has no finished runs on virtual nodes")
    relative = os.path.relpath(directory.resolve(), paths.directory.resolve())
    try:
        write_atomic(paths.real_nodes, RealNodes(directory=relative).model_dump_json() + "\n")
    except OSError as error:
        raise output_error(paths.real_nodes, error, "DIRECTORY") from error


def read_real_runs(paths: SweepPaths) -> RealRuns | None:
    """The runs of real nodes for a results directory; None if none were given. Raises UnusableFile."""
    stored = read_stored(
        RealNodes, paths.real_nodes, lambda path: read_json_below(path.parent, path.name, LIMITS)
    )
    if stored is None:
        return None
    name = one_line(stored.directory)
    try:
        return _real_runs(paths.directory / stored.directory, name)
    except UnusableFile as error:
        raise UnusableFile(paths.real_nodes, f"names {name}, whose sweep cannot be read") from error
    except InputError as error:
        raise UnusableFile(paths.real_nodes, f"names {name}, which cannot be used: {error}") from error
