"""Mistakes in heartbeats: who is named for a silence, which silences cost nothing, what counts as one."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from tests.unit import loopback_cluster as loopback
from tests.unit.conftest import FakeTime
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster, pauses, plays, succeeds
from trainer.node import container_agents, coordinator
from trainer.node.heartbeat import LOOK_S, Silence
from trainer.node.site import Site

LIMIT_S = 0.6
FINISHES = [loopback.STARTS, *loopback.FINISHES[:-1]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, cluster: LoopbackCluster) -> LoopbackCluster:
    """A coordinator with a short limit."""
    cluster.site = Site(silence_s=LIMIT_S)
    for name, value in {"BEAT_S": 0.05, "LOOK_S": 0.02, "SUSPECT_S": 0.2}.items():
        monkeypatch.setattr(coordinator, name, value)
    for name, value in {"BEAT_S": 0.05, "AGENT_SILENCE_S": LIMIT_S}.items():
        monkeypatch.setattr(container_agents, name, value)
    return cluster


async def beat(agent: FakeAgent) -> None:
    """Send heartbeats until `shutdown`."""
    ending = asyncio.create_task(agent.wait_for_shutdown())
    while not ending.done():
        await agent.connection.send("alive")
        await asyncio.wait({ending}, timeout=0.05)


async def is_cut_off(agent: FakeAgent) -> None:
    """Step: send nothing until the coordinator has disconnected."""
    while await agent.receive():
        pass


BEATS, SILENT = plays(loopback.STARTS, beat), plays(loopback.STARTS, is_cut_off)
ALIVE_FOR_A_WHILE = [lambda agent: agent.connection.send("alive"), pauses(LIMIT_S / 4)] * 6
TRAINS = plays(*ALIVE_FOR_A_WHILE, *FINISHES, beat)
BLAMES_PEER = [loopback.sends("failed", cause="peer is gone", peer=True), loopback.exits(1)]
BLAMES = plays(loopback.STARTS, pauses(LIMIT_S / 2), *BLAMES_PEER, beat)


@pytest.mark.parametrize(
    ("topology", "scripts", "named", "died"),
    [
        ("ddp", {"node-1": BEATS, "node-2": SILENT, "node-3": BEATS}, {"node-2"}, [1]),
        ("ddp", {"node-1": SILENT}, {"node-1"}, [0]),
        ("ddp", {"node-1": SILENT, "node-2": SILENT, "node-3": SILENT}, {"coordinator"}, []),
        ("ddp", {"node-1": BLAMES, "node-2": SILENT, "node-3": BEATS}, {"node-1", "node-2"}, [1]),
        # The launcher has no rank, and a node has no process of its own.
        ("mpi", {"launcher": SILENT, "node-1": BEATS, "node-2": BEATS}, {"launcher"}, []),
        ("mpi", {"launcher": BEATS, "node-1": BEATS, "node-2": SILENT}, {"node-2"}, [1]),
    ],
    ids=["one", "only", "all", "a peer reports first", "launcher", "node of mpirun"],
)
def test_silent_agent_is_named(
    cluster: LoopbackCluster, topology: str, scripts: dict[str, Any], named: set[str], died: list[int]
) -> None:
    assert cluster.run(scripts, topology=topology) == 1
    assert cluster.causes.keys() == named
    ranks = [rank for agent in cluster.agents.values() for rank in agent.ranks]
    assert [rank for rank in ranks if "died" in cluster.kinds(rank)] == died


def test_agent_that_is_silent_before_its_rank_starts_is_named(cluster: LoopbackCluster) -> None:
    scripts: dict[str, Any] = {"node-1": [BEATS], "node-2": [plays(is_cut_off)], "node-3": [BEATS]}
    (ending,) = cluster.serve(scripts, {})
    assert ending.unreported.keys() == ending.failures.keys() == {"node-2"}
    assert "node 1" in str(ending.cut_off)


def test_short_silences_and_those_of_idle_agents_cost_nothing(cluster: LoopbackCluster) -> None:
    """The first container runs all ranks; a warm one may have no part in the run."""
    pauses_once = plays(pauses(LIMIT_S / 2), *FINISHES, beat)
    idle = plays(loopback.receive, loopback.exits())
    assert cluster.run({"node-1": TRAINS, "node-2": pauses_once}) == 0
    assert cluster.run({"node-1": TRAINS, "node-2": idle}, topology="single") == 0
    cluster.directory = cluster.directory / "warm"
    (ending,) = cluster.serve({"node-1": [TRAINS], "node-2": [loopback.is_surplus]}, {"nodes": 1})
    assert (ending.exits["coordinator"], ending.cut_off) == (0, None)


def test_coordinator_beats_until_the_run_has_ended(cluster: LoopbackCluster) -> None:
    """So that the orchestrator knows."""
    assert len(cluster.serve({"node-1": [plays(pauses(0.2), *FINISHES, beat)]}, {})) == 1
    kinds = [each.kind for each in cluster.answers]
    assert kinds[-1] == "ended"
    assert kinds.count("alive") >= 2


# Before ranks are assigned


@pytest.mark.parametrize(
    ("unreachable", "named"),
    [({"node-2"}, "node 1"), ({"node-1", "node-2", "node-3"}, "coordinator"), (set(), "node 1")],
    ids=["node", "all", "does not register"],
)
def test_container_that_takes_no_other_run_is_named(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch, unreachable: set[str], named: str
) -> None:
    """Its agent waits for a message of the run before, over a connection that is broken."""
    if not unreachable:
        monkeypatch.setattr(container_agents, "REGISTRATION_S", 0.3)

    def cut(number: int) -> None:
        cluster.unreachable = unreachable if number == 2 else set()

    others = [succeeds, loopback.is_surplus]
    scripts = {"node-1": others, "node-2": [succeeds], "node-3": others}
    first, second = cluster.serve(scripts, {}, {}, before_run=cut)
    assert (first.exits["coordinator"], first.cut_off) == (0, None)
    assert second.exits["coordinator"] == 1
    assert named in str(second.cut_off)


@pytest.mark.parametrize("reachable", [[False], [False, True, False]])
def test_container_may_be_unreachable_for_a_moment(cluster: LoopbackCluster, reachable: list[bool]) -> None:
    async def delay() -> None:
        for each in reachable:
            cluster.unreachable = set() if each else {"node-2"}
            await asyncio.sleep(0.7 * LIMIT_S)

    cluster.delays["127.0.0.2"] = delay
    assert cluster.run({"node-1": succeeds, "node-2": succeeds}) == 0


def test_container_is_reachable_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_agents, "BEAT_S", 0.2)
    found = []
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(container_agents, "PORT", listener.getsockname()[1])
        found.append(asyncio.run(container_agents.is_reachable("127.0.0.1")))  # it refuses
        listener.listen(0)
        found.append(asyncio.run(container_agents.is_reachable("127.0.0.1")))
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        found.append(
            asyncio.run(container_agents.is_reachable("127.0.0.1"))
        )  # a full backlog drops what arrives
    assert found == [True, True, False]
    assert not asyncio.run(container_agents.is_reachable("255.255.255.255"))  # no route


# Silence


def test_silence_lasts_since_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(time, "monotonic", clock)
    silence = Silence()
    for _ in range(4):
        clock.pass_(LOOK_S)
        silence.look()
    assert silence.seconds == 4 * LOOK_S
    silence.end()
    clock.pass_(3600)  # in which this process was suspended
    assert silence.look() == 2 * LOOK_S
