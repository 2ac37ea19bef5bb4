"""Local SGD: train apart for some steps, average the weights, go on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Init, Interval, OptimizerState, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class LocalSGD(Strategy):
    """Average the weights every H local steps (Stich 2019; FedAvg: McMahan et al. 2017).

    Every node takes `local_steps` (H) steps on its own samples, then the nodes' weights become their
    average. With `weighting: size` it is FederatedAveraging of all clients (McMahan et al. 2017, Alg. 1).
    H=1 with plain SGD is `all_reduce`; without averages before the end (H null) it is `one_shot`. What is
    evaluated after an epoch is the average of the replicas.

    optimizer_state: at an average every node may keep its own momentum (as in most code), take the
    average of all (Yu et al. 2019), or start without.

    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int | None = Field(
        10, ge=1, description="H: steps between two averages; null: average at the end alone"
    )
    weighting: Weighting = "equal"
    optimizer_state: OptimizerState = "keep"
    init: Init = "broadcast"
    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        replica = session.replica(weights_seed=session.rank)
        session.start(replica, self.init)
        # Since the last average; a run that goes on from a checkpoint has taken some already.
        steps = session.steps_taken % self.local_steps if self.local_steps else session.steps_taken
        for epoch in session.epochs(evaluate="average", weighting=self.weighting):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.share:
                    replica.backward(batch)
                    replica.step()
                steps += 1
                if steps == self.local_steps:
                    self._average(session, replica, epoch)
                    steps = 0
        if steps:
            self._average(session, replica, epoch)

    def _average(self, session: Session, replica: Replica, epoch: int) -> None:
        weight = session.averaging_weight(self.weighting, epoch)
        replica.set_weights(session.mean_weights(replica, weight))
        if self.optimizer_state == "reset":
            replica.reset_optimizer()
        elif self.optimizer_state == "average":
            state = replica.optimizer_state().mul_(weight)
            session.comm.all_reduce(state, "mean")
            replica.set_optimizer_state(state)
