"""Context parallelism: each rank has a part of the tokens of every sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Recompute, Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.models.base import Model
    from trainer.training.session import Session

    Block = tuple[Tensor, Tensor]  # keys and values of one rank's tokens


class ContextParallel(Strategy):
    """Divide the tokens of each sample over the ranks, so that long samples fit (Liu et al. 2023).

    Rank i of P has the whole model, and tokens i·T/P to (i + 1)·T/P of every sample. Only attention
    combines tokens of different ranks. There are two ways:

    - ring (Liu et al. 2023): keys and values travel around the ring of ranks, and each rank attends with
      its queries to those that it has at the moment. It never holds those of all tokens.
    - ulysses (Jacobs et al. 2023): an all-to-all gives each rank all tokens of H/P of the H heads. After
      attention, another one gives it all heads of its tokens.

    At the end of a step the gradients are summed over ranks. The mathematics is that of `serial`, dropout
    included. Contiguous parts are simple, but with causal attention and `ring` the last rank computes most,
    and the others wait for it.

    Traffic of attention per rank, layer and step, with B samples and width W: with the ring, P − 1 times
    8·B·W·T/P bytes forward and P times 16·B·W·T/P backward; with ulysses, 8 all-to-alls of 4·B·W·T/P bytes,
    of which a rank sends (P − 1)/P.

    Sources: Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers"; Jacobs et al. 2023,
    "DeepSpeed Ulysses"; the online softmax is that of Milakov & Gimelshein 2018, and the backward pass that
    of Dao et al. 2022, "FlashAttention", appendix B.2.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    autocasts: ClassVar[bool] = False
    equals: ClassVar[Equal | None] = "serial"
    partitions_model: ClassVar[bool] = True
    needs_thread: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({"attention": "ring"}, {"attention": "ulysses"})

    attention: Literal["ring", "ulysses"] = Field("ring", description="how tokens of other ranks are seen")

    @property
    def splits_samples(self) -> bool:
        return True

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if ranks == 1:
            return None
        if not model.takes_tokens:
            return "it divides tokens, and the model takes other inputs"
        heads = getattr(model, "heads", None)
        if heads is None:
            return "it divides the attention of Shardyard's transformers, which the model does not have"
        if self.attention == "ulysses" and heads % ranks:
            return (
                f"ulysses gives each rank the same number of heads, and {heads} is no multiple of {ranks}"
            )
        return None

    def recompute_error(self, recompute: Recompute) -> str | None:
        return "its attention exchanges activations in a forward pass; allowed: none"

    def train(self, session: Session) -> None:
        from trainer.parallel.context_replica import ContextParallelReplica

        attend = ring_attention if self.attention == "ring" else ulysses_attention
        if session.size == 1:
            replica = session.replica()
        else:
            replica = ContextParallelReplica(session.task, session.clock, session.comm, attend)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()


def ulysses_attention(query: Tensor, key: Tensor, value: Tensor, comm: Communicator) -> Tensor:
    """Causal attention of this rank's tokens to all tokens, by heads.

    Args:
        query: shape (batch, heads, tokens of this rank, head width), as are key, value and the result.
    """
    from torch.nn.functional import scaled_dot_product_attention

    from trainer.parallel.context_replica import heads_to_tokens, tokens_to_heads

    query, key, value = (heads_to_tokens(each, comm) for each in (query, key, value))
    mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
    return tokens_to_heads(mixed, comm)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, comm: Communicator) -> Tensor:
    """As `ulysses_attention`, with keys and values that travel around the ring."""
    from trainer.parallel.context_replica import RingAttention

    passes = ring_forward, ring_backward
    mixed: Tensor = RingAttention.apply(query, key, value, comm, *passes)  # type: ignore[no-untyped-call]
    return mixed


def ring_forward(query: Tensor, key: Tensor, value: Tensor, comm: Communicator) -> tuple[Tensor, Tensor]:
    """The result of attention, and the logarithm of the sum of exponentials of each query's scores."""
    import torch

    mixed, total = torch.zeros_like(query), query.new_full(query.shape[:-1], float("-inf"))
    block = torch.stack([key, value])
    for hop in range(comm.size):
        source = (comm.rank - hop) % comm.size  # whose keys and values these are
        if source <= comm.rank:  # later tokens are not seen
            scores = _scores(query, block[0], own=source == comm.rank)
            of_block = scores.logsumexp(dim=-1)
            both = torch.logaddexp(total, of_block)
            mixed = mixed * (total - both).exp()[..., None] + (scores - both[..., None]).exp() @ block[1]
            total = both
        if hop < comm.size - 1:
            block = comm.shift(block.flatten(), 1).view_as(block)
    return mixed, total


def ring_backward(
    gradient: Tensor, query: Tensor, block: Tensor, mixed: Tensor, total: Tensor, comm: Communicator
) -> tuple[Tensor, Tensor]:
    """The gradients of this rank's queries, and of its keys and values.

    The gradients of keys and values travel with them, and are complete when they are back.

    Args:
        gradient: of `mixed`. block: keys and values, stacked. mixed, total: what `ring_forward` returned.
    """
    import torch

    inner = (gradient * mixed).sum(dim=-1, keepdim=True)
    of_query, travelling = torch.zeros_like(query), torch.cat([block, torch.zeros_like(block)])
    scale = query.shape[-1] ** -0.5
    for hop in range(comm.size):
        source = (comm.rank - hop) % comm.size
        key, value, of_key, of_value = travelling
        if source <= comm.rank:
            shares = (_scores(query, key, own=source == comm.rank) - total[..., None]).exp()
            of_scores = shares * (gradient @ value.mT - inner) * scale
            of_query += of_scores @ key
            of_key += of_scores.mT @ query
            of_value += shares.mT @ gradient
        travelling = comm.shift(travelling.flatten(), 1).view_as(travelling)
    return of_query, travelling[2:]


def _scores(query: Tensor, key: Tensor, *, own: bool) -> Tensor:
    """Scaled products of queries and keys; own: these are of the same tokens, so later ones are masked."""
    import torch

    scores: Tensor = query @ key.mT * query.shape[-1] ** -0.5
    if own:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores
