"""Mistakes in one run of the coordinator: who registers, ranks too early, files cut off, wrong causes."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit import loopback_cluster as loopback
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster, Script, exits, plays, sends, succeeds
from trainer.core.events import UNREPORTED
from trainer.core.trace import read_trace, trace_path
from trainer.node import container_agents
from trainer.node import coordinator as module
from trainer.node.rank_assignment import AssignmentError
from trainer.node.site import Site

LOST = f"was killed together with its container, or {module.LOST}"
CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}
STARTS, RESULT, FINISHES = loopback.STARTS, loopback.RESULT, loopback.FINISHES
END, disconnect, receive = loopback.wait_for_shutdown, loopback.disconnect, loopback.receive
is_surplus, keeps_training, pauses = loopback.is_surplus, loopback.keeps_training, loopback.pauses
TRAINS = sends("train_start", parameters=1)
FAILS = sends("failed", cause="ValueError: odd")
DIES = sends("died", cause="killed by SIGKILL", signal="SIGKILL")
TERMINATED = sends("terminated", cause="stopped by SIGTERM")


def test_successful_run(cluster: LoopbackCluster) -> None:
    async def others_stay(_: FakeAgent) -> None:
        received = [agent.received for name, agent in cluster.agents.items() if name != "node-2"]
        assert received == [["assignment"]] * 2

    slow = plays(pauses(0.15), others_stay, STARTS, *FINISHES)  # longer than the grace period
    assert cluster.run({"node-10": succeeds, "node-9": succeeds, "node-2": slow}) == 0
    assert cluster.summary[0] == "ok: 3 nodes, world size 3, ddp over gloo, digits, 3 epochs, seed 0"
    for rank, name in enumerate(("node-2", "node-9", "node-10")):
        agent = cluster.agents[name]
        assert agent.received == ["assignment", "shutdown"]
        assert agent.assignment
        assert (agent.assignment.agent.name, agent.ranks) == (name, (rank,))
        assert [each.public_keys for each in agent.assignment.agents] == [loopback.KEYS] * 3
        assert cluster.kinds(rank) == ["start", "result", "done"]
    usage = [json.loads(line) for line in (cluster.directory / "usage.jsonl").read_text().splitlines()]
    assert {each["name"]: each["ranks"] for each in usage} == {"node-2": [0], "node-9": [1], "node-10": [2]}


@pytest.mark.parametrize("success", [True, False])
def test_checkpoints_are_removed_after_success_only(
    cluster: LoopbackCluster, tmp_path: Path, success: bool
) -> None:
    cluster.site = Site(checkpoints=str(tmp_path / "checkpoints"))

    async def write(agent: FakeAgent) -> None:
        assert agent.assignment
        for name in (agent.assignment.spec.key, "of another run"):
            (tmp_path / "checkpoints" / name).mkdir(parents=True)

    rest = [STARTS, *FINISHES] if success else [exits(1), END]
    assert cluster.run({"node-1": plays(write, *rest)}) == (not success)
    assert len([*(tmp_path / "checkpoints").iterdir()]) == (1 if success else 2)


# Registration


def test_missing_agents_are_named(cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_agents, "REGISTRATION_S", 0.2)
    cluster.hellos = dict.fromkeys(["127.0.0.2", "127.0.0.4"], b"half a line")
    waits: Script = lambda _: cluster.ended.wait()  # noqa: E731
    scripts = {"node-1": is_surplus, "node-10": waits, "node-3": is_surplus, "launcher": waits}
    assert cluster.run(scripts, topology="mpi") == 1
    assert cluster.summary == ["FAILED: launcher, node 9 did not register in 0.2 s"]


def test_sigterm_during_registration(cluster: LoopbackCluster) -> None:
    async def stops(agent: FakeAgent) -> None:
        loopback.terminate_this_process()
        await is_surplus(agent)

    cluster.hellos["127.0.0.2"] = b"half a line"
    assert cluster.run({"node-1": stops, "node-2": lambda _: cluster.ended.wait()}) == 1
    assert cluster.summary == ["FAILED: stopped by SIGTERM"]


HAS_KEY, HAS_HOST_KEY = ({name: key} for name, key in loopback.KEYS.items())


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("node 0", {"kind": "alive"}, "message alive before hello"),
        ("node 0", {"public_keys": HAS_KEY}, "message hello: public_keys: host_key: missing"),
        ("launcher", {"public_keys": HAS_HOST_KEY}, "message hello: public_keys: key: missing"),
        ("node 0", {"replaced": "x" * 4096}, "a message of 4130 bytes; allowed: at most 4096"),
    ],
)
def test_container_without_a_valid_hello_is_named(
    cluster: LoopbackCluster, name: str, fields: dict[str, Any], reason: str
) -> None:
    async def is_rejected(agent: FakeAgent) -> None:
        assert await agent.receive() == {"kind": "rejected", "cause": f"rejected: {reason}"}

    names = ("node-1", "launcher") if name == "launcher" else ("launcher", "node-1")
    cluster.hellos["127.0.0.2"] = json.dumps({"kind": "hello", **fields}).encode() + b"\n"
    assert cluster.run(dict(zip(names, (is_surplus, is_rejected), strict=True)), topology="mpi") == 1
    assert cluster.summary == [f"FAILED: {name} sent invalid data: {reason}"]


def test_unknown_address_is_rejected_while_agents_register(cluster: LoopbackCluster) -> None:
    rejected = asyncio.Event()
    cluster.delays["127.0.0.2"] = rejected.wait

    async def script(agent: FakeAgent) -> None:
        other = await cluster.connect("127.0.0.99")
        assert (await other.receive() or {})["kind"] == "rejected"
        assert await other.receive() is None
        await other.connection.close()
        rejected.set()
        await succeeds(agent)

    assert cluster.run({"node-1": script, "node-2": succeeds}) == 0


def test_containers_are_found_by_the_engine_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["a-9-b-node-12.a-9-b_run", "a-9-b-node-3.x"]
    names = {"node": nodes, "launcher": ["a-9-b-launcher-1.a-9-b_run"]}

    def forward(service: str) -> tuple[str, list[str], list[str]]:
        if service not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return service, [], names[service]  # as addresses, so that each says its name

    monkeypatch.setattr(socket, "gethostbyname_ex", forward)
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: (address, [], [address]))
    assert [*container_agents.expected_agents("mpi").values()] == [
        ("node", 12),
        ("node", 3),
        ("launcher", 1),
    ]
    assert container_agents.expected_agents("ddp").keys() == {*nodes}
    with pytest.raises(AssignmentError, match="service master"):
        container_agents.expected_agents("rpc")


def test_unreadable_spec(cluster: LoopbackCluster, tmp_path: Path) -> None:
    live = tmp_path / "live"
    for text in ("", "{", "strategy: ddp", "[]"):
        (tmp_path / "spec.json").write_text(text)
        code, lines = module.main("ddp", tmp_path / "spec.json", live, {})  # with no agent to wait for
        assert (code, lines[0][:23]) == (1, "FAILED: the run's spec ")
        assert (live / "summary.txt").read_text().splitlines() == lines


# Files


def test_what_is_sent_slowly_at_shutdown_is_saved(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Open MPI node sends it then, and a slow one takes longer than the limit."""
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.4)
    weights = loopback.weights_file(150)

    async def send_files(agent: FakeAgent) -> None:
        assert agent.assignment
        trace = loopback.trace_file(agent.assignment.spec.key, 0)
        await agent.send_trace(0, *(trace[first : first + 50] for first in range(0, len(trace), 50)))
        for first in range(0, len(weights), 125):
            await asyncio.sleep(0.1)
            await agent.send_weights(weights[first : first + 125], complete=first + 125 >= len(weights))

    node = plays(STARTS, receive, RESULT, sends("done"), exits(codes={}), send_files)
    scripts = {"launcher": plays(exits(), END), "node-1": node}
    assert cluster.run(scripts, topology="mpi", save_weights=True, trace="steps") == 0
    assert cluster.kinds(0) == ["start", "result", "done"]
    assert (cluster.directory / "weights.npy").read_bytes() == weights
    assert read_trace(trace_path(cluster.directory, 0)).header.rank == 0


