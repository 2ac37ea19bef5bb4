"""Mistakes of transports between real processes: what is started, lost peers of rpc, bytes of gloo."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from orchestrator.runtimes.local.processes import MPIRUN_OPTIONS, loopback, mpirun
from tests.support.started_exchanges import assert_all_started, started
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect

Body = Callable[[Communicator], Any]
SIZE = 3


def run(directory: Path, body: Body, size: int = SIZE, transport: str = "rpc") -> Any:
    """What a module-level function returns or raises on each rank, in its own process; None if it died."""
    # Forked from a server that has imported torch: a rank starts in milliseconds.
    multiprocessing.set_forkserver_preload(["torch.distributed.rpc"])
    server = multiprocessing.get_context("forkserver")
    receivers, processes = [], []
    for rank in range(size):
        receiver, sender = server.Pipe(duplex=False)
        rendezvous = f"{directory}/rendezvous"
        context = NodeContext(rank, size, transport, Path(), rendezvous=rendezvous, timeout_s=30.0)
        processes.append(server.Process(target=_rank, args=(context, body, sender)))
        processes[-1].start()
        sender.close()  # close this process's copy, so that the pipe closes when the rank exits
        receivers.append(receiver)
    try:
        return [_outcome(receiver) for receiver in receivers]
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _outcome(receiver: Connection) -> Any:
    try:
        return receiver.recv() if receiver.poll(60) else pytest.fail("a rank did not end within 60 s")
    except EOFError:
        return None


def _rank(context: NodeContext, body: Body, sender: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"TP_SOCKET_IFNAME": loopback(), "GLOO_SOCKET_IFNAME": loopback()}
    try:
        comm = connect(context, threads=1)
        comm.clock.start()
        outcome = body(comm)
        comm.close()
    except Exception as error:
        outcome = error
    sender.send(outcome)
    os._exit(0)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("transport", ["gloo", "rpc"])
def test_non_blocking_exchanges_bring_what_blocking_ones_do(
    tmp_path: Path, transport: str, size: int
) -> None:
    assert_all_started(run(tmp_path, started, size, transport))


@pytest.mark.parametrize("size", [2, 3])
def test_non_blocking_exchanges_of_mpi(tmp_path: Path, size: int) -> None:
    if (found := mpirun()) is None:
        pytest.skip("mpirun is not installed")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = [
        str(found),
        "-n",
        str(size),
        *MPIRUN_OPTIONS,
        sys.executable,
        "-m",
        started.__module__,
        str(tmp_path),
    ]
    subprocess.run(argv, check=True, timeout=60, env=os.environ | root)
    assert_all_started([torch.load(tmp_path / f"{rank}.pt") for rank in range(size)])


def over_the_link(comm: Communicator) -> float:
    before = psutil.net_io_counters(pernic=True)[loopback()].bytes_sent
    comm.barrier()  # otherwise a late rank would miss bytes that others have sent already
    comm.all_reduce(torch.ones(2_000_000), "sum")
    comm.barrier()
    return psutil.net_io_counters(pernic=True)[loopback()].bytes_sent - before


def test_bytes_cross_the_network_interface_and_not_shared_memory(tmp_path: Path) -> None:
    """Other processes use the interface too, so the count is a lower bound."""
    assert min(run(tmp_path, over_the_link)) > 2 * 8_000_000 * (SIZE - 1)


def one_dies(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        comm.recv(torch.empty(1), source=1)
    with pytest.raises(CommunicationError, match="node 1"):
        comm.send(torch.empty(1), to=1)
    raise CommunicationError(f"{caught.value} {time.monotonic() - began:.1f}")  # no rank can close


def test_a_dead_peer_is_named_within_seconds(tmp_path: Path) -> None:
    first, dead, last = run(tmp_path, one_dies)
    assert dead is None
    for error in (first, last):
        assert "node 1" in str(error)
        assert float(str(error).split()[-1]) < 5


def gather_beside_a_message(comm: Communicator) -> list[float]:
    """The first rank's message is on its way while both gather."""
    message = torch.full((3,), 9.0)
    sending = comm.isend(message, to=1) if comm.rank == 0 else None
    gathered = comm.all_gather(torch.full((3,), 1.0 + comm.rank))
    if sending:
        sending.wait()
    else:
        comm.recv(message.zero_(), source=0)
    return [*gathered[:, 0].tolist(), *message[:1].tolist()]


def test_gathering_of_two_ranks_over_gloo_takes_no_message_of_a_send(tmp_path: Path) -> None:
    assert run(tmp_path, gather_beside_a_message, 2, "gloo") == [[1.0, 2.0, 9.0]] * 2
