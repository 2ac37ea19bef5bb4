"""Mistakes in readers of what enters from outside: an exception that their caller does not handle.

Valid documents are changed: values anywhere in them, and bytes. FUZZ_TIMES is the number of each kind.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.commands import replay
from orchestrator.errors import InputError
from orchestrator.execution.run_result import Execution, Place, build_result
from orchestrator.replay.run import ClusterTime
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.model.timelines import with_timelines
from orchestrator.results.store import RunPaths, read_result, untraced_ranks
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import load_sweep
from tests.support.traced_sweep import traced_run, traced_sweep, traces_of, with_record
from tests.unit.conftest import rank_fields, run_result
from trainer.core.events import Event, EventReader, format_event
from trainer.core.trace import CHECKSUM_BYTES, RECORD, trace_path
from trainer.node.incoming_trace import IncomingTrace
from trainer.node.protocol import FROM_AGENT, Connection
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position

TIMES = int(os.environ.get("FUZZ_TIMES", "40"))
RUN = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1})
TEXTS = ["", "\x1b[2J", "mlp", "serial", "nodes", "../..", "\ud800", "1e999", "{", "[" * 2000]
SCALARS = st.sampled_from([None, False, True, 0, -1, 2**31, 2**63, 10**400, *TEXTS])
VALUES = st.recursive(
    SCALARS | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
EXTREMES = [0, 1, -1, 254, 2**31, 2**53, 2**63, 1e-300, 1e15, 1e300, np.inf, -np.inf, np.nan]
pytestmark = pytest.mark.slow


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every value inside a document, as its container and key."""
    keys = range(len(document)) if isinstance(document, list) else document
    inner = keys if isinstance(document, (dict, list)) else ()
    return [place for key in inner for place in ((document, key), *places(document[key]))]


@st.composite
def changed(draw: st.DrawFn, documents: list[str]) -> Any:
    """One of the JSON documents, with up to three changes."""
    document = json.loads(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        if found := places(document):
            container, key = draw(st.sampled_from(found))
            match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
                case "replace":
                    container[key] = draw(VALUES)
                case "remove":
                    del container[key]
                case "add" if isinstance(container, dict):
                    container[draw(st.text(max_size=12))] = draw(VALUES)
    return document


@st.composite
def damaged(draw: st.DrawFn, documents: list[str]) -> bytes:
    """A changed document as JSON, sometimes cut off or with other bytes in it."""
    data = json.dumps(draw(changed(documents))).encode()
    if draw(st.booleans()):
        return data
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=8)) + data[at + draw(st.integers(0, 8)) :]


def read(drawn: st.SearchStrategy[Any], reader: Callable[[Any, Path], object]) -> None:
    """Draw documents, and read each in a directory of its own. Raises what a reader does not handle."""

    def check(document: Any) -> None:
        with TemporaryDirectory() as directory:
            reader(document, Path(directory))

    unlimited = settings(database=None, deadline=None, suppress_health_check=[*HealthCheck])
    settings(unlimited, max_examples=TIMES, derandomize=True)(given(drawn)(check))()


def test_sweep_files_and_results() -> None:
    def reader(data: bytes, directory: Path) -> None:
        (directory / "file").write_bytes(data)
        for load in (load_sweep, read_result):
            with suppress(InputError):
                load(directory / "file")

    result = run_result(key=RUN.key, spec=RUN.model_dump(mode="json")).model_dump_json()
    sweeps = [json.dumps(yaml.safe_load(path.read_text())) for path in sorted(SWEEPS.rglob("*.yml"))]
    read(damaged(sweeps) | damaged([result]), reader)


def test_events_reach_the_result_of_their_run() -> None:
    epoch, none = {"epoch": 1, "epochs": 1}, {"js_divergence": 0.0, "js_divergence_so_far": 0.0}
    covered = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
    kinds: dict[str, dict[str, Any]] = {
        "start": {"pid": 7},
        "train_start": {"parameters": 9},
        "step": {**epoch, "step": 3, "steps": 9, "loss": 0.5, "accuracy": 0.5, "samples_per_s": 9.0},
        "partition": {"epoch": 1, "digest": "ab", "samples": 100, "labels": [10] * 10, **none},
        "coverage": {"epoch": 1, "digest": "ab", **covered},
        "epoch": {**epoch, "train_s": 1.0, "loss": 0.5, "accuracy": 0.9, "test_loss": 0.4},
        "result": rank_fields(),
        "done": {},
    }
    written = (Event(time.time(), RUN.key, rank, "", *each) for each in kinds.items() for rank in (0, 1))
    valid = [event.to_line() for event in written]

    def reader(wrong: list[bytes], directory: Path) -> None:
        lines = [*(line.encode() for line in valid), *wrong]
        for rank in (0, 1):
            (directory / f"rank-{rank}.jsonl").write_bytes(b"\n".join(lines[rank::2]) + b"\n")
        events = EventReader(directory, RUN.world_size, 2**20).new()
        for event in events:
            format_event(event)
            event.to_line()
        execution = Execution(events=events, started_at=0.0, ended_at=9.0)
        result = build_result(RUN, execution, Place("local", LocalRuntime.info, "local processes", 2, {}))
        assert result.certificate is not None or (wrong and result.status == "failed")
        result.model_dump_json()

    read(st.lists(damaged(valid), max_size=3), reader)


