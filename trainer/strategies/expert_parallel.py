"""Expert parallelism: each rank holds some experts, and tokens travel to those that they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Recompute, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.models.base import Model
    from trainer.models.layers.experts import Experts
    from trainer.parallel.tensor_layers import Sharding
    from trainer.training.session import Session


class ExpertParallel(Strategy):
    """Divide the experts of each layer over the ranks (Lepikhin et al. 2021).

    Each rank has its own samples, consecutive experts of each layer, and a copy of all other weights. If
    the number of experts is not a multiple of the number of ranks, the first ranks have one more. In each
    mixture of experts, an all-to-all sends every token to the ranks of its experts. The experts compute,
    and a second all-to-all returns their outputs. In the backward pass, gradients are exchanged in the same
    way in the opposite direction.

    A step minimises Σ_r share_r · loss_r, where share_r is the share of rank r in the samples of the step.
    An expert processes tokens of all ranks, weighted by the shares of their ranks. So the gradient of an
    expert is complete after the backward pass. The gradient of all other weights is summed over ranks. With
    equal shares, both gradients are the mean over ranks, as in `all_reduce`. A router processes the batch
    of its rank, as in `all_reduce`, so experts have the same capacity.

    Traffic per rank, layer and step, with P ranks, E experts and width W: 4·E·(P − 1) bytes for the number
    of tokens of each expert, and four all-to-alls of 4·W·L bytes to each of P − 1 ranks. L is the largest
    number of tokens that any rank sends to another rank or keeps. Shorter messages are padded, so unevenly
    used experts increase the traffic.

    Source: Lepikhin et al. 2021, "GShard", Sec. 3; Fedus et al. 2022, "Switch Transformers", Sec. 5.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    autocasts: ClassVar[bool] = False
    equals: ClassVar[Equal | None] = "all_reduce"
    partitions_model: ClassVar[bool] = True
    needs_thread: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"

    def replicas(self, ranks: int) -> int:
        return ranks

    def replica_of(self, rank: int, ranks: int) -> int:
        return rank

    def reports_samples(self, rank: int, ranks: int) -> bool:
        return True

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if ranks == 1:
            return None
        experts: int = getattr(model, "experts", 0)
        if not experts:
            return "it divides experts, and the model has none; allowed: gpt with experts"
        if experts < ranks:
            return f"each rank has an expert or more; allowed: 1 to {experts} ranks"
        return None

    def recompute_error(self, recompute: Recompute) -> str | None:
        if recompute == "selective":  # no exchange is in the part that runs again
            return None
        return "tokens are exchanged in a forward pass; allowed: none, selective"

    def train(self, session: Session) -> None:
        from trainer.parallel.expert_replica import ExpertParallelReplica

        replica = ExpertParallelReplica(session.task, session.clock, session.comm, through_ranks)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, batch.share)
                gradient = replica.gradient_of_copies()
                session.comm.all_reduce(gradient, "sum")
                replica.set_gradient_of_copies(gradient)
                replica.step()


def through_ranks(
    tokens: Tensor, load: Sequence[int], own: Experts, sharding: Sharding, comm: Communicator
) -> Tensor:
    """The outputs of all ranks' experts for this rank's tokens, shape (tokens, width), in the same order.

    Args:
        tokens: this rank's tokens, ordered by expert, and so by the rank of the expert.
        load: number of these tokens for each expert, over the experts of all ranks.
        own: the experts of this rank.
        sharding: how experts are divided over the ranks.
    """
    import torch

    from trainer.parallel.expert_replica import send_rows, transposed

    loads = comm.all_gather(tokens.new_tensor(load)).long()  # (ranks, experts)
    by_rank = loads.split(sharding.sizes, dim=1)  # of each rank's experts
    messages = torch.stack([each.sum(dim=1) for each in by_rank], dim=1)  # tokens, (from rank, to rank)
    longest = int(messages.max())
    sent, received = messages[comm.rank].tolist(), messages[:, comm.rank].tolist()
    of_own = by_rank[comm.rank]  # (ranks, own experts)

    arrived = send_rows(tokens, sent, received, longest, comm)
    outputs = own(transposed(arrived, of_own), of_own.sum(dim=0).tolist())
    return send_rows(transposed(outputs, of_own.T), received, sent, longest, comm)
