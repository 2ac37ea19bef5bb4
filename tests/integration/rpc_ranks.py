"""Ranks that are processes and meet over transport rpc, without a runner: to ask them what they see."""

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

Workload = Callable[[NodeContext], Any]


@dataclass
class Ranks:
    """Runs a function as ranks that are processes, as RPC demands."""

    place: str
    timeout_s: float = 30.0

    def run(self, work: Workload, size: int) -> list[Any]:
        """What `work`, which can be pickled, returns or raises on each rank; None where a rank died."""
        # Forked from a server that has torch already: a rank starts in milliseconds.
        multiprocessing.set_forkserver_preload(["torch.distributed.rpc"])
        server = multiprocessing.get_context("forkserver")
        told, processes = [], []
        for rank in range(size):
            hear, say = server.Pipe(duplex=False)
            context = NodeContext(
                rank, size, "rpc", Path(), rendezvous=self.place, timeout_s=self.timeout_s
            )
            processes.append(server.Process(target=_rank, args=(context, work, say)))
            processes[-1].start()
            say.close()  # this process's copy, or it would hear nothing of the rank's death
            told.append(hear)
        try:
            return [_heard(hear) for hear in told]
        finally:
            for process in processes:
                process.kill()
                process.join(10)


def _heard(hear: Connection) -> Any:
    try:
        return hear.recv() if hear.poll(60) else pytest.fail("a rank waits for ever")
    except EOFError:
        return None


def _rank(context: NodeContext, work: Workload, say: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"TP_SOCKET_IFNAME": loopback(), "GLOO_SOCKET_IFNAME": loopback()}
    try:
        outcome = work(context)
    except Exception as error:
        outcome = error
    say.send(outcome)
    os._exit(0)
