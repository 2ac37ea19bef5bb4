"""A small GPT."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from trainer.models.transformer import Transformer

if TYPE_CHECKING:
    from torch import nn

    from trainer.models.layers.dropout import Dropout
    from trainer.models.layers.transformer import TokenEmbedding


class Gpt(Transformer):
    """GPT, which predicts each next token of a text (Radford et al. 2019, "GPT-2").

    An embedding, N blocks of causal attention and an MLP with a norm before each, and a head. With rotary
    positions, RMSNorm and SwiGLU the blocks are those of LLaMA (Touvron et al. 2023), with biases. The
    default has about 100,000 weights; 6 layers, width 384 and 6 heads have 10.7 million.
    """

    takes_tokens: ClassVar[bool] = True
    causal: ClassVar[bool] = True

    positions: Literal["learned", "rope"] = Field(
        "learned", description="a learned vector for each position, or rotary embedding of queries and keys"
    )
    tied: bool = Field(False, description="the head has the weights of the embedding")

    @property
    def rotary(self) -> bool:
        return self.positions == "rope"

    @property
    def shared_weights(self) -> str | None:
        return "its head has the weights of its embedding (tied: true)" if self.tied else None

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        if len(shape) == 1:
            return super().validation_error(shape)
        return f"inputs must be windows of tokens, shape (tokens,), not of shape {shape}"

    def embedding(self, shape: tuple[int, ...], classes: int, drop: Dropout) -> nn.Module:
        from trainer.models.layers.transformer import TokenEmbedding

        return TokenEmbedding(classes, shape[0], self.width, drop, positions=not self.rotary)

    def head(self, classes: int, embedding: nn.Module) -> nn.Module:
        from trainer.models.layers.transformer import TokenHead, build_norm

        tied = cast("TokenEmbedding", embedding).token.weight if self.tied else None
        return TokenHead(build_norm(self.norm, self.width), self.width, classes, tied)
