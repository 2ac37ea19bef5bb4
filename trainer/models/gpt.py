"""A small GPT."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from trainer.models.transformer import Transformer

if TYPE_CHECKING:
    from torch import nn

    from trainer.models.base import ParallelPair
    from trainer.models.layers.dropout import Dropout
    from trainer.models.layers.transformer import Mlp, TokenEmbedding


class Gpt(Transformer):
    """GPT, which predicts each next token of a text (Radford et al. 2019, "GPT-2").

    An embedding, N blocks of causal attention and an MLP with a norm before each, and a head. With rotary
    positions, RMSNorm and SwiGLU the blocks are those of LLaMA (Touvron et al. 2023), with biases. The
    default has about 117,000 weights with 97 tokens; 6 layers, width 384 and 6 heads have 10.7 million.

    With `experts`, each block has a mixture of so many MLPs in place of one: Switch Transformer with top_k
    1 (Fedus et al. 2022), GShard with 2 (Lepikhin et al. 2021).
    """

    takes_tokens: ClassVar[bool] = True
    causal: ClassVar[bool] = True

    positions: Literal["learned", "rope"] = Field(
        "learned", description="a learned vector for each position, or rotary embedding of queries and keys"
    )
    tied: bool = Field(False, description="the head has the weights of the embedding")
    experts: int = Field(
        0, ge=0, le=512, description="MLPs of a block, of which a token uses top_k; 0: one MLP"
    )
    top_k: int = Field(1, ge=1, le=2, description="experts of a token")
    capacity_factor: float | None = Field(
        1.25,
        gt=0,
        le=512,
        description="tokens that an expert takes in training, as a multiple of its even share; null: all",
    )
    balance: float = Field(0.01, ge=0, le=100, description="weight of the load-balance loss of each block")

    @property
    def rotary(self) -> bool:
        return self.positions == "rope"

    @property
    def shared_weights(self) -> str | None:
        return "its head has the weights of its embedding (tied: true)" if self.tied else None

    @property
    def batch_statistics(self) -> bool:
        return self.experts > 0 and (self.capacity_factor is not None or self.balance > 0)

    @property
    def without_effect(self) -> dict[str, str]:
        found = {0: ("top_k", "capacity_factor", "balance"), 1: ("balance",)}.get(self.experts, ())
        return dict.fromkeys(found, f"experts: {self.experts}")

    @property
    def per_batch(self) -> str:
        return "experts are limited and balanced"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        """Experts are in no pair: each of their many sums over ranks would be of a few tokens."""
        return [
            pair
            for pair in super().tensor_parallel_pairs
            if not self.experts or pair.column.endswith("attention.qkv")
        ]

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        if len(shape) != 1:
            return f"inputs must be windows of tokens, as those of pydoc_text, not of shape {shape}"
        if 0 < self.experts < self.top_k:
            return f"top_k: a token uses {self.top_k} experts, and there is {self.experts}"
        return super().validation_error(shape)

    def mlp(self) -> nn.Module:
        from trainer.models.layers.experts import Experts, MixtureOfExperts, Router

        if not self.experts:
            return super().mlp()
        experts = Experts(cast("Mlp", super(Gpt, self).mlp()) for _ in range(self.experts))
        router = Router(self.width, self.experts, self.balance)
        return MixtureOfExperts(experts, router, self.top_k, self.capacity_factor)

    def embedding(self, shape: tuple[int, ...], classes: int, drop: Dropout) -> nn.Module:
        from trainer.models.layers.transformer import TokenEmbedding

        return TokenEmbedding(classes, shape[0], self.width, drop, positions=not self.rotary)

    def head(self, classes: int, embedding: nn.Module) -> nn.Module:
        from trainer.models.layers.transformer import TokenHead, build_norm

        tied = cast("TokenEmbedding", embedding).token.weight if self.tied else None
        return TokenHead(build_norm(self.norm, self.width), self.width, classes, tied)
