"""Mistakes in the mathematics of `gpt`: its loss curve against a second GPT, written from the papers.

The second one shares neither layers nor torch's functions of them with ours: it has explicit softmax,
normalisation, rotation and activations, and shifts the windows of text itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training import threads_in_torch, train
from trainer.training.loader import Batch
from trainer.training.replica import Replica

WIDTH, HEADS, LAYERS, LR = 24, 3, 2, 0.01
GPT2 = {"tied": True}
LLAMA = {"positions": "rope", "norm": "rms", "activation": "swiglu"}
RUN: dict[str, Any] = {
    "dataset": {"name": "copy", "length": 4, "tokens": 5, "samples": 256, "test_samples": 32},
    "batch_size": 16,
    "epochs": 2,
    "optimizer": {"name": "adamw", "beta2": 0.95, "weight_decay": 0.1},
    "lr": LR,
}
STEPS = 32
Weights = dict[str, Tensor]
Curve = list[Tensor]


def normalised(x: Tensor, w: Weights, name: str) -> Tensor:
    """LayerNorm where there is a bias, and RMSNorm where there is none."""
    if f"{name}.bias" not in w:
        return x / ((x * x).mean(-1, keepdim=True) + 1e-5) ** 0.5 * w[f"{name}.weight"]
    x = x - x.mean(-1, keepdim=True)
    return x / ((x * x).mean(-1, keepdim=True) + 1e-5) ** 0.5 * w[f"{name}.weight"] + w[f"{name}.bias"]


def affine(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def rotated(x: Tensor) -> Tensor:
    """Numbers i and i + d/2 of a head are the complex number i, which turns with the position."""
    pairs = torch.complex(*x.chunk(2, dim=-1))
    tokens, half = pairs.shape[-2:]
    angles = torch.outer(torch.arange(tokens), 10_000.0 ** (-2 * torch.arange(half) / (2 * half)))
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention(x: Tensor, w: Weights, name: str, rotary: bool) -> Tensor:
    """Head by head: softmax(QKᵀ/√d) V, where a token sees no later one."""
    outputs, d, tokens = [], WIDTH // HEADS, x.shape[1]
    later = torch.ones(tokens, tokens).triu(1).bool()
    for head in affine(x, w, f"{name}.qkv").split(3 * d, dim=-1):
        q, k, v = head.split(d, dim=-1)
        if rotary:
            q, k = rotated(q), rotated(k)
        scores = (q @ k.transpose(1, 2) / d**0.5).masked_fill(later, -torch.inf)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        outputs.append(shares / shares.sum(-1, keepdim=True) @ v)
    return affine(torch.cat(outputs, dim=-1), w, f"{name}.out")


def mlp(x: Tensor, w: Weights, name: str, gated: bool) -> Tensor:
    units = affine(x, w, f"{name}.up")
    if gated:
        gate = units[..., 0::2]
        units = gate / (1 + (-gate).exp()) * units[..., 1::2]
    else:
        units = units * (1 + torch.erf(units / 2**0.5)) / 2
    return affine(units, w, f"{name}.down")


def reference_loss(windows: Tensor, w: Weights) -> Tensor:
    """The mean of −ln p over the last tokens of the windows (batch, tokens + 1), each but the first."""
    learned = "embedding.position.weight" in w
    x = w["embedding.token.weight"][windows[:, :-1]]
    if learned:
        x = x + w["embedding.position.weight"]
    for block in (f"block{number}" for number in range(1, LAYERS + 1)):
        x = x + attention(normalised(x, w, f"{block}.norm1"), w, f"{block}.attention", rotary=not learned)
        x = x + mlp(normalised(x, w, f"{block}.norm2"), w, f"{block}.mlp", gated=not learned)
    head = w.get("head.scores.weight", w["embedding.token.weight"])  # tied if it has none
    scores = normalised(x, w, "head.norm") @ head.T
    right = scores.gather(-1, windows[:, 1:, None]).squeeze(-1)
    return (scores.exp().sum(-1).log() - right).mean()


def both_curves(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Curve, Curve]:
    """The losses of a run of `serial`, then those of the second GPT from its first weights and windows."""
    first: list[Weights] = []
    batches: list[Tensor] = []
    losses: Curve = []
    backward = Replica.backward

    def recorded(self: Replica, batch: Batch, weight: float = 1.0) -> None:
        if not first:
            weights = self.model.named_parameters()  # a tied one once
            first.append({name: each.detach().clone() for name, each in weights})
        batches.append(torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1))
        backward(self, batch, weight)
        assert self.loss is not None
        losses.append(self.loss)

    monkeypatch.setattr(Replica, "backward", recorded)
    train("serial", 1, model=model, **RUN)
    weights = {name: each.requires_grad_() for name, each in first[0].items()}
    optimizer = torch.optim.AdamW([*weights.values()], lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    expected = []
    with threads_in_torch(1):
        for windows in batches:
            optimizer.zero_grad()
            loss = reference_loss(windows, weights)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            expected.append(loss.detach())
    return losses, expected


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("fields", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_the_losses_are_those_of_a_second_gpt(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "gpt", "layers": LAYERS, "width": WIDTH, "heads": HEADS, **fields}
    losses, expected = both_curves(model, monkeypatch)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]  # so the weights differ from the first ones
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=1e-10)
