"""The head and its members on loopback: who is called, what is kept, and how a run ends."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.unit import cluster_room
from tests.unit.cluster_room import HELLO, Room, Seat, stays, well
from tests.unit.conftest import rank_fields
from trainer.cluster import coordinator as module
from trainer.core.events import Event

unharmed = pytest.fixture(autouse=True)(cluster_room.unharmed)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Room:
    return Room(monkeypatch, tmp_path)


# All is well


def test_all_well(room: Room) -> None:
    assert room.lead({"node-1": well, "node-2": well, "node-3": well}) == 0
    assert room.summary[0] == "ok: 3 nodes, world size 3, ddp over gloo, digits, 3 epochs, seed 0"
    for rank, (name, seat) in enumerate(room.seats.items()):
        assert seat.heard == ["assignment", "bye"]
        assert seat.assignment is not None
        assert (seat.assignment.me.name, seat.ranks) == (name, (rank,))
        assert room.kinds(rank) == ["start", "result", "done"]
    usage = [json.loads(line) for line in (room.directory / "usage.jsonl").read_text().splitlines()]
    assert sorted((each["name"], each["ranks"]) for each in usage) == [
        ("node-1", [0]),
        ("node-2", [1]),
        ("node-3", [2]),
    ]


@pytest.mark.parametrize("goes_well", [True, False])
def test_checkpoints_are_removed_when_the_run_has_ended_well(
    room: Room, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, goes_well: bool
) -> None:
    monkeypatch.setattr(module, "CHECKPOINTS", tmp_path / "checkpoints")
    kept = []

    async def trains(seat: Seat) -> None:
        assignment = await seat.take_place()
        kept.append(tmp_path / "checkpoints" / assignment.spec.key)
        kept[0].mkdir(parents=True, exist_ok=True)
        (kept[0].parent / "another-run").mkdir(exist_ok=True)
        if goes_well:
            await seat.train()
        await seat.exit(code=0 if goes_well else 1)
        await seat.leave()

    assert room.lead({"node-1": trains, "node-2": trains}) == (0 if goes_well else 1)
    assert kept[0].exists() is not goes_well
    assert (kept[0].parent / "another-run").exists()


def test_nobody_has_a_place_before_everybody_is_there(room: Room) -> None:
    original = room.connect

    async def connect(address: str, hello: bytes = HELLO) -> Seat:
        if address == "127.0.0.2":
            while "node-1" not in room.seats:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)  # time to be given a place in
            assert room.seats["node-1"].heard == []
        return await original(address, hello)

    room.connect = connect  # type: ignore[method-assign]
    assert room.lead({"node-1": well, "node-2": well}) == 0
    assert room.seats["node-1"].heard == ["assignment", "bye"]


def test_numbers_of_containers_decide_and_not_who_comes_first(room: Room) -> None:
    assert room.lead({"node-10": well, "node-9": well, "node-2": well}) == 0
    assert {name: seat.ranks for name, seat in room.seats.items()} == {
        "node-2": (0,),
        "node-9": (1,),
        "node-10": (2,),
    }


def test_everyone_waits_for_the_last_one(room: Room) -> None:
    async def slow(seat: Seat) -> None:
        await seat.take_place()
        await asyncio.sleep(0.15)  # longer than the grace after a failure
        assert "bye" not in room.seats["node-1"].heard
        await seat.train()
        await seat.exit()
        await seat.leave()

    assert room.lead({"node-1": well, "node-2": slow}) == 0


def test_what_a_member_said_of_itself_reaches_the_others(room: Room) -> None:
    assert room.lead({"node-1": well, "node-2": well}) == 0
    assignment = room.seats["node-2"].assignment
    assert assignment is not None
    assert [member.hello for member in assignment.members] == [{"key": "K", "host_key": "H"}] * 2


def test_weights_are_kept(room: Room) -> None:
    async def sends(seat: Seat) -> None:
        await seat.take_place()
        await seat.train()
        for piece, last in (("QUJD", False), ("REVG", True)):
            await seat.wire.send("weights", piece=piece, last=last)
        await seat.exit()
        await seat.leave()

    assert room.lead({"node-1": sends}, save_weights=True) == 0
    assert (room.directory / "weights.npy").read_bytes() == b"ABCDEF"


def test_half_of_the_weights_are_none(room: Room) -> None:
    async def dies(seat: Seat) -> None:
        await seat.take_place()
        await seat.train()
        await seat.wire.send("weights", piece="QUJD", last=False)
        await seat.exit()
        await seat.leave()

    assert room.lead({"node-1": dies}, save_weights=True) == 1
    assert not (room.directory / "weights.npy").exists()
    assert room.summary[1:] == ["  not every result was given and kept"]


def test_weights_are_waited_for_as_long_as_they_come(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of Open MPI sends them when it is sent away, and a slow one takes longer than the limit."""
    monkeypatch.setattr(module, "LEAVE_S", 0.4)

    async def slow(seat: Seat) -> None:
        await seat.take_place()
        await seat.train()
        await seat.exit()
        await seat.hear()
        assert seat.heard[-1] == "bye"
        for number in range(8):
            await asyncio.sleep(0.1)
            await seat.wire.send("weights", piece="QUJD", last=number == 7)

    assert room.lead({"node-1": slow}, save_weights=False) == 0
    assert (room.directory / "weights.npy").read_bytes() == b"ABC" * 8


