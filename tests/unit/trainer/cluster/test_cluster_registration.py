"""Registration: which agents are expected, which are rejected, and which are missing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit import loopback_cluster
from tests.unit.conftest import rank_fields
from tests.unit.loopback_cluster import HELLO, FakeAgent, LoopbackCluster, keeps_training, succeeds
from trainer.cluster import coordinator as module
from trainer.cluster.hand_over import ENDED, Ending
from trainer.cluster.rank_assignment import AssignmentError

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)


async def is_shut_down(agent: FakeAgent) -> None:
    """Script of an agent whose run does not start."""
    assert await agent.receive() == {"kind": "shutdown"}


def test_missing_agents_are_named(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REGISTRATION_S", 0.2)
    original = cluster.connect

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address in ("127.0.0.2", "127.0.0.4"):
            return FakeAgent(None)  # type: ignore[arg-type]
        return await original(address, hello)

    async def run_agent(name: str, address: str, script: Any) -> None:
        if (agent := await connect(address)).connection:
            await script(agent)
            await agent.connection.close()

    cluster.run_agent = run_agent  # type: ignore[method-assign]
    scripts = dict.fromkeys(["node-1", "node-10", "node-3", "launcher"], is_shut_down)
    assert cluster.run(scripts, topology="mpi") == 1
    assert cluster.summary == ["FAILED: launcher, node 9 did not register in 0.2 s"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"nodes": 3}, "FAILED: the run has 3 nodes, 2 registered: use --scale node=3"),
        ({"epochs": 0}, "FAILED: the run's spec is not valid: epochs: "),
        ({"strategy": "rpc_split"}, "FAILED: a run over rpc has topology rpc: use compose/rpc.yml"),
    ],
)
def test_invalid_run_shuts_down_all_agents(
    cluster: LoopbackCluster, fields: dict[str, Any], expected: str
) -> None:
    assert cluster.run({"node-1": is_shut_down, "node-2": is_shut_down}, **fields) == 1
    (line,) = cluster.summary
    assert line.startswith(expected)


def test_sigterm_during_registration(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        loopback_cluster.terminate_this_process()
        await is_shut_down(agent)

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        return await original(address, b"half a line" if address == "127.0.0.2" else hello)

    async def half(agent: FakeAgent) -> None:
        await cluster.ended.wait()

    original, cluster.connect = cluster.connect, connect  # type: ignore[method-assign]
    assert cluster.run({"node-1": stops, "node-2": half}) == 1
    assert cluster.summary == ["FAILED: stopped by SIGTERM"]


def sees_rejection(cluster: LoopbackCluster, address: str) -> Any:
    """Script of an agent that has ranks and sees another connection rejected."""

    async def script(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        late = await cluster.connect(address)
        message = await late.receive()
        assert message is not None
        assert message["kind"] == "rejected"
        assert await late.receive() is None
        await late.connection.close()
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    return script


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.3"], ids=["a second time", "unknown"])
def test_late_connection_is_rejected(cluster: LoopbackCluster, address: str) -> None:
    assert cluster.run({"node-1": sees_rejection(cluster, address), "node-2": succeeds}) == 0


def test_unknown_address_is_rejected_during_registration(cluster: LoopbackCluster) -> None:
    async def unknown(agent: FakeAgent) -> None:
        message = await agent.receive()
        assert message is not None
        assert message["kind"] == "rejected"
        arrived.set()

    original, arrived = cluster.connect, asyncio.Event()

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address == "127.0.0.2":
            await arrived.wait()
        return await original(address, hello)

    cluster.connect = connect  # type: ignore[method-assign]
    assert cluster.run({"node-1": succeeds, "node-2": succeeds}, unknown) == 0


# Open MPI


async def node(agent: FakeAgent) -> None:
    """Script of a node whose ranks mpirun starts: their last events arrive after `shutdown`."""
    await agent.receive_assignment()
    await agent.send_event("start", pid=7)
    await agent.receive()
    await agent.send_event("result", **rank_fields())
    await agent.send_event("done")
    await agent.connection.send("exit", codes={}, cause=None, usage=loopback_cluster.USAGE)
    await agent.connection.close()


async def launcher(agent: FakeAgent) -> None:
    assert (await agent.receive_assignment()).agent.ranks == ()
    await asyncio.sleep(0.05)
    await agent.exit()
    await agent.wait_for_shutdown()


def test_events_after_the_launcher_s_exit_are_recorded(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": node, "node-2": node, "launcher": launcher}, topology="mpi") == 0
    assert cluster.summary[0].startswith("ok: 2 nodes, world size 2, all_reduce over mpi")
    assert [cluster.kinds(rank) for rank in (0, 1)] == [["start", "result", "done"]] * 2


@pytest.mark.parametrize("up", [False, True])
def test_launcher_failure_is_not_attributed_to_a_node(cluster: LoopbackCluster, up: bool) -> None:
    async def fails(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(cause="mpirun exited with code 213")
        await agent.wait_for_shutdown()

    async def node(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        if up:
            await agent.send_event("start", pid=7)
        await agent.receive()
        await agent.connection.send("exit", codes={}, cause=None, usage=loopback_cluster.USAGE)
        await agent.connection.close()

    assert cluster.run({"node-1": node, "node-2": node, "launcher": fails}, topology="mpi") == 1
    assert cluster.causes == {"launcher": "mpirun exited with code 213"}


def test_lost_mpi_node_fails_the_run(cluster: LoopbackCluster) -> None:
    async def disconnects(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.connection.close()

    assert (
        cluster.run(
            {"node-1": disconnects, "node-2": keeps_training, "launcher": keeps_training}, topology="mpi"
        )
        == 1
    )
    assert "disconnected from the coordinator" in cluster.causes["node-1"]


# Started containers, from the engine's DNS


def name_server(monkeypatch: pytest.MonkeyPatch, services: dict[str, list[str]]) -> None:
    """services: names of the containers by service; the third of a service has address 10.0.0.3."""

    def forward(service: str) -> tuple[str, list[str], list[str]]:
        if service not in services:
            raise socket.gaierror(-2, "Name or service not known")
        return service, [], [f"10.0.0.{ord(service[0])}{n}" for n, _ in enumerate(services[service])]

    def backward(address: str) -> tuple[str, list[str], list[str]]:
        known = {a: name for each, names in services.items() for a, name in zip(forward(each)[2], names)}  # noqa: B905
        return known[address], [], [address]

    monkeypatch.setattr(socket, "gethostbyname_ex", forward)
    monkeypatch.setattr(socket, "gethostbyaddr", backward)


def test_expected_agents_follow_compose_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    containers = {
        "node": ["my-own-9-project-node-12.my-own-9-project_run", "my-own-9-project-node-3.x"],
        "launcher": ["my-own-9-project-launcher-1.my-own-9-project_run"],
    }
    name_server(monkeypatch, containers)
    found = module.expected_agents("mpi")
    assert sorted(found.values()) == [("launcher", 1), ("node", 3), ("node", 12)]
    assert sorted(module.expected_agents("ddp").values()) == [("node", 3), ("node", 12)]


def test_service_without_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    name_server(monkeypatch, {"node": ["p-node-1.p_run"]})
    with pytest.raises(AssignmentError, match="service master"):
        module.expected_agents("rpc")


# The spec file


@pytest.mark.parametrize("text", [None, "", "{", "strategy: ddp", "[]"])
def test_unreadable_spec(cluster: LoopbackCluster, tmp_path: Path, text: str | None) -> None:
    spec = tmp_path / "spec.json"
    if text is not None:
        spec.write_text(text)
    cluster.expected = {}  # no agent to wait for
    code, _ = module.main("ddp", spec, tmp_path / "live", {})
    assert code == 1
    assert (tmp_path / "live" / "summary.txt").read_text().startswith("FAILED: the run's spec ")
    ending = Ending.model_validate_json((tmp_path / "live" / ENDED).read_text())
    assert ending == Ending(exits={"coordinator": 1})
