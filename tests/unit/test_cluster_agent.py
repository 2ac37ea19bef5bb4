"""An agent with real processes and a coordinator on loopback. No container."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit import loopback_cluster
from tests.unit.cluster_support import assigned, index_of
from tests.unit.conftest import event, rank_fields
from tests.unit.loopback_cluster import FakeAgent, LoopbackCluster, Script, keeps_training
from trainer.cluster import agent as module
from trainer.cluster.agent import Agent
from trainer.cluster.commands import Command
from trainer.cluster.protocol import Connection
from trainer.cluster.rank_assignment import AssignmentError, RankAssignment

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory that stands in for /run/shardyard."""
    home = tmp_path / "home"
    for name in ("HOME", "OUT", "SPEC", "SSH", "ENVIRONMENT", "HOSTS"):
        path = getattr(module, name)
        monkeypatch.setattr(module, name, home / path.relative_to("/run/shardyard"))
    (home / "ssh").mkdir(parents=True)
    return home


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> LoopbackCluster:
    """A cluster where `node-1` is a real agent whose process is a shell script."""
    cluster = LoopbackCluster(monkeypatch, tmp_path)
    run_scripted = cluster.run_agent

    async def run_agent(name: str, address: str, script: Script) -> None:
        if name != "node-1":
            await run_scripted(name, address, script)
            return

        async def connect(self: Agent) -> Connection:
            return (await cluster.connect(address, b"")).connection

        monkeypatch.setattr(Agent, "_connect", connect)
        cluster.codes.append(await Agent("node", "ddp").run())

    cluster.run_agent = run_agent  # type: ignore[method-assign]
    return cluster


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def commands(assignment: RankAssignment, pid: int) -> list[Command]:
        assert pid == os.getpid()
        return [Command(("sh", "-c", text), {"ROLE": "test"}, assignment.agent.ranks)]

    monkeypatch.setattr(module, "commands", commands)


async def real(_: FakeAgent) -> None: ...


def writes(home: Path, *kinds: str) -> str:
    """Shell that writes events of rank 0."""
    fields: dict[str, dict[str, Any]] = {"start": {"pid": 7}, "result": rank_fields()}
    lines = "".join(event(kind, **fields.get(kind, {})).to_line() + "\n" for kind in kinds)
    (home / "lines").write_text(lines)
    return f"cat {home}/lines >> {home}/out/rank-0.jsonl"


def test_events_and_weights_arrive_before_exit_codes(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = os.urandom(module.CHUNK_BYTES + 100)  # two chunks
    (home / "weights").write_bytes(weights)
    wrote = writes(home, "start", "result", "done")
    script(monkeypatch, f"test $ROLE = test && cp {home}/weights {home}/out/weights.npy && {wrote}")
    assert cluster.run({"node-1": real}) == 0
    assert cluster.kinds(0) == ["start", "result", "done"]
    assert (cluster.directory / "weights.npy").read_bytes() == weights
    assert cluster.codes == [0]
    (usage,) = (cluster.directory / "usage.jsonl").read_text().splitlines()
    assert json.loads(usage)["name"] == "node-1"
    assert json.loads((home / "spec.json").read_text())["strategy"]["name"] == "ddp"
    assert (home / "alive").exists()  # for the health check


def test_files_of_an_earlier_start_are_not_sent(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out").mkdir()
    (home / "out" / "rank-0.jsonl").write_text(event("failed", cause="long ago").to_line() + "\n")
    (home / "out" / "weights.npy").write_text("old")
    script(monkeypatch, writes(home, "start", "result", "done"))
    assert cluster.run({"node-1": real}) == 0
    assert not (cluster.directory / "weights.npy").exists()


def test_signal_of_a_killed_rank_is_reported(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, f"{writes(home, 'start')}; kill -9 $$")
    assert cluster.run({"node-1": real, "node-2": keeps_training}) == 1
    assert cluster.causes == {"node-1": "rank 0 was killed by SIGKILL"}
    assert cluster.codes == [1]


@pytest.mark.parametrize("deaf", [False, True])
def test_shutdown_terminates_the_processes(
    cluster: LoopbackCluster, home: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    async def fails(agent: FakeAgent) -> None:
        await agent.receive_assignment()
        while not (home / "pid").exists() or not (home / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        await agent.exit(1)
        await agent.wait_for_shutdown()

    monkeypatch.setattr(module, "TERMINATE_S", 0.2)
    trap = "trap '' TERM" if deaf else "trap 'exit 143' TERM"
    script(monkeypatch, f"{trap}; echo $$ > {home}/pid; while :; do sleep 0.02; done")
    assert cluster.run({"node-1": real, "node-2": fails}) == 1
    assert cluster.causes == {"node-2": "ended with exit code 1"}
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), 0)


# Before ranks are assigned


def run_agent() -> int:
    return asyncio.run(asyncio.wait_for(Agent("node", "ddp").run(), 10))


def test_agent_without_coordinator_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(module, "CONNECT_S", 0.15)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match="no coordinator"):
        run_agent()
    assert (home / "alive").exists()


def test_agent_stopped_while_it_connects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        loopback_cluster.terminate_this_process()
        raise OSError("Name or service not known")

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(AssignmentError, match="stopped before"):
        run_agent()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"kind": "rejected", "cause": "too late"}, "too late"),
        ({"kind": "shutdown"}, "the coordinator cancelled the run; its log says why"),
        (None, "the coordinator cancelled the run; its log says why"),
    ],
)
def test_agent_without_assignment_reports_the_cause(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any] | None,
    reason: str,
) -> None:
    class Answer:
        async def send(self, kind: str, **_: Any) -> None:
            assert kind == "hello"

        async def receive(self) -> dict[str, Any] | None:
            return answer

    async def connect(self: Agent) -> Any:
        return Answer()

    monkeypatch.setattr(Agent, "_connect", connect)
    assert module.main("node", "ddp") == 1
    assert capsys.readouterr().err == f"node: {reason}\n"


