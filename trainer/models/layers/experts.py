"""A mixture of experts: several MLPs in place of one, of which each token uses one or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.layers.transformer import Mlp


class Router(nn.Module):
    """The probability of each expert, for each token (Fedus et al. 2022, Eq. 1).

    In training, the gradient of the load-balance loss is added to that of the probabilities. The loss is
    (Fedus et al. 2022, Eq. 4 to 6)

        balance · E · Σ_i f_i P_i

    where f_i is the share of the tokens whose most probable expert is i, a constant for the gradient, and
    P_i is the mean probability of expert i. Both are over the tokens of one forward pass. So a backward
    pass from w times the loss of a batch gives the gradient of w · (loss + the load-balance losses of all
    layers), if `weight` is w in the forward pass. The value of the loss stays that of the task.

    Attributes:
        weight: w. For a micro-batch, it is w times the share of the batch's samples. A replica sets it.
    """

    def __init__(self, width: int, experts: int, balance: float) -> None:
        super().__init__()
        self.scores = nn.Linear(width, experts, bias=False)
        self.balance, self.weight = balance, 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: shape (tokens, width). Returns (tokens, experts)."""
        probabilities: Tensor = self.scores(tokens).softmax(dim=-1)
        if not (self.training and self.balance):
            return probabilities
        loss = self.weight * self.balance * balance_loss(probabilities)
        with_loss: Tensor = _AlsoMinimised.apply(probabilities, loss)  # type: ignore[no-untyped-call]
        return with_loss


def balance_loss(probabilities: Tensor) -> Tensor:
    """E · Σ_i f_i P_i: 1 if all experts are used alike, and up to E if not (Fedus et al. 2022, Eq. 4)."""
    tokens, experts = probabilities.shape
    first = probabilities.argmax(dim=-1).bincount(minlength=experts)
    return experts * (first / tokens * probabilities.mean(dim=0)).sum()


class _AlsoMinimised(torch.autograd.Function):
    """The identity. A backward pass through it is also one from `loss`, as Megatron does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return gradient, torch.ones_like(loss)


class Experts(nn.ModuleList):
    """MLPs, each of which has tokens of its own."""

    def __init__(self, experts: Iterable[Mlp]) -> None:
        super().__init__(experts)

    def forward(self, tokens: Tensor, load: Sequence[int]) -> Tensor:
        """The output of its expert for each token.

        Args:
            tokens: shape (tokens, width), ordered by their experts. load: how many tokens each expert has.
        """
        # An expert without tokens takes part, too: its gradient is then 0 in every strategy, not missing.
        parts = tokens.split([*load])
        return torch.cat([expert(part) for expert, part in zip(self, parts, strict=True)])


class MixtureOfExperts(nn.Module):
    """The outputs of a token's experts, each times its gate, in place of the output of one MLP.

    - top_k 1, Switch Transformer (Fedus et al. 2022, Sec. 2.1): a token has its most probable expert, and
      the gate is the probability.
    - top_k 2, GShard (Lepikhin et al. 2021, Alg. 1): it has two, and the gates are their probabilities
      divided by the sum of both. The second one is always used, where the paper draws it by chance.

    In training, an expert takes the first C = ⌈capacity_factor · top_k · tokens / experts⌉ choices: those
    of first experts before those of second ones, and in the order of the batch. Other choices are dropped,
    and add 0. The tokens are those of one forward pass, so C and what is dropped depend on how strategies
    divide batches. In evaluation nothing is dropped, so that an output depends on its own sample alone.

    Attributes:
        experts: takes tokens ordered by their experts, and the load of each.
        load: choices that each expert took in the last forward pass.
        dropped: choices that were dropped in it.
        counts: choices, and dropped ones, in all forward passes in training whose loss counts: int64, (2,).
    """

    experts: nn.Module
    counts: Tensor

    def __init__(
        self, experts: Experts, router: Router, top_k: int = 1, capacity_factor: float | None = None
    ) -> None:
        """capacity_factor: None: experts take all."""
        super().__init__()
        self.router, self.experts = router, experts
        self._number, self._top_k, self._capacity_factor = len(experts), top_k, capacity_factor
        self.load, self.dropped = [0] * len(experts), 0
        # A buffer: checkpoints contain it, and of virtual nodes that share a module each has its own.
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, tokens, width)."""
        if x.is_meta:  # only shapes are asked for, and there are no values to choose by
            return x
        tokens = x.flatten(0, -2)
        gates, chosen = self.router(tokens).topk(self._top_k)  # each (tokens, top_k)
        if self._top_k > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        kept = self._kept(chosen.T.flatten())
        source = kept % len(tokens)
        outputs: Tensor = self.experts(tokens.index_select(0, source), self.load)
        outputs = outputs * gates.T.flatten()[kept, None]
        return outputs.new_zeros(tokens.shape).index_add(0, source, outputs).view_as(x)

    def _kept(self, experts: Tensor) -> Tensor:
        """Numbers of the choices that are kept, ordered by their experts.

        experts: of each choice, (top_k · tokens,), the first choice of all tokens first.
        """
        by_expert = experts.argsort(stable=True).split(experts.bincount(minlength=self._number).tolist())
        kept = [choices[: self._capacity(len(experts))] for choices in by_expert]
        self.load = [len(choices) for choices in kept]
        self.dropped = len(experts) - sum(self.load)
        if self.training and self.router.weight:
            # A new tensor: ranks that share a model in memory, as in Hogwild, count their own.
            self.counts.data = self.counts + self.counts.new_tensor([len(experts), self.dropped])
        return torch.cat(kept)

    def _capacity(self, choices: int) -> int:
        """C: how many of the choices an expert takes."""
        if self._capacity_factor is None or not self.training:
            return choices
        return ceil(self._capacity_factor * choices / self._number)
