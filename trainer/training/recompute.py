"""Activation checkpointing: parts of the model run again in the backward pass instead of being stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from trainer.models.layers.draws import Draws
from trainer.models.layers.dropout import Dropout
from trainer.models.layers.experts import MixtureOfExperts
from trainer.models.layers.transformer import Attention

Hooks = tuple[Callable[[Tensor], object], Callable[[object], Tensor]]


def recompute_in_backward(model: nn.Sequential, which: Literal["none", "selective", "full"]) -> None:
    """Let parts of the model store only their input in training.

    Args:
        which: full: each block with weights (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
            Cost"). A block that is a single layer stores its input anyway, and gains nothing.
            selective: in each attention, what lies between its linear layers (Korthikanti et al. 2022,
            "Reducing Activation Recomputation in Large Transformer Models", Sec. 5).
    """
    if which == "full":
        for block in model.children():
            if next(block.parameters(), None) is None:
                continue  # it stores its output at most, and would store its input instead
            block.forward = partial(_recomputed, block, block.forward)
    elif which == "selective":
        for module in model.modules():
            if isinstance(module, Attention):
                module.core = partial(_recomputed, module, module.core)  # type: ignore[method-assign]


def _recomputed(part: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(x)
    # Models draw from generators of their own. Those of the process are shared by its ranks.
    y: Tensor = checkpoint(
        forward, x, use_reentrant=False, preserve_rng_state=False, context_fn=partial(_contexts, part)
    )
    return y


def _contexts(part: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the forward pass and of its repetition, which draws equal dropout masks."""
    drawing = [
        module
        for module in part.modules()
        if isinstance(module, Draws) or (isinstance(module, Dropout) and module.probability)
    ]
    generators = {module.generator: module.generator.get_state() for module in drawing}
    norms = [module for module in part.modules() if isinstance(module, _BatchNorm)]
    mixtures = [module for module in part.modules() if isinstance(module, MixtureOfExperts)]
    return nullcontext(), _again(generators, norms, mixtures)


@contextmanager
def _again(
    generators: dict[torch.Generator, Tensor], norms: list[_BatchNorm], mixtures: list[MixtureOfExperts]
) -> Iterator[None]:
    """Run a part of the model as before, without a trace in its generators, statistics and counts."""
    later = {generator: generator.get_state() for generator in generators}
    momenta, counts = [norm.momentum for norm in norms], [norm.num_batches_tracked for norm in norms]
    choices = [mixture.counts.data for mixture in mixtures]
    for generator, state in generators.items():
        generator.set_state(state)
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with _counted():
            yield
    finally:
        for generator, state in later.items():
            generator.set_state(state)
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
        for mixture, made in zip(mixtures, choices, strict=True):
            mixture.counts.data = made


@contextmanager
def _counted() -> Iterator[None]:
    """Show what torch's checkpoint saves to the hooks around it, which count the stored activations.

    Until the backward pass of the part, all of it is stored at the same time.
    """
    autograd = torch._C._autograd
    pack, unpack = autograd._top_saved_tensors_default_hooks(True)  # those of torch's checkpoint
    autograd._pop_saved_tensors_default_hooks()
    around: Hooks | None = autograd._top_saved_tensors_default_hooks(True)
    autograd._push_saved_tensors_default_hooks(pack, unpack)
    if around is None:
        yield
        return
    counted: list[object] = []

    def pack_counted(tensor: Tensor) -> object:
        counted.append(around[0](tensor))
        return pack(tensor)

    with saved_tensors_hooks(pack_counted, unpack):
        try:
            yield
        finally:
            counted.clear()  # an exception ends the repetition, and its traceback would hold the list