def test_incomplete_weights_are_not_saved(cluster: LoopbackCluster) -> None:
    part = loopback.weights_file(100)[:200]
    stops = plays(STARTS, lambda agent: agent.send_weights(part, complete=False), *FINISHES)
    assert cluster.run({"node-1": stops}, save_weights=True) == 1
    assert not (cluster.directory / "weights.npy").exists()
    assert cluster.summary[1:] == ["  not all results were received and saved"]


def test_nodes_without_a_complete_trace_are_named(cluster: LoopbackCluster) -> None:
    whole = plays(STARTS, lambda agent: agent.send_trace(0), *FINISHES)
    part = plays(STARTS, lambda agent: agent.send_trace(1, b"{", complete=False), *FINISHES)
    assert cluster.run({"node-1": whole, "node-2": part, "node-3": succeeds}, trace="full") == 1
    assert cluster.causes == {f"node-{n}": f"rank {n - 1} has sent no trace" for n in (2, 3)}
    assert [trace_path(cluster.directory, rank).exists() for rank in (0, 1)] == [True, False]


def test_full_disk_fails_the_run(cluster: LoopbackCluster) -> None:
    async def fill_disk(agent: FakeAgent) -> None:
        (cluster.directory / "rank-0.jsonl").mkdir()  # cannot be written

    assert cluster.run({"node-1": plays(fill_disk, STARTS, END), "node-2": keeps_training}) == 1
    assert cluster.causes["coordinator"].startswith("results cannot be written: ")


