"""The coordinator with scripted agents on loopback: what it sends and records, and how a run ends."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from orchestrator.runtimes.docker.live import LiveRecord
from tests.unit import loopback_cluster
from tests.unit.conftest import rank_fields
from tests.unit.loopback_cluster import (
    HELLO,
    KEYS,
    FakeAgent,
    LoopbackCluster,
    Script,
    keeps_training,
    succeeds,
    trace_file,
    weights_file,
)
from trainer.cluster import coordinator as module
from trainer.core.events import UNREPORTED, Event
from trainer.core.trace import read_trace, trace_path

LOST = "killed together with its container, or disconnected from the coordinator"
ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)


# Success


def test_successful_run(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": succeeds, "node-2": succeeds, "node-3": succeeds}) == 0
    assert cluster.summary[0] == "ok: 3 nodes, world size 3, ddp over gloo, digits, 3 epochs, seed 0"
    for rank, (name, agent) in enumerate(cluster.agents.items()):
        assert agent.received == ["assignment", "shutdown"]
        assert agent.assignment is not None
        assert (agent.assignment.agent.name, agent.ranks) == (name, (rank,))
        assert cluster.kinds(rank) == ["start", "result", "done"]
    usage = [json.loads(line) for line in (cluster.directory / "usage.jsonl").read_text().splitlines()]
    assert sorted((each["name"], each["ranks"]) for each in usage) == [
        ("node-1", [0]),
        ("node-2", [1]),
        ("node-3", [2]),
    ]


@pytest.mark.parametrize("success", [True, False])
def test_checkpoints_are_removed_after_success_only(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, success: bool
) -> None:
    monkeypatch.setattr(module, "CHECKPOINTS", tmp_path / "checkpoints")
    directories = []

    async def trains(agent: FakeAgent) -> None:
        assignment = await agent.receive_assignment()
        directories.append(tmp_path / "checkpoints" / assignment.spec.key)
        directories[0].mkdir(parents=True, exist_ok=True)
        (directories[0].parent / "another-run").mkdir(exist_ok=True)
        if success:
            await agent.report_success()
        await agent.exit(code=0 if success else 1)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": trains, "node-2": trains}) == (0 if success else 1)
    assert directories[0].exists() is not success
    assert (directories[0].parent / "another-run").exists()


def test_no_assignment_before_all_have_registered(cluster: LoopbackCluster) -> None:
    original = cluster.connect

    async def connect(address: str, hello: bytes = HELLO) -> FakeAgent:
        if address == "127.0.0.2":
            while "node-1" not in cluster.agents:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)  # time in which ranks could be assigned
            assert cluster.agents["node-1"].received == []
        return await original(address, hello)

    cluster.connect = connect  # type: ignore[method-assign]
    assert cluster.run({"node-1": succeeds, "node-2": succeeds}) == 0
    assert cluster.agents["node-1"].received == ["assignment", "shutdown"]


def test_ranks_follow_container_numbers(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-10": succeeds, "node-9": succeeds, "node-2": succeeds}) == 0
    assert {name: agent.ranks for name, agent in cluster.agents.items()} == {
        "node-2": (0,),
        "node-9": (1,),
        "node-10": (2,),
    }


def test_agents_stay_until_the_slowest_has_finished(cluster: LoopbackCluster) -> None:
    async def slow(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await asyncio.sleep(0.15)  # longer than the grace period
        assert "shutdown" not in cluster.agents["node-1"].received
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": succeeds, "node-2": slow}) == 0


def test_public_keys_reach_all_agents(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": succeeds, "node-2": succeeds}) == 0
    assignment = cluster.agents["node-2"].assignment
    assert assignment is not None
    assert [agent.public_keys for agent in assignment.agents] == [KEYS] * 2


def test_weights_are_saved(cluster: LoopbackCluster) -> None:
    weights = weights_file(100)

    async def sends(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.send_weights(weights[:100], weights[100:200], weights[200:])
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": sends}, save_weights=True) == 0
    assert (cluster.directory / "weights.npy").read_bytes() == weights


def test_incomplete_weights_are_not_saved(cluster: LoopbackCluster) -> None:
    async def dies(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.send_weights(weights_file(100)[:200], complete=False)
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": dies}, save_weights=True) == 1
    assert not (cluster.directory / "weights.npy").exists()
    assert cluster.summary[1:] == ["  not all results were received and saved"]


async def succeeds_with_trace(agent: FakeAgent) -> None:
    """As `succeeds`, of a run with traces."""
    await agent.receive_assignment()
    await agent.report_success()
    for rank in agent.ranks:
        await agent.send_trace(rank)
    await agent.exit()
    await agent.wait_for_shutdown()


def test_traces_of_all_ranks_are_saved(cluster: LoopbackCluster) -> None:
    async def in_parts(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        await agent.receive()
        assert agent.received[-1] == "shutdown"  # an Open MPI node sends files at shutdown
        assert agent.assignment
        content = trace_file(agent.assignment.spec.key, 1)
        await agent.send_trace(1, *(content[first : first + 50] for first in range(0, len(content), 50)))

    assert cluster.run({"node-1": succeeds_with_trace, "node-2": in_parts}, trace="steps") == 0
    headers = [read_trace(trace_path(cluster.directory, rank)).header for rank in (0, 1)]
    assert [header.rank for header in headers] == [0, 1]


def test_a_node_that_sends_no_trace_is_named(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": succeeds_with_trace, "node-2": succeeds}, trace="steps") == 1
    assert cluster.causes == {"node-2": "rank 1 has sent no trace"}


def test_an_incomplete_trace_is_not_saved(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        assignment = await agent.receive_assignment()
        await agent.report_success()
        await agent.send_trace(1, trace_file(assignment.spec.key, 1)[:-1], complete=False)
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": succeeds_with_trace, "node-2": stops}, trace="full") == 1
    assert list(cluster.causes) == ["node-2"]
    assert not trace_path(cluster.directory, 1).exists()


def test_coordinator_stays_while_weights_arrive(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Open MPI node sends them at shutdown, and a slow one takes longer than the limit."""
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.4)

    async def slow(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        await agent.receive()
        assert agent.received[-1] == "shutdown"
        for first in range(0, len(weights), 100):
            await asyncio.sleep(0.1)
            await agent.send_weights(weights[first : first + 100], complete=first + 100 >= len(weights))

    weights = weights_file(150)  # 8 parts
    assert cluster.run({"node-1": slow}, save_weights=True) == 0
    assert (cluster.directory / "weights.npy").read_bytes() == weights


def test_full_disk_fails_the_run(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fills(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        (cluster.directory / "rank-0.jsonl").unlink(missing_ok=True)
        (cluster.directory / "rank-0.jsonl").mkdir()  # cannot be written
        await agent.send_event("train_start", parameters=0)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": fills, "node-2": keeps_training}) == 1
    assert cluster.causes["coordinator"].startswith("results cannot be written: ")


def test_timeout_of_the_run(cluster: LoopbackCluster) -> None:
    assert cluster.run({"node-1": keeps_training, "node-2": keeps_training}, timeout_s=0.3) == 1
    assert cluster.causes == {"the run": "stopped after 0.3 s"}


def test_timeout_names_the_ranks_that_are_suspended(cluster: LoopbackCluster) -> None:
    """And their PIDs are where the orchestrator reads them; a rank that goes on is not named."""
    seen: list[dict[int, int]] = []

    def reports(*suspensions: list[int]) -> Script:
        async def script(agent: FakeAgent) -> None:
            await agent.receive_assignment()
            await agent.send_event("start", pid=40 + agent.ranks[0])
            for suspended in suspensions:
                await agent.connection.send("alive", suspended=suspended)
                while (await agent.receive() or {}).get("kind") != "alive":
                    pass
                seen.append(LiveRecord(cluster.directory).suspended)
            await agent.wait_for_shutdown()

        return script

    scripts = {"node-1": keeps_training, "node-2": reports([1]), "node-3": reports([2], [])}
    assert cluster.run(scripts, timeout_s=0.5) == 1
    assert cluster.causes.keys() == {"the run", "node-2"}
    assert "process 41" in cluster.causes["node-2"]
    assert {2: 42} in [{rank: pid for rank, pid in each.items() if rank == 2} for each in seen]
    assert 2 not in seen[-1]


def test_event_of_a_rank_on_another_node_is_rejected(cluster: LoopbackCluster) -> None:
    async def forges(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        line = Event(time.time(), "key", 0, "host", "done", {}).to_line()
        await agent.connection.send("event", line=line)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": keeps_training, "node-2": forges}) == 1
    assert "rank: 0" in cluster.causes["node-2"]


def test_coordinator_waits_only_for_agents_with_processes(cluster: LoopbackCluster) -> None:
    async def has_no_ranks(agent: FakeAgent) -> None:
        assert (await agent.receive_assignment()).agent.ranks == ()
        await agent.receive()
        await agent.exit()

    async def runs_all(agent: FakeAgent) -> None:
        assert (await agent.receive_assignment()).agent.ranks == (0, 1)
        await agent.report_success()
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": runs_all, "node-2": has_no_ranks}, topology="single") == 0


# Failures


def test_killed_rank_fails_the_run(cluster: LoopbackCluster) -> None:
    async def killed(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.exit(-9)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": keeps_training, "node-2": killed, "node-3": keeps_training}) == 1
    assert cluster.causes == {"node-2": "rank 1 was killed by SIGKILL"}
    assert cluster.kinds(1) == ["start", "died"]
    assert all(agent.received == ["assignment", "shutdown"] for agent in cluster.agents.values())


def test_nonzero_exit_code_fails_the_run(cluster: LoopbackCluster) -> None:
    async def ends(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(3)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": ends, "node-2": keeps_training}) == 1
    assert cluster.causes == {"node-1": "ended with exit code 3"}


def test_agent_that_a_signal_ends_cleans_its_container_while_others_train(cluster: LoopbackCluster) -> None:
    async def stopped(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.send_event("died", cause="stopped with its container by SIGTERM", signal="SIGTERM")
        await agent.exit(-15)
        await agent.leave()

    assert cluster.run({"node-1": keeps_training, "node-2": stopped}) == 1
    assert cluster.causes == {"node-2": "rank 1 was stopped with its container by SIGTERM"}
    assert cluster.kinds(1) == ["start", "died"]


def test_out_of_memory_is_the_cause(cluster: LoopbackCluster) -> None:
    async def runs_out_of_memory(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.exit(-9, out_of_memory=1)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": runs_out_of_memory, "node-2": keeps_training}, memory_mb=64) == 1
    assert cluster.causes == {"node-1": "rank 0 was killed: its node needed more than 64 MiB of memory"}


def test_lost_connection_fails_the_run(cluster: LoopbackCluster) -> None:
    async def disconnects(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.connection.close()

    assert cluster.run({"node-1": keeps_training, "node-2": disconnects}) == 1
    assert cluster.causes == {"node-2": f"rank 1 was {LOST}"}
    assert cluster.kinds(1) == ["start", "died"]
    assert cluster.agents["node-1"].received == ["assignment", "shutdown"]


@pytest.mark.parametrize("complaint", [None, "mpirun ended with exit code 255"])
def test_lost_node_is_named_though_mpirun_exits_first(
    cluster: LoopbackCluster, complaint: str | None
) -> None:
    async def launches(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(cause=complaint)
        await agent.wait_for_shutdown()

    async def disconnects(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await asyncio.sleep(0.05)  # the exit of mpirun has arrived by then
        await agent.connection.close()

    async def hosts(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.receive()
        await agent.exit()

    assert cluster.run({"launcher": launches, "node-1": disconnects, "node-2": hosts}, topology="mpi") == 1
    expected = {
        "node-1": "rank 0 was killed together with its container, or disconnected from the coordinator"
    }
    assert cluster.causes == ({"launcher": complaint} if complaint else {}) | expected


def test_exit_code_of_mpirun_reaches_the_orchestrator(cluster: LoopbackCluster) -> None:
    """From the launcher only."""

    async def launches(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(cause="mpirun was killed by SIGKILL", mpirun=-9)
        await agent.wait_for_shutdown()

    async def lies(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.receive()
        await agent.exit(mpirun=-11)
        await agent.connection.close()

    scripts = {"launcher": [launches], "node-1": [lies], "node-2": [lies]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    assert ending.exits == {"launcher": 1, "mpirun": -9, "node-1": 0, "node-2": 0, "coordinator": 1}


def test_mpirun_failure_without_a_lost_node(cluster: LoopbackCluster) -> None:
    async def launches(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(cause="mpirun ended with exit code 1", mpirun=1)
        await agent.wait_for_shutdown()

    assert (
        cluster.run(
            {"launcher": launches, "node-1": keeps_training, "node-2": keeps_training},
            topology="mpi",
        )
        == 1
    )
    assert cluster.causes == {"launcher": "mpirun ended with exit code 1"}


def test_grace_period_for_other_failures(cluster: LoopbackCluster) -> None:
    async def fails(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.send_event("failed", cause="ValueError: odd")
        await agent.exit(1)
        await agent.wait_for_shutdown()

    async def reports_lost_peer(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        hearing = asyncio.create_task(agent.receive())
        await asyncio.sleep(0.05)
        assert not hearing.done()  # no shutdown yet
        await agent.send_event("failed", cause="peer is gone", peer=True)
        await agent.exit(1)
        await hearing

    assert cluster.run({"node-1": reports_lost_peer, "node-2": fails}) == 1
    assert cluster.summary[1:] == [
        "  node-2: rank 1 failed: ValueError: odd",
        "  node-1: rank 0 failed: peer is gone",
    ]


def test_ranks_stopped_at_shutdown_have_not_failed(cluster: LoopbackCluster) -> None:
    async def fails(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.exit(1)
        await agent.wait_for_shutdown()

    async def stops(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.receive()
        await agent.send_event("terminated", cause="stopped by SIGTERM")
        await agent.exit(143)
        await agent.connection.close()

    assert cluster.run({"node-1": stops, "node-2": fails}) == 1
    assert cluster.causes == {"node-2": "ended with exit code 1"}
    assert cluster.kinds(0) == ["start", "terminated"]  # still recorded


def test_run_with_a_missing_exit_report_fails(cluster: LoopbackCluster) -> None:
    async def omits_done_event(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.send_event("result", **rank_fields())
        await agent.exit()
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": succeeds, "node-2": omits_done_event}) == 1
    assert UNREPORTED in cluster.summary[1]


def test_agent_that_ignores_shutdown(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.2)

    async def stuck(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.report_success()
        await agent.exit()
        await cluster.ended.wait()

    assert cluster.run({"node-1": succeeds, "node-2": stuck}) == 0


def test_sigterm(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        loopback_cluster.terminate_this_process()
        await agent.receive()
        await agent.send_event("terminated", cause="stopped by SIGTERM")
        await agent.exit(143)
        await agent.connection.close()

    assert cluster.run({"node-1": stops, "node-2": keeps_training}) == 1
    assert cluster.causes == {"the run": "stopped by SIGTERM"}
    assert cluster.agents["node-2"].received == ["assignment", "shutdown"]


def test_failed_rank_that_hangs_ends_the_run(cluster: LoopbackCluster) -> None:
    async def hangs(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_event("start", pid=7)
        await agent.send_event("failed", cause="ValueError: odd")
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": keeps_training, "node-2": hangs}) == 1
    assert cluster.causes == {"node-2": "rank 1 failed: ValueError: odd"}


@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_rank_are_rejected(cluster: LoopbackCluster) -> None:
    async def sends(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        await agent.send_weights(weights_file(1))
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": keeps_training, "node-2": sends}, save_weights=True) == 1
    assert list(cluster.causes) == ["node-2"]
    assert not (cluster.directory / "weights.npy").exists()


# Runs that continue without a lost rank

CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}


async def starts_training(agent: FakeAgent) -> None:
    await agent.receive_assignment()
    await agent.send_event("start", pid=7)
    await agent.send_event("train_start", parameters=1)


async def receive_membership(agent: FakeAgent) -> dict[int, int]:
    """Wait for the next membership. Returns the incarnations of the ranks that are alive."""
    message = await agent.receive()
    assert message is not None
    assert message["kind"] == "membership"
    return {
        member["rank"]: member["incarnation"]
        for member in message["ranks"]
        if member["state"] in ("member", "waiting")
    }


async def finishes(agent: FakeAgent) -> None:
    """The rest of the script of an agent whose rank trains."""
    await agent.send_event("result", **rank_fields())
    await agent.send_event("done")
    await agent.exit()
    await agent.wait_for_shutdown()


async def outlives_one(agent: FakeAgent) -> None:
    await starts_training(agent)
    assert [*await receive_membership(agent)] == [0, 2]
    await finishes(agent)


@pytest.mark.parametrize("how", ["disconnects", "reports the death", "reports the exit"])
def test_agents_learn_of_a_lost_rank(cluster: LoopbackCluster, how: str) -> None:
    async def dies(agent: FakeAgent) -> None:
        await starts_training(agent)
        await asyncio.sleep(0.05)  # the others train, too
        if how == "disconnects":
            await agent.connection.close()
            return
        if how == "reports the death":
            await agent.send_event("died", cause="killed by SIGKILL", signal="SIGKILL")
        await agent.exit(-9)
        await agent.wait_for_shutdown()

    assert cluster.run({"node-1": outlives_one, "node-2": dies, "node-3": outlives_one}, **CONTINUES) == 0
    assert cluster.kinds(1) == ["start", "train_start", "died"]
    assert {*cluster.agents["node-1"].received} == {"assignment", "membership", "shutdown"}


def test_agents_learn_of_a_rank_that_returns(cluster: LoopbackCluster) -> None:
    async def stays(agent: FakeAgent) -> None:
        await starts_training(agent)
        seen = [await receive_membership(agent), await receive_membership(agent)]
        assert seen == [{0: 0, 2: 0}, {0: 0, 1: 1, 2: 0}]
        await finishes(agent)

    async def returns(agent: FakeAgent) -> None:
        await starts_training(agent)
        await asyncio.sleep(0.05)
        await agent.send_event("died", cause="killed by SIGKILL", signal="SIGKILL")
        assert 1 not in await receive_membership(agent)
        await agent.send_event("start", pid=8, incarnation=1)
        await agent.send_event("waiting", incarnation=1)
        assert (await receive_membership(agent))[1] == 1
        await agent.send_event("train_start", parameters=1)
        await finishes(agent)

    assert cluster.run({"node-1": stays, "node-2": returns, "node-3": stays}, **CONTINUES) == 0
    assert cluster.kinds(1) == [
        *("start", "train_start", "died"),
        *("start", "waiting", "train_start", "result", "done"),
    ]


@pytest.mark.parametrize("returns", [False, True])
def test_run_ends_without_a_rank_that_does_not_train(cluster: LoopbackCluster, returns: bool) -> None:
    """Its agent waits to start it again, or it waits for the others to let it join."""

    async def waits(agent: FakeAgent) -> None:
        await starts_training(agent)
        await asyncio.sleep(0.05)
        await agent.send_event("died", cause="killed by SIGKILL", signal="SIGKILL")
        assert 1 not in await receive_membership(agent)
        if returns:
            await agent.send_event("start", pid=8, incarnation=1)
            await agent.send_event("waiting", incarnation=1)
        while (message := await agent.receive()) and message["kind"] != "shutdown":
            pass
        if returns:
            await agent.send_event("terminated", cause="stopped by SIGTERM")
        await agent.exit(143 if returns else -9)
        await agent.connection.close()

    assert cluster.run({"node-1": outlives_one, "node-2": waits, "node-3": outlives_one}, **CONTINUES) == 0
    assert cluster.agents["node-2"].received[-1] == "shutdown"


def test_loss_of_all_ranks_fails_the_run(cluster: LoopbackCluster) -> None:
    async def dies(agent: FakeAgent) -> None:
        await starts_training(agent)
        await asyncio.sleep(0.05)
        await agent.connection.close()

    async def dies_last(agent: FakeAgent) -> None:
        await starts_training(agent)
        assert [*await receive_membership(agent)] == [1]

    assert cluster.run({"node-1": dies, "node-2": dies_last}, **CONTINUES) == 1
    assert cluster.causes == {"node-2": f"rank 1 was {LOST}"}


def test_error_fails_a_run_that_would_continue_without_the_rank(cluster: LoopbackCluster) -> None:
    async def fails(agent: FakeAgent) -> None:
        await starts_training(agent)
        await agent.send_event("failed", cause="ValueError: odd")
        await agent.exit(1)
        await agent.wait_for_shutdown()

    assert (
        cluster.run({"node-1": keeps_training, "node-2": fails, "node-3": keeps_training}, **CONTINUES) == 1
    )
    assert cluster.causes == {"node-2": "rank 1 failed: ValueError: odd"}


def test_continuing_run_that_is_stopped_fails(cluster: LoopbackCluster) -> None:
    async def trains(agent: FakeAgent) -> None:
        await starts_training(agent)
        assert [*await receive_membership(agent)] == [0, 2]
        if agent.ranks == (0,):
            loopback_cluster.terminate_this_process()
        await agent.receive()
        await agent.send_event("terminated", cause="stopped by SIGTERM")
        await agent.exit(143)
        await agent.connection.close()

    async def dies(agent: FakeAgent) -> None:
        await starts_training(agent)
        await asyncio.sleep(0.05)
        await agent.connection.close()

    assert cluster.run({"node-1": trains, "node-2": dies, "node-3": trains}, **CONTINUES) == 1
    assert cluster.causes == {"the run": "stopped by SIGTERM"}
