"""The roll call: who is expected, who is refused, and what is said about who did not come."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_room
from tests.unit.cluster_room import HELLO, Room, Seat, stays, well
from tests.unit.conftest import rank_fields
from trainer.cluster import coordinator as module
from trainer.cluster.rank_assignment import AssignmentError

unharmed = pytest.fixture(autouse=True)(cluster_room.unharmed)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Room:
    return Room(monkeypatch, tmp_path)


async def sent_away(seat: Seat) -> None:
    """The part of a member whose run does not come about."""
    assert await seat.hear() == {"kind": "bye"}


def test_who_does_not_report_is_named(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROLL_CALL_S", 0.2)
    original = room.connect

    async def connect(address: str, hello: bytes = HELLO) -> Seat:
        if address in ("127.0.0.2", "127.0.0.4"):
            return Seat(None)  # type: ignore[arg-type]
        return await original(address, hello)

    async def act(name: str, address: str, part: Any) -> None:
        if (seat := await connect(address)).wire:
            await part(seat)
            await seat.wire.close()

    room.act = act  # type: ignore[method-assign]
    parts = dict.fromkeys(["node-1", "node-10", "node-3", "launcher"], sent_away)
    assert room.lead(parts, topology="mpi") == 1
    assert room.summary == ["FAILED: launcher, node-10 did not report within 0 s"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": 3}, "FAILED: the run has 3 nodes, 2 came: use --scale node=3"),
        ({"epochs": 0}, "FAILED: the run's spec is not valid: epochs: "),
        ({"strategy": "rpc_split"}, "FAILED: a run over rpc has topology rpc: use compose/rpc.yml"),
    ],
)
def test_a_run_that_cannot_be_sends_everybody_away(room: Room, fields: dict[str, Any], said: str) -> None:
    assert room.lead({"node-1": sent_away, "node-2": sent_away}, **fields) == 1
    (line,) = room.summary
    assert line.startswith(said)


def test_stopped_before_the_roll_was_called(room: Room) -> None:
    async def stops(seat: Seat) -> None:
        cluster_room.stop_this_process()
        await sent_away(seat)

    async def connect(address: str, hello: bytes = HELLO) -> Seat:
        return await original(address, b"half a line" if address == "127.0.0.2" else hello)

    async def half(seat: Seat) -> None:
        await room.over.wait()

    original, room.connect = room.connect, connect  # type: ignore[method-assign]
    assert room.lead({"node-1": stops, "node-2": half}) == 1
    assert room.summary == ["FAILED: stopped from outside"]


def refused(room: Room, address: str) -> Any:
    """The part of a member that, when it has its place, sees somebody else refused."""

    async def part(seat: Seat) -> None:
        await seat.take_place()
        late = await room.connect(address)
        message = await late.hear()
        assert message is not None
        assert message["kind"] == "refused"
        assert "came too late" in message["cause"]
        assert await late.hear() is None  # and the line is cut
        await late.wire.close()
        await seat.train()
        await seat.exit()
        await seat.leave()

    return part


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.3"], ids=["a second time", "unknown"])
def test_who_comes_too_late_is_refused_and_disturbs_nobody(room: Room, address: str) -> None:
    assert room.lead({"node-1": refused(room, address), "node-2": well}) == 0


def test_a_stranger_is_refused_before_the_roll_is_called_too(room: Room) -> None:
    async def stranger(seat: Seat) -> None:
        message = await seat.hear()
        assert message is not None
        assert message["kind"] == "refused"
        arrived.set()

    original, arrived = room.connect, asyncio.Event()

    async def connect(address: str, hello: bytes = HELLO) -> Seat:
        if address == "127.0.0.2":
            await arrived.wait()
        return await original(address, hello)

    room.connect = connect  # type: ignore[method-assign]
    assert room.lead({"node-1": well, "node-2": well}, stranger) == 0


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n", b'{"hello": {}}\n'],
)
def test_who_does_not_speak_our_language_is_no_member(
    room: Room, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(module, "ROLL_CALL_S", 0.2)
    original = room.connect

    async def connect(address: str, hello: bytes = HELLO) -> Seat:
        return await original(address, said if address == "127.0.0.2" else hello)

    async def odd(seat: Seat) -> None:
        message = await seat.hear()
        assert message is not None
        assert message["kind"] == "refused"

    room.connect = connect  # type: ignore[method-assign]
    assert room.lead({"node-1": sent_away, "node-2": odd}) == 1
    assert room.summary == ["FAILED: node-2 did not report within 0 s"]


# Open MPI: the launcher's end is the run's


async def node(seat: Seat) -> None:
    """A node whose ranks mpirun starts: it is there until it is sent away, and hears of them last."""
    await seat.take_place()
    await seat.tell("start", pid=7)
    await seat.hear()
    await seat.tell("result", **rank_fields())
    await seat.tell("done")
    await seat.wire.send("exit", codes={}, cause=None, usage=cluster_room.USAGE)
    await seat.wire.close()


async def launcher(seat: Seat) -> None:
    assert (await seat.take_place()).me.ranks == ()
    await asyncio.sleep(0.05)
    await seat.exit()
    await seat.leave()


def test_what_ranks_said_last_is_kept_though_the_launcher_ended_first(room: Room) -> None:
    assert room.lead({"node-1": node, "node-2": node, "launcher": launcher}, topology="mpi") == 0
    assert room.summary[0].startswith("ok: 2 nodes, world size 2, all_reduce over mpi")
    assert [room.kinds(rank) for rank in (0, 1)] == [["start", "result", "done"]] * 2


@pytest.mark.parametrize("up", [False, True])
def test_the_launcher_s_failure_is_the_run_s_and_no_node_s(room: Room, up: bool) -> None:
    async def fails(seat: Seat) -> None:
        await seat.take_place()
        await seat.exit(cause="mpirun ended with exit code 213")
        await seat.leave()

    async def node(seat: Seat) -> None:
        await seat.take_place()
        if up:
            await seat.tell("start", pid=7)
        await seat.hear()
        await seat.wire.send("exit", codes={}, cause=None, usage=cluster_room.USAGE)
        await seat.wire.close()

    assert room.lead({"node-1": node, "node-2": node, "launcher": fails}, topology="mpi") == 1
    assert room.causes == {"launcher": "mpirun ended with exit code 213"}


def test_a_node_that_is_gone_ends_the_run_though_it_runs_nothing_itself(room: Room) -> None:
    async def vanishes(seat: Seat) -> None:
        await seat.take_place()
        await seat.wire.close()

    assert room.lead({"node-1": vanishes, "node-2": stays, "launcher": stays}, topology="mpi") == 1
    assert "cut off from the head" in room.causes["node-1"]


# Who has been started: the engine's name server knows


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


def test_members_are_numbered_as_compose_numbers_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    containers = {
        "node": ["my-own-9-project-node-12.my-own-9-project_run", "my-own-9-project-node-3.x"],
        "launcher": ["my-own-9-project-launcher-1.my-own-9-project_run"],
    }
    name_server(monkeypatch, containers)
    found = module.expected_members("mpi")
    assert sorted(found.values()) == [("launcher", 1), ("node", 3), ("node", 12)]
    assert sorted(module.expected_members("ddp").values()) == [("node", 3), ("node", 12)]


def test_a_service_without_a_container_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name_server(monkeypatch, {"node": ["p-node-1.p_run"]})
    with pytest.raises(AssignmentError, match="no container of service master is running any more"):
        module.expected_members("rpc")


# The spec is a file


@pytest.mark.parametrize("text", [None, "", "{", "strategy: ddp", "[]"])
def test_a_spec_that_cannot_be_read_is_a_message(room: Room, tmp_path: Path, text: str | None) -> None:
    spec = tmp_path / "spec.json"
    if text is not None:
        spec.write_text(text)
    room.expected = {}  # nobody is waited for
    code, _ = module.main("ddp", spec, tmp_path / "live", {})
    assert code == 1
    assert (tmp_path / "live" / "summary.txt").read_text().startswith("FAILED: the run's spec ")
