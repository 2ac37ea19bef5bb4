"""Ranks as processes, connected over transport rpc without a runner, to observe each rank."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.runtimes.local.processes import loopback
from trainer.core.context import NodeContext

RankFunction = Callable[[NodeContext], Any]


@dataclass
class Ranks:
    """Runs a function on ranks, each in its own process, as RPC requires."""

    rendezvous: str
    timeout_s: float = 30.0

    def run(self, function: RankFunction, size: int) -> list[Any]:
        """What `function`, which must be picklable, returns or raises on each rank; None if a rank died."""
        # Forked from a server that has imported torch, and what an optimizer imports: a rank starts in
        # milliseconds.
        multiprocessing.set_forkserver_preload(["torch.distributed.rpc", "torch._dynamo"])
        server = multiprocessing.get_context("forkserver")
        receivers, processes = [], []
        for rank in range(size):
            receiver, sender = server.Pipe(duplex=False)
            context = NodeContext(
                rank, size, "rpc", Path(), rendezvous=self.rendezvous, timeout_s=self.timeout_s
            )
            processes.append(server.Process(target=_rank, args=(context, function, sender)))
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


def _rank(context: NodeContext, function: RankFunction, sender: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"TP_SOCKET_IFNAME": loopback(), "GLOO_SOCKET_IFNAME": loopback()}
    try:
        outcome = function(context)
    except Exception as error:
        outcome = error
    sender.send(outcome)
    os._exit(0)
