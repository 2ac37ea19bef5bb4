"""Mistakes in one run of the coordinator: ranks too early, files cut off, causes lost or wrongly named."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtimes.docker.live import LiveRecord
from tests.unit.loopback_cluster import (
    DONE,
    KEYS,
    RESULT,
    STARTS,
    FakeAgent,
    LoopbackCluster,
    Script,
    disconnect,
    exits,
    keeps_training,
    pauses,
    plays,
    receive,
    report_success,
    sends,
    succeeds,
    terminate_this_process,
    trace_file,
    wait_for_shutdown,
    weights_file,
)
from trainer.cluster import coordinator as module
from trainer.core.events import UNREPORTED
from trainer.core.trace import read_trace, trace_path

LOST = f"was {module.LOST}"
CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
TRAINS = sends("train_start", parameters=1)
FAILS = sends("failed", cause="ValueError: odd")
DIES = sends("died", cause="killed by SIGKILL", signal="SIGKILL")
TERMINATED = sends("terminated", cause="stopped by SIGTERM")


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_successful_run(cluster: LoopbackCluster) -> None:
    async def others_stay(_: FakeAgent) -> None:
        received = [agent.received for name, agent in cluster.agents.items() if name != "node-2"]
        assert received == [["assignment"]] * 2

    # Longer than the grace period.
    slow = plays(pauses(0.15), others_stay, report_success, exits(), wait_for_shutdown)
    assert cluster.run({"node-10": succeeds, "node-9": succeeds, "node-2": slow}) == 0
    assert cluster.summary[0] == "ok: 3 nodes, world size 3, ddp over gloo, digits, 3 epochs, seed 0"
    for rank, name in enumerate(("node-2", "node-9", "node-10")):
        agent = cluster.agents[name]
        assert agent.received == ["assignment", "shutdown"]
        assert agent.assignment
        assert (agent.assignment.agent.name, agent.ranks) == (name, (rank,))
        assert [each.public_keys for each in agent.assignment.agents] == [KEYS] * 3
        assert cluster.kinds(rank) == ["start", "result", "done"]
    usage = {each["name"]: each["ranks"] for each in lines(cluster.directory / "usage.jsonl")}
    assert usage == {"node-2": [0], "node-9": [1], "node-10": [2]}


@pytest.mark.parametrize("success", [True, False])
def test_checkpoints_are_removed_after_success_only(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, success: bool
) -> None:
    monkeypatch.setattr(module, "CHECKPOINTS", tmp_path)
    (tmp_path / "another-run").mkdir()

    async def writes(agent: FakeAgent) -> None:
        assert agent.assignment
        (tmp_path / agent.assignment.spec.key).mkdir()

    ends = [report_success, exits()] if success else [exits(1)]
    before = {*tmp_path.iterdir()}
    assert cluster.run({"node-1": plays(writes, *ends, wait_for_shutdown)}) == (not success)
    assert len({*tmp_path.iterdir()} - before - {cluster.directory}) == (not success)


# Files


def test_files_that_are_sent_slowly_at_shutdown_are_saved(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Open MPI node sends them at shutdown, and a slow one takes longer than the limit."""
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.4)
    weights = weights_file(150)

    async def sends_files(agent: FakeAgent) -> None:
        assert agent.assignment
        trace = trace_file(agent.assignment.spec.key, 0)
        await agent.send_trace(0, *(trace[first : first + 50] for first in range(0, len(trace), 50)))
        for first in range(0, len(weights), 125):
            await asyncio.sleep(0.1)
            await agent.send_weights(weights[first : first + 125], complete=first + 125 >= len(weights))

    slow = plays(report_success, exits(), receive, sends_files)
    assert cluster.run({"node-1": slow}, save_weights=True, trace="steps") == 0
    assert cluster.agents["node-1"].received == ["assignment", "shutdown"]
    assert (cluster.directory / "weights.npy").read_bytes() == weights
    assert read_trace(trace_path(cluster.directory, 0)).header.rank == 0


