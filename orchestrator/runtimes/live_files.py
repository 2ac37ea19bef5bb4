"""The directory `live`, to which ranks write directly: their limits, and what is kept at the end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.results.store import RunPaths, write_atomic
from trainer.core.events import Event, EventReader, make_files
from trainer.spec.output_limits import OutputLimits


def make_live(paths: RunPaths, limits: OutputLimits) -> None:
    """Make the directory, and in it the file of each rank: one that is missing later was removed."""
    paths.live.mkdir()
    make_files(paths.live, range(limits.ranks))


def reader_of(paths: RunPaths, limits: OutputLimits) -> EventReader:
    """What reads the events that ranks write to the directory."""
    ranks = limits.ranks
    return EventReader(paths.live, ranks, limits.event_bytes, limits.restarts, made=range(ranks))


def excess(paths: RunPaths, limits: OutputLimits) -> Iterator[tuple[int, Path, str]]:
    """Files that are not kept: the rank that has written each, its path, and why."""
    files = [(0, paths.weights.name, "weights", limits.weight_bytes)]
    traces = ((rank, paths.trace(rank).name) for rank in range(limits.ranks))
    files += ((rank, name, "trace", limits.trace_bytes) for rank, name in traces)
    there = {entry.name for entry in os.scandir(paths.live)}
    for rank, name, what, most in files:
        written = paths.live / name
        if name in there and _is_regular(written) and written.stat().st_size > most:
            reason = f"more than {most} bytes" if most else "the spec asks for none"
            yield rank, written, f"{what}: {reason}"


def collect_live(paths: RunPaths, limits: OutputLimits) -> None:
    """Move weights and traces to their final paths, write the events, and remove the directory."""
    events = reader_of(paths, limits).new()
    for rank, path, reason in [*excess(paths, limits)]:
        events.append(Event(time.time(), "", rank, "", "damaged", {"line": "", "reason": reason}))
        path.unlink()
    write_atomic(paths.events, "".join(event.to_line() + "\n" for event in events))
    traces = [paths.trace(rank) for rank in range(limits.ranks)]
    for path in (paths.weights, paths.usage, *traces):
        if _is_regular(paths.live / path.name):
            (paths.live / path.name).replace(path)
    shutil.rmtree(paths.live, ignore_errors=True)


def _is_regular(path: Path) -> bool:
    """Whether a rank has written a file, and neither a pipe nor a link."""
    return path.is_file() and not path.is_symlink()
