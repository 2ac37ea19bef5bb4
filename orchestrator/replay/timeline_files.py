"""The files of a run's timeline: `timeline.json`, and beside it the window that a report draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from pydantic import ValidationError

from orchestrator.replay.recorded import recorded
from orchestrator.replay.run import VERSION as MODEL_VERSION
from orchestrator.replay.run import NoClusterTime, read_traces, replay_traces
from orchestrator.replay.timeline import timeline
from orchestrator.replay.windows import Windows, steps_of, window_of
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, read_of_run, write_atomic
from trainer.core.regular_files import RefusedFile
from trainer.core.trace import Trace
from trainer.time_model.cluster import Cluster
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import Replay

MAX_RANKS = 1024  # each has a row
MAX_RECORDS = 1_000_000  # of which a timeline takes 250 MB


def windows_of(paths: RunPaths, result: RunResult, cluster: Cluster) -> Windows | NoClusterTime:
    """The stored windows of a run whose timeline is written; without them, both files are written.

    Raises OSError.
    """
    stored = _read(paths)
    if stored and _is_of(stored, result, cluster) and paths.timeline.exists():
        return stored
    if (ranks := result.run.world_size) > MAX_RANKS:
        return NoClusterTime(f"it has {ranks:,} ranks; a timeline has at most {MAX_RANKS:,}")
    traces = read_traces(paths.directory, result.run, result.runtime_info.simulates_time)
    if isinstance(traces, NoClusterTime):
        return traces
    if (records := sum(len(trace.records) for trace in traces)) > MAX_RECORDS:
        return NoClusterTime(f"its traces have {records:,} records; a timeline has at most {MAX_RECORDS:,}")
    replay = replay_traces(traces, result.run, cluster, intervals=True)
    if isinstance(replay, NoClusterTime):
        return replay
    return write_timeline(paths, result, cluster, traces, replay)


def _is_of(stored: Windows, result: RunResult, cluster: Cluster) -> bool:
    drawn = (stored.wall, stored.replayed)
    return (stored.run, stored.model, stored.cluster) == (result.key, MODEL_VERSION, cluster) and all(
        len(window.ranks) == result.run.world_size for window in drawn
    )


def write_timeline(
    paths: RunPaths, result: RunResult, cluster: Cluster, traces: Sequence[Trace], replay: Replay
) -> Windows | NoClusterTime:
    """Write both files. Raises OSError.

    Args:
        cluster: the cluster on which the traces were replayed.
        replay: a replay with intervals.
    """
    try:
        wall = recorded(traces, result.runtime_info.one_clock)
    except ReplayError as error:
        return NoClusterTime(f"its traces do not fit together: {error}")
    replayed = [rank.track for rank in replay.ranks]
    rank, steps = steps_of(traces)
    windows = Windows(
        run=result.key,
        cluster=cluster,
        steps=steps,
        wall=window_of(wall, rank, steps),
        replayed=window_of(replayed, rank, steps),
    )
    paths.windows.unlink(missing_ok=True)  # it must not describe a timeline other than its own
    text = json.dumps(timeline(wall, replayed, windows), separators=(",", ":"))
    write_atomic(paths.timeline, text + "\n")
    write_atomic(paths.windows, windows.model_dump_json() + "\n")
    return windows


def _read(paths: RunPaths) -> Windows | None:
    """The stored windows; None if there are none, or they are damaged or of another version."""
    with suppress(FileNotFoundError, RefusedFile, ValidationError):
        return Windows.model_validate_json(read_of_run(paths.windows))
    return None