# Open MPI


def write_files(name: str) -> None:
    """Write the files of an agent of an MPI run."""
    assignment = assigned("mpi", 10, 2)
    role = "launcher" if name == "launcher" else "node"
    Agent(role, "mpi")._write_files(replace(assignment, index=index_of(assignment, name)))


def test_launcher_writes_known_hosts(home: Path) -> None:
    write_files("launcher")
    known = (home / "ssh" / "known_hosts").read_text()
    assert known == "[10.0.0.2]:2222 key-2\n[10.0.0.10]:2222 key-10\n"
    assert (home / "hosts").read_text() == "10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert f"UserKnownHostsFile {home}/ssh/known_hosts" in (home / "ssh" / "config").read_text()
    assert not (home / "ssh" / "authorized_keys").exists()


def test_node_authorizes_only_the_launcher(home: Path) -> None:
    write_files("node-10")
    key = (home / "ssh" / "authorized_keys").read_text()
    assert key == 'restrict,from="10.0.0.100" key-of-launcher\n'
    assert not (home / "ssh" / "known_hosts").exists()
    environment = json.loads((home / "environment.json").read_text())
    assert environment["SHARDYARD_CONSOLE"] == f"/proc/{os.getpid()}/fd/1"


def test_environment_of_the_node_overrides_that_of_ssh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: executed.append(arguments))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("SHARDYARD_OUT", "of the shell")
    (home / "environment.json").write_text(json.dumps({"SHARDYARD_OUT": "/out"}))
    module.exec_rank()
    ((program, argv, environment),) = executed
    assert (program, argv) == (sys.executable, [sys.executable, "-m", "trainer"])
    assert (environment["OMPI_COMM_WORLD_RANK"], environment["SHARDYARD_OUT"]) == ("1", "/out")


def test_rank_without_assignment_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 0.05)
    start = time.monotonic()
    with pytest.raises(SystemExit, match="no rank assignment"):
        module.exec_rank()
    assert time.monotonic() - start < 5


def test_node_serves_ssh_until_shutdown_or_sshd_exits(home: Path) -> None:
    class Sshd:
        returncode: int | None = None
        terminated = False

        def poll(self) -> int | None:
            return self.returncode

        def terminate(self) -> None:
            self.terminated = True

    async def serve(code: int | None) -> tuple[Any, Sshd]:
        agent = Agent("node", "mpi")
        sshd = Sshd()
        sshd.returncode = code
        agent._sshd = sshd  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(0.05, agent._shutdown.set)
        return await agent._serve_ssh(), sshd

    ended, _ = asyncio.run(serve(255))
    assert ended == ({}, "sshd ended with exit code 255")
    ended, sshd = asyncio.run(serve(None))
    assert ended == ({}, None)
    assert sshd.terminated
