"""Backward passes in two parts: the gradient of the input at once, that of the weights later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge


class WeightPass(NamedTuple):
    """What the gradient of a layer's weights still needs: its output in the graph, and the gradient there.

    gradient: a tensor whose node has saved the gradient, so that it counts among the stored activations.
    """

    output: GradientEdge
    gradient: Tensor

    @property
    def saved_gradient(self) -> Tensor:
        saved: Tensor = self.gradient.grad_fn.saved_tensors[0]  # type: ignore[union-attr]
        return saved


class SplitLayers:
    """Lets the layers of a model compute the gradient of their weights later (Qi et al. 2023, Sec. 2).

    Layers are linear and convolutions, whose weights' gradient costs as much as that of their input. A
    backward pass computes all but it, and frees the nodes between layers. No product is computed twice. A
    layer whose input needs no gradient computes that of its weights at once.
    """

    def __init__(self, model: nn.Module) -> None:
        """From now on, the layers of `model` are split."""
        self._parameters = list(model.parameters())
        self._passes: list[WeightPass] = []
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.forward = partial(self._forward, layer.forward)  # type: ignore[method-assign]

    def take(self) -> list[WeightPass]:
        """The passes that the last backward pass left."""
        passes, self._passes = self._passes, []
        return passes

    def run(self, passes: list[WeightPass]) -> None:
        """Add to the gradient of the weights what a backward pass left."""
        if passes:
            torch.autograd.backward(
                [each.output for each in passes],
                [each.saved_gradient for each in passes],
                inputs=self._parameters,
            )

    def _forward(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return forward(x)
        y: Tensor = _InputFirst.apply(x, forward, self._add)  # type: ignore[no-untyped-call]
        return y

    def _add(self, left: WeightPass) -> None:
        self._passes.append(left)


class _InputFirst(torch.autograd.Function):
    """A layer with a graph of its own, of which the backward pass uses the way to the input only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layer: Callable[[Tensor], Tensor], add: Callable[[WeightPass], None]
    ) -> Tensor:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            y = layer(own)
        ctx.own, ctx.output, ctx.add = own, get_gradient_edge(y), add
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (dx,) = torch.autograd.grad(ctx.output, ctx.own, dy, retain_graph=True)
        with torch.enable_grad():
            kept = _Kept.apply(torch.zeros((), requires_grad=True), dy)  # type: ignore[no-untyped-call]
        ctx.add(WeightPass(ctx.output, kept))
        return dx, None, None


class _Kept(torch.autograd.Function):
    """A node that saves a tensor."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return anchor.clone()
