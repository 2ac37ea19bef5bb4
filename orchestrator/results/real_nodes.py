"""Where the runs of real nodes are that calibrate the times of virtual ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.errors import InputError, output_error
from orchestrator.results.records import RunResult
from orchestrator.results.store import (
    RunPaths,
    SweepPaths,
    UnusableFile,
    read_record,
    read_result,
    read_stored,
    write_atomic,
)
from trainer.core.record import Record, Text
from trainer.core.regular_files import read_below

MOST_BYTES = 2**13  # of the file


class RealNodes(Record):
    """The results directory of real nodes.

    Attributes:
        directory: relative to that of the virtual nodes.
    """

    version: Literal[1] = 1
    directory: Text


@dataclass(frozen=True)
class RealRuns:
    """Finished runs of real nodes, each with its files; at least one.

    Attributes:
        directory: their results directory.
    """

    directory: Path
    runs: Sequence[tuple[RunPaths, RunResult]]

    @property
    def runtime(self) -> str:
        return self.runs[-1][1].runtime

    @property
    def node_kind(self) -> str:
        """What their nodes are, such as `local processes`."""
        return self.runs[-1][1].node_kind


def _finished(paths: SweepPaths, virtual: bool) -> list[tuple[RunPaths, RunResult]]:
    """The finished runs of a results directory on virtual or on real nodes. Raises InputError."""
    found = []
    for key in read_record(paths).keys:
        try:
            result = read_result(paths.run(key).result)
        except UnusableFile:  # it calibrates nothing
            continue
        if result and result.status == "ok" and result.runtime_info.simulates_time == virtual:
            found.append((paths.run(key), result))
    return found


def read_real_runs(directory: Path) -> RealRuns:
    """The finished runs of a results directory. Raises InputError if none is on real nodes."""
    if found := _finished(SweepPaths(directory), virtual=False):
        return RealRuns(directory, found)
    raise InputError(f"{directory} has no finished runs on real nodes")


def calibrate_virtual_nodes(paths: SweepPaths, directory: Path) -> None:
    """Store where the runs of real nodes are that calibrate those of virtual ones. Raises InputError."""
    try:
        read_real_runs(directory)
    except InputError as error:
        raise InputError(f"--real {error}") from error
    if not _finished(paths, virtual=True):
        raise InputError(f"--real {directory}: {paths.directory} has no finished runs on virtual nodes")
    relative = os.path.relpath(directory.resolve(), paths.directory.resolve())
    try:
        write_atomic(paths.real_nodes, RealNodes(directory=relative).model_dump_json() + "\n")
    except OSError as error:
        raise output_error(paths.real_nodes, error, "DIRECTORY") from error


def read_real_nodes(paths: SweepPaths) -> RealRuns | None:
    """The runs of real nodes for a results directory; None if it has none.

    Raises UnusableFile, and InputError if they cannot be read.
    """
    stored = read_stored(
        RealNodes, paths.real_nodes, lambda path: read_below(path.parent, path.name, MOST_BYTES)
    )
    return read_real_runs(paths.directory / stored.directory) if stored else None