def test_incomplete_weights_are_not_saved(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        await agent.send_weights(weights_file(100)[:200], complete=False)

    dies = plays(report_success, stops, exits(), wait_for_shutdown)
    assert cluster.run({"node-1": dies}, save_weights=True) == 1
    assert not (cluster.directory / "weights.npy").exists()
    assert cluster.summary[1:] == ["  not all results were received and saved"]


def test_a_node_without_a_complete_trace_is_named(cluster: LoopbackCluster) -> None:
    def sends_trace(*parts: bytes, complete: bool = True) -> Script:
        send = lambda agent: agent.send_trace(*agent.ranks, *parts, complete=complete)  # noqa: E731
        return plays(report_success, send, exits(), wait_for_shutdown)

    scripts = {"node-1": sends_trace(), "node-2": sends_trace(b"{", complete=False), "node-3": succeeds}
    assert cluster.run(scripts, trace="full") == 1
    assert cluster.causes == {f"node-{n}": f"rank {n - 1} has sent no trace" for n in (2, 3)}
    assert trace_path(cluster.directory, 0).exists()
    assert not trace_path(cluster.directory, 1).exists()


def test_full_disk_fails_the_run(cluster: LoopbackCluster) -> None:
    async def fills(agent: FakeAgent) -> None:
        (cluster.directory / "rank-0.jsonl").unlink(missing_ok=True)
        (cluster.directory / "rank-0.jsonl").mkdir()  # cannot be written

    fills_disk = plays(STARTS, fills, TRAINS, wait_for_shutdown)
    assert cluster.run({"node-1": fills_disk, "node-2": keeps_training}) == 1
    assert cluster.causes["coordinator"].startswith("results cannot be written: ")


# Causes

ENDED_BY_SIGNAL = sends("died", cause="stopped with its container by SIGTERM", signal="SIGTERM")


@pytest.mark.parametrize(
    ("steps", "cause", "kinds", "fields"),
    [
        ([STARTS, exits(-9)], "rank 1 was killed by SIGKILL", ["start", "died"], {}),
        ([exits(3)], "ended with exit code 3", [], {}),
        (
            [STARTS, exits(-9, out_of_memory=1)],
            "needed more than 64 MiB",
            ["start", "died"],
            {"memory_mb": 64},
        ),
        ([STARTS, disconnect], LOST, ["start", "died"], {}),
        ([STARTS, FAILS], "rank 1 failed: ValueError: odd", ["start", "failed"], {}),  # it hangs then
        ([STARTS, RESULT, exits()], UNREPORTED, ["start", "result", "failed"], {}),
        ([STARTS, ENDED_BY_SIGNAL, exits(-15), FakeAgent.leave], "by SIGTERM", ["start", "died"], {}),
        ([sends("done", 0)], "rank: 0", ["damaged"], {}),
        (
            [lambda agent: agent.send_weights(weights_file(1))],
            "weights",
            ["damaged"],
            {"save_weights": True},
        ),
        ([STARTS, TRAINS, FAILS, exits(1)], "ValueError", ["start", "train_start", "failed"], CONTINUES),
    ],
    ids=["killed", "code", "memory", "lost", "hangs", "unreported", "signal", "forged", "weights", "error"],
)
def test_cause_of_a_failed_run(
    cluster: LoopbackCluster, steps: list[Script], cause: str, kinds: list[str], fields: dict[str, Any]
) -> None:
    left = {disconnect, FakeAgent.leave}.intersection(steps)
    fails = plays(*steps, *([] if left else [wait_for_shutdown]))
    assert cluster.run({"node-1": keeps_training, "node-2": fails}, **fields) == 1
    assert cluster.causes.keys() == {"node-2"}
    assert cause in cluster.causes["node-2"]
    assert not kinds or cluster.kinds(1) == kinds
    assert cluster.agents["node-1"].received == ["assignment", "shutdown"]


def test_timeout_names_the_ranks_that_are_suspended(cluster: LoopbackCluster) -> None:
    """And their PIDs are where the orchestrator reads them; a rank that goes on is not named."""
    seen: list[dict[int, int]] = []

    def beats(*suspended: int) -> Script:
        async def step(agent: FakeAgent) -> None:
            await agent.connection.send("alive", suspended=suspended)
            assert await agent.receive() == {"kind": "alive"}
            seen.append(LiveRecord(cluster.directory).suspended)

        return step

    stopped = plays(sends("start", pid=41), beats(1), wait_for_shutdown)
    goes_on = plays(sends("start", pid=42), beats(2), beats(), wait_for_shutdown)
    scripts = {"node-1": keeps_training, "node-2": stopped, "node-3": goes_on}
    assert cluster.run(scripts, timeout_s=0.5) == 1
    assert cluster.causes.keys() == {"the run", "node-2"}
    assert cluster.causes["the run"] == "stopped after 0.5 s"
    assert "process 41" in cluster.causes["node-2"]
    assert 42 in [each.get(2) for each in seen]
    assert seen[-1] == {1: 41}


def test_grace_period_for_other_failures(cluster: LoopbackCluster) -> None:
    async def reports_lost_peer(agent: FakeAgent) -> None:
        hearing = asyncio.create_task(agent.receive())
        await asyncio.sleep(0.05)
        assert not hearing.done()  # no shutdown yet
        await agent.send_event("failed", cause="peer is gone", peer=True)
        await agent.exit(1)
        await hearing

    first = plays(STARTS, FAILS, exits(1), wait_for_shutdown)
    assert cluster.run({"node-1": plays(STARTS, reports_lost_peer), "node-2": first}) == 1
    assert cluster.summary[1:] == [
        "  node-2: rank 1 failed: ValueError: odd",
        "  node-1: rank 0 failed: peer is gone",
    ]


def test_sigterm(cluster: LoopbackCluster) -> None:
    async def stop_coordinator(_: FakeAgent) -> None:
        terminate_this_process()

    stops = plays(STARTS, stop_coordinator, receive, TERMINATED, exits(143), disconnect)
    assert cluster.run({"node-1": stops, "node-2": keeps_training}) == 1
    assert cluster.causes == {"the run": "stopped by SIGTERM"}
    assert cluster.kinds(0) == ["start", "terminated"]
    assert cluster.agents["node-2"].received == ["assignment", "shutdown"]


# Open MPI

HOSTS = plays(STARTS, receive, exits(), disconnect)
IDLE = plays(receive, exits(), disconnect)
VANISHES = plays(STARTS, pauses(), disconnect)  # the exit of mpirun arrives before
COMPLAINT = "mpirun ended with exit code 255"


@pytest.mark.parametrize(
    ("complaint", "node", "cause"),
    [
        (None, VANISHES, {"node-1": f"rank 0 {LOST}"}),
        (COMPLAINT, VANISHES, {"launcher": COMPLAINT, "node-1": f"rank 0 {LOST}"}),
        (COMPLAINT, HOSTS, {"launcher": COMPLAINT}),
        (COMPLAINT, IDLE, {"launcher": COMPLAINT}),
    ],
    ids=["lost", "lost, complaint", "complaint", "complaint before ranks start"],
)
def test_lost_node_is_named_though_mpirun_exits_first(
    cluster: LoopbackCluster, complaint: str | None, node: Script, cause: dict[str, str]
) -> None:
    launches = plays(exits(cause=complaint), wait_for_shutdown)
    assert cluster.run({"launcher": launches, "node-1": node, "node-2": HOSTS}, topology="mpi") == 1
    assert cluster.causes == cause


def test_exit_code_of_mpirun_reaches_the_orchestrator(cluster: LoopbackCluster) -> None:
    """From the launcher only."""
    launches = plays(exits(cause="mpirun was killed by SIGKILL", mpirun=-9), wait_for_shutdown)
    lies = plays(receive, exits(mpirun=-11))
    scripts = {"launcher": [launches], "node-1": [lies], "node-2": [lies]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    assert ending.exits == {"launcher": 1, "mpirun": -9, "node-1": 0, "node-2": 0, "coordinator": 1}


def test_events_after_the_launcher_s_exit_are_recorded(cluster: LoopbackCluster) -> None:
    launches = plays(pauses(), exits(), wait_for_shutdown)
    node = plays(STARTS, receive, RESULT, DONE, exits(codes={}), disconnect)
    assert cluster.run({"node-1": node, "node-2": node, "launcher": launches}, topology="mpi") == 0
    assert cluster.summary[0].startswith("ok: 2 nodes, world size 2, all_reduce over mpi")
    assert [cluster.kinds(rank) for rank in (0, 1)] == [["start", "result", "done"]] * 2


# Runs that continue without a lost rank

BEGINS = [STARTS, TRAINS]
FINISHES = [RESULT, DONE, exits(), wait_for_shutdown]
COMES_BACK = [sends("start", pid=8, incarnation=1), sends("waiting", incarnation=1)]


def hears(*alive: int) -> Script:
    """Step: wait for the next membership, of these ranks."""

    async def step(agent: FakeAgent) -> None:
        message = await agent.receive() or {}
        assert message["kind"] == "membership"
        states = {member["rank"]: member["state"] for member in message["ranks"]}
        assert [rank for rank, state in states.items() if state in ("member", "waiting")] == [*alive]

    return step


async def until_shutdown(agent: FakeAgent) -> None:
    while (await agent.receive() or {"kind": "shutdown"})["kind"] != "shutdown":
        pass


OUTLIVES = plays(*BEGINS, hears(0, 2), *FINISHES)
WAITS = [DIES, hears(0, 2)]


@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ([disconnect], ["died"]),
        ([DIES, exits(-9), wait_for_shutdown], ["died"]),
        ([exits(-9), wait_for_shutdown], ["died"]),
        # Its agent waits to start it again, or it waits for the others to let it join.
        ([*WAITS, until_shutdown, exits(-9), disconnect], ["died"]),
        (
            [*WAITS, *COMES_BACK, until_shutdown, TERMINATED, exits(143), disconnect],
            ["died", "start", "waiting", "terminated"],
        ),
    ],
    ids=["disconnects", "reports the death", "reports the exit", "waits", "returned"],
)
def test_agents_learn_of_a_lost_rank(
    cluster: LoopbackCluster, steps: list[Script], kinds: list[str]
) -> None:
    dies = plays(*BEGINS, pauses(), *steps)  # the others train, too
    assert cluster.run({"node-1": OUTLIVES, "node-2": dies, "node-3": OUTLIVES}, **CONTINUES) == 0
    assert cluster.kinds(1) == ["start", "train_start", *kinds]
    assert {*cluster.agents["node-1"].received} == {"assignment", "membership", "shutdown"}


def test_agents_learn_of_a_rank_that_returns(cluster: LoopbackCluster) -> None:
    stays = plays(*BEGINS, hears(0, 2), hears(0, 1, 2), *FINISHES)
    returns = plays(*BEGINS, pauses(), *WAITS, *COMES_BACK, hears(0, 1, 2), TRAINS, *FINISHES)
    assert cluster.run({"node-1": stays, "node-2": returns, "node-3": stays}, **CONTINUES) == 0
    again = ["start", "waiting", "train_start", "result", "done"]
    assert cluster.kinds(1) == ["start", "train_start", "died", *again]


def test_loss_of_all_ranks_fails_the_run(cluster: LoopbackCluster) -> None:
    first, last = plays(*BEGINS, pauses(), disconnect), plays(*BEGINS, hears(1))
    assert cluster.run({"node-1": first, "node-2": last}, **CONTINUES) == 1
    assert cluster.causes == {"node-2": f"rank 1 {LOST}"}
