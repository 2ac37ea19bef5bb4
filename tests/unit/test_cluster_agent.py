"""A member between the head and its processes, and the line between the two. No container."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_room
from tests.unit.cluster_room import Room, Seat, stays
from tests.unit.cluster_support import called, seat
from tests.unit.conftest import event, rank_fields
from trainer.cluster import agent as module
from trainer.cluster.agent import Agent
from trainer.cluster.commands import Command
from trainer.cluster.protocol import Wire
from trainer.cluster.rank_assignment import AssignmentError, RankAssignment

unharmed = pytest.fixture(autouse=True)(cluster_room.unharmed)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What is /run/shardyard in a container."""
    home = tmp_path / "home"
    for name in ("HOME", "OUT", "SPEC", "SSH", "ENVIRONMENT", "HOSTS"):
        place = getattr(module, name)
        monkeypatch.setattr(module, name, home / place.relative_to("/run/shardyard"))
    (home / "ssh").mkdir(parents=True)
    return home


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> Room:
    """A room where `node-1` is a real member, and its process this shell script."""
    room = Room(monkeypatch, tmp_path)
    act = room.act

    async def attend(name: str, address: str, part: Callable[[Seat], Awaitable[None]]) -> None:
        if name != "node-1":
            await act(name, address, part)
            return

        async def find_head(self: Agent) -> Wire:
            return (await room.connect(address, b"")).wire

        monkeypatch.setattr(Agent, "_find_head", find_head)
        room.codes.append(await Agent("node", "ddp").attend())

    room.act = attend  # type: ignore[method-assign]
    return room


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def commands(assignment: RankAssignment, pid: int) -> list[Command]:
        assert pid == os.getpid()
        return [Command(("sh", "-c", text), {"WHO": "me"}, assignment.me.ranks)]

    monkeypatch.setattr(module, "commands", commands)


async def nobody(_: Seat) -> None: ...


def says(home: Path, *kinds: str) -> str:
    """Shell that writes events of rank 0."""
    fields: dict[str, dict[str, Any]] = {"start": {"pid": 7}, "result": rank_fields()}
    lines = "".join(event(kind, **fields.get(kind, {})).to_line() + "\n" for kind in kinds)
    (home / "lines").write_text(lines)
    return f"cat {home}/lines >> {home}/out/rank-0.jsonl"


def test_what_ranks_write_reaches_the_head_before_the_word_that_they_have_ended(
    room: Room, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = os.urandom(module.PIECE + 100)  # two pieces
    (home / "weights").write_bytes(weights)
    wrote = says(home, "start", "result", "done")
    script(monkeypatch, f"test $WHO = me && cp {home}/weights {home}/out/weights.npy && {wrote}")
    assert room.lead({"node-1": nobody}) == 0
    assert room.kinds(0) == ["start", "result", "done"]
    assert (room.directory / "weights.npy").read_bytes() == weights
    assert room.codes == [0]
    (usage,) = (room.directory / "usage.jsonl").read_text().splitlines()
    assert json.loads(usage)["name"] == "node-1"
    assert json.loads((home / "spec.json").read_text())["strategy"]["name"] == "ddp"
    assert (home / "alive").exists()  # for the health check


def test_what_an_earlier_life_has_left_is_not_told_again(
    room: Room, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out").mkdir()
    (home / "out" / "rank-0.jsonl").write_text(event("failed", cause="long ago").to_line() + "\n")
    (home / "out" / "weights.npy").write_text("old")
    script(monkeypatch, says(home, "start", "result", "done"))
    assert room.lead({"node-1": nobody}) == 0
    assert not (room.directory / "weights.npy").exists()


def test_how_a_rank_was_killed_is_told(room: Room, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, f"{says(home, 'start')}; kill -9 $$")
    assert room.lead({"node-1": nobody, "node-2": stays}) == 1
    assert room.causes == {"node-1": "rank 0 was killed by SIGKILL"}
    assert room.codes == [1]


@pytest.mark.parametrize("deaf", [False, True])
def test_sent_away_it_ends_its_processes(
    room: Room, home: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    async def fails(seat: Seat) -> None:
        await seat.take_place()
        while not (home / "pid").exists() or not (home / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        await seat.exit(1)
        await seat.leave()

    monkeypatch.setattr(module, "POLITE_S", 0.2)
    trap = "trap '' TERM" if deaf else "trap 'exit 143' TERM"
    script(monkeypatch, f"{trap}; echo $$ > {home}/pid; while :; do sleep 0.02; done")
    assert room.lead({"node-1": nobody, "node-2": fails}) == 1
    assert room.causes == {"node-2": "ended with exit code 1"}
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), 0)


# Before the roll is called


def attend(role: str = "node", topology: str = "ddp") -> int:
    return asyncio.run(asyncio.wait_for(Agent(role, topology).attend(), 10))


def test_without_a_head_it_gives_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(module, "FIND_S", 0.15)
    monkeypatch.setattr(asyncio, "open_connection", nowhere)
    with pytest.raises(AssignmentError, match="no head called within 0 s"):
        attend()
    assert (home / "alive").exists()


def test_stopped_while_it_looks_for_the_head(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(*_: Any, **__: Any) -> None:
        cluster_room.stop_this_process()
        raise OSError("Name or service not known")

    monkeypatch.setattr(asyncio, "open_connection", nowhere)
    with pytest.raises(AssignmentError, match="stopped before the roll was called"):
        attend()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"kind": "refused", "cause": "it came too late"}, "it came too late"),
        ({"kind": "bye"}, "the head called the run off; its log says why"),
        (None, "the head called the run off; its log says why"),
    ],
)
def test_without_a_place_it_says_why(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any] | None,
    said: str,
) -> None:
    class Line:
        async def send(self, kind: str, **_: Any) -> None:
            assert kind == "hello"

        async def receive(self) -> dict[str, Any] | None:
            return answer

    async def find_head(self: Agent) -> Any:
        return Line()

    monkeypatch.setattr(Agent, "_find_head", find_head)
    assert module.main("node", "ddp") == 1
    assert capsys.readouterr().err == f"node: {said}\n"