def test_a_full_disk_ends_the_run_and_is_named(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fills(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        (room.directory / "rank-0.jsonl").unlink(missing_ok=True)
        (room.directory / "rank-0.jsonl").mkdir()  # stands for a file that cannot be written
        await seat.tell("train_start", parameters=0)
        await seat.leave()

    assert room.lead({"node-1": fills, "node-2": stays}) == 1
    assert room.causes["coordinator"].startswith("results cannot be written: ")


def test_it_ends_at_the_run_s_own_limit(room: Room) -> None:
    assert room.lead({"node-1": stays, "node-2": stays}, timeout_s=0.3) == 1
    assert room.causes == {"the run": "stopped after 0.3 s"}


def test_an_event_of_somebody_else_s_rank_is_not_kept(room: Room) -> None:
    async def forges(seat: Seat) -> None:
        await seat.take_place()
        line = Event(time.time(), "key", 0, "host", "done", {}).to_line()
        await seat.wire.send("event", line=line)
        await seat.leave()

    assert room.lead({"node-1": stays, "node-2": forges}) == 1
    assert "somebody else's" in room.causes["node-2"]


def test_ranks_of_seats_that_run_nothing_are_not_waited_for(room: Room) -> None:
    async def seat_only(seat: Seat) -> None:
        assert (await seat.take_place()).me.ranks == ()
        await seat.hear()
        await seat.exit()

    async def runs_all(seat: Seat) -> None:
        assert (await seat.take_place()).me.ranks == (0, 1)
        await seat.train()
        await seat.exit()
        await seat.leave()

    assert room.lead({"node-1": runs_all, "node-2": seat_only}, topology="single") == 0


# Something goes wrong


def test_a_rank_that_was_killed_ends_the_run_and_is_named(room: Room) -> None:
    async def killed(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.exit(-9)
        await seat.leave()

    assert room.lead({"node-1": stays, "node-2": killed, "node-3": stays}) == 1
    assert room.causes == {"node-2": "rank 1 was killed by SIGKILL"}
    assert room.kinds(1) == ["start", "died"]
    assert all(seat.heard == ["assignment", "bye"] for seat in room.seats.values())


def test_an_exit_code_without_a_word_is_a_failure(room: Room) -> None:
    async def ends(seat: Seat) -> None:
        await seat.take_place()
        await seat.exit(3)
        await seat.leave()

    assert room.lead({"node-1": ends, "node-2": stays}) == 1
    assert room.causes == {"node-1": "ended with exit code 3"}


def test_a_node_that_needed_too_much_memory_is_told_apart(room: Room) -> None:
    async def grows(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.exit(-9, out_of_memory=1)
        await seat.leave()

    assert room.lead({"node-1": grows, "node-2": stays}, memory_mb=64) == 1
    assert room.causes == {"node-1": "rank 0 was killed: its node needed more than 64 MiB of memory"}


def test_a_container_that_is_gone_is_named(room: Room) -> None:
    async def vanishes(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.wire.close()

    assert room.lead({"node-1": stays, "node-2": vanishes}) == 1
    cause = "rank 1 was killed together with its container, or cut off from the head"
    assert room.causes == {"node-2": cause}
    assert room.kinds(1) == ["start", "died"]
    assert room.seats["node-1"].heard == ["assignment", "bye"]


@pytest.mark.parametrize("complaint", [None, "mpirun ended with exit code 255"])
def test_a_node_that_mpirun_misses_first_is_named(room: Room, complaint: str | None) -> None:
    async def launches(seat: Seat) -> None:
        await seat.take_place()
        await seat.exit(cause=complaint)
        await seat.leave()

    async def vanishes(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await asyncio.sleep(0.05)  # mpirun has been heard of by then
        await seat.wire.close()

    async def hosts(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.hear()
        await seat.exit()

    assert room.lead({"launcher": launches, "node-1": vanishes, "node-2": hosts}, topology="mpi") == 1
    expected = {"node-1": "rank 0 was killed together with its container, or cut off from the head"}
    assert room.causes == ({"launcher": complaint} if complaint else {}) | expected


def test_mpirun_that_fails_alone_is_named_alone(room: Room) -> None:
    async def launches(seat: Seat) -> None:
        await seat.take_place()
        await seat.exit(cause="mpirun ended with exit code 1")
        await seat.leave()

    assert room.lead({"launcher": launches, "node-1": stays, "node-2": stays}, topology="mpi") == 1
    assert room.causes == {"launcher": "mpirun ended with exit code 1"}


def test_after_a_failure_the_others_may_still_say_theirs(room: Room) -> None:
    async def fails(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.tell("failed", cause="ValueError: odd")
        await seat.exit(1)
        await seat.leave()

    async def complains(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        hearing = asyncio.create_task(seat.hear())
        await asyncio.sleep(0.05)
        assert not hearing.done()  # sent away, it could not
        await seat.tell("failed", cause="peer is gone", peer=True)
        await seat.exit(1)
        await hearing

    assert room.lead({"node-1": complains, "node-2": fails}) == 1
    assert room.summary[1:] == [
        "  node-2: rank 1 failed: ValueError: odd",
        "  node-1: rank 0 failed: peer is gone",
    ]


def test_who_is_sent_away_and_says_so_has_not_failed(room: Room) -> None:
    async def fails(seat: Seat) -> None:
        await seat.take_place()
        await seat.exit(1)
        await seat.leave()

    async def obeys(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.hear()
        await seat.tell("terminated", cause="stopped by SIGTERM")
        await seat.exit(143)
        await seat.wire.close()

    assert room.lead({"node-1": obeys, "node-2": fails}) == 1
    assert room.causes == {"node-2": "ended with exit code 1"}
    assert room.kinds(0) == ["start", "terminated"]  # what it said last is kept all the same


def test_a_run_without_all_results_is_not_ok(room: Room) -> None:
    async def forgets(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.tell("result", **rank_fields())
        await seat.exit()
        await seat.leave()

    assert room.lead({"node-1": well, "node-2": forgets}) == 1
    assert room.summary[1:] == ["  not every result was given and kept"]


def test_a_member_that_does_not_leave_holds_up_nobody_for_long(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.2)

    async def stuck(seat: Seat) -> None:
        await seat.take_place()
        await seat.train()
        await seat.exit()
        await room.over.wait()

    assert room.lead({"node-1": well, "node-2": stuck}) == 0


def test_stopped_from_outside(room: Room) -> None:
    async def stops(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        cluster_room.stop_this_process()
        await seat.hear()
        await seat.tell("terminated", cause="stopped by SIGTERM")
        await seat.exit(143)
        await seat.wire.close()

    assert room.lead({"node-1": stops, "node-2": stays}) == 1
    assert room.causes == {"the run": "stopped from outside"}
    assert room.seats["node-2"].heard == ["assignment", "bye"]


def test_a_rank_that_failed_and_hangs_ends_the_run_too(room: Room) -> None:
    async def hangs(seat: Seat) -> None:
        await seat.take_place()
        await seat.tell("start", pid=7)
        await seat.tell("failed", cause="ValueError: odd")
        await seat.leave()

    assert room.lead({"node-1": stays, "node-2": hangs}) == 1
    assert room.causes == {"node-2": "rank 1 failed: ValueError: odd"}


@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_than_rank_0_end_the_run_and_are_not_kept(room: Room) -> None:
    async def sends(seat: Seat) -> None:
        await seat.take_place()
        await seat.wire.send("weights", piece="QUJD", last=True)
        await seat.leave()

    assert room.lead({"node-1": stays, "node-2": sends}) == 1
    assert list(room.causes) == ["node-2"]
    assert not (room.directory / "weights.npy").exists()
