"""What transformers have in common: the parameters of their blocks, and how these are split."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from trainer.models.base import Model, ParallelPair

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trainer.models.base import Blocks
    from trainer.models.layers.dropout import Dropout


class Transformer(Model):
    """A transformer: an embedding, blocks of attention and MLP, and a head."""

    has_attention: ClassVar[bool] = True
    causal: ClassVar[bool]

    layers: int = Field(2, ge=1, le=96, description="blocks")
    width: int = Field(64, ge=2, le=8192, description="numbers for each token")
    heads: int = Field(4, ge=1, le=128, description="heads of the attention, which divide the width")
    mlp_ratio: int = Field(4, ge=1, le=16, description="hidden units of an MLP for each number of a token")
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    activation: Literal["gelu", "swiglu"] = Field("gelu", description="of the MLP")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability of dropping a number after the embedding and each branch"
    )

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        if self.width % self.heads:
            return f"heads must divide the width, and {self.width} is no multiple of {self.heads}"
        if self.rotary and self.width // self.heads % 2:
            return (
                f"positions rope needs an even number for each head: width {self.width} over "
                f"{self.heads} heads is {self.width // self.heads}"
            )
        return None

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by their positions."""
        return False

    @property
    def names(self) -> list[str]:
        return ["embedding", *(f"block{number}" for number in range(1, self.layers + 1)), "head"]

    def shallow(self) -> Self:
        return self.model_copy(update={"layers": min(2, self.layers)})

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        """By heads, and by hidden units (Shoeybi et al. 2019, section 3)."""
        return [
            pair
            for number in range(1, self.layers + 1)
            for pair in (
                ParallelPair(f"block{number}.attention.qkv", f"block{number}.attention.out", self.heads),
                ParallelPair(f"block{number}.mlp.up", f"block{number}.mlp.down", self.hidden),
            )
        ]

    @property
    def hidden(self) -> int:
        """Hidden units of an MLP."""
        return self.mlp_ratio * self.width

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from trainer.models.layers.dropout import Dropout

        drop = Dropout(self.dropout, generator)
        embedding = self.embedding(shape, classes, drop)
        yield "embedding", embedding
        yield from self._hidden_blocks(drop)
        yield "head", self.head(classes, embedding)

    def _hidden_blocks(self, drop: Dropout) -> Iterator[tuple[str, nn.Module]]:
        from trainer.models.layers.transformer import Attention, TransformerBlock, build_norm

        for number in range(1, self.layers + 1):
            norms = build_norm(self.norm, self.width), build_norm(self.norm, self.width)
            attention = Attention(self.width, self.heads, causal=self.causal, rotary=self.rotary)
            block = TransformerBlock(attention, self.mlp(), norms, drop)
            block.initialise(self.layers)
            yield f"block{number}", block

    def mlp(self) -> nn.Module:
        """What follows the attention in a block: (batch, tokens, width) to the same shape."""
        from trainer.models.layers.transformer import Mlp

        return Mlp(self.width, self.hidden, self.activation)

    @abstractmethod
    def embedding(self, shape: tuple[int, ...], classes: int, drop: Dropout) -> nn.Module:
        """The first block: inputs to (batch, tokens, width)."""

    @abstractmethod
    def head(self, classes: int, embedding: nn.Module) -> nn.Module:
        """The last block: (batch, tokens, width) to log-probabilities."""
