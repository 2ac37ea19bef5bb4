"""Hierarchical local SGD: averages within groups of nodes, and less often between the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Interval, Strategy, Uneven, Weighting, divisor_error

if TYPE_CHECKING:
    from trainer.comm.base import Communicator
    from trainer.training.session import Session


class HierarchicalSGD(Strategy):
    """Average within groups every H local steps, and between groups every H · H_b (Lin et al. 2020).

    Groups are of G = `group_size` nodes with neighbouring numbers, as those of one rack. Node i of group g
    takes H = `local_steps` steps, then the average of its group. After H_b = `group_averages` of these all
    nodes take the average of the groups:

        w_g ← Σ n_i w_i / Σ n_i over the nodes i of g        every H steps
        w   ← Σ N_g w_g / Σ N_g over the groups g            every H · H_b steps

    For the second average a node exchanges with the nodes that have its place in the other groups. So few
    bytes pass between groups, and most of them within.

    weighting: with size, n_i counts the samples of node i since the last average of its group, and N_g
    those of the group since the last average of all. With equal both are 1, as in the paper, where all
    nodes have equally many. With G = P it is `local_sgd` with H, with G = 1 with H · H_b. The run ends with
    both averages.

    Source: Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", hierarchical local SGD.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    min_nodes: ClassVar[int] = 2
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    group_size: int = Field(2, ge=1, description="G: nodes of a group; it divides the number of nodes")
    local_steps: int = Field(5, ge=1, description="H: steps between two averages of a group")
    group_averages: int = Field(4, ge=1, description="H_b: averages of a group per average of all")
    weighting: Weighting = "size"
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps * self.group_averages == 1

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        return divisor_error("group_size", self.group_size, ranks)

    def train(self, session: Session) -> None:
        group = session.comm.split(session.rank // self.group_size)
        between = session.comm.split(session.rank % self.group_size)
        replica = session.replica()
        session.start(replica)
        own = session.own_state(steps=0, n=0, n_of_group=0)
        in_all, ended = self.local_steps * self.group_averages, False

        def average(comm: Communicator, n: int) -> None:
            n = n if self.weighting == "size" else 1
            replica.set_weights(comm.weighted_mean(replica.weights(), n))

        for epoch in session.epochs(evaluate="average", weighting=self.weighting):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                own.steps += 1
                own.n += batch.samples
                own.n_of_group += sum(batch.in_step[rank] for rank in group.parent_ranks)
                ended = epoch == session.spec.epochs and batch.step == batch.steps
                if own.steps % self.local_steps == 0 or ended:
                    average(group, own.n)
                    own.n = 0
                if own.steps % in_all == 0 or ended:
                    average(between, own.n_of_group)
                    own.n_of_group = 0
                    session.averaged()
        if not ended:  # the target accuracy, which the average has reached, has ended the training
            n = session.averaging_weight(self.weighting)
            replica.set_weights(session.aggregate(replica.weights(), n))
