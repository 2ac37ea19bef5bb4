"""Local SGD: train locally for some steps, then average the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Init, Interval, OptimizerState, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class LocalSGD(Strategy):
    """Average the weights every H local steps (Stich 2019; FedAvg: McMahan et al. 2017).

    In Alg. 1 each node takes H = `local_steps` steps on its own samples, then w_i ← 1/P · Σ w_j. With
    `weighting: size` this is FederatedAveraging of all clients (McMahan et al. 2017, Alg. 1). H = 1 with
    plain SGD is `all_reduce`; H = null averages only at the end, as `one_shot`. Evaluation after an epoch
    uses the average of the replicas.

    optimizer_state: at an average each node keeps its momentum (as in most code), takes the average of
    all (Yu et al. 2019), or resets it.

    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
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
        # Steps since the last average. A resumed run has taken some of them before the checkpoint.
        steps = session.steps_taken % self.local_steps if self.local_steps else session.steps_taken
        for epoch in session.epochs(evaluate="average", weighting=self.weighting):
            steps = session.catch_up_count(steps)
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
        weights = replica.weights().mul_(weight)
        session.comm.all_reduce(weights, "mean")
        replica.set_weights(weights)
        if self.optimizer_state == "reset":
            replica.reset_optimizer()
        elif self.optimizer_state == "average":
            state = replica.optimizer_state().mul_(weight)
            session.comm.all_reduce(state, "mean")
            replica.set_optimizer_state(state)
