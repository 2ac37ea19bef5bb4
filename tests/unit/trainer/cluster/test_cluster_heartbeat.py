"""Heartbeats: an agent that is silent is named, and an agent without a coordinator ends."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import loopback_cluster
from tests.unit.loopback_cluster import HELLO, FakeAgent, LoopbackCluster, Script, succeeds
from trainer.cluster import coordinator as module
from trainer.cluster.hand_over import ALIVE
from trainer.cluster.heartbeat import LOOK_S, Silence

LIMIT_S = 0.6
ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    """A coordinator with a short limit."""
    for name, value in {
        "AGENT_SILENCE_S": LIMIT_S,
        "BEAT_S": 0.05,
        "LOOK_S": 0.02,
        "SUSPECT_S": 0.2,
    }.items():
        monkeypatch.setattr(module, name, value)
    return LoopbackCluster(monkeypatch, tmp_path)


async def until_shutdown(agent: FakeAgent) -> None:
    """Send heartbeats until `shutdown`."""
    ending = asyncio.create_task(agent.wait_for_shutdown())
    while not ending.done():
        await agent.connection.send("alive")
        await asyncio.wait({ending}, timeout=0.05)


async def beats(agent: FakeAgent) -> None:
    """Script of an agent whose ranks train until shutdown, with heartbeats."""
    await agent.receive_assignment()
    await agent.send_event("start", pid=1)
    await until_shutdown(agent)


async def trains(agent: FakeAgent) -> None:
    """Script of an agent whose ranks train for longer than the limit."""
    await agent.receive_assignment()
    for _ in range(10):
        await agent.connection.send("alive")
        await asyncio.sleep(LIMIT_S / 5)
    await agent.report_success()
    await agent.exit()
    await until_shutdown(agent)


def is_silent(cluster: LoopbackCluster) -> Script:
    """Script of an agent that is cut off the network while its ranks train."""

    async def script(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=1)
        await cluster.ended.wait()

    return script


def test_silent_agent_is_named(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": beats, "node-2": is_silent(cluster), "node-3": beats}) == 1
    assert cluster.causes.keys() == {"node-2"}
    assert cluster.kinds(1) == ["start", "died"]
    assert cluster.kinds(0) == cluster.kinds(2) == ["start"]
    assert "alive" in cluster.agents["node-1"].received


@pytest.mark.parametrize("role", ["launcher", "node-2"])
def test_silent_agent_of_an_mpi_run_is_named(cluster: LoopbackCluster, role: str) -> None:
    """The launcher has no rank, and a node has no process of its own."""
    scripts = {"launcher": beats, "node-1": beats, "node-2": beats, role: is_silent(cluster)}
    assert cluster.run(scripts, topology="mpi") == 1
    assert cluster.causes.keys() == {role}


def test_silent_agent_is_named_though_a_peer_reports_an_error_first(cluster: LoopbackCluster) -> None:
    async def reports(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=1)
        await asyncio.sleep(LIMIT_S / 2)
        await agent.send_event("failed", cause="peer is gone", peer=True)
        await agent.exit(1)
        await until_shutdown(agent)

    assert cluster.run({"node-1": reports, "node-2": is_silent(cluster), "node-3": beats}) == 1
    assert cluster.kinds(1) == ["start", "died"]


def test_agent_that_is_silent_before_its_rank_starts_is_named(cluster: LoopbackCluster) -> None:
    async def waits(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        assert await agent.receive() is None  # the coordinator disconnects

    (ending,) = cluster.serve({"node-1": [beats], "node-2": [waits], "node-3": [beats]}, {})
    assert ending.unreported.keys() == ending.failures.keys() == {"node-2"}
    assert "node 1" in str(ending.cut_off)


def test_coordinator_that_hears_no_node_is_cut_off_itself(cluster: LoopbackCluster) -> None:
    silent = is_silent(cluster)
    assert cluster.run({"node-1": silent, "node-2": silent, "node-3": silent}) == 1
    assert cluster.causes.keys() == {"coordinator"}
    assert [cluster.kinds(rank) for rank in range(3)] == [["start"]] * 3


def test_only_node_of_a_run_is_named(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": is_silent(cluster)}) == 1
    assert cluster.causes.keys() == {"node-1"}


def test_agent_that_is_silent_for_a_moment_costs_nothing(cluster: LoopbackCluster) -> None:
    async def pauses(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await asyncio.sleep(LIMIT_S / 2)
        await agent.report_success()
        await agent.exit()
        await until_shutdown(agent)

    assert cluster.run({"node-1": trains, "node-2": pauses, "node-3": trains}) == 0


def test_agent_without_ranks_may_be_silent(cluster: LoopbackCluster) -> None:
    async def has_none(agent: FakeAgent) -> None:
        assert (await agent.receive_assignment()).agent.ranks == ()
        await agent.receive()
        await agent.exit()

    assert cluster.run({"node-1": trains, "node-2": has_none}, topology="single") == 0


def test_heartbeats_do_not_delay_the_end(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.3)

    async def stays(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        while not cluster.ended.is_set():
            await agent.connection.send("alive")
            await asyncio.sleep(0.05)

    assert cluster.run({"node-1": succeeds, "node-2": stays}) == 0


def test_agents_that_are_idle_may_be_silent(cluster: LoopbackCluster) -> None:
    async def is_idle(agent: FakeAgent) -> None:
        assert await agent.receive() in ({"kind": "shutdown"}, None)

    (ending,) = cluster.serve({"node-1": [trains], "node-2": [is_idle]}, {"nodes": 1})
    assert (ending.exits["coordinator"], ending.cut_off) == (0, None)


def test_coordinator_beats_until_the_run_has_ended(cluster: LoopbackCluster) -> None:
    """Where the orchestrator looks for it, from before ranks are assigned."""
    beats: set[int] = set()

    async def looks(agent: FakeAgent) -> None:
        beats.add((cluster.directory / ALIVE).stat().st_mtime_ns)
        await agent.receive_assignment()
        await asyncio.sleep(0.2)
        beats.add((cluster.directory / ALIVE).stat().st_mtime_ns)
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": looks, "node-2": trains}) == 0
    assert len(beats) == 2
    assert not (cluster.directory / ALIVE).exists()


# Before ranks are assigned


@pytest.mark.parametrize(
    ("unreachable", "named"),
    [({"node-2"}, "node 1"), ({"node-1", "node-2", "node-3"}, "coordinator")],
    ids=["node", "all"],
)
def test_container_that_is_cut_off_between_two_runs_is_named(
    cluster: LoopbackCluster, unreachable: set[str], named: str
) -> None:
    """Its agent waits for a message of the run before, over a connection that is broken."""

    def cut(number: int) -> None:
        cluster.unreachable = unreachable if number == 2 else set()

    scripts = {"node-1": [succeeds, is_shut_down], "node-2": [succeeds], "node-3": [succeeds, is_shut_down]}
    first, second = cluster.serve(scripts, {}, {}, before_run=cut)
    assert (first.exits["coordinator"], first.cut_off) == (0, None)
    assert second.exits["coordinator"] == 1
    assert named in str(second.cut_off)


@pytest.mark.parametrize(
    ("seconds", "scale"), [(LIMIT_S / 2, None), (2 * LIMIT_S, 2)], ids=["compose", "swarm"]
)
def test_container_that_is_not_reachable_for_a_moment_registers(
    cluster: LoopbackCluster, seconds: float, scale: int | None
) -> None:
    """On a swarm, the moment is longer than the silence after which a container is cut off."""
    cluster.unreachable = {"node-2"}
    original = cluster.connect

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address == "127.0.0.2":
            await asyncio.sleep(seconds)
            cluster.unreachable = set()
            await asyncio.sleep(LIMIT_S)
        return await original(address, hello)

    cluster.connect = connect  # type: ignore[method-assign]
    assert cluster.run({"node-1": trains, "node-2": trains}, scale=scale) == 0


def test_container_that_does_not_register_takes_no_other_run(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTRATION_S", 0.3)
    _, second = cluster.serve({"node-1": [succeeds, is_shut_down], "node-2": [succeeds]}, {}, {})
    assert "node 1" in str(second.cut_off)


async def is_shut_down(agent: FakeAgent) -> None:
    """Script of an agent whose run does not start."""
    assert await agent.receive() == {"kind": "shutdown"}


@pytest.mark.parametrize("listens", [False, True])
def test_reachable_container_refuses_or_accepts_a_connection(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(module, "PORT", listener.getsockname()[1])
        if not listens:
            listener.close()
        assert asyncio.run(module.is_reachable("127.0.0.1"))


def test_container_without_a_route_is_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that does not answer: a full backlog drops what arrives."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        monkeypatch.setattr(module, "PORT", listener.getsockname()[1])
        monkeypatch.setattr(module, "BEAT_S", 0.2)
        assert not asyncio.run(module.is_reachable("127.0.0.1"))
    monkeypatch.setattr(module, "PORT", 9)
    assert not asyncio.run(module.is_reachable("255.255.255.255"))


# Silence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return sleep


def test_silence_lasts_since_the_last_message(clock: Callable[[float], None]) -> None:
    silence = Silence()
    for _ in range(4):
        clock(LOOK_S)
        silence.look()
    assert silence.seconds == 4 * LOOK_S
    silence.end()
    assert silence.seconds == 0
    clock(LOOK_S)
    assert silence.look() == LOOK_S


def test_time_in_which_this_process_is_suspended_does_not_count(clock: Callable[[float], None]) -> None:
    silence = Silence()
    clock(3600)
    assert silence.look() == 2 * LOOK_S
