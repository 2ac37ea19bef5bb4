"""Fuzz what enters from outside: sweep files, events, results, traces, messages and checkpoints.

Hypothesis changes valid documents: it replaces, removes and adds values anywhere in them, and bytes.
Reading the outcome either succeeds or raises the one error that its caller handles.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.commands import replay
from orchestrator.errors import InputError
from orchestrator.execution.run_result import Execution, Place, build_result
from orchestrator.replay.run import ClusterTime
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.model.timelines import with_timelines
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_result, untraced_ranks
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import load_sweep
from tests.support.traced_sweep import traced_run, traced_sweep, traces_of, with_record
from tests.unit.conftest import rank_fields, run_result
from trainer.cluster.incoming_trace import IncomingTrace
from trainer.cluster.protocol import FROM_AGENT, Connection
from trainer.core.events import Event, EventReader, format_event
from trainer.core.trace import CHECKSUM_BYTES, RECORD, trace_path
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position

TIMES = {
    "sweeps": 100_000,
    "events": 10_000,
    "results": 10_000,
    "traces": 10_000,
    "calibration": 10_000,
    "messages": 10_000,
    "checkpoints": 10_000,
}
RUN = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1})
POSITION = Position(1, 0)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 10**400]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "\x1b[2J", "mlp", "serial", "nodes", "../..", "\ud800", "1e999", "{", "[" * 2000]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.just("name"), inner, max_size=4)
    ),
    max_leaves=8,
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every value inside a document, as its container and key."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [place for key, value in items for place in ((document, key), *places(value))]


@st.composite
def changed(draw: st.DrawFn, documents: list[str]) -> Any:
    """One of the JSON documents, with up to three changes."""
    document = json.loads(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        if not (found := places(document)):
            break
        container, key = draw(st.sampled_from(found))
        match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "replace":
                container[key] = draw(VALUES)
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container[draw(st.text(max_size=12))] = draw(VALUES)
    return document


def dumped(document: Any) -> bytes:
    """As JSON; what UTF-8 cannot encode is escaped."""
    return json.dumps(document).encode()


@st.composite
def damaged(draw: st.DrawFn, documents: st.SearchStrategy[Any]) -> bytes:
    """A document as JSON, sometimes cut off or with other bytes in it."""
    data = dumped(draw(documents))
    if draw(st.booleans()):
        return data
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=8)) + data[at + draw(st.integers(0, 8)) :]


def sweep_documents() -> list[str]:
    """The shipped sweeps, as JSON."""
    return [json.dumps(yaml.safe_load(path.read_text())) for path in sorted(SWEEPS.rglob("*.yml"))]


def event_documents() -> list[str]:
    """One event of each rank and of every kind that a run has."""
    points = {"epoch": 1, "epochs": 1, "train_s": 1.0, "loss": 0.5, "accuracy": 0.9, "test_loss": 0.4}
    step = {
        "epoch": 1,
        "epochs": 1,
        "step": 3,
        "steps": 9,
        "loss": 0.5,
        "accuracy": 0.5,
        "samples_per_s": 9.0,
    }
    counts = [10] * 10
    part = {"epoch": 1, "samples": 100, "labels": counts, "digest": "ab"}
    part |= {"js_divergence": 0.0, "js_divergence_so_far": 0.0}
    covered = {"epoch": 1, "coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
    kinds: dict[str, dict[str, Any]] = {
        "start": {"pid": 7},
        "ready": {},
        "train_start": {"parameters": 9},
        "step": step,
        "partition": part,
        "coverage": {**covered, "digest": "ab"},
        "epoch": points,
        "train_end": {},
        "result": rank_fields(),
        "done": {},
    }
    now = time.time()
    return [
        Event(now + number, RUN.key, rank, "host", kind, fields).to_line()
        for number, (kind, fields) in enumerate(kinds.items())
        for rank in (0, 1)
    ]


MESSAGES = [
    {"kind": "hello", "public_keys": {}, "replaced": None},
    {"kind": "event", "line": "{}"},
    {"kind": "weights", "chunk": "AAAA", "last": True},
    {"kind": "exit", "codes": {"0": 0}, "cause": None, "usage": {"cpu_s": 1.0}, "lost": None},
]


def read_sweep(data: bytes, directory: Path) -> None:
    file = directory / "sweep.yml"
    file.write_bytes(data)
    with suppress(InputError):
        load_sweep(file)


def read_events(lines: list[bytes], directory: Path) -> None:
    """Events of a run reach its result, whatever they contain."""
    for rank in range(RUN.world_size):
        (directory / f"rank-{rank}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines[rank::2]))
    events = EventReader(directory, RUN.world_size, 2**20).new()
    for event in events:
        format_event(event)
        event.to_line()
    execution = Execution(events=events, started_at=0.0, ended_at=9.0)
    result = build_result(RUN, execution, Place("local", LocalRuntime.info, "local processes", 2, {}))
    assert result.status == "failed" or result.certificate is not None
    result.model_dump_json()


def read_results(data: bytes, directory: Path) -> None:
    file = directory / "result.json"
    file.write_bytes(data)
    with suppress(InputError):
        read_result(file)


EXTREMES = st.sampled_from(
    [0, 1, -1, 254, 2**31, 2**53, 2**63, 1e-300, 1e15, 1e300, np.inf, -np.inf, np.nan]
)
Change = tuple[int, str, float]  # of a record: its number, field and value


def trace_headers() -> list[str]:
    """The header of a trace of `traced_run`."""
    return [traces_of(traced_run(0))[1].header.model_dump_json()]


def record_changes() -> st.SearchStrategy[list[Change]]:
    count = len(traces_of(traced_run(0))[1].records)
    fields = st.sampled_from(RECORD.names or ())
    values = EXTREMES | st.integers(0, 50) | st.floats(0, 1e4)
    return st.lists(st.tuples(st.integers(0, count - 1), fields, values), max_size=6)


def read_traces(drawn: tuple[Any, list[Change]], directory: Path) -> None:
    """Whatever a rank's trace contains, its run has a time or a cause in a report, as other runs have."""
    header, changes = drawn
    paths, results = traced_sweep(directory, runs=2)
    run, trace = results[0].run, traces_of(results[0])[1]
    with np.errstate(all="ignore"):
        for at, field, value in changes:
            trace = with_record(trace, at, **{field: value})
    content = dumped(header) + b"\n" + trace.records.tobytes()
    content += zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")
    trace_path(paths.run(run.key).directory, 1).write_bytes(content)
    limits = OutputLimits.of(run)
    incoming = IncomingTrace(run.key, 1, limits.trace_bytes, limits.trace)
    half = len(content) // 2
    with suppress(ValueError):
        incoming.add(content[:half], last=False)
        incoming.add(content[half:], last=True)
    assert incoming.complete or untraced_ranks(paths.run(run.key), run)
    check_times(paths, results)


