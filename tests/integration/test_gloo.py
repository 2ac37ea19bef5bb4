"""Transport gloo between two real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from tests.integration.rpc_ranks import Ranks
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect

SENT, GATHERED = 9.0, 1.0


def gather_beside_a_message(context: NodeContext) -> list[float]:
    """The first rank's message is on its way while both gather."""
    comm = connect(replace(context, transport="gloo"), threads=1)
    message = torch.full((3,), SENT)
    sending = comm.isend(message, to=1) if comm.rank == 0 else None
    gathered = comm.all_gather(torch.full((3,), GATHERED + comm.rank))
    if sending:
        sending.wait()
    else:
        message.zero_()
        comm.recv(message, source=0)
    comm.close()
    return [*gathered[:, 0].tolist(), *message[:1].tolist()]


def test_gathering_of_two_ranks_takes_no_message_of_a_send(tmp_path: Path) -> None:
    outcomes = Ranks(f"{tmp_path}/rendezvous").run(gather_beside_a_message, 2)
    assert outcomes == [[GATHERED, GATHERED + 1, SENT]] * 2