def test_damaged_files_of_a_run_cost_its_time_and_no_other(tmp_path: Path) -> None:
    """Every run has a cluster time or a cause. Other runs than the first have a time."""
    valid, (paths, results) = traces_of(traced_run(0))[1], traced_sweep(tmp_path, runs=2)
    with_timelines(paths, read_comparison(paths))
    stored = [paths.run(results[0].key).cluster_time, *paths.directory.glob("*/timeline.window.json")]
    documents = [*(file.read_text() for file in stored), results[0].model_dump_json(include={"links"})]
    values = st.sampled_from(EXTREMES) | st.integers(0, 50) | st.floats(0, 1e4)
    field = st.sampled_from(RECORD.names or ())
    records = st.lists(st.tuples(st.integers(0, len(valid.records) - 1), field, values), max_size=6)

    def reader(drawn: Any, directory: Path) -> None:
        paths, results = traced_sweep(directory, runs=2)
        files = paths.run(results[0].key)
        if isinstance(drawn, bytes):
            for path in (files.cluster_time, files.windows):
                path.write_bytes(drawn)
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                row = {**json.loads(files.result.read_text()), "links": json.loads(drawn)["links"]}
                files.result.write_bytes(json.dumps(row).encode())
        else:
            write_trace(results[0].run, files, *drawn)
        comparison = with_timelines(paths, read_comparison(paths))
        known = {**comparison.clusters, **comparison.unusable}
        assert known.keys() == {result.key for result in results}
        assert isinstance(known[results[1].key], ClusterTime)
        options = replay.Options(Link(latency_s=1e-3, bytes_per_s=1e8))
        rows = [*replay.rows(paths, options, timelines=True)]
        replay.as_json(rows)
        assert {row.key for row in rows} == known.keys()

    def write_trace(run: RunSpec, files: RunPaths, header: Any, changes: list[Any]) -> None:
        trace = valid
        for at, field, value in changes:
            with np.errstate(all="ignore"):
                trace = with_record(trace, at, **{field: value})
        content = json.dumps(header).encode() + b"\n" + trace.records.tobytes()
        content += zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")
        trace_path(files.directory, 1).write_bytes(content)
        limits, half = OutputLimits.of(run), len(content) // 2
        incoming = IncomingTrace(run.key, 1, limits.trace_bytes, limits.trace)
        with suppress(ValueError):
            incoming.add(content[:half], last=False)
            incoming.add(content[half:], last=True)
        assert incoming.complete or untraced_ranks(files, run)

    read(damaged(documents), reader)
    read(st.tuples(changed([valid.header.model_dump_json()]), records), reader)


def test_messages_of_agents() -> None:
    last = {"kind": "exit", "codes": {"0": 0}, "cause": None, "usage": {"cpu_s": 1.0}, "lost": None}
    weights, line = {"kind": "weights", "chunk": "AAAA", "last": True}, {"kind": "event", "line": "{}"}
    messages = [{"kind": "hello", "public_keys": {}, "replaced": None}, line, weights, last]

    async def receive(data: bytes) -> None:
        stream = asyncio.StreamReader(limit=2**16)
        stream.feed_data(data.replace(b"\n", b" ") + b"\n")
        stream.feed_eof()
        connection = Connection(stream, None, FROM_AGENT)  # type: ignore[arg-type]  # nothing is sent
        assert await connection.receive() is not None or connection.error

    read(damaged([*map(json.dumps, messages)]), lambda data, _: asyncio.run(receive(data)))


def test_headers_of_checkpoints(tmp_path: Path) -> None:
    store, position = CheckpointStore(tmp_path, RUN.key, rank=0, ranks=2), Position(1, 0)
    store.open()
    store.write(position, {"weights": [1.0, 2.0]})
    (path,) = tmp_path.rglob("*.pt")
    valid, _, state = path.read_bytes().partition(b"\n")

    def reader(header: bytes, _: Path) -> None:
        path.write_bytes(header + b"\n" + state)
        with suppress(CheckpointError):
            store.read(position)

    read(damaged([valid.decode()]), reader)