# Causes


EXIT = {"kind": "exit", "codes": {}, "cause": None, "usage": loopback.USAGE}
WEIGHTS: Script = lambda agent: agent.send_weights(loopback.weights_file(1))  # noqa: E731
ENDED_BY_SIGNAL = [sends("died", cause="stopped by SIGTERM", signal="SIGTERM"), exits(-15), FakeAgent.leave]


@pytest.mark.parametrize(
    ("steps", "cause", "kinds", "fields"),
    [
        ([exits(3), END], "ended with exit code 3", [], {}),
        ([STARTS, exits(-9, out_of_memory=1), END], "than 64 MiB", ["start", "died"], {"memory_mb": 64}),
        ([STARTS, disconnect], LOST, ["start", "died"], {}),
        ([STARTS, FAILS, END], "rank 1 failed: ValueError: odd", ["start", "failed"], {}),  # it hangs then
        ([STARTS, RESULT, exits(), END], UNREPORTED, ["start", "result", "failed"], {}),
        ([STARTS, *ENDED_BY_SIGNAL], "by SIGTERM", ["start", "died"], {}),
        ([sends("done", 0), END], "rank: 0", ["damaged"], {}),
        ([WEIGHTS, END], "weights", ["damaged"], {"save_weights": True}),
        ([STARTS, TRAINS, FAILS, exits(1), END], "odd", ["start", "train_start", "failed"], CONTINUES),
    ],
    ids=["code", "memory", "lost", "hangs", "unreported", "signal", "forged", "weights", "error"],
)
def test_cause_of_a_failed_run(
    cluster: LoopbackCluster, steps: list[Script], cause: str, kinds: list[str], fields: dict[str, Any]
) -> None:
    assert cluster.run({"node-1": keeps_training, "node-2": plays(*steps)}, **fields) == 1
    assert cluster.causes.keys() == {"node-2"}
    assert cause in cluster.causes["node-2"]
    assert not kinds or cluster.kinds(1) == kinds
    assert cluster.agents["node-1"].received == ["assignment", "shutdown"]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("clean is not expected from this agent", {"kind": "clean", "left": None}),
        ("trace: rank: 0 is not this agent's", {"kind": "trace", "rank": 0, "body": b"", "last": True}),
        ("exit: codes: of a rank that is not this agent's", {**EXIT, "codes": {"0": 0}}),
        ("alive: mpirun: not from the launcher", {"kind": "alive", "mpirun": 7}),
        ("alive: suspended: a rank that is not this agent's", {"kind": "alive", "suspended": [1, 0]}),
    ],
)
def test_message_that_an_agent_may_not_send(cluster: LoopbackCluster, reason: str, message: Any) -> None:
    sends_it = plays(lambda agent: agent.connection.send(**message), END)
    assert cluster.run({"node-1": keeps_training, "node-2": sends_it}) == 1
    assert cluster.causes == {"node-2": f"sent invalid data: message {reason}"}
    assert cluster.kinds(1) == ["damaged"]


def beats(*suspended: int) -> Script:
    """Step: send a heartbeat, and wait for its answer."""

    async def step(agent: FakeAgent) -> None:
        await agent.connection.send("alive", suspended=suspended)
        assert await agent.receive() == {"kind": "alive"}

    return step


def test_timeout_names_the_ranks_that_are_suspended(cluster: LoopbackCluster) -> None:
    """A rank that goes on is not named."""
    stopped, goes_on = plays(STARTS, beats(1), END), plays(STARTS, beats(2), beats(), END)
    assert cluster.run({"node-1": keeps_training, "node-2": stopped, "node-3": goes_on}, timeout_s=0.5) == 1
    assert cluster.causes.keys() == {"the run", "node-2"}
    assert cluster.causes["the run"] == "stopped after 0.5 s"
    assert "process 7" in cluster.causes["node-2"]


