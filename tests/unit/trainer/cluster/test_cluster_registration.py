"""Mistakes before ranks are assigned: who may register, who is missing, which containers there are."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.unit.loopback_cluster import HELLO, FakeAgent, LoopbackCluster, succeeds, terminate_this_process
from trainer.cluster import coordinator as module
from trainer.cluster.hand_over import ENDED, Ending
from trainer.cluster.rank_assignment import AssignmentError


async def is_shut_down(agent: FakeAgent) -> None:
    """Script of an agent whose run does not start."""
    assert await agent.receive() == {"kind": "shutdown"}


def silent_from(cluster: LoopbackCluster, *addresses: str) -> None:
    """Let the agents at these addresses connect, and send half of the first message."""
    original = cluster.connect

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        return await original(address, b'{"kind"' if address in addresses else hello)

    cluster.connect = connect  # type: ignore[method-assign]


def test_missing_agents_are_named(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REGISTRATION_S", 0.2)
    silent_from(cluster, "127.0.0.2", "127.0.0.4")

    async def waits(agent: FakeAgent) -> None:
        await cluster.ended.wait()

    scripts = {"node-1": is_shut_down, "node-10": waits, "node-3": is_shut_down, "launcher": waits}
    assert cluster.run(scripts, topology="mpi") == 1
    assert cluster.summary == ["FAILED: launcher, node 9 did not register in 0.2 s"]


def test_invalid_run_shuts_down_all_agents(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": is_shut_down, "node-2": is_shut_down}, nodes=3) == 1
    assert cluster.summary == ["FAILED: the run has 3 nodes, 2 registered: use --scale node=3"]


def test_sigterm_during_registration(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        terminate_this_process()
        await is_shut_down(agent)

    async def waits(agent: FakeAgent) -> None:
        await cluster.ended.wait()

    silent_from(cluster, "127.0.0.2")
    assert cluster.run({"node-1": stops, "node-2": waits}) == 1
    assert cluster.summary == ["FAILED: stopped by SIGTERM"]


def test_connections_of_others_are_rejected(cluster: LoopbackCluster) -> None:
    """From an unknown address while agents register, and from a registered one later."""
    original, rejected = cluster.connect, asyncio.Event()

    async def is_rejected(agent: FakeAgent) -> None:
        assert (await agent.receive() or {})["kind"] == "rejected"
        assert await agent.receive() is None
        rejected.set()

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address == "127.0.0.2":
            await rejected.wait()
        return await original(address, hello)

    async def connects_again(agent: FakeAgent) -> None:
        second = await original("127.0.0.1")
        await is_rejected(second)
        await second.connection.close()
        await succeeds(agent)

    cluster.connect = connect  # type: ignore[method-assign]
    assert cluster.run({"node-1": connects_again, "node-2": succeeds}, is_rejected) == 0


@pytest.mark.parametrize(
    ("node", "launcher"),
    [
        (["a-9-b-node-12.a-9-b_run", "a-9-b-node-3.x"], ["a-9-b-launcher-1.a-9-b_run"]),
        (["run_node.12.j2k.run_net", "run_node.3.x7.run_net"], ["run_launcher.1.x.run_net"]),
    ],
    ids=["compose", "swarm"],
)
def test_containers_are_found_by_the_engine_s_names(
    monkeypatch: pytest.MonkeyPatch, node: list[str], launcher: list[str]
) -> None:
    names = {"node": node, "launcher": launcher}

    def forward(service: str) -> tuple[str, list[str], list[str]]:
        if service not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return service, [], names[service]  # as addresses, so that each says its name

    monkeypatch.setattr(socket, "gethostbyname_ex", forward)
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: (address, [], [address]))
    found = module.expected_agents("mpi")
    assert [found[name] for name in (*node, *launcher)] == [("node", 12), ("node", 3), ("launcher", 1)]
    assert module.expected_agents("ddp").keys() == {*node}
    with pytest.raises(AssignmentError, match="service master"):
        module.expected_agents("rpc")


def test_containers_of_a_swarm_that_have_not_started_are_named(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTRATION_S", 0.1)
    monkeypatch.setattr(module, "expected_agents", lambda _: {"10.0.0.1": ("node", 1)})
    coordinator = module.Coordinator("mpi", {}, cluster.directory, {}, scale=3)
    code, (line,) = asyncio.run(coordinator.run())
    assert code == 1
    assert line.endswith("not started in 0.1 s: 2 of service node, 1 of service launcher")


def test_unreadable_spec(cluster: LoopbackCluster, tmp_path: Path) -> None:
    spec, live = tmp_path / "spec.json", tmp_path / "live"
    for text in (None, "", "{", "strategy: ddp", "[]"):
        if text is not None:
            spec.write_text(text)
        code, lines = module.main("ddp", spec, live, {})  # with no agent to wait for
        assert code == 1
        assert lines[0].startswith("FAILED: the run's spec ")
        assert (live / "summary.txt").read_text().splitlines() == lines
        ending = Ending.model_validate_json((live / ENDED).read_text())
        assert ending == Ending(exits={"coordinator": 1})
