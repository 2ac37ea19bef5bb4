"""Transformers: their layers against the formulas of the papers, and against torch's own modules."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from trainer.models.gpt import Gpt
from trainer.models.layers.transformer import Attention, Mlp, build_norm, rotate
from trainer.models.transformer import Transformer
from trainer.models.vit_small import VitSmall
from trainer.spec.run_spec import RunSpec

TOKENS, WINDOW = 11, 7
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rope", "norm": "rms", "activation": "swiglu"},
    {"tied": True},
]


def built(model: Transformer, shape: tuple[int, ...] = (WINDOW,), classes: int = TOKENS) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(model.blocks(shape, classes, torch.Generator().manual_seed(5))))


def some_tokens(batch: int = 3) -> Tensor:
    return torch.randint(TOKENS, (batch, WINDOW), generator=torch.Generator().manual_seed(1))


def normal(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_gpt_returns_the_log_probabilities_of_each_next_token(fields: dict[str, Any]) -> None:
    output = built(Gpt(**fields))(some_tokens())
    assert output.shape == (3, TOKENS, WINDOW)
    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(3, WINDOW))


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_token_changes_no_output_before_it(fields: dict[str, Any]) -> None:
    whole, tokens = built(Gpt(**fields)).eval(), some_tokens()
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % TOKENS
    before, after = whole(tokens), whole(changed)
    torch.testing.assert_close(before[..., :4], after[..., :4])
    assert not torch.allclose(before[..., 4:], after[..., 4:])


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_torch(causal: bool) -> None:
    own, theirs = (
        Attention(8, 2, causal=causal, rotary=False),
        nn.MultiheadAttention(8, 2, batch_first=True),
    )
    with torch.no_grad():
        # Theirs has all queries first, then all keys, then all values.
        theirs.in_proj_weight.copy_(own.qkv.weight.view(2, 3, 4, 8).transpose(0, 1).reshape(24, 8))
        theirs.in_proj_bias.copy_(own.qkv.bias.view(2, 3, 4).transpose(0, 1).reshape(24))
        theirs.out_proj.weight.copy_(own.out.weight)
        theirs.out_proj.bias.copy_(own.out.bias)
    x = normal(3, WINDOW, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(WINDOW) if causal else None
    expected, _ = theirs(x, x, x, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(own(x), expected)


def test_rotated_queries_and_keys_depend_on_their_distance_alone() -> None:
    query, key = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=3)

    def score(of_query: int, of_key: int) -> Tensor:
        return (rotate(query, of_query) * rotate(key, of_key)).sum()

    torch.testing.assert_close(score(5, 2), score(103, 100))
    assert not torch.allclose(score(5, 2), score(5, 3))
    torch.testing.assert_close(rotate(query, 17).norm(), query.norm())
    torch.testing.assert_close(rotate(query), query)


def test_rotation_is_by_the_angles_of_the_paper() -> None:
    """Dimension i of the first half and of the second one turn by m·10000^(−2i/d)."""
    x = torch.zeros(1, 1, 1, 8)
    x[..., 1] = 1.0
    angle = torch.tensor(3 * 10_000 ** (-2 / 8))
    expected = torch.zeros(8)
    expected[1], expected[5] = angle.cos(), angle.sin()
    torch.testing.assert_close(rotate(x, 3).flatten(), expected)


def test_an_mlp_has_gelu_or_a_gate() -> None:
    x = normal(3, WINDOW, 8)
    plain = Mlp(8, 12, "gelu")
    torch.testing.assert_close(plain(x), plain.down(gelu(plain.up(x))))
    gated = Mlp(8, 12, "swiglu")
    gate, value = gated.up(x)[..., ::2], gated.up(x)[..., 1::2]
    torch.testing.assert_close(gated(x), gated.down(silu(gate) * value))


def test_norms_are_those_of_the_papers() -> None:
    x = normal(3, 8)
    layer, rms = build_norm("layer", 8), build_norm("rms", 8)
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(layer(x), centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt())
    torch.testing.assert_close(rms(x), x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt())


def test_a_tied_head_has_the_weights_of_the_embedding() -> None:
    tied, own = (built(Gpt(tied=each)) for each in (True, False))
    number = [sum(parameter.numel() for parameter in each.parameters()) for each in (tied, own)]
    assert number[1] - number[0] == TOKENS * 64
    tied(some_tokens()).sum().backward()
    embedding: Any = tied.embedding
    assert tied.head.scores.weight is embedding.token.weight
    for strategy in ("pipeline", "fsdp"):
        run = {"strategy": strategy, "model": {"name": "gpt", "tied": True}, "dataset": "copy", "nodes": 2}
        with pytest.raises(ValidationError, match="tied"):
            RunSpec.model_validate(run)


def test_initial_weights_are_those_of_gpt_2() -> None:
    model = Gpt(layers=8, width=128)
    whole = built(model, classes=1000)
    block: Any = whole.block3
    assert block.mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert not block.attention.qkv.bias.any()
    embedding: Any = whole.embedding
    assert embedding.token.weight.std().item() == pytest.approx(0.02, rel=0.02)
    # So the first loss is that of a guess among all tokens.
    assert whole(some_tokens()).mean().item() == pytest.approx(-torch.tensor(1000.0).log().item(), rel=0.02)


def test_a_vision_transformer_sees_patches_in_their_places() -> None:
    whole = built(VitSmall(patch=2), (1, 4, 6), 3).eval()
    image = normal(1, 1, 4, 6)
    assert whole.embedding(image).shape == (1, 6, 64)
    swapped = torch.cat([image[..., 2:4], image[..., :2], image[..., 4:]], dim=-1)
    assert not torch.allclose(whole(image), whole(swapped))
    assert whole(image).shape == (1, 3)


@pytest.mark.parametrize(
    ("model", "dataset", "named"),
    [
        ({"name": "gpt", "width": 30, "heads": 4}, "copy", ("width", "30", "4")),
        ({"name": "gpt", "width": 12, "heads": 4, "positions": "rope"}, "copy", ("rope", "12", "3")),
        ("gpt", "digits", ("gpt", "windows", "1, 28, 28")),
        ({"name": "vit_small", "patch": 5}, "digits", ("5×5", "28×28")),
        ("vit_small", "copy", ("image",)),
        ("gpt", {"name": "copy", "scaling": "unit"}, ("scaling",)),
        ("gpt", {"name": "induction", "length": 9, "tokens": 8}, ("length", "9", "8")),
        ("mlp", "copy", ("mlp", "tokens", "gpt")),
    ],
    ids=str,
)
def test_bad_sizes_are_named(model: Any, dataset: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": "serial", "model": model, "dataset": dataset})
    assert all(each in str(caught.value) for each in named)


def test_more_ranks_than_heads_are_refused() -> None:
    with pytest.raises(ValidationError, match="1 to 2 ranks"):
        RunSpec.model_validate(
            {
                "strategy": "tensor_parallel",
                "nodes": 3,
                "transport": "gloo",
                "model": {"name": "gpt", "heads": 2},
                "dataset": "copy",
            }
        )
