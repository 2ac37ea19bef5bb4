"""Hostile agents on loopback attack the coordinator.

The promises of docs/security.md: invalid data from a node fails only the run in which the node sends it,
and the row names the node and the field. The coordinator accepts connections only from the containers of
the run, one from each, and limits their messages in length and time. Control characters appear as visible
escapes. Warm containers that have sent invalid data are replaced before the next run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.runtimes.docker.live import LiveRecord
from tests.unit import loopback_cluster
from tests.unit.cluster_support import FIELDS, assigned
from tests.unit.loopback_cluster import (
    HELLO,
    KEYS,
    USAGE,
    FakeAgent,
    LoopbackCluster,
    Script,
    keeps_training,
    succeeds,
    succeeds_later,
    weights_file,
)
from trainer.cluster import coordinator as module
from trainer.cluster.hand_over import ENDED
from trainer.cluster.protocol import FROM_AGENT, MAX_HELLO_BYTES, MAX_LINE_BYTES, Connection
from trainer.cluster.run_record import RunRecord
from trainer.core.record import printable
from trainer.core.trace import CHECKSUM_BYTES, RECORD, Kind, TraceHeader
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)
HOSTILE = "127.0.0.2"  # node-2
WHOLE_RUN_S = 3.0  # less than REGISTRATION_S on loopback


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)


async def waits(agent: FakeAgent) -> None:
    """Script of an agent until the coordinator has no more to say."""
    while (message := await agent.receive()) and message["kind"] not in ("shutdown", "rejected"):
        pass
    await agent.leave()


def says_hello(cluster: LoopbackCluster, hello: bytes) -> None:
    """Let node-2 send this first."""
    original = cluster.connect

    async def connect(address: str, first: bytes = HELLO) -> FakeAgent:
        return await original(address, hello if address == HOSTILE else first)

    cluster.connect = connect  # type: ignore[method-assign]


def hello(**changed: Any) -> bytes:
    return json.dumps({"kind": "hello", "public_keys": KEYS, **changed}).encode() + b"\n"


def keys(**changed: Any) -> bytes:
    return hello(public_keys={**KEYS, **changed})


# Heartbeats


@pytest.mark.parametrize("suspended", [[0], [1, 7], ["1"], {"1": 1}])
def test_heartbeat_with_ranks_of_others_fails_the_run(cluster: LoopbackCluster, suspended: Any) -> None:
    async def lies(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.connection.send("alive", suspended=suspended)
        await waits(agent)

    assert cluster.run({"node-1": keeps_training, "node-2": lies}) == 1
    assert cluster.causes.keys() == {"node-2"}
    assert "suspended" in cluster.causes["node-2"]


# Registration


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "not JSON"),
        (b"[" * 3000 + b"\n", "message: n"),
        (b"[]\n", "not a JSON object"),
        (b'{"hello": {}}\n', "kind"),
        (b'{"kind": ["hello"]}\n', "kind"),
        (b'{"kind": "shutdown"}\n', "kind"),
        (b'{"kind": "event", "line": ""}\n', "event"),
        (hello(public_keys=[]), "public_keys"),
        (hello(public_keys=None), "public_keys"),
        (keys(key=7), "public_keys.key"),
        (keys(host_key=KEYS["host_key"] + "\n* ssh-ed25519 AAAA"), "public_keys.host_key"),
        (keys(host_key=KEYS["host_key"] + "\n"), "public_keys.host_key"),
        (keys(host_key='command="reboot" ' + KEYS["host_key"]), "public_keys.host_key"),
        (keys(host_key="x" * 3000), "public_keys.host_key"),
        (keys(more=KEYS["key"]), "public_keys.more"),
        (hello(replaced=[]), "replaced"),
        (hello(replaced="x" * MAX_HELLO_BYTES), "bytes"),
        (hello(more=1), "more"),
        (b"x" * 2**20, "without an end"),
    ],
)
def test_poisoned_hello_fails_the_run_at_once(cluster: LoopbackCluster, first: bytes, named: str) -> None:
    says_hello(cluster, first)
    began = time.monotonic()
    assert cluster.run({"node-1": waits, "node-2": waits}) == 1
    assert time.monotonic() - began < WHOLE_RUN_S
    (line,) = cluster.summary
    assert line.startswith("FAILED: node 1 ")
    assert named in line
    assert cluster.agents["node-1"].received == ["shutdown"]
    assert cluster.agents["node-2"].received == ["rejected"]


@pytest.mark.parametrize(("name", "needed"), [("launcher", "key"), ("node-1", "host_key")])
def test_missing_key_fails_the_run_at_once(cluster: LoopbackCluster, name: str, needed: str) -> None:
    """Other agents would look it up in vain."""
    names = ["node-1", "launcher"]
    names.remove(name)
    scripts: dict[str, Script] = {names[0]: waits, name: waits}  # the second has address HOSTILE
    says_hello(cluster, hello(public_keys={k: v for k, v in KEYS.items() if k != needed}))
    assert cluster.run(scripts, topology="mpi") == 1
    (line,) = cluster.summary
    assert line.startswith(f"FAILED: {'node 0' if name == 'node-1' else name} ")
    assert needed in line


def test_missing_hello_fails_the_run(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_S", 0.2)
    says_hello(cluster, b'{"kind"')
    began = time.monotonic()
    assert cluster.run({"node-1": waits, "node-2": waits}) == 1
    assert time.monotonic() - began < WHOLE_RUN_S
    assert cluster.summary[0].startswith("FAILED: node 1 ")


async def floods(cluster: LoopbackCluster, address: str, connections: int) -> int:
    """Send a long line without an end over each connection. Returns the bytes that could be sent."""
    sent = 0

    async def one() -> None:
        nonlocal sent
        agent = await cluster.connect(address, b"")
        writer = agent.connection._writer
        try:
            for _ in range(64):
                writer.write(b"x" * 2**14)
                await asyncio.wait_for(writer.drain(), 0.5)
                sent += 2**14
        except (OSError, TimeoutError):
            pass
        writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(connections)))
    return sent


@pytest.mark.parametrize("address", [HOSTILE, "127.0.0.77"], ids=["a node", "unknown"])
def test_coordinator_does_not_read_from_strangers(cluster: LoopbackCluster, address: str) -> None:
    """Second connections of a node count as such, too."""
    number = module.MAX_CONNECTIONS - 2
    peak = 0

    async def attacks(agent: FakeAgent) -> None:
        nonlocal peak
        await agent.receive_assignment()
        tracemalloc.start()
        await floods(cluster, address, number)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": succeeds, "node-2": attacks}) == 0
    assert peak < 20 * 2**20  # without limits, 240 connections take 277 MiB


def test_too_many_connections_fail_the_run(cluster: LoopbackCluster) -> None:
    async def attacks(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await floods(cluster, HOSTILE, 3 * module.MAX_CONNECTIONS)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": keeps_training, "node-2": attacks}) == 1
    assert list(cluster.causes) == ["node-2"]
    assert str(module.MAX_CONNECTIONS) in cluster.causes["node-2"]
    assert cluster.kinds(1) == ["damaged", "died"] or cluster.kinds(1) == ["damaged"]


# During the run


def raw_event(kind: str, rank: int = 1, /, **fields: Any) -> str:
    head = {"version": 1, "time": 2e9, "run": "key", "rank": rank, "host": "h", "kind": kind}
    return json.dumps(head | fields)


def sends(*messages: dict[str, Any] | bytes) -> Script:
    """Script of an agent that sends this as soon as it has ranks."""

    async def script(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        for message in messages:
            if isinstance(message, bytes):
                agent.connection._writer.write(message)
            else:
                await agent.connection.send(**message)
        await waits(agent)

    return script


def sent_event(kind: str, rank: int = 1, /, **fields: Any) -> dict[str, Any]:
    return {"kind": "event", "line": raw_event(kind, rank, **fields)}


EXIT = {"kind": "exit", "codes": {}, "cause": None, "usage": USAGE}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (sent_event("start"), "event start: pid"),
        (sent_event("epoch", epoch=1), "event epoch: epochs"),
        (sent_event("result", steps=1), "event result: samples"),
        (sent_event("odd\x1b[2J"), "event: kind"),
        (sent_event("done", 0), "rank: 0"),
        (sent_event("start", pid=1, attempt=1), "attempt: 1"),
        (sent_event("done", True), "rank"),
        (sent_event("done", -1), "rank"),
        (sent_event("step", loss=float("nan")), "NaN"),
        ({"kind": "event", "line": "[" * 8000}, "event: n"),
        ({"kind": "event", "line": "x" * 60_000}, "60000"),
        ({"kind": "event", "line": 7}, "message event: line"),
        ({"kind": "event"}, "message event: line"),
        ({"kind": "weights", "chunk": "", "last": True}, "message weights"),
        ({"kind": "odd\x1b[2J"}, "message: kind"),
        ({"kind": "hello"}, "message hello"),
        ({**EXIT, "codes": []}, "message exit: codes"),
        ({**EXIT, "codes": {"x": 1}}, "message exit: codes.x"),
        ({**EXIT, "codes": {"1": True}}, "message exit: codes.1"),
        ({**EXIT, "codes": {"1": 10**400}}, "message exit: codes.1"),
        ({**EXIT, "codes": {"0": 0}}, "message exit: codes"),
        ({**EXIT, "usage": {"junk": "x"}}, "message exit: usage.junk"),
        ({**EXIT, "usage": {"cpu_s": "x"}}, "message exit: usage.cpu_s"),
        ({**EXIT, "usage": {"sent_bytes": -1}}, "message exit: usage.sent_bytes"),
        ({**EXIT, "usage": []}, "message exit: usage"),
        ({**EXIT, "cause": ["x"]}, "message exit: cause"),
        ({**EXIT, "lost": 1}, "message exit: lost"),
        ({**EXIT, "name": "node-1"}, "message exit: name"),
        ({"kind": "alive", "mpirun": 7}, "message alive: mpirun"),
        ({"kind": "clean", "left": None}, "message clean"),
        (b"[" * 60_000 + b"\n", "message: nested"),
        (b'{"kind": "exit", "codes": ' + b"[" * 30_000 + b"\n", "message: n"),
        (b"1" * 60_000 + b"\n", "message: not JSON"),
        (b"\xff\xfe\n", "message: not JSON"),
        (b"\n", "message: not JSON"),
        (b"x" * 3 * MAX_LINE_BYTES, "without an end"),
    ],
)
def test_invalid_message_fails_the_run(
    cluster: LoopbackCluster, message: dict[str, Any] | bytes, named: str
) -> None:
    assert cluster.run({"node-1": keeps_training, "node-2": sends(message)}, timeout_s=10) == 1
    assert list(cluster.causes) == ["node-2"]
    assert named in cluster.causes["node-2"]
    assert all(line == printable(line) for line in cluster.summary)
    # The orchestrator learns of it from the events.
    damaged = [each for each in LiveRecord(cluster.directory).new_events() if each.kind == "damaged"]
    assert [each.rank for each in damaged] == [1]
    assert named in damaged[0].fields["reason"]


def test_second_exit_fails_the_run(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": keeps_training, "node-2": sends(EXIT, EXIT)}) == 1
    assert "message exit" in cluster.causes["node-2"]
    assert len((cluster.directory / "usage.jsonl").read_text().splitlines()) == 1


def test_control_characters_do_not_reach_the_summary(cluster: LoopbackCluster) -> None:
    fails = sends({**EXIT, "cause": "red \x1b[31m\u202e\x85"})
    assert cluster.run({"node-1": keeps_training, "node-2": fails}) == 1
    assert cluster.causes["node-2"] == "red \\x1b[31m\\u202e\\x85"


def test_host_name_is_escaped_where_it_is_recorded(cluster: LoopbackCluster) -> None:
    line = json.dumps({**json.loads(raw_event("start", pid=1)), "host": "a\x1b]0;b\x07"})
    starts = sends({"kind": "event", "line": line}, {**EXIT, "cause": "odd"})
    assert cluster.run({"node-1": keeps_training, "node-2": starts}) == 1
    assert {each.host for each in LiveRecord(cluster.directory).new_events()} >= {"a\\x1b]0;b\\x07"}


@pytest.mark.parametrize("text", ["x" * 7000, "漢" * 1000], ids=["ASCII", "longer as written"])
def test_events_are_limited(cluster: LoopbackCluster, text: str) -> None:
    fields = json.loads(raw_event("checkpoint_skipped", epoch=1, step=1, cause=text))
    line = json.dumps(fields, ensure_ascii=False)

    async def floods(agent: FakeAgent) -> None:
        spec = (await agent.receive_assignment()).spec
        limits.append(OutputLimits.of(spec).event_bytes)
        for _ in range(2 * limits[0] // 6000):
            await agent.connection.send("event", line=line)
        await waits(agent)

    limits: list[int] = []
    assert cluster.run({"node-1": keeps_training, "node-2": floods}) == 1
    assert str(limits[0]) in cluster.causes["node-2"]
    assert (cluster.directory / "rank-1.jsonl").stat().st_size < limits[0] + 10_000


def junk(size: int) -> bytes:
    return random.Random(0).randbytes(size)


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        ([junk(200)], {}),
        ([weights_file(10)[:-1] + b"xy"], {}),
        ([weights_file(10)[:-1]], {}),
        ([weights_file(10), b""], {}),
        ([b"x" * 10], {}),
        ([weights_file(10).replace(b"(10,), } ", b"(10000000000,), }")[:200]], {}),
        ([weights_file(10).replace(b"<f4", b"|O8")], {}),
        ([weights_file(10)], {"save_weights": False}),
    ],
    ids=["junk", "too much", "too little", "more", "no header", "huge", "objects", "not asked for"],
)
def test_weights_that_are_none_fail_the_run(
    cluster: LoopbackCluster, parts: list[bytes], fields: dict[str, Any]
) -> None:
    async def writes(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        for number, part in enumerate(parts):
            await agent.send_weights(part, complete=number == 0)
        await waits(agent)

    fields = {"save_weights": True, **fields}
    assert cluster.run({"node-1": writes, "node-2": keeps_training}, **fields) == 1
    assert list(cluster.causes) == ["node-1"]
    assert "weights" in cluster.causes["node-1"]


TRACE = TraceHeader(
    run="RUN", rank=1, size=2, transport="gloo", mode="steps", groups=[[0, 1]], started_s=0.0, count=1
)


def record(**changed: float) -> bytes:
    """A record of a trace, with changes to one of work."""
    fields = dict(zip(RECORD.names or (), (Kind.WORK, 0, 1, 0, 0.5, 0.0, 0.5), strict=True))
    return np.array([tuple({**fields, **changed}.values())], RECORD).tobytes()


WORK = record()
END = bytes(CHECKSUM_BYTES)


@pytest.mark.parametrize(
    ("rank", "parts", "named"),
    [
        (0, [b""], "message trace"),
        (1, [b"junk\n"], "trace: not JSON"),
        (1, [b""], "header states"),
        (1, [TRACE.model_copy(update={"run": "another"})], "another rank or run"),
        (1, [TRACE.model_copy(update={"rank": 0})], "another rank or run"),
        (1, [TRACE, b"x" * (RECORD.itemsize + CHECKSUM_BYTES + 1)], "not as many"),
        (1, [TRACE, b"x"], "not as many"),
        (1, [TRACE, WORK + END, b""], "more after its end"),
        (1, [TRACE, record(cpu_s=1e16) + END], "record 0: cpu_s"),
        (1, [TRACE, record(left_s=float("inf")) + END], "record 0: left_s"),
        (1, [TRACE, record(entered_s=float("nan")) + END], "record 0: entered_s"),
        (1, [TRACE, record(bytes=2**60) + END], "record 0: bytes"),
        (1, [TRACE, record(kind=99) + END], "record 0: kind"),
        (1, [TRACE, record(group=1) + END], "record 0: group"),
        (1, [TRACE, record(kind=Kind.EPOCH, peer=10**6) + END], "record 0: peer"),
        (1, [TRACE.model_copy(update={"count": 2}), WORK, record(cpu_s=-1.0) + END], "record 1: cpu_s"),
        (1, [TRACE.model_copy(update={"count": 2}), (WORK + WORK)[:50], b"\xff" * 32], "record 1: "),
        (1, [TRACE.model_copy(update={"started_s": 1e300})], "started_s"),
        (1, [TRACE.model_copy(update={"count": 10**6 + 1})], "count"),
        (1, [TRACE.model_copy(update={"groups": [[-1]]})], "groups"),
        (1, [b"x" * 40_000] * 200, "trace: "),
    ],
)
def test_traces_that_are_none_fail_the_run(
    cluster: LoopbackCluster, rank: int, parts: list[Any], named: str
) -> None:
    async def writes(agent: FakeAgent) -> None:
        assignment = await agent.receive_assignment()
        for number, part in enumerate(parts, start=1):
            data = part if isinstance(part, bytes) else part.model_dump_json().encode() + b"\n"
            data = data.replace(b"RUN", assignment.spec.key.encode())
            # The parts before a second end are complete.
            complete = number == len(parts) or parts[number] == b""
            await agent.send_trace(rank, data, complete=complete)
        await waits(agent)

    assert cluster.run({"node-1": keeps_training, "node-2": writes}, trace="steps") == 1
    assert list(cluster.causes) == ["node-2"]
    assert named in cluster.causes["node-2"]


def test_a_trace_that_was_not_asked_for_fails_the_run(cluster: LoopbackCluster) -> None:
    async def writes(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_trace(1)
        await waits(agent)

    assert cluster.run({"node-1": keeps_training, "node-2": writes}, trace="none") == 1
    assert list(cluster.causes) == ["node-2"]


def test_endless_trace_stops_at_its_limit(cluster: LoopbackCluster) -> None:
    async def floods(agent: FakeAgent) -> None:
        assignment = await agent.receive_assignment()
        header = TRACE.model_copy(update={"run": assignment.spec.key, "count": 10**6})
        await agent.send_trace(1, header.model_dump_json().encode() + b"\n", complete=False)
        for _ in range(500):
            await agent.send_trace(1, WORK * 600, complete=False)
        await waits(agent)

    fields = {"trace": "steps", "epochs": 1}
    run = {"node-1": keeps_training, "node-2": floods}
    assert cluster.run(run, **fields) == 1
    assert "trace: more than" in cluster.causes["node-2"]
    most = OutputLimits.of(RunSpec.model_validate({**FIELDS["ddp"], "nodes": 2, **fields})).trace_bytes
    assert (cluster.directory / "trace-1.bin.part").stat().st_size <= most < 10 * 2**20


@pytest.mark.parametrize("chunk", ["not base64!", "QUJ", "\u00e9"])
def test_chunk_of_weights_is_base64(cluster: LoopbackCluster, chunk: str) -> None:
    writes = sends({"kind": "weights", "chunk": chunk, "last": False})
    assert cluster.run({"node-1": writes, "node-2": keeps_training}, save_weights=True) == 1
    assert "message weights: chunk" in cluster.causes["node-1"]


def test_endless_weights_stop_at_their_stated_size(cluster: LoopbackCluster) -> None:
    async def floods(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_weights(weights_file(1000), complete=False)
        for _ in range(500):
            await agent.send_weights(b"x" * 24_000, complete=False)
        await waits(agent)

    assert cluster.run({"node-1": floods, "node-2": keeps_training}, save_weights=True) == 1
    assert "weights" in cluster.causes["node-1"]
    assert (cluster.directory / "weights.npy.part").stat().st_size <= len(weights_file(1000))


VALID: list[dict[str, Any]] = [
    sent_event("start", pid=1),
    sent_event("failed", cause="x"),
    {"kind": "hello", "public_keys": KEYS, "replaced": None},
    {"kind": "weights", "chunk": "QUJD", "last": False},
    {"kind": "trace", "rank": 1, "chunk": "QUJD", "last": False},
    {**EXIT, "codes": {"1": 0}, "lost": None},
]
JUNK: list[Any] = [None, True, -1, 2**70, 0.5, float("nan"), "", "\udcff", "\x1b", [], [[]], {}, {"x": 1}]


def mutated(rng: random.Random) -> bytes:
    """A message with a change."""
    message = dict(rng.choice(VALID))
    match rng.randrange(5):
        case 0:
            message.pop(rng.choice([*message]))
        case 1 | 2:
            message[rng.choice([*message, "more"])] = rng.choice(JUNK)
        case 3 if message["kind"] == "event":
            fields = json.loads(message["line"])
            fields[rng.choice([*fields, "more"])] = rng.choice(JUNK)
            message["line"] = json.dumps(fields)
    text = json.dumps(message).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.randbytes(rng.randint(0, 3)) + text[at + 1 :]
    return text + b"\n"


def test_random_messages_do_no_more_than_fail_their_run(cluster: LoopbackCluster) -> None:
    """A few thousand of them, each handled by a coordinator of its own."""
    rng, accepted, rejected = random.Random(0), 0, 0

    async def play() -> None:
        nonlocal accepted, rejected
        for number in range(3000):
            reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            reader.feed_data(mutated(rng))
            reader.feed_eof()
            connection = Connection(reader, None, FROM_AGENT)  # type: ignore[arg-type]
            coordinator = module.Coordinator("ddp", {}, cluster.directory, {})
            if number % 100 == 0:
                record = RunRecord(cluster.directory / str(number), assigned("ddp", 1, 2))
            coordinator._run_record = record
            agent = record.assignment.agents[1]
            coordinator._expected = {agent.address: ("node", 2)}
            coordinator._agents[agent.address] = (agent, connection)
            await coordinator._listen_to(agent.address, connection)
            rejected += coordinator.untrusted is not None
            accepted += coordinator.untrusted is None
            LiveRecord(cluster.directory / str(number - number % 100)).new_events()

    asyncio.run(play())
    assert accepted > 200
    assert rejected > 1500


# Warm containers


def test_hostile_node_harms_only_its_own_run(cluster: LoopbackCluster) -> None:
    async def hostile(agent: FakeAgent) -> None:
        await sends(sent_event("start"))(agent)
        while not (cluster.run_directory(1) / ENDED).exists():  # until then it would be rejected
            await asyncio.sleep(0.005)

    scripts: dict[str, list[Script]] = {"node-1": [keeps_training, succeeds], "node-2": [hostile, succeeds]}
    spoilt, after = cluster.serve(scripts, {}, {})
    assert spoilt.exits["coordinator"] == 1
    assert str(spoilt.untrusted).startswith("node 1 ")
    assert (after.exits["coordinator"], after.untrusted) == (0, None)


@pytest.mark.parametrize("connections", [module.MAX_CONNECTIONS // 2, 2 * module.MAX_CONNECTIONS])
@pytest.mark.parametrize("late", [False, True], ids=["during the run", "at its end"])
def test_connections_of_a_run_are_not_blamed_on_the_next(
    cluster: LoopbackCluster, connections: int, late: bool
) -> None:
    """They send junk, and are closed when the node is cleaned."""

    async def floods(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        if late:
            await agent.exit()
            assert (await agent.receive() or {})["kind"] == "shutdown"
        opened = [await cluster.connect(HOSTILE, b"junk\n") for _ in range(connections)]
        if not late:
            await agent.exit()
            await agent.receive()
        for each in opened:
            each.connection.abort()
        await agent.leave()

    scripts: dict[str, list[Script]] = {
        "node-1": [succeeds_later, succeeds],
        "node-2": [floods, succeeds],
    }
    flooded, after = cluster.serve(scripts, {}, {})
    assert (after.exits["coordinator"], after.untrusted, after.failures) == (0, None, {})
    assert (flooded.untrusted is not None) == (connections > module.MAX_CONNECTIONS)


def test_launcher_that_sends_invalid_data_is_named(cluster: LoopbackCluster) -> None:
    """It has no rank whose events could name it."""
    scripts = {"node-1": [keeps_training], "node-2": [keeps_training], "launcher": [sends(b"junk\n")]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    assert ending.unreported.keys() == ending.failures.keys() == {"launcher"}
    assert "invalid data" in ending.unreported["launcher"]


def test_surplus_node_does_not_harm_the_run(cluster: LoopbackCluster) -> None:
    async def attacks(agent: FakeAgent) -> None:
        await cluster.until_assigned("node-1")
        agent.connection._writer.write(b"junk\n")
        await waits(agent)

    (ending,) = cluster.serve({"node-1": [succeeds_later], "node-2": [attacks]}, {"nodes": 1})
    assert ending.exits == {"node-1": 0, "coordinator": 0}
    assert str(ending.untrusted).startswith("node 1 ")


def test_poisoned_hello_of_a_warm_node_is_named(cluster: LoopbackCluster) -> None:
    def wait_for_connections() -> None:  # which would be refused after the end
        while not all(cluster.connections.values()):
            time.sleep(0.005)

    says_hello(cluster, keys(host_key="a\nb"))
    (ending,) = cluster.serve({"node-1": [waits], "node-2": [waits]}, {}, before_end=wait_for_connections)
    assert ending.exits == {"coordinator": 1}
    assert str(ending.untrusted).startswith("node 1 ")