# Open MPI


def place(name: str) -> None:
    """Give a member of an MPI run its place."""
    assignment = called("mpi", 10, 2)
    role = "launcher" if name == "launcher" else "node"
    Agent(role, "mpi")._take_place(replace(assignment, you=seat(assignment, name)))


def test_the_launcher_writes_down_whom_it_may_trust(home: Path) -> None:
    place("launcher")
    known = (home / "ssh" / "known_hosts").read_text()
    assert known == "[10.0.0.2]:2222 key-2\n[10.0.0.10]:2222 key-10\n"
    assert (home / "hosts").read_text() == "10.0.0.2 slots=1\n10.0.0.10 slots=1\n"
    assert f"UserKnownHostsFile {home}/ssh/known_hosts" in (home / "ssh" / "config").read_text()
    assert not (home / "ssh" / "authorized_keys").exists()


def test_a_node_lets_the_launcher_in_and_nobody_else(home: Path) -> None:
    place("node-10")
    key = (home / "ssh" / "authorized_keys").read_text()
    assert key == 'restrict,from="10.0.0.100" key-of-launcher\n'
    assert not (home / "ssh" / "known_hosts").exists()
    told = json.loads((home / "environment.json").read_text())
    assert told["SHARDYARD_CONSOLE"] == f"/proc/{os.getpid()}/fd/1"


def test_a_rank_that_mpirun_starts_has_its_node_s_environment_over_ssh_s(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *told: became.append(told))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("SHARDYARD_OUT", "of the shell")
    (home / "environment.json").write_text(json.dumps({"SHARDYARD_OUT": "/out"}))
    module.become_rank()
    ((program, argv, environment),) = became
    assert (program, argv) == (sys.executable, [sys.executable, "-m", "trainer"])
    assert (environment["OMPI_COMM_WORLD_RANK"], environment["SHARDYARD_OUT"]) == ("1", "/out")


def test_a_rank_without_a_node_gives_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIND_S", 0.05)
    since = time.monotonic()
    with pytest.raises(SystemExit, match="the node never got its place in the run"):
        module.become_rank()
    assert time.monotonic() - since < 5


def test_a_node_hosts_until_it_is_sent_away_and_says_when_its_sshd_is_gone(home: Path) -> None:
    class Sshd:
        returncode: int | None = None
        terminated = False

        def poll(self) -> int | None:
            return self.returncode

        def terminate(self) -> None:
            self.terminated = True

    async def host(code: int | None) -> tuple[Any, Sshd]:
        member = Agent("node", "mpi")
        sshd = Sshd()
        sshd.returncode = code
        member._sshd = sshd  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(0.05, member._dismissed.set)
        return await member._host(), sshd

    ended, _ = asyncio.run(host(255))
    assert ended == ({}, "sshd ended with exit code 255")
    ended, sshd = asyncio.run(host(None))
    assert ended == ({}, None)
    assert sshd.terminated
