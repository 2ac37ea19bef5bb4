"""Elastic averaging SGD: nodes and a common centre pull each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class ElasticAveraging(Strategy):
    """Pull nodes and a centre towards each other every few steps (EASGD, Zhang et al. 2015).

    Node i takes τ = `local_steps` steps of its own. Then node and centre x̃ move towards each other:

        x_i ← x_i − α (x_i − x̃)        x̃ ← x̃ + α Σ (x_i − x̃) = (1 − β) x̃ + β mean of x_i

    with α = β/P, and x̃ on the right as it was before. A small β leaves nodes room to explore. With β = 1
    the centre is the mean of the x_i. Every node holds the centre, and one all-reduce brings the mean
    (ours: the paper's centre is on a master). The centre is what is evaluated, and the final weights. It
    moves once more after the last step.

    This is the synchronous form; `async_elastic_averaging` is the asynchronous one. Nodes count alike: one
    without samples left pulls the centre back. Buffers of the centre are the mean of the nodes'.

    Source: Zhang et al. 2015, "Deep Learning with Elastic Averaging SGD", Eq. 4 and 5; β = 0.9 is theirs.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    min_nodes: ClassVar[int] = 2
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int = Field(10, ge=1, description="τ: steps between two pulls")
    beta: float = Field(0.9, gt=0, le=1, description="β: how far a pull moves the centre to the mean")
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        common = session.common_state(centre=replica.weights(), steps=0)
        alpha = self.beta / session.size
        for epoch in session.epochs(evaluate=lambda: common.centre):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                common.steps += 1
                ended = epoch == session.spec.epochs and batch.step == batch.steps
                if common.steps % self.local_steps and not ended:
                    continue
                with session.clock.phase("compute"):
                    x_i = replica.weights()
                    distance = x_i - common.centre
                    x_i[:n] -= alpha * distance[:n]
                    replica.set_weights(x_i)
                session.comm.all_reduce(distance, "mean")
                with session.clock.phase("compute"):
                    common.centre[:n] += self.beta * distance[:n]
                    common.centre[n:] += distance[n:]
        replica.set_weights(common.centre)
