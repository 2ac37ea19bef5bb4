"""Mistakes of transport nccl, without a GPU: which GPU a rank takes, and when the clock waits for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainer.comm import gloo
from trainer.comm.base import CommunicationError
from trainer.comm.nccl import NcclCommunicator, synchronized
from trainer.core.clock import Clock
from trainer.core.context import NodeContext


def context(local_rank: int) -> NodeContext:
    return NodeContext(5, 8, "nccl", Path(), rendezvous="tcp://node-1:29500", local_rank=local_rank)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls to CUDA and the process group, in order."""
    reported: list[Any] = []
    stream = SimpleNamespace(synchronize=lambda: reported.append("settle"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: reported.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(gloo, "rendezvous", lambda context: f"store of rank {context.rank}")
    monkeypatch.setattr(dist, "init_process_group", lambda *group, **how: reported.append((*group, how)))
    return reported


def test_rank_selects_its_gpu_before_it_connects(cuda: list[Any]) -> None:
    comm = NcclCommunicator.connect(context(1), Clock())
    device, (group, how) = cuda
    assert device == ("device", 1)
    assert (group, how["rank"], how["world_size"], how["store"]) == ("nccl", 5, 8, "store of rank 5")
    assert how["device_id"] == torch.device("cuda:1")
    assert (comm.device, comm.topology) == ("cuda:1", "ddp")
    assert NcclCommunicator.device == "cuda"  # connect() does not change the class


def test_clock_waits_for_queued_kernels(cuda: list[Any]) -> None:
    clock = Clock(wall=lambda: cuda.append("read") or 0.0)  # type: ignore[func-returns-value]
    NcclCommunicator.connect(context(0), clock)
    cuda.clear()
    clock.start()
    with clock.phase("compute"):
        cuda.append("kernels")
    assert cuda == ["settle", "read"] * 2 + ["kernels"] + ["settle", "read"]


def test_clock_synchronizes_the_current_stream() -> None:
    asked: list[str] = []

    def stream() -> SimpleNamespace:
        asked.append("stream")  # each thread has its own stream; DDP's hook runs in another thread
        return SimpleNamespace(synchronize=lambda: None)

    wall = synchronized(lambda: 3.5, stream)
    assert [wall(), wall()] == [3.5, 3.5]
    assert len(asked) == 2


@pytest.mark.parametrize("found", [0, 2])
def test_a_rank_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    """Also the first one after the last GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(CommunicationError) as caught:
        NcclCommunicator.connect(context(found), Clock())
    named = ("nccl", "rank 5", f"GPU {found}", f"torch {torch.__version__}", f"finds {found}")
    assert all(fact in str(caught.value) for fact in named)
