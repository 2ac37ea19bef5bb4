"""Mistakes of processes that share virtual nodes: data that is late or lost, and what ends when one dies.

`test_virtual_training` compares their bits and times with those of one process.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tests.unit.training import SMALL, threads_in_torch
from trainer.comm.errors import CommunicationError
from trainer.launch.threads import RecordedEvents
from trainer.spec.run_spec import RunSpec
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.run import in_turns
from trainer.virtual.workers import Share

SPEC = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 4})
LARGE = 300_000  # values: more bytes than a connection holds
Body = Callable[[VirtualCommunicator], object]


def errors_of(body: Body, directory: Path) -> tuple[dict[int, str], bool, list[RecordedEvents]]:
    """Run `body` on ranks of two processes: the errors by rank, whether all went well, and exit reports."""
    directory.mkdir(exist_ok=True)
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


def test_data_moves_in_both_directions_and_is_that_of_the_call(tmp_path: Path) -> None:
    def body(comm: VirtualCommunicator) -> None:
        for _ in range(3):
            own, sent = (torch.full((LARGE,), float(comm.rank)) for _ in range(2))
            comm.all_reduce(own, "sum")
            others, gathered = comm.shift(sent, 1), comm.gather(sent[:2], root=1)
            sent.fill_(-1.0)  # the other ranks leave before the root does
            comm.barrier()
            assert (own.unique().tolist(), others.unique().tolist()) == ([6.0], [(comm.rank - 1) % 4])
            assert comm.rank != 1 or (gathered is not None and gathered[:, 0].tolist() == [0, 1, 2, 3])
        (tmp_path / "data" / str(comm.rank)).write_text("correct")

    assert errors_of(body, tmp_path / "data")[:2] == (dict.fromkeys(range(4), "correct"), True)


def fails(comm: VirtualCommunicator) -> None:
    if comm.rank == 3:
        raise ValueError("mine")
    comm.barrier()


def receives(comm: VirtualCommunicator) -> None:
    if comm.rank == 3:
        comm.recv(torch.zeros(1), source=0)
    comm.barrier()


def differs(comm: VirtualCommunicator) -> None:
    with comm.clock.phase("evaluate"):  # where the simulation does not compare them
        comm.all_reduce(torch.zeros(2 + comm.rank // 2), "sum")


def test_failures_end_the_ranks_of_all_processes_and_name_their_cause(tmp_path: Path) -> None:
    named = r"rank 3 \(receive of 4 bytes, peer 0\)"
    cases: list[tuple[Body, str, str]] = [  # with the errors of one rank, and of all
        (fails, "^mine$", "^mine$|^another virtual rank failed$"),
        (receives, named, named),
        (differs, "calls all_reduce of (8|12) bytes, where others call all_reduce of (8|12) bytes", ""),
        (lambda comm: comm.split(comm.rank % 2), r"virtual\.workers", ""),
    ]
    for number, (body, of_one, of_all) in enumerate(cases):
        errors, _, _ = errors_of(body, tmp_path / str(number))
        assert errors.keys() == {0, 1, 2, 3}
        assert any(re.search(of_one, each) for each in errors.values()), errors
        assert all(re.search(of_all, each) for each in errors.values()), errors


def dies(doomed: int, comm: VirtualCommunicator) -> None:
    """A rank kills its process between two barriers."""
    comm.barrier()
    if comm.rank == doomed:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def test_a_killed_process_is_named_by_the_others_and_by_its_ranks(tmp_path: Path) -> None:
    errors, succeeded, events = errors_of(partial(dies, 3), tmp_path)
    assert not succeeded
    assert errors == dict.fromkeys((0, 1), "worker process 1 of the virtual nodes has ended")
    found = [[(event.kind, event.fields) for event in own.events] for own in events]
    report = [("died", {"cause": "killed by SIGKILL", "signal": "SIGKILL"})]
    assert found == [[], [], report, report]


def test_the_others_end_with_the_first_process(tmp_path: Path) -> None:
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        errors_of(partial(dies, 0), tmp_path)
    os.close(write)
    assert os.read(read, 1) == b""  # no process has the other end
    os.wait()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(("2", "3"), "worker process 0 of the virtual nodes has ended")


def test_a_run_succeeds_if_all_processes_do() -> None:
    """One that fails says why itself. Every rank is in one process."""
    for size, count in ((7, 3), (11, 4), (5, 5)):
        shares = [Share(number, count, size, {}, None) for number in range(count)]
        assert [rank for share in shares for rank in share.ranks] == [*range(size)]
        assert all(share.owner(rank) == share.number for share in shares for rank in share.ranks)
    for failing in (0, 2, None):
        share, events = Share.fork(3, 3), [RecordedEvents(rank) for rank in range(3)]
        trains = share.ranks[0] != failing
        assert share.run(lambda trains=trains: trains, events.__getitem__) == (failing is None)
        assert all(not each.events for each in events)
