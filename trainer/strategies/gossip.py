"""Gossip: no node ever hears all others, and all come to the same weights nevertheless."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.core.strategy import Init, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.training.replica import Replica
    from trainer.training.session import Session

Graph = Literal["ring", "exponential", "complete"]


class Gossip(Strategy):
    """Average the weights with graph neighbours only, in every step (Lian et al. 2017).

    In each step a node's weights become the mean of its own and its neighbours', and it steps along the
    gradient that it took before. Nodes stand in a circle; a graph says at which distances a node's
    neighbours are, so every node sends and hears equally many, and the mixing matrix is doubly
    stochastic. ring: 1 on either side. exponential: 1, 2, 4, … (Assran et al. 2019). complete: all.
    At the end the nodes' weights are averaged, which is the paper's output.

    order: mix_then_step is the paper's; with step_then_mix, where a node mixes what the step has made of
    its weights, the complete graph is `local_sgd` with one local step. How far replicas are apart is the
    consensus distance after each epoch; what is evaluated there is their average.

    Source: Lian et al. 2017 (D-PSGD), Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")

    graph: Graph = Field("ring", description="which nodes are neighbours")
    order: Literal["mix_then_step", "step_then_mix"] = Field(
        "mix_then_step", description="whether a step starts from mixed weights, or is mixed itself"
    )
    init: Init = "broadcast"
    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        distances = neighbours(self.graph, session.size)
        replica = session.replica(weights_seed=session.rank)
        session.start(replica, self.init)
        for epoch in session.epochs(evaluate="average"):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.share:
                    replica.backward(batch)
                if self.order == "mix_then_step":
                    mix(replica, session.comm, distances)
                if batch.share:
                    replica.step()
                if self.order == "step_then_mix":
                    mix(replica, session.comm, distances)
        replica.set_weights(session.mean_weights(replica))


def neighbours(graph: Graph, size: int) -> list[int]:
    """How far behind a node in the circle those stand whom it hears, each once, 1 … size - 1."""
    if graph == "complete":
        return list(range(1, size))
    if graph == "exponential":
        return [2**power for power in range((size - 1).bit_length())]
    return sorted({1 % size, -1 % size} - {0})


def mix(replica: Replica, comm: Communicator, distances: list[int]) -> None:
    """Replace the weights by the mean of the node's own and those that it hears."""
    own = replica.weights()
    total: Tensor = own.clone()
    for distance in distances:
        total += comm.shift(own, distance)
    replica.set_weights(total / (len(distances) + 1))
