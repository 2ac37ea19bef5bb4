"""Mistakes in transformers that a loss curve does not show: patches, ties, initial weights, and bad sizes.

test_gpt_reference.py compares attention, positions, norms and MLPs with a second GPT.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from trainer.models.gpt import Gpt
from trainer.models.layers.transformer import Attention, rotate
from trainer.models.transformer import Transformer
from trainer.models.vit_small import VitSmall
from trainer.spec.run_spec import RunSpec

TOKENS, WINDOW = 11, 7


def built(model: Transformer, shape: tuple[int, ...] = (WINDOW,), classes: int = TOKENS) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(model.blocks(shape, classes, torch.Generator().manual_seed(5))))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_torch(causal: bool) -> None:
    own = Attention(8, 2, causal=causal, rotary=False)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        # Theirs has all queries first, then all keys, then all values.
        theirs.in_proj_weight.copy_(own.qkv.weight.view(2, 3, 4, 8).transpose(0, 1).reshape(24, 8))
        theirs.in_proj_bias.copy_(own.qkv.bias.view(2, 3, 4).transpose(0, 1).reshape(24))
        theirs.out_proj.weight.copy_(own.out.weight)
        theirs.out_proj.bias.copy_(own.out.bias)
    x = normal(3, WINDOW, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(WINDOW) if causal else None
    torch.testing.assert_close(own(x), theirs(x, x, x, attn_mask=mask, need_weights=False)[0])


def test_rotation_is_by_the_angles_of_the_paper_from_any_first_position() -> None:
    """Dimension i of the first half and of the second one turn by m·10000^(−2i/d)."""
    x = normal(1, 1, 3, 8)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = torch.arange(5, 8)[:, None] * 10_000.0 ** (-torch.arange(4) / 4)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotate(x, 5), torch.cat([turned.real, turned.imag], dim=-1))


def test_a_tied_head_has_the_weights_of_the_embedding() -> None:
    tied, own = (built(Gpt(tied=each, layers=1)) for each in (True, False))
    number = [sum(parameter.numel() for parameter in each.parameters()) for each in (tied, own)]
    assert number[1] - number[0] == TOKENS * 64
    assert tied.head.scores.weight is tied.embedding.token.weight
    for strategy in ("pipeline", "fsdp"):
        run = {"strategy": strategy, "model": {"name": "gpt", "tied": True}, "dataset": "copy", "nodes": 2}
        with pytest.raises(ValidationError, match="tied"):
            RunSpec.model_validate(run)


def test_positions_are_learned_or_rotated() -> None:
    learned, rotary = (built(Gpt(layers=1, positions=each)) for each in ("learned", "rope"))
    assert learned.embedding.position.weight.shape == (WINDOW, 64)
    assert not learned.block1.attention.rotary
    assert rotary.embedding.position is None
    assert rotary.block1.attention.rotary


def test_initial_weights_are_those_of_gpt_2() -> None:
    whole = built(Gpt(layers=8, width=128), classes=1000)
    block = whole.block3
    for layer, deviation in (
        (whole.embedding.token, 0.02),
        (block.mlp.up, 0.02),
        (block.mlp.down, 0.02 / 4),
        (block.attention.out, 0.02 / 4),
    ):
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert not block.attention.qkv.bias.any()
    # So the first loss is that of a guess among all tokens.
    tokens = torch.arange(WINDOW)[None]
    assert whole(tokens).mean().item() == pytest.approx(-torch.tensor(1000.0).log().item(), rel=0.02)


def test_a_vision_transformer_has_a_vector_for_each_patch_in_its_place() -> None:
    whole = built(VitSmall(patch=2), (2, 4, 6), 3).eval()
    image, embedding = normal(1, 2, 4, 6), whole.embedding
    patches = [image[0, :, row : row + 2, column : column + 2] for row in (0, 2) for column in (0, 2, 4)]
    vectors = torch.stack([(embedding.patch.weight * patch).sum(dim=(1, 2, 3)) for patch in patches])
    expected = vectors + embedding.patch.bias + embedding.position
    torch.testing.assert_close(embedding(image)[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole(image).exp().sum(dim=1), torch.ones(1))


@pytest.mark.parametrize(
    ("model", "dataset", "named"),
    [
        ({"name": "gpt", "width": 30, "heads": 4}, "copy", ("width", "30", "4")),
        ({"name": "gpt", "width": 12, "heads": 4, "positions": "rope"}, "copy", ("rope", "12", "3")),
        ({"name": "gpt", "experts": 1, "top_k": 2}, "copy", ("top_k", "2 experts", "1")),
        ("gpt", "digits", ("gpt", "windows", "1, 28, 28")),
        ({"name": "vit_small", "patch": 5}, "digits", ("5×5", "28×28")),
        ({"name": "vit_small"}, {"name": "synthetic", "width": 27}, ("7×7", "28×27")),
        ("vit_small", "copy", ("image",)),
        ("gpt", {"name": "copy", "scaling": "unit"}, ("scaling",)),
        ("gpt", {"name": "induction", "length": 9, "tokens": 8}, ("length", "9", "8")),
        ("mlp", "copy", ("mlp", "tokens", "gpt")),
        ("vgg_small", {"name": "synthetic", "height": 8, "width": 7}, ("8×8", "8×7")),
    ],
    ids=str,
)
def test_bad_sizes_are_named(model: Any, dataset: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": "serial", "model": model, "dataset": dataset})
    assert [each for each in named if each not in str(caught.value)] == []


def test_the_smallest_sizes_that_fit_are_allowed() -> None:
    for model, dataset in (
        ({"name": "gpt", "experts": 2, "top_k": 2}, "copy"),
        ({"name": "gpt", "width": 12, "heads": 2, "positions": "rope"}, "copy"),
        ("vgg_small", {"name": "synthetic", "height": 8, "width": 8}),
    ):
        assert RunSpec.model_validate({"strategy": "serial", "model": model, "dataset": dataset})
    run = {"strategy": "tensor_parallel", "model": {"name": "gpt", "heads": 2}, "dataset": "copy"}
    assert RunSpec.model_validate({**run, "nodes": 2})
    with pytest.raises(ValidationError, match="1 to 2 ranks"):
        RunSpec.model_validate({**run, "nodes": 3})
