"""One-shot averaging: train apart, meet once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Init, Interval, Strategy, Weighting

if TYPE_CHECKING:
    from trainer.training.session import Session


class OneShot(Strategy):
    """Train every node alone and average the weights once, at the end (Zinkevich et al. 2010).

    Every node trains alone on its own part; at the end the weights are averaged once. The theory is for
    convex losses. A neural network's loss is not: the average of independently initialised models is
    usually no better than chance, and from common initial weights it holds up while the nodes stay in
    one basin. `local_accuracy` in the result is that of the node's own model before averaging.

    Source: Zinkevich et al. 2010, "Parallelized Stochastic Gradient Descent", Alg. 3.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    evaluates_together: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs",)

    init: Init = "broadcast"
    weighting: Weighting = "equal"

    def train(self, session: Session) -> None:
        replica = session.replica(weights_seed=session.rank)
        session.start(replica, self.init)
        for epoch in session.epochs(evaluate="local"):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
        weight = session.averaging_weight(self.weighting, *range(1, session.spec.epochs + 1))
        replica.set_weights(session.mean_weights(replica, weight))
        session.evaluate_final_weights()  # the last epoch evaluated each node's own
