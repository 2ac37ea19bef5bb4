"""Mistakes of trainings on a GPU, without one: copies to and from the host, mixed devices, early waits.

torch's device "meta" stands in for a GPU: its tensors have shapes but no values, so reading one fails.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.conftest import FakeTime
from trainer.comm.base import Communicator
from trainer.compression.none import NoneCompression
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import TrainResult
from trainer.launch.ranks import train
from trainer.parallel.ddp_buckets import Buckets
from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

SAMPLES, TEST_SAMPLES, EPOCHS = 60, 38, 2
ON_GPU = [name for name in STRATEGIES.entries if "nccl" in STRATEGIES.load(name).transports]


class MetaCommunicator(Communicator):
    """Two ranks on device "meta"; the other rank is assumed to make the same calls."""

    topology = "ddp"
    device = "meta"

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MetaCommunicator:
        return cls(context.rank, context.size, clock)

    def _all_reduce(self, buffer: Tensor) -> None:
        assert buffer.is_meta

    def _all_gather(self, buffer: Tensor) -> Tensor:
        assert buffer.is_meta
        return torch.stack([buffer] * self.size)

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        assert buffer.is_meta
        return buffer.clone()

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        assert buffer.is_meta

    def _send(self, buffer: Tensor, to: int) -> None: ...
    def _recv(self, buffer: Tensor, source: int) -> None: ...
    def _barrier(self) -> None: ...
    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        raise NotImplementedError


class Link(TorchDispatchMode):
    """Record copies between host and device, and fail on operations that mix both."""

    def __init__(self) -> None:
        super().__init__()
        self.to_device: list[Tensor] = []
        self.to_host: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0.0  # meta tensors have no value
        if func is torch.ops.aten._to_copy.default and "device" in kwargs:
            (source,) = args
            if source.is_meta and kwargs["device"].type == "cpu":
                self.to_host.append(source)
                return torch.zeros(source.shape, dtype=source.dtype)
            if kwargs["device"].type == "meta" and not source.is_meta:
                self.to_device.append(source)
        else:
            tensors = [t for a in args for t in (a if isinstance(a, list | tuple) else [a])]
            devices = {t.device.type for t in tensors if isinstance(t, Tensor)}
            assert len(devices) < 2, f"{func} mixes tensors on {devices}"
        return func(*args, **kwargs)


class FakeDdp(nn.Module):
    """Stands in for DDP: runs the model unchanged."""

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: int | None,
        broadcast_buffers: bool,
        find_unused_parameters: bool,
    ) -> None:
        super().__init__()
        self.module = module
        self.forward = module.forward

    def register_comm_hook(self, state: object, hook: object) -> None: ...


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the devices of generators and create them on the CPU; torch has none on `meta`."""
    made: list[str] = []

    class Generator(torch.Generator):
        def __new__(cls, device: str = "cpu") -> Generator:
            made.append(device)
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", Generator)
    return made


def trained(strategy: str, compression: str, rank: int) -> tuple[TrainResult, Link]:
    dataset = {"name": "synthetic", "samples": SAMPLES, "test_samples": TEST_SAMPLES}
    nodes = min(2, STRATEGIES.load(strategy).max_nodes or 2)
    named = {"name": strategy, "compression": compression} if compression != "none" else strategy
    fields = {"strategy": named, "transport": "nccl", "nodes": nodes, "dataset": dataset}
    of = Task(
        RunSpec.model_validate({**fields, "model": "lenet", "epochs": EPOCHS, "batch_size": 8}), Path()
    )
    context = NodeContext(rank, nodes, "nccl", Path())
    with Link() as link:
        comm = MetaCommunicator.connect(context, Clock())
        result = train(context, of, EventWriter("run", rank, None, io.StringIO()), comm)
    return result, link


@pytest.mark.parametrize(
    ("strategy", "compression"),
    [(name, "none") for name in ON_GPU]
    + [("all_reduce", name) for name in COMPRESSIONS.entries if name != "none"],
)
def test_training_stays_on_its_device(
    monkeypatch: pytest.MonkeyPatch, generators: list[str], strategy: str, compression: str
) -> None:
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", FakeDdp)
    result, link = trained(strategy, compression, rank=STRATEGIES.load(strategy).servers)
    assert result.steps >= 4 * EPOCHS
    draws = ["cpu"] if compression == "power_sgd" else []  # on the CPU, so that all ranks draw the same
    assert generators == ["meta", *draws]  # dropout draws on the device

    # Both splits are copied once; each step copies only sample indices.
    images = [tuple(t.shape) for t in link.to_device if t.shape[-1] == 28 or t.shape[1:3] == (28, 28)]
    assert sorted(images) == [(TEST_SAMPLES, 1, 28, 28), (SAMPLES, 28, 28, 1)]
    steps = [t for t in link.to_device if t.dtype == torch.int64 and len(t) <= 8]
    assert len(steps) == result.steps
    # Only the final weights are copied back, for digest and file.
    assert [t.numel() for t in link.to_host] == [result.parameters]

    # CPU time does not measure the work of a GPU.
    assert result.work_cpu_s is None
    assert result.seconds["cpu_contention"] == 0


def test_parameter_server_copies_no_training_set(
    monkeypatch: pytest.MonkeyPatch, generators: list[str]
) -> None:
    result, link = trained("parameter_server", "none", rank=0)
    assert result.steps >= 4 * EPOCHS
    images = [len(t) for t in link.to_device if t.shape[-1] == 28 or t.shape[1:3] == (28, 28)]
    assert sorted(images) == [0, TEST_SAMPLES]
    assert [t.numel() for t in link.to_host] == [result.parameters]


def test_ddp_reads_the_clock_only_for_the_last_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading the clock waits for the GPU: in an earlier bucket it would end the overlap.
    now = FakeTime()
    reads: list[float] = []

    def wall() -> float:
        now.pass_(1)
        reads.append(now.now)
        return now.now

    class World:
        def __init__(self) -> None:
            self.done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            self.done.set_result([torch.ones(4)])

        def allreduce(self, tensors: list[Tensor], options: object) -> World:
            return self

        def get_future(self) -> torch.futures.Future[list[Tensor]]:
            return self.done

    class Bucket:
        def __init__(self, last: bool) -> None:
            self.is_last = lambda: last

        def buffer(self) -> Tensor:
            return torch.ones(4)

    monkeypatch.setattr("torch.distributed.group", SimpleNamespace(WORLD=World()))
    comm = MetaCommunicator(0, 2, Clock(wall, FakeTime()))
    comm.clock.start()
    with comm.clock.phase("compute"):
        buckets = Buckets(comm, NoneCompression(), seed=0)
        before = len(reads)
        for last in (False, False, True):
            buckets.mean(Bucket(last))  # type: ignore[arg-type]
        assert len(reads) == before + 1
    buckets.book_exposed()
    assert comm.traffic.collectives == [(reads[before], reads[-1])]
    assert comm.traffic.bytes_sent == 3 * 16