def test_the_orchestrator_keeps_the_time_and_learns_of_suspended_ranks(cluster: LoopbackCluster) -> None:
    stops = plays(STARTS, beats(1), pauses(0.1), beats(), *FINISHES)
    (ending,) = cluster.serve({"node-1": [succeeds], "node-2": [stops]}, {"timeout_s": 0.05})
    assert ending.exits["coordinator"] == 0
    assert [each.processes for each in cluster.answers if each.kind == "suspended"] == [{1: 7}, {}]


def test_grace_period_for_other_failures(cluster: LoopbackCluster) -> None:
    peer = plays(STARTS, pauses(), TERMINATED, exits(143), END)  # which is no failure at shutdown
    first = plays(STARTS, FAILS, exits(1), END)
    assert cluster.run({"node-1": peer, "node-2": first}) == 1
    assert [*cluster.causes] == ["node-2", "node-1"]


def test_sigterm(cluster: LoopbackCluster) -> None:
    async def stop_coordinator(_: FakeAgent) -> None:
        loopback.terminate_this_process()

    stops = plays(STARTS, stop_coordinator, receive, TERMINATED, exits(143), disconnect)
    assert cluster.run({"node-1": stops, "node-2": keeps_training}) == 1
    assert cluster.causes == {"the run": "stopped by SIGTERM"}
    assert cluster.kinds(0) == ["start", "terminated"]


# Open MPI

HOSTS = plays(STARTS, receive, exits(), disconnect)
VANISHES = plays(STARTS, pauses(), disconnect)  # the exit of mpirun arrives before
COMPLAINT = "mpirun ended with exit code 255"


@pytest.mark.parametrize(
    ("complaint", "node", "cause"),
    [
        (None, VANISHES, {"node-1": f"rank 0 {LOST}"}),
        (COMPLAINT, VANISHES, {"launcher": COMPLAINT, "node-1": f"rank 0 {LOST}"}),
        (COMPLAINT, HOSTS, {"launcher": COMPLAINT}),
        (COMPLAINT, plays(receive, exits(), disconnect), {"launcher": COMPLAINT}),
    ],
    ids=["lost", "lost, complaint", "complaint", "complaint before ranks start"],
)
def test_lost_node_is_named_though_mpirun_exits_first(
    cluster: LoopbackCluster, complaint: str | None, node: Script, cause: dict[str, str]
) -> None:
    launches = plays(exits(cause=complaint), END)
    assert cluster.run({"launcher": launches, "node-1": node, "node-2": HOSTS}, topology="mpi") == 1
    assert cluster.causes == cause


def test_exit_code_of_mpirun_reaches_the_orchestrator(cluster: LoopbackCluster) -> None:
    """From the launcher only."""
    launches = plays(exits(cause="mpirun was killed by SIGKILL", mpirun=-9), END)
    scripts = {"launcher": [launches], "node-1": [plays(receive, exits(mpirun=-11))]}
    (ending,) = cluster.serve(scripts, {}, topology="mpi")
    assert ending.exits == {"launcher": 1, "mpirun": -9, "node-1": 0, "coordinator": 1}


# Runs that continue without a lost rank

BEGINS = [STARTS, TRAINS]


def hears(*alive: int) -> Script:
    """Step: wait for the next membership, of these ranks."""

    async def step(agent: FakeAgent) -> None:
        states = {each["rank"]: each["state"] for each in (await agent.receive() or {})["ranks"]}
        assert [rank for rank, state in states.items() if state in ("member", "waiting")] == [*alive]

    return step


async def until_shutdown(agent: FakeAgent) -> None:
    while (await agent.receive() or {"kind": "shutdown"})["kind"] != "shutdown":
        pass


OUTLIVES = plays(*BEGINS, hears(0, 2), *FINISHES)
WAITS = [DIES, hears(0, 2), until_shutdown]
RETURNS = [sends("start", pid=8, incarnation=1), sends("waiting", incarnation=1)]
STOPS = [until_shutdown, TERMINATED, exits(143), disconnect]


@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ([disconnect], ["died"]),
        ([exits(-9), END], ["died"]),
        # Its agent waits to start it again, or it waits for the others to let it join.
        ([*WAITS, exits(-9), disconnect], ["died"]),
        ([*WAITS[:2], *RETURNS, *STOPS], ["died", "start", "waiting", "terminated"]),
    ],
    ids=["disconnects", "reports the exit", "waits", "returned"],
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
    returns = plays(*BEGINS, pauses(), *WAITS[:2], *RETURNS, hears(0, 1, 2), TRAINS, *FINISHES)
    assert cluster.run({"node-1": stays, "node-2": returns, "node-3": stays}, **CONTINUES) == 0
