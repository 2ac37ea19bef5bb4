"""Mistakes of processes that share virtual nodes: data that is late or lost, and what ends when one dies.

`test_virtual_training` compares their bits and times with those of one process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.unit.training import SMALL, threads_in_torch
from trainer.comm.base import CommunicationError
from trainer.launch.threads import RecordedEvents
from trainer.spec.run_spec import RunSpec
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.run import in_turns
from trainer.virtual.workers import Share

SPEC = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 4})
LARGE = 300_000  # values: more bytes than a connection holds


def errors_of(
    body: Callable[[VirtualCommunicator], object], directory: Path
) -> tuple[dict[int, str], bool, list[RecordedEvents]]:
    """Run `body` on ranks of two processes: the errors by rank, whether all went well, and exit reports."""
    events = [RecordedEvents(rank) for rank in range(4)]

    def reporting(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            body(comm)
        except (CommunicationError, ValueError) as error:
            (directory / str(comm.rank)).write_text(str(error))
            comm.abort()

    share = Share.fork(2, 4)

    def train() -> bool:
        in_turns(reporting, SPEC, share=share)
        return True

    with threads_in_torch(1):  # a forked process has none of the threads that this one may have
        succeeded = share.run(train, lambda rank: events[rank])
    return {int(path.name): path.read_text() for path in directory.iterdir()}, succeeded, events


def test_more_bytes_than_a_connection_holds_move_in_both_directions(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        for _ in range(3):
            own = torch.full((LARGE,), float(comm.rank))
            comm.all_reduce(own, "sum")
            others = comm.shift(torch.full((LARGE,), float(comm.rank)), 1)
            if own.unique().tolist() != [6.0] or others.unique().tolist() != [(comm.rank - 1) % 4]:
                raise ValueError(f"{own.unique()} and {others.unique()}")

    assert errors_of(body, tmp_path)[:2] == ({}, True)


def test_a_root_gathers_what_was_sent_to_it(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        own = torch.full((2,), float(comm.rank))
        gathered = comm.gather(own, root=1)
        own.fill_(-1.0)  # the other ranks leave before the root does
        comm.barrier()
        if comm.rank == 1 and (gathered is None or gathered[:, 0].tolist() != [0, 1, 2, 3]):
            raise ValueError(str(gathered))

    assert errors_of(body, tmp_path)[:2] == ({}, True)


def test_the_failure_of_a_rank_ends_those_of_other_processes(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        if comm.rank == 3:
            raise ValueError("mine")
        comm.barrier()

    errors, _, _ = errors_of(body, tmp_path)
    assert errors.pop(3) == "mine"
    assert errors.keys() == {0, 1, 2}
    assert all(text == "another virtual rank failed" for text in errors.values())


def test_ranks_of_two_processes_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        if comm.rank == 3:
            comm.recv(torch.zeros(1), source=0)
        comm.barrier()

    errors, _, _ = errors_of(body, tmp_path)
    assert errors.keys() == {0, 1, 2, 3}
    assert all("rank 3 (receive of 4 bytes, peer 0)" in text for text in errors.values())


def test_a_collective_that_another_process_calls_differently_is_an_error(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        with comm.clock.phase("evaluate"):  # where the simulation does not compare them
            comm.all_reduce(torch.zeros(2 + comm.rank // 2), "sum")

    errors, _, _ = errors_of(body, tmp_path)
    assert errors.keys() == {0, 1, 2, 3}
    assert any("calls all_reduce of 12 bytes, where others call" in text for text in errors.values())


def test_groups_of_ranks_need_one_process(tmp_path: Path) -> None:
    errors, _, _ = errors_of(lambda comm: comm.split(comm.rank % 2), tmp_path)
    assert "virtual.workers" in errors[0]


def kill_its_process(comm: VirtualCommunicator, rank: int) -> None:
    """Let a rank kill its process between two barriers."""
    comm.barrier()
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def test_a_killed_process_is_named_by_the_others_and_by_its_ranks(tmp_path: Path) -> None:
    errors, succeeded, events = errors_of(partial(kill_its_process, rank=3), tmp_path)
    assert not succeeded
    assert errors == dict.fromkeys((0, 1), "worker process 1 of the virtual nodes has ended")
    found = [[(event.kind, event.fields) for event in own.events] for own in events]
    report = [("died", {"cause": "killed by SIGKILL", "signal": "SIGKILL"})]
    assert found == [[], [], report, report]


def test_the_others_end_with_the_first_process(tmp_path: Path) -> None:
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        errors_of(partial(kill_its_process, rank=0), tmp_path)
    os.close(write)
    assert os.read(read, 1) == b""  # no process has the other end
    os.wait()
    assert {path.name for path in tmp_path.iterdir()} == {"2", "3"}
    assert (tmp_path / "2").read_text() == "worker process 0 of the virtual nodes has ended"


@pytest.mark.parametrize("failing", [0, 1, 2, None])
def test_a_run_succeeds_if_all_processes_do(failing: int | None) -> None:
    """One that fails says why itself."""
    share, events = Share.fork(3, 3), [RecordedEvents(rank) for rank in range(3)]
    assert share.run(lambda: share.ranks[0] != failing, events.__getitem__) == (failing is None)
    assert all(not each.events for each in events)


def test_a_share_has_consecutive_ranks_and_every_rank_an_owner() -> None:
    for size in range(2, 12):
        for count in range(1, size + 1):
            shares = [Share(number, count, size, {}, None) for number in range(count)]
            assert [rank for share in shares for rank in share.ranks] == [*range(size)]
            assert all(share.owner(rank) == share.number for share in shares for rank in share.ranks)
