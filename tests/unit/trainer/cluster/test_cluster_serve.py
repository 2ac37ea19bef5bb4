"""A warm coordinator with scripted agents on loopback: it takes one run after the other."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit import loopback_cluster
from tests.unit.loopback_cluster import (
    HELLO,
    FakeAgent,
    LoopbackCluster,
    Script,
    is_surplus,
    keeps_training,
    succeeds,
    succeeds_later,
)
from trainer.cluster import coordinator as module
from trainer.cluster.hand_over import CANCEL, NEXT, Ending, log_marks
from trainer.cluster.rank_assignment import AgentInfo

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)
OK = Ending(exits={"node-1": 0, "node-2": 0, "coordinator": 0})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)


def summary(cluster: LoopbackCluster, number: int) -> list[str]:
    return (cluster.run_directory(number) / "summary.txt").read_text().splitlines()


def ranks(cluster: LoopbackCluster, number: int) -> dict[str, list[int]]:
    """The ranks of each agent of a run, from its record."""
    agents = json.loads((cluster.run_directory(number) / "assignment.json").read_text())
    return {f"{agent['role']}-{agent['ordinal']}": agent["ranks"] for agent in agents}


async def until(reached: Any) -> None:
    while not reached():
        await asyncio.sleep(0.005)


def test_agents_reconnect_for_the_next_run(
    cluster: LoopbackCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = [succeeds, succeeds]
    assert cluster.serve({"node-1": twice, "node-2": twice}, {"seed": 1}, {"seed": 2}) == [OK, OK]
    for agents in cluster.connections.values():
        assert [agent.received for agent in agents] == [["assignment", "shutdown"]] * 2
        assert [agent.assignment.spec.seed for agent in agents if agent.assignment] == [1, 2]
    for number in (1, 2):
        assert summary(cluster, number)[0].startswith("ok: ")
        names = {path.name for path in cluster.run_directory(number).iterdir()}
        assert names >= {"rank-0.jsonl", "rank-1.jsonl", "usage.jsonl"}
    assert not (cluster.directory / NEXT).exists()
    output = capsys.readouterr().out.splitlines()
    marks = [mark for number in (1, 2) for mark in log_marks(f"run-{number}")]
    assert [line for line in output if line in marks] == marks
    for number in (1, 2):
        begin, end = (output.index(mark) for mark in log_marks(f"run-{number}"))
        assert summary(cluster, number)[0] in output[begin:end]


@pytest.mark.parametrize(
    ("topology", "other", "expected"),
    [
        ("ddp", [], {"node-1": [0], "node-2": [1]}),
        ("rpc", ["master"], {"master-1": [0], "node-1": [1]}),
        ("mpi", ["launcher"], {"launcher-1": [], "node-1": [0], "node-2": [1]}),
    ],
)
def test_surplus_agents_get_no_ranks(
    cluster: LoopbackCluster, topology: str, other: list[str], expected: dict[str, list[int]]
) -> None:
    needed = [*other, *(name for name in expected if name.startswith("node"))]
    surplus = ["node-7", "node-9"]
    scripts: dict[str, list[Script]] = {
        **{name: [is_surplus] for name in surplus},
        **{name: [succeeds] for name in needed},
    }
    (ending,) = cluster.serve(scripts, {"nodes": 2}, topology=topology)
    assert ending == Ending(exits={**dict.fromkeys(needed, 0), "coordinator": 0})
    assert ranks(cluster, 1) == expected
    assert all(cluster.connections[name][0].received == ["shutdown"] for name in surplus)


def test_surplus_agent_gets_ranks_of_the_next_larger_run(cluster: LoopbackCluster) -> None:
    scripts: dict[str, list[Script]] = {
        "node-1": [succeeds] * 3,
        "node-2": [is_surplus, succeeds, is_surplus],
    }
    small = Ending(exits={"node-1": 0, "coordinator": 0})
    assert cluster.serve(scripts, {"nodes": 1}, {"nodes": 2}, {"nodes": 1}) == [small, OK, small]


def test_lost_surplus_agent_does_not_fail_the_run(cluster: LoopbackCluster) -> None:
    async def disconnects(agent: FakeAgent) -> None:
        await cluster.until_assigned("node-1")

    (ending,) = cluster.serve({"node-1": [succeeds_later], "node-2": [disconnects]}, {"nodes": 1})
    assert ending.exits == {"node-1": 0, "coordinator": 0}


def test_agents_that_connect_early_wait_for_the_next_run(cluster: LoopbackCluster) -> None:
    def wait_for_agents(number: int) -> None:
        while not all(len(agents) == number for agents in cluster.connections.values()):
            time.sleep(0.005)

    twice = [succeeds, succeeds]
    endings = cluster.serve({"node-1": twice, "node-2": twice}, {}, {}, before_run=wait_for_agents)
    assert endings == [OK, OK]


def test_agent_that_connects_before_the_run_has_ended_is_rejected(cluster: LoopbackCluster) -> None:
    """It would be taken for one of the next run. Agents connect again."""

    async def reconnects(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        await agent.receive()
        early = await cluster.connect("127.0.0.2")
        assert (await early.receive() or {})["kind"] == "rejected"
        await early.connection.close()
        await agent.leave()

    scripts: dict[str, list[Script]] = {"node-1": [succeeds, succeeds], "node-2": [reconnects, succeeds]}
    assert cluster.serve(scripts, {}, {}) == [OK, OK]


def test_container_that_is_not_clean_is_named(cluster: LoopbackCluster) -> None:
    async def leaves_something(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        await agent.receive()
        await agent.leave("64 MiB of shared memory")

    (ending,) = cluster.serve({"node-1": [succeeds], "node-2": [leaves_something]}, {})
    assert ending.exits == OK.exits
    assert str(ending.untrusted).startswith("node 1 ")
    assert "64 MiB" in str(ending.untrusted)


def test_agent_that_does_not_leave_is_named(cluster: LoopbackCluster) -> None:
    async def stays(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        while await agent.receive():
            pass

    (ending,) = cluster.serve({"node-1": [succeeds], "node-2": [stays]}, {})
    assert ending.exits == OK.exits
    assert str(ending.untrusted).startswith("node 1 ")


def test_file_cancels_the_run_and_the_next_one_starts(cluster: LoopbackCluster) -> None:
    async def is_cancelled(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=1)
        (cluster.run_directory(1) / CANCEL).touch()
        await agent.receive()
        await agent.exit(143)
        await agent.leave()

    scripts: dict[str, list[Script]] = {
        "node-1": [is_cancelled, succeeds],
        "node-2": [keeps_training, succeeds],
    }
    cancelled, after = cluster.serve(scripts, {}, {})
    assert cancelled.exits == {"node-1": 1, "coordinator": 1}  # the other one did not report any
    assert after == OK
    assert summary(cluster, 1)[0].startswith("FAILED: ")
    agents = [agents[0] for agents in cluster.connections.values()]
    assert [agent.received for agent in agents] == [["assignment", "shutdown"]] * 2


def test_run_cancelled_before_all_have_registered_leaves_the_agents_to_the_next(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def register(*arguments: Any, **fields: Any) -> AgentInfo:
        (cluster.run_directory(1) / CANCEL).touch()
        return AgentInfo(*arguments, **fields)

    async def connect_late(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address == "127.0.0.2":
            await until(lambda: len(cluster.connections["node-1"]) == 2)
        return await connect(address, hello)

    connect = cluster.connect
    cluster.connect = connect_late  # type: ignore[method-assign]
    monkeypatch.setattr(module, "AgentInfo", register)
    scripts: dict[str, list[Script]] = {"node-1": [is_surplus, succeeds], "node-2": [succeeds]}
    cancelled, after = cluster.serve(scripts, {}, {})
    assert cancelled.exits == {"coordinator": 1}
    assert after == OK


@pytest.mark.parametrize("text", ["{", '{"strategy": "ddp", "nodes": 2, "epochs": 0}'])
def test_run_that_cannot_start_leaves_the_agents_to_the_next(cluster: LoopbackCluster, text: str) -> None:
    def spoil(directory: Path) -> Path | None:
        run = take_over(directory)
        if run and run.name == "run-1":
            (run / "spec.json").write_text(text)
        return run

    take_over = loopback_cluster.take_over
    scripts: dict[str, list[Script]] = {name: [is_surplus, succeeds] for name in ("node-1", "node-2")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loopback_cluster, "take_over", spoil)
        refused, after = cluster.serve(scripts, {}, {})
    assert refused.exits == {"coordinator": 1}
    assert summary(cluster, 1)[0].startswith("FAILED: ")
    assert after == OK


def test_lost_warm_parent_is_reported_with_its_node(cluster: LoopbackCluster) -> None:
    async def loses_its_parent(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=1)
        await agent.exit(-9, lost="was killed by SIGKILL")
        await agent.wait_for_shutdown()

    scripts: dict[str, list[Script]] = {
        "node-1": [keeps_training, succeeds],
        "node-2": [loses_its_parent, succeeds],
    }
    lost, after = cluster.serve(scripts, {}, {})
    assert (lost.exits, lost.lost) == ({"node-2": 1, "coordinator": 1}, "of node 1 was killed by SIGKILL")
    assert lost.failures.keys() == {"node-2"}
    assert after == OK


def test_coordinator_ends_without_runs(cluster: LoopbackCluster) -> None:
    async def waits(agent: FakeAgent) -> None:
        assert await agent.receive() is None

    def wait_for_second_connection() -> None:  # which would be refused after the end
        while len(cluster.connections["node-1"]) < 2:
            time.sleep(0.005)

    scripts: dict[str, list[Script]] = {"node-1": [succeeds, waits]}
    assert len(cluster.serve(scripts, {}, before_end=wait_for_second_connection)) == 1
