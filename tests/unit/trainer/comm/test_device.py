"""Mistakes of trainings on a GPU, without one: copies to and from the host and mixed devices.

torch's device "meta" stands in for a GPU: its tensors have shapes but no values, so reading one fails.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.nonblocking import Finished, Operation
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.launch.ranks import train
from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

SAMPLES, TEST_SAMPLES, EPOCHS = 60, 38, 2
ON_GPU = [  # but for ddp, which torch moves to the GPU
    name for name in STRATEGIES.entries if "nccl" in STRATEGIES.load(name).transports and name != "ddp"
]


class MetaCommunicator(MemoryCommunicator):
    """Two ranks on device "meta"; the other rank is assumed to make the same calls."""

    device = "meta"

    def _meet(
        self, what: str, brings: Any, come_to: Callable[[list[Any]], Any], take: Callable[[Any], Any]
    ) -> Operation:
        assert what == "barrier" or brings.is_meta
        return Finished(take(come_to([brings] * self.size)))

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        return Finished(buffer)


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


@pytest.mark.parametrize(
    ("strategy", "compression", "rank"),
    [(name, "none", STRATEGIES.load(name).servers) for name in ON_GPU]
    + [("all_reduce", name, 0) for name in COMPRESSIONS.entries if name != "none"]
    + [("parameter_server", "none", 0)],  # which needs no samples
)
def test_training_stays_on_its_device(
    monkeypatch: pytest.MonkeyPatch, strategy: str, compression: str, rank: int
) -> None:
    generators: list[str] = []

    class Generator(torch.Generator):  # on the CPU: torch has none on `meta`
        def __new__(cls, device: str = "cpu") -> Generator:
            generators.append(device)
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", Generator)
    loaded = STRATEGIES.load(strategy)
    nodes, serves = min(2, loaded.max_nodes or 2), rank < loaded.servers
    fields = {"strategy": strategy, "transport": "nccl", "nodes": nodes, "model": "lenet", "batch_size": 8}
    if compression != "none":
        fields["strategy"] = {"name": strategy, "compression": compression}
    fields |= {"dataset": {"name": "synthetic", "samples": SAMPLES, "test_samples": TEST_SAMPLES}}
    task = Task(RunSpec.model_validate({**fields, "epochs": EPOCHS}), Path())
    context = NodeContext(rank, nodes, "nccl", Path())
    with Link() as link:
        comm = MetaCommunicator(rank, nodes, Clock(), ThreadGroup(nodes))
        result = train(context, task, EventWriter("run", rank, None, io.StringIO()), comm)
    assert result.steps >= 4 * EPOCHS

    # Both splits are copied once; each step copies only sample indices.
    images = [t for t in link.to_device if t.shape[-1] == 28 or t.shape[1:3] == (28, 28)]
    assert sorted(map(len, images)) == sorted([0 if serves else SAMPLES, TEST_SAMPLES])
    steps = [t for t in link.to_device if t.dtype == torch.int64 and len(t) <= 8]
    assert len(steps) == (0 if serves else result.steps)
    # Only the final weights are copied back, for digest and file.
    assert [t.numel() for t in link.to_host] == [result.parameters]
    # Dropout draws on the device, and PowerSGD on the CPU, so that all ranks draw the same.
    assert generators == ["meta", *(["cpu"] if compression == "power_sgd" else [])]

    # CPU time does not measure the work of a GPU.
    assert result.work_cpu_s is None
    assert result.seconds["cpu_contention"] == 0
