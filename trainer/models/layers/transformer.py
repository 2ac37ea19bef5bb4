"""Layers of transformers: attention, the two kinds of MLP, positions, and the block that they make.

Weights are laid out so that a shard of the heads, or of the hidden units, is a slice of consecutive rows.
Layers derive the number of their heads and units from their weights, so that they also compute a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, log_softmax, scaled_dot_product_attention, silu

from trainer.models.layers.dropout import Dropout

NormKind = Literal["layer", "rms"]
Activation = Literal["gelu", "swiglu"]
EPSILON = 1e-5
INITIAL_DEVIATION = 0.02  # of weights (Radford et al. 2019, in OpenAI's code)
ROPE_BASE = 10_000.0


class Attention(nn.Module):
    """Self-attention with several heads (Vaswani et al. 2017, section 3.2).

    The rows of `qkv` are ordered by head, and within a head query, key, value.

    Attributes:
        first: the position of the first token.
        mix: combines the values of all tokens, by queries and keys; each is of shape (batch, heads, tokens,
            head width).
    """

    mix: Callable[[Tensor, Tensor, Tensor], Tensor]

    def __init__(self, width: int, heads: int, *, causal: bool, rotary: bool) -> None:
        super().__init__()
        self.head_width = width // heads
        self.rotary, self.first = rotary, 0
        self.mix = partial(scaled_dot_product_attention, is_causal=causal)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, tokens, width)."""
        y: Tensor = self.out(self.core(self.qkv(x)))
        return y

    def core(self, qkv: Tensor) -> Tensor:
        """What lies between the two linear layers: (batch, tokens, …) to (batch, tokens, …)."""
        batch, tokens, _ = qkv.shape  # with sequence parallelism, there are more than in the input
        by_head = qkv.view(batch, tokens, -1, 3, self.head_width).permute(3, 0, 2, 1, 4)
        query, key, value = by_head  # each (batch, heads, tokens, head width)
        if self.rotary:
            query, key = rotate(query, self.first), rotate(key, self.first)
        return self.mix(query, key, value).transpose(1, 2).reshape(batch, tokens, -1)


def rotate(x: Tensor, first: int = 0) -> Tensor:
    """Rotary position embedding (Su et al. 2021, "RoFormer", section 3.2.2), by halves as in GPT-NeoX.

    Args:
        x: queries or keys, shape (batch, heads, tokens, head width); the width is even.
        first: the position of the first token.
    """
    half = x.shape[-1] // 2
    frequencies = ROPE_BASE ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(first, first + x.shape[-2], device=x.device)[:, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)


class Mlp(nn.Module):
    """Two linear layers with GELU between them, or SwiGLU (Shazeer 2020, "GLU Variants").

    The rows of `up` are ordered by hidden unit; with SwiGLU a unit has two: its gate and its value.
    """

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.up = nn.Linear(width, hidden * (1 + self.gated))
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, tokens, width)."""
        units = self.up(x)
        if self.gated:
            gate, value = units.unflatten(-1, (-1, 2)).unbind(-1)
            y: Tensor = self.down(silu(gate) * value)
        else:
            y = self.down(gelu(units))
        return y


def build_norm(kind: NormKind, width: int) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019)."""
    return nn.LayerNorm(width, EPSILON) if kind == "layer" else nn.RMSNorm(width, EPSILON)


class TransformerBlock(nn.Module):
    """Attention, then an MLP, each after a norm and added to its input (Radford et al. 2019)."""

    def __init__(
        self, attention: Attention, mlp: nn.Module, norms: tuple[nn.Module, nn.Module], drop: Dropout
    ) -> None:
        """mlp: an Mlp, or what contains some."""
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attention, self.mlp, self.drop = attention, mlp, drop

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, tokens, width)."""
        x = x + self.drop(self.attention(self.norm1(x)))
        y: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return y

    def initialise(self, blocks: int) -> None:
        """Draw initial weights as GPT-2 does: residual branches of N blocks are scaled by 1/√(2N)."""
        residual = INITIAL_DEVIATION / (2 * blocks) ** 0.5
        last = {self.attention.out, *(each.down for each in self.mlp.modules() if isinstance(each, Mlp))}
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=residual if layer in last else INITIAL_DEVIATION)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


class TokenEmbedding(nn.Module):
    """A vector for each token, and one for each position where these are learned.

    Attributes:
        first: the position of the first token.
    """

    def __init__(self, tokens: int, window: int, width: int, drop: Dropout, *, positions: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        nn.init.normal_(self.token.weight, std=INITIAL_DEVIATION)
        self.position = nn.Embedding(window, width) if positions else None
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=INITIAL_DEVIATION)
        self.drop, self.first = drop, 0

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64, shape (batch, tokens). Returns (batch, tokens, width)."""
        x: Tensor = self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight[self.first : self.first + tokens.shape[1]]
        y: Tensor = self.drop(x)
        return y


class TokenHead(nn.Module):
    """The last norm, and the log-probabilities of the next token: shape (batch, tokens kinds, tokens).

    tied: the weight of the embedding, which is then also that of the head (Press & Wolf 2017).
    """

    def __init__(self, norm: nn.Module, width: int, tokens: int, tied: Tensor | None) -> None:
        super().__init__()
        self.norm = norm
        self.scores = nn.Linear(width, tokens, bias=False)
        if tied is None:
            nn.init.normal_(self.scores.weight, std=INITIAL_DEVIATION)
        else:
            self.scores.weight = cast("nn.Parameter", tied)

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, tokens, width)."""
        return log_softmax(self.scores(self.norm(x)), dim=-1).movedim(-1, 1)


class PatchEmbedding(nn.Module):
    """A vector for each patch of an image, with learned positions (Dosovitskiy et al. 2021, sec. 3.1)."""

    def __init__(self, shape: tuple[int, ...], patch: int, width: int, drop: Dropout) -> None:
        super().__init__()
        channels, height, across = shape
        self.patch = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        number = (height // patch) * (across // patch)
        self.position = nn.Parameter(torch.empty(number, width).normal_(std=INITIAL_DEVIATION))
        self.drop = drop

    def forward(self, images: Tensor) -> Tensor:
        """images: shape (batch, channels, height, width). Returns (batch, patches, width)."""
        y: Tensor = self.drop(self.patch(images).flatten(2).transpose(1, 2) + self.position)
        return y


class PooledHead(nn.Module):
    """The last norm, the mean over patches, and the log-probabilities of the classes: (batch, classes)."""

    def __init__(self, norm: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.scores = norm, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: shape (batch, patches, width)."""
        return log_softmax(self.scores(self.norm(x).mean(dim=1)), dim=-1)
