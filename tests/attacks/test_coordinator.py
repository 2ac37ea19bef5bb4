"""Attacks by agents on the coordinator: what it accepts, how much, from whom, and whom it names."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.unit import loopback_cluster
from tests.unit.cluster_support import FIELDS
from tests.unit.loopback_cluster import (
    USAGE,
    FakeAgent,
    LoopbackCluster,
    Script,
    keeps_training,
    succeeds,
    succeeds_later,
    trace_file,
    weights_file,
)
from trainer.core.events import EventReader
from trainer.core.record import one_line
from trainer.core.trace import CHECKSUM_BYTES
from trainer.node import container_agents
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)
HOSTILE = "127.0.0.2"  # node-2
WHOLE_RUN_S = 3.0  # less than REGISTRATION_S on loopback
SAVES: dict[str, Any] = {"trace": "steps", "save_weights": True, "epochs": 1}
RUN = RunSpec.model_validate({**FIELDS["ddp"], "nodes": 2, **SAVES})
LIMITS = OutputLimits.of(RUN)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackCluster]:
    """One after the other, each with a directory of its own."""
    return (LoopbackCluster(monkeypatch, Path(mkdtemp(dir=tmp_path))) for _ in count())


@pytest.fixture
def cluster(clusters: Iterator[LoopbackCluster]) -> LoopbackCluster:
    return next(clusters)


async def waits(agent: FakeAgent) -> None:
    while (message := await agent.receive()) and message["kind"] not in ("shutdown", "rejected"):
        pass
    await agent.leave()


def sends(*messages: dict[str, Any] | bytes) -> Script:
    """Script of an agent that sends this as soon as it has ranks."""

    async def script(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            agent.connection._writer.write(line)
        await waits(agent)

    return script


def with_body(kind: str, body: bytes, **fields: Any) -> bytes:
    """A message and the bytes that belong to it."""
    return json.dumps({"kind": kind, "size": len(body), **fields}).encode() + b"\n" + body + b"\n"


def event(kind: str, rank: int = 0, /, **fields: Any) -> bytes:
    head = {"version": 1, "time": 2e9, "run": "key", "rank": rank, "host": "h", "kind": kind}
    return with_body("events", json.dumps({**head, **fields}, ensure_ascii=False).encode(), rank=rank)


def exit_of(**changed: Any) -> dict[str, Any]:
    return {"kind": "exit", "codes": {}, "cause": None, "usage": USAGE, **changed}


def chunk(data: bytes, last: bool = True, kind: str = "weights", **rank: int) -> bytes:
    return with_body(kind, data, last=last, **rank)


def trace(*parts: bytes, last: bool = True, rank: int = 0) -> list[bytes]:
    """The messages with these parts of a trace."""
    ends = [*[False] * (len(parts) - 1), last]
    return [chunk(part, end, "trace", rank=rank) for part, end in zip(parts, ends, strict=True)]


UNFINISHED = b'{"kind"'
POISONED = [(b"x" * 2**20, "without an end"), (UNFINISHED, "")]


def test_poisoned_hello_fails_the_run_at_once(
    clusters: Iterator[LoopbackCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    for first, named in POISONED:
        cluster = next(clusters)
        cluster.hellos[HOSTILE] = first
        monkeypatch.setattr(container_agents, "HELLO_S", 0.2 if first is UNFINISHED else 20.0)
        began = time.monotonic()
        assert cluster.run({"node-1": waits, "node-2": waits}) == 1
        assert time.monotonic() - began < WHOLE_RUN_S, first
        (line,) = cluster.summary
        assert line.startswith("FAILED: node 1 ")
        assert named in line
        assert cluster.agents["node-1"].received == ["shutdown"]
        assert cluster.agents["node-2"].received == ["rejected"]


@pytest.mark.parametrize("address", [HOSTILE, "127.0.0.77"], ids=["a node", "unknown"])
@pytest.mark.parametrize(
    "connections", [container_agents.MAX_CONNECTIONS - 2, 2 * container_agents.MAX_CONNECTIONS]
)
def test_coordinator_does_not_read_from_strangers(
    cluster: LoopbackCluster, address: str, connections: int
) -> None:
    """Second connections of a node count as such, too."""
    peaks = []

    async def floods() -> None:
        writer = (await cluster.connect(address, b"")).connection._writer
        with suppress(OSError, TimeoutError):
            for _ in range(64):
                writer.write(b"x" * 2**14)  # of a line without an end
                await asyncio.wait_for(writer.drain(), 0.5)
        writer.transport.abort()

    async def attacks(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        tracemalloc.start()
        await asyncio.gather(*(floods() for _ in range(connections)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    too_many = address == HOSTILE and connections > container_agents.MAX_CONNECTIONS
    assert cluster.run({"node-1": succeeds, "node-2": attacks}) == too_many
    assert max(peaks) < 20 * 2**20  # without limits, 240 connections take 277 MiB
    if too_many:
        assert f"more than {container_agents.MAX_CONNECTIONS}" in cluster.causes["node-2"]


WEIGHTS, TRACE = weights_file(10), trace_file(RUN.key, 0)
MANY = TRACE.replace(b'"count":3', b'"count":1000000')[:-CHECKSUM_BYTES]
# What is named, and the messages.
INVALID: dict[str, list[tuple[Any, ...]]] = {
    "lines": [
        ("message exit", exit_of(), exit_of()),
        ("message exit: usage.sent_bytes", exit_of(usage={"sent_bytes": -1})),
        ("message: nested", b"[" * 60_000 + b"\n"),
        ("message: kind", {"kind": "odd\x1b[2J"}),
    ],
    "events": [
        ("event: kind", event("odd\x1b[2J")),
        ("rank: 1", with_body("events", event("ready", 1).splitlines()[1], rank=0)),
        ("message events", event("ready", 1)),
        ("attempt: 1", event("start", pid=1, attempt=1)),
    ],
    "weights": [
        ("weights: size", {"kind": "weights", "size": 2**16 + 1, "last": False}),
        ("not as many", chunk(WEIGHTS[:-1])),
        ("more after their end", chunk(WEIGHTS), chunk(b"", last=False)),
        ("at most", chunk(WEIGHTS.replace(b"(10,), }" + b" " * 9, b"(10000000000,), }"))),
        ("not a vector", chunk(WEIGHTS.replace(b"<f4", b"|O8"))),
    ],
    "traces": [
        ("another rank or run", *trace(trace_file(RUN.key, 1))),
        ("not as many", *trace(TRACE, b"x")),
        ("not as many", *trace(TRACE[:-1])),
        ("more after its end", *trace(TRACE), *trace(b"", last=False)),
        ("record 2: kind", *trace(TRACE[:-75], b"\xff" * 75)),
        ("count", *trace(TRACE.replace(b'"count":3', b'"count":1000001'))),
        ("trace: ", *trace(*[b"x" * 40_000] * 200)),
    ],
    "what was not asked for": [("weights", chunk(WEIGHTS)), ("trace: more than 0 bytes", *trace(TRACE))],
}


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_message_fails_the_run(clusters: Iterator[LoopbackCluster], kind: str) -> None:
    fields = {"epochs": 1} if kind == "what was not asked for" else SAVES
    for named, *messages in INVALID[kind]:
        cluster = next(clusters)
        assert cluster.run({"node-1": sends(*messages), "node-2": keeps_training}, **fields) == 1
        assert list(cluster.causes) == ["node-1"], messages
        assert named in cluster.causes["node-1"]
        assert all(line == one_line(line) for line in cluster.summary)
        # The orchestrator learns of it from the events.
        damaged = [each for each in EventReader(cluster.directory).new() if each.kind == "damaged"]
        assert [each.rank for each in damaged] == [0]
        assert named in damaged[0].fields["reason"]


# What is sent first, and then without end; the file, its largest size, and what is named.
EVENTS = "rank-0.jsonl", LIMITS.event_bytes + 10_000, f"{LIMITS.event_bytes} bytes"
ENDLESS: dict[str, tuple[Any, ...]] = {
    "events": (b"", event("checkpoint_skipped", epoch=1, step=1, cause="x" * 7000), *EVENTS),
    "longer as written": (b"", event("checkpoint_skipped", epoch=1, step=1, cause="漢" * 1000), *EVENTS),
    "weights": (
        *(chunk(WEIGHTS, last=False), chunk(b"x" * 24_000, last=False)),
        *("weights.npy.part", len(WEIGHTS), "weights"),
    ),
    "trace": (
        *(*trace(MANY, last=False), *trace(MANY.partition(b"\n")[2] * 200, last=False)),
        *("trace-0.bin.part", LIMITS.trace_bytes, "trace: more than"),
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_files_of_a_run_are_limited(cluster: LoopbackCluster, kind: str) -> None:
    first, more, name, most, named = ENDLESS[kind]
    assert cluster.run({"node-1": sends(first, *[more] * 500), "node-2": keeps_training}, **SAVES) == 1
    assert named in cluster.causes["node-1"]
    assert (cluster.directory / name).stat().st_size <= most < 10 * 2**20


def test_hostile_node_harms_only_its_own_run(cluster: LoopbackCluster) -> None:
    async def hostile(agent: FakeAgent) -> None:
        await sends(event("ready", 0))(agent)
        while not cluster.has_ended(1):  # until then it would be rejected
            await asyncio.sleep(0.005)

    spoilt, after = cluster.serve(
        {"node-1": [keeps_training, succeeds], "node-2": [hostile, succeeds]}, {}, {}
    )
    assert spoilt.exits["coordinator"] == 1
    assert str(spoilt.untrusted).startswith("node 1 ")
    assert (after.exits["coordinator"], after.untrusted) == (0, None)


@pytest.mark.parametrize(
    "connections", [container_agents.MAX_CONNECTIONS // 2, 2 * container_agents.MAX_CONNECTIONS]
)
def test_connections_of_a_run_are_not_blamed_on_the_next(
    cluster: LoopbackCluster, connections: int
) -> None:
    """They send junk at the end of the run, and are closed when the node is cleaned."""

    async def floods(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        assert (await agent.receive() or {})["kind"] == "shutdown"
        for opened in [await cluster.connect(HOSTILE, b"junk\n") for _ in range(connections)]:
            opened.connection.abort()
        await agent.leave()

    flooded, after = cluster.serve({"node-1": [succeeds, succeeds], "node-2": [floods, succeeds]}, {}, {})
    assert (after.exits["coordinator"], after.untrusted, after.failures) == (0, None, {})
    assert (flooded.untrusted is not None) == (connections > container_agents.MAX_CONNECTIONS)


def test_a_launcher_and_a_surplus_node_that_send_junk_are_named(
    clusters: Iterator[LoopbackCluster],
) -> None:
    cluster = next(clusters)
    scripts = {"node-1": [keeps_training], "node-2": [keeps_training], "launcher": [sends(b"junk\n")]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    # It has no rank whose events could name it.
    assert ending.unreported.keys() == ending.failures.keys() == {"launcher"}
    assert "invalid data" in ending.unreported["launcher"]

    async def attacks(agent: FakeAgent) -> None:
        await other.until_assigned("node-1")
        agent.connection._writer.write(b"junk\n")
        await waits(agent)

    other = next(clusters)
    (ending,) = other.serve({"node-1": [succeeds_later], "node-2": [attacks]}, {"nodes": 1})
    assert ending.exits == {"node-1": 0, "coordinator": 0}
    assert str(ending.untrusted).startswith("node 1 ")
