"""Mistakes of a warm coordinator: connections, causes or files of one run taken for those of the next."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.unit import loopback_cluster as loopback
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster, exits, is_surplus, plays, succeeds
from trainer.node import coordinator as module
from trainer.node.channel import Ending, log_marks

OK = Ending(exits={"node-1": 0, "node-2": 0, "coordinator": 0})
FINISHES = [loopback.STARTS, *loopback.FINISHES[:-1], loopback.receive]


def summary(cluster: LoopbackCluster, number: int) -> list[str]:
    return (cluster.run_directory(number) / "summary.txt").read_text().splitlines()


def test_agents_reconnect_for_the_next_run(
    cluster: LoopbackCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may connect before it is handed over."""

    def all_wait(number: int) -> None:
        while not all(len(each) == number for each in cluster.connections.values()):
            time.sleep(0.005)

    twice = [succeeds, succeeds]
    scripts = {"node-1": twice, "node-2": twice}
    assert cluster.serve(scripts, {"seed": 1}, {"seed": 2}, before_run=all_wait) == [OK, OK]
    for agents in cluster.connections.values():
        assert [agent.received for agent in agents] == [["assignment", "shutdown"]] * 2
        assert [agent.assignment.spec.seed for agent in agents if agent.assignment] == [1, 2]
    output = capsys.readouterr().out.splitlines()
    marks = [mark for number in (1, 2) for mark in log_marks(f"run-{number}")]
    assert [line for line in output if line in marks] == marks
    for number in (1, 2):
        names = {path.name for path in cluster.run_directory(number).iterdir()}
        assert names >= {"rank-0.jsonl", "rank-1.jsonl", "usage.jsonl"}
        begin, end = (output.index(mark) for mark in log_marks(f"run-{number}"))
        assert summary(cluster, number)[0] in output[begin:end]
        assert summary(cluster, number)[0].startswith("ok: ")


def test_surplus_agent_gets_ranks_of_the_next_larger_run(cluster: LoopbackCluster) -> None:
    scripts = {"node-1": [succeeds] * 3, "node-2": [is_surplus, succeeds, is_surplus]}
    small = Ending(exits={"node-1": 0, "coordinator": 0})
    assert cluster.serve(scripts, {"nodes": 1}, {"nodes": 2}, {"nodes": 1}) == [small, OK, small]


@pytest.mark.parametrize("left", ["64 MiB of shared memory", None], ids=["not clean", "stays"])
def test_container_that_cannot_take_another_run_is_named(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.3)

    async def end(agent: FakeAgent) -> None:
        if left:
            await agent.leave(left)
        while not left and not cluster.has_ended(1):
            await agent.connection.send("alive")  # which does not delay the end
            await asyncio.sleep(0.05)

    (ending,) = cluster.serve({"node-1": [succeeds], "node-2": [plays(*FINISHES, end)]}, {})
    assert ending.exits == OK.exits
    assert str(ending.untrusted).startswith("node 1 ")
    assert left is None or left in str(ending.untrusted)


def test_a_run_is_cancelled_and_the_next_one_starts(cluster: LoopbackCluster) -> None:
    async def cancel(_: FakeAgent) -> None:
        cluster.cancel(1)

    cancels = plays(loopback.STARTS, cancel, loopback.receive, exits(143), FakeAgent.leave)
    scripts = {"node-1": [cancels, succeeds], "node-2": [loopback.keeps_training, succeeds]}
    cancelled, after = cluster.serve(scripts, {}, {})
    assert cancelled.exits == {"node-1": 1, "coordinator": 1}  # the other one did not report any
    assert after == OK
    assert summary(cluster, 1)[0].startswith("FAILED: ")
    assert cluster.connections["node-2"][0].received == ["assignment", "shutdown"]


def test_a_run_is_cancelled_for_which_a_container_is_missing(cluster: LoopbackCluster) -> None:
    async def cancel(agent: FakeAgent) -> None:
        await asyncio.sleep(0.2)  # agents that have not registered get no messages
        cluster.cancel(1)
        await is_surplus(agent)

    async def after_the_run() -> None:
        while not cluster.has_ended(1):
            await asyncio.sleep(0.005)

    cluster.delays["127.0.0.2"] = after_the_run
    cancelled, after = cluster.serve({"node-1": [cancel, succeeds], "node-2": [succeeds]}, {}, {})
    assert (cancelled, after) == (Ending(exits={"coordinator": 1}), OK)
    assert summary(cluster, 1) == ["FAILED: cancelled by the orchestrator"]


def test_run_that_cannot_start_leaves_the_agents_to_the_next(cluster: LoopbackCluster) -> None:
    scripts = {name: [is_surplus, succeeds] for name in ("node-1", "node-2")}
    refused, after = cluster.serve(scripts, {"epochs": 0}, {})
    assert (refused.exits, after) == ({"coordinator": 1}, OK)
    assert summary(cluster, 1)[0].startswith("FAILED: ")


def test_lost_warm_parent_is_reported_with_its_node(cluster: LoopbackCluster) -> None:
    dies = exits(-9, lost="was killed by SIGKILL")
    loses_parent = plays(loopback.STARTS, dies, loopback.wait_for_shutdown)
    scripts = {"node-1": [loopback.keeps_training, succeeds], "node-2": [loses_parent, succeeds]}
    lost, after = cluster.serve(scripts, {}, {})
    assert lost.exits == {"node-2": 1, "coordinator": 1}
    assert lost.lost == "of node 1 was killed by SIGKILL"
    assert lost.failures.keys() == {"node-2"}
    assert after == OK


def test_lost_launcher_is_a_cause_that_no_event_reports(cluster: LoopbackCluster) -> None:
    scripts = {"node-1": [loopback.keeps_training], "launcher": [plays(loopback.disconnect)]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    assert ending.unreported.keys() == {"launcher"}
