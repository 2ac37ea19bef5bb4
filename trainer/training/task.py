"""The task: the data and model of a run, shared by the ranks of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.core.rng import RngFactory
from trainer.data.base import Data
from trainer.data.cache import DatasetCache
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from torch import nn

    from trainer.training.loader import PartitionedSplit


@dataclass
class Task:
    """Loads data and torch lazily."""

    spec: RunSpec
    data_dir: Path
    datasets: DatasetCache = field(default_factory=DatasetCache, repr=False)
    _splits: dict[str, PartitionedSplit] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @cached_property
    def key(self) -> str:
        """The run key, see RunSpec."""
        return self.spec.key

    @property
    def rngs(self) -> RngFactory:
        return RngFactory(self.spec.seed, self.spec.vary)

    @cached_property
    def data(self) -> Data:
        """The dataset, in memory. Raises DataError."""
        return self.datasets.load(self.spec.dataset, self.data_dir)

    def split(self, device: str) -> PartitionedSplit:
        """The training split on a device, with its partition, for all ranks of this process."""
        from trainer.training.loader import PartitionedSplit

        train = self.data.train
        with self._lock:
            if device not in self._splits:
                parts = self.spec.num_replicas
                self._splits[device] = PartitionedSplit(train, self.spec, self.rngs, parts, device)
            return self._splits[device]

    def build_model(
        self,
        rank: int,
        weights_seed: int = 0,
        device: str = "cpu",
        only: Container[str] | None = None,
        take: Callable[[str, nn.Module], nn.Module] = lambda _, block: block,
    ) -> nn.Sequential:
        """A new model, in the memory format that it declares. Reads no data.

        Args:
            rank: selects dropout's random stream, which differs between CPU and GPU.
            weights_seed: equal numbers give equal initial weights, on every device. What is not trained
                is that of seed 0.
            only: names of the blocks to build; they get the weights that they have in the full model.
            take: transforms each block before the next is built, so at most one block is whole in memory.
        """
        import torch
        from torch import nn

        from trainer.models.layers.draws import GLOBAL_GENERATOR
        from trainer.training.recompute import recompute_in_backward

        generator = torch.Generator(device).manual_seed(self.rngs.torch_seed("dropout", rank))
        model, dataset = nn.Sequential(), self.spec.dataset
        # torch initialises weights from its global generator, which the ranks of one process share.
        with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.rngs.torch_seed("weights", weights_seed))
            for name, block in self.spec.model.blocks(dataset.shape, dataset.outputs, generator):
                if only is None or name in only:
                    model.add_module(name, take(name, block))
        if self.spec.model.channels_last:
            for parameter in model.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        if weights_seed and self.spec.model.statistics is not None:  # a registered one trains all
            self._freeze_as_seed_0(model, rank, device, only, take)
        recompute_in_backward(model, self.spec.recompute)
        return model.to(device).train()  # a user's model may freeze parts of itself in `train`

    def _freeze_as_seed_0(self, model: nn.Module, *arguments: Any) -> None:
        """Give a model the frozen parameters and constant buffers of weights seed 0.

        arguments: of `build_model`, rank, device, only and take.
        """
        from trainer.training.trained import statistics, trained_parameters

        trained = {id(each) for each in trained_parameters(model)}
        trained |= {id(each) for each in statistics(model, self.spec.model.statistics)}
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        frozen = {name: each for name, each in own.items() if id(each) not in trained}
        if frozen:
            rank, *others = arguments
            source = self.build_model(rank, 0, *others).state_dict(keep_vars=True)
            for name, each in frozen.items():
                each.data = source[name].data
