"""Gossip: nodes average with their neighbours only, and converge to common weights."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainer.core.participation import Participants, Round, Rounds
from trainer.core.strategy import ALL_TRANSPORTS, Init, Interval, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.training.loader import Batch
    from trainer.training.replica import Replica
    from trainer.training.session import Session

Graph = Literal["ring", "exponential", "complete"]


class Gossip(Strategy):
    """Average the weights with graph neighbours only, in every step (Lian et al. 2017).

    In Alg. 1 (D-PSGD) node i computes its gradient g_i at its own weights x_i, then

        x_i ← Σ_j W_ij x_j − lr · p_i g_i    with W_ij = 1/(d + 1) for itself and its d neighbours

    Nodes form a ring, and a graph is a set of distances on it, so W is doubly stochastic. ring: 1 in both
    directions. exponential: 1, 2, 4, … (Assran et al. 2019). complete: all. The final weights are the mean
    over all nodes, which is the paper's output.

    weighting: with equal, p_i = 1, as in Alg. 1, where every node has samples in every step. With size,
    p_i = P n_i / n for n_i of the n samples of the step. W keeps the mean over nodes, so in each step that
    mean moves by −lr · Σ (n_i / n) g_i, as in `all_reduce`. This is Alg. 1 for the losses P (n_i / n) f_i,
    whose mean over nodes is the loss over all samples. With p_i = 1 a node without samples left shortens
    that step. p_i scales the learning rate, so it applies to every optimizer. If only one node has samples
    left, its p_i is P, and its steps can be too long.

    participation: a round is a step. An absent node keeps its weights. In place of the weights of an absent
    neighbour, a node takes its own, so W stays doubly stochastic on the ring and the complete graph. P and
    n in p_i are then those of the nodes that take part.

    order: mix_then_step is the paper's. step_then_mix averages the weights after the step; with the
    complete graph it is `local_sgd` with H = 1. After each epoch the average of the replicas is evaluated,
    and the consensus distance reports how far the replicas are apart.

    Source: Lian et al. 2017 (D-PSGD), Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    graph: Graph = Field("ring", description="which nodes are neighbours")
    order: Literal["mix_then_step", "step_then_mix"] = Field(
        "mix_then_step", description="whether a step starts from mixed weights, or is mixed itself"
    )
    init: Init = "broadcast"
    participation: Participants = None
    weighting: Weighting = "size"
    uneven: Uneven = "join"

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, steps=1)

    @property
    def updates_use_global_batch(self) -> bool:
        return self.graph == "complete" and self.order == "step_then_mix"

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        if self.participation and self.graph == "exponential":
            return (
                "graph is exponential, and with participation its W does not keep the mean; allowed: ring, "
                "complete"
            )
        return None

    def train(self, session: Session) -> None:
        replica = session.replica(weights_seed=session.rank if self.init == "independent" else 0)
        session.start(replica, self.init)
        for epoch in session.epochs(evaluate="average", weighting=None):
            for batch in session.synchronous_batches(epoch, self.uneven):
                distances = neighbours(self.graph, session.comm.size)
                if batch.samples:
                    replica.backward(batch)
                if self.order == "mix_then_step":
                    mix(replica, session.comm, distances, batch.round)
                if batch.samples:
                    nodes = batch.round.ranks if batch.round else session.comm.parent_ranks
                    replica.scaled_step(step_scale(self.weighting, batch, nodes))
                if self.order == "step_then_mix":
                    mix(replica, session.comm, distances, batch.round)
        replica.set_weights(session.comm.weighted_mean(replica.weights(), 1))


def step_scale(weighting: Weighting, batch: Batch, nodes: Collection[int]) -> float:
    """p_i: the node's share of the samples of a step of these nodes, times their number."""
    if weighting == "equal":
        return 1.0
    return batch.samples * len(nodes) / sum(batch.in_step[node] for node in nodes)


def neighbours(graph: Graph, size: int) -> list[int]:
    """The distances on the ring at which a node receives weights: each once, 1 … size - 1."""
    if graph == "complete":
        return list(range(1, size))
    if graph == "exponential":
        return [2**power for power in range((size - 1).bit_length())]
    return sorted({1 % size, -1 % size} - {0})


def mix(replica: Replica, comm: Communicator, distances: list[int], round_: Round | None = None) -> None:
    """Replace the weights by the mean of the node's own and its neighbours'.

    The edges of nodes that do not take part in the round are missing: W_ij counts for the node itself.
    """
    own = replica.weights()
    total: Tensor = own.clone()
    for distance in distances:
        received = comm.shift(own, distance)
        source = (comm.rank - distance) % comm.size
        total += received if round_ is None or source in round_.ranks else own
    if round_ is None or comm.rank in round_.ranks:
        replica.set_weights(total / (len(distances) + 1))