def calibration_documents() -> list[str]:
    """What a sweep stores of its cluster times, and the links of a run."""
    with TemporaryDirectory() as name:
        paths, results = traced_sweep(Path(name), runs=2)
        with_timelines(paths, read_comparison(paths))
        files = [paths.run(results[0].key).cluster_time, *paths.directory.glob("*/timeline.window.json")]
        links = results[0].model_dump_json(include={"links"})
        return [*(file.read_text() for file in files), links]


def read_calibration(data: bytes, directory: Path) -> None:
    paths, results = traced_sweep(directory, runs=2)
    files = paths.run(results[0].key)
    for path in (files.cluster_time, files.windows):
        path.write_bytes(data)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        links = json.loads(data)["links"]
        content = json.loads(files.result.read_text())
        files.result.write_bytes(dumped({**content, "links": links}))
    check_times(paths, results)


def check_times(paths: SweepPaths, results: list[RunResult]) -> None:
    """Every run has a cluster time or a cause. Other runs than the first have a time."""
    comparison = with_timelines(paths, read_comparison(paths))
    known = {**comparison.clusters, **comparison.unusable}
    assert known.keys() == {result.key for result in results}
    assert isinstance(known[results[1].key], ClusterTime)
    rows = [*replay.rows(paths, replay.Options(Link(latency_s=1e-3, bytes_per_s=1e8)), timelines=True)]
    replay.as_json(rows)
    assert {row.key for row in rows} == known.keys()


def read_messages(data: bytes, directory: Path) -> None:
    async def receive() -> None:
        reader = asyncio.StreamReader(limit=2**16)
        reader.feed_data(data.replace(b"\n", b" ") + b"\n")
        reader.feed_eof()
        connection = Connection(reader, None, FROM_AGENT)  # type: ignore[arg-type]  # nothing is sent
        assert await connection.receive() is not None or connection.error

    asyncio.run(receive())


def checkpoint(directory: Path) -> tuple[CheckpointStore, Path]:
    """A small checkpoint: its store and its file."""
    store = CheckpointStore(directory, RUN.key, rank=0, ranks=2)
    store.open()
    store.write(POSITION, {"weights": [1.0, 2.0]})
    (path,) = directory.rglob("*.pt")
    return store, path


def read_checkpoint(header: bytes, directory: Path) -> None:
    store, path = checkpoint(directory)
    _, newline, state = path.read_bytes().partition(b"\n")
    path.write_bytes(header + newline + state)
    with suppress(CheckpointError):
        store.read(POSITION)


def checkpoint_documents() -> list[str]:
    """The header of a checkpoint, which is the first line of its file."""
    with TemporaryDirectory() as directory:
        _, path = checkpoint(Path(directory))
        return [path.read_bytes().partition(b"\n")[0].decode()]


Target = tuple[st.SearchStrategy[Any], Callable[[Any, Path], None]]


def targets() -> Mapping[str, Target]:
    """What is drawn, and what reads it, by name."""
    result = run_result(key=RUN.key, spec=RUN.model_dump(mode="json")).model_dump_json()
    messages = [json.dumps(message) for message in MESSAGES]
    events = event_documents()
    lines = st.lists(damaged(changed(events)), max_size=3).map(
        lambda wrong: [*(line.encode() for line in events), *wrong]
    )
    return {
        "sweeps": (damaged(changed(sweep_documents())), read_sweep),
        "events": (lines, read_events),
        "results": (damaged(changed([result])), read_results),
        "traces": (st.tuples(changed(trace_headers()), record_changes()), read_traces),
        "calibration": (damaged(changed(calibration_documents())), read_calibration),
        "messages": (damaged(changed(messages)), read_messages),
        "checkpoints": (damaged(changed(checkpoint_documents())), read_checkpoint),
    }


def fuzz(name: str, times: int) -> None:
    """Draw and read one kind of document this many times. Raises what a reader does not handle."""
    drawn, read = targets()[name]

    @settings(
        max_examples=times,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(drawn)
    def check(document: Any) -> None:
        with TemporaryDirectory() as directory:
            read(document, Path(directory))

    check()


def main(times: int | None) -> int:
    """Fuzz everything; prints one line for each kind of document. Returns the exit code."""
    for name, usual in TIMES.items():
        began = time.monotonic()
        fuzz(name, times or usual)
        print(
            f"{name}: {times or usual} documents in {time.monotonic() - began:.0f} s, no error", flush=True
        )
    return 0
