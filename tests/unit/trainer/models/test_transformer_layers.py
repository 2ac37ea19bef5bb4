"""Mistakes in transformers: the mathematics of `gpt`, patches, ties, first weights, and bad sizes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from trainer.models.gpt import Gpt
from trainer.models.transformer import Transformer
from trainer.models.vit_small import VitSmall
from trainer.spec.run_spec import RunSpec

WIDTH, HEADS, LAYERS, WINDOW, KINDS = 24, 3, 2, 7, 11
GPT2: dict[str, Any] = {"tied": True}
LLAMA: dict[str, Any] = {"positions": "rope", "norm": "rms", "activation": "swiglu"}
Weights = dict[str, Tensor]


def built(model: Transformer, shape: tuple[int, ...] = (WINDOW,), classes: int = KINDS) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(model.blocks(shape, classes, torch.Generator().manual_seed(5))))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


# A second GPT, written from the papers. It shares neither layers nor functions of torch with ours: its
# softmax, normalisation, rotation and activations are explicit.


def normalised(x: Tensor, w: Weights, name: str) -> Tensor:
    """LayerNorm where there is a bias, and RMSNorm where there is none."""
    bias = w.get(f"{name}.bias")
    if bias is not None:
        x = x - x.mean(-1, keepdim=True)
    y = x / ((x * x).mean(-1, keepdim=True) + 1e-5) ** 0.5 * w[f"{name}.weight"]
    return y if bias is None else y + bias


def affine(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def rotated(x: Tensor) -> Tensor:
    """Numbers i and i + d/2 of a head are the complex number i, which turns with the position."""
    pairs = torch.complex(*x.chunk(2, dim=-1))
    tokens, half = pairs.shape[-2:]
    angles = torch.outer(torch.arange(tokens), 10_000.0 ** (-2 * torch.arange(half) / (2 * half)))
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention(x: Tensor, w: Weights, name: str, rotary: bool, causal: bool = True) -> Tensor:
    """Head by head: softmax(QKᵀ/√d) V, where a token sees no later one if it is causal."""
    outputs, d, tokens = [], WIDTH // HEADS, x.shape[1]
    later = torch.ones(tokens, tokens).triu(1).bool() & causal
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


def reference_loss(windows: Tensor, w: Weights, llama: bool) -> Tensor:
    """The mean of −ln p over the last tokens of the windows (batch, tokens + 1), each but the first."""
    x = w["embedding.token.weight"][windows[:, :-1]]
    if not llama:
        x = x + w["embedding.position.weight"]
    for block in (f"block{number}" for number in range(1, LAYERS + 1)):
        x = x + attention(normalised(x, w, f"{block}.norm1"), w, f"{block}.attention", rotary=llama)
        x = x + mlp(normalised(x, w, f"{block}.norm2"), w, f"{block}.mlp", gated=llama)
    head = w["head.scores.weight" if llama else "embedding.token.weight"]
    scores = normalised(x, w, "head.norm") @ head.T
    right = scores.gather(-1, windows[:, 1:, None]).squeeze(-1)
    return (scores.exp().sum(-1).log() - right).mean()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("fields", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_loss_and_gradients_are_those_of_a_second_gpt(fields: dict[str, Any]) -> None:
    drawn = torch.Generator().manual_seed(1)
    windows = torch.randint(KINDS, (5, WINDOW + 1), generator=drawn)
    model = built(Gpt(layers=LAYERS, width=WIDTH, heads=HEADS, **fields))
    weights = dict(model.named_parameters())  # a tied one once
    assert ("head.scores.weight" in weights) == (fields == LLAMA)
    with torch.no_grad():
        for weight in weights.values():  # larger than initial ones, so that nothing is nearly linear
            weight.add_(torch.randn(weight.shape, generator=drawn), alpha=0.3)
    loss = nll_loss(model(windows[:, :-1]), windows[:, 1:])
    losses = loss, reference_loss(windows, weights, fields == LLAMA)
    found, expected = ([each, *torch.autograd.grad(each, [*weights.values()])] for each in losses)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# Other layers, and sizes


def test_initial_weights_are_those_of_gpt_2() -> None:
    whole = built(Gpt(layers=8, width=128), classes=1000)
    block = whole.block3
    usual, last = (whole.embedding.token, block.mlp.up), (block.mlp.down, block.attention.out)
    deviations = [layer.weight.std().item() for layer in (*usual, *last)]
    assert deviations == pytest.approx([0.02] * 2 + [0.02 / 4] * 2, rel=0.02)
    assert not block.attention.qkv.bias.any()
    # So the first loss is that of a guess among all tokens.
    tokens = torch.arange(WINDOW)[None]
    assert whole(tokens).mean().item() == pytest.approx(-torch.tensor(1000.0).log().item(), rel=0.02)


def test_a_vision_transformer_has_a_vector_for_each_patch_which_sees_all_others() -> None:
    whole, image = built(VitSmall(patch=2, width=WIDTH, heads=HEADS), (2, 4, 6), 3), normal(1, 2, 4, 6)
    embedding = whole.embedding
    patches = [image[0, :, row : row + 2, column : column + 2] for row in (0, 2) for column in (0, 2, 4)]
    vectors = torch.stack([(embedding.patch.weight * patch).sum(dim=(1, 2, 3)) for patch in patches])
    expected = vectors + embedding.patch.bias + embedding.position
    found = embedding(image)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
    weights = dict(whole.named_parameters())
    of_all = attention(found, weights, "block1.attention", rotary=False, causal=False)
    torch.testing.assert_close(whole.block1.attention(found), of_all, rtol=1e-4, atol=1e-5)


def test_bad_sizes_are_named() -> None:
    def spec(model: Any, dataset: Any, **fields: Any) -> RunSpec:
        return RunSpec.model_validate({"strategy": "serial", "model": model, "dataset": dataset, **fields})

    for fields in ({"experts": 2, "top_k": 2}, {"width": 12, "heads": 2, "positions": "rope"}):
        assert spec({"name": "gpt", **fields}, "copy")  # the smallest that fit
    for model, dataset, named in (
        ({"name": "gpt", "width": 30, "heads": 4}, "copy", "width, and 30 .* 4"),
        ({"name": "gpt", "width": 12, "heads": 4, "positions": "rope"}, "copy", "rope .*12 .* is 3"),
        ({"name": "gpt", "experts": 1, "top_k": 2}, "copy", "top_k: .*2 experts, .* is 1"),
        ("gpt", "digits", r"gpt .*windows .*\(1, 28, 28\)"),
        ({"name": "vit_small", "patch": 5}, "digits", "5×5.*28×28"),
        ("vit_small", "copy", "image"),
        ("gpt", {"name": "induction", "length": 9, "tokens": 8}, "length 9 .*8"),
        ("mlp", "copy", "mlp .*tokens.*gpt"),
    ):
        with pytest.raises(ValidationError, match=named):
            spec(model, dataset)
    with pytest.raises(ValidationError, match="tied"):
        spec({"name": "gpt", "tied": True}, "copy", strategy="fsdp", nodes=2)
