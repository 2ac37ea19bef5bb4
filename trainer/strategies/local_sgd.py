"""Local SGD: train locally for some steps, then average the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.aggregation.mean import MeanAggregation
from trainer.core.participation import Participants, Rounds
from trainer.core.strategy import (
    ALL_TRANSPORTS,
    Init,
    Interval,
    OptimizerState,
    Strategy,
    Uneven,
    Weighting,
)
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class LocalSGD(Strategy):
    """Average the weights every H local steps (Stich 2019; FedAvg: McMahan et al. 2017).

    Each node takes H = `local_steps` steps on its own samples, then all nodes take the average

        w ← Σ n_i w_i / Σ n_i

    weighting: with size, n_i is the number of samples that node i has trained on since the last average,
    as in FederatedAveraging (McMahan et al. 2017, Alg. 1), whose random set of clients `participation`
    gives. A node without samples left has n_i = 0, and H = 1 with plain SGD is `all_reduce` on any parts.
    With equal, n_i = 1 (Stich 2019, Alg. 1), so a node without samples left pulls the average back to where
    the round started; with `participation` only nodes with samples count.

    H = null averages only at the end, as `one_shot`. Evaluation after an epoch uses the average of the
    replicas.

    optimizer_state: at an average each node keeps its momentum (as in most code), takes the average of
    all (Yu et al. 2019), or resets it.

    aggregation: what takes the place of the average, against Byzantine nodes.

    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    alike_between_rounds: ClassVar[bool] = True

    local_steps: int | None = Field(
        10, ge=1, description="H: steps between two averages; null: average at the end alone"
    )
    participation: Participants = None
    weighting: Weighting = "size"
    aggregation: AggregationRule = Field("mean", validate_default=True)
    optimizer_state: OptimizerState = "keep"
    init: Init = "broadcast"
    uneven: Uneven = "join"

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, self.local_steps)

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps == 1

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        if self.optimizer_state != "average":
            return None
        if self.participation:
            return (
                "optimizer_state is average, and with participation some nodes have no state; allowed: "
                "keep, reset"
            )
        if not isinstance(self.aggregation, MeanAggregation):
            return (
                "optimizer_state is average, and the mean of the states tolerates no Byzantine node; "
                "allowed: keep, reset, or aggregation: mean"
            )
        return None

    def train(self, session: Session) -> None:
        replica = session.replica(weights_seed=session.rank if self.init == "independent" else 0)
        session.start(replica, self.init)
        round_ = session.common_state(steps=0)  # of the present round
        for epoch in session.epochs(
            evaluate="average", weighting=self.weighting, aggregation=self.aggregation
        ):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                round_.steps += 1
                if round_.steps == self.local_steps:
                    self._average(session, replica)
                    round_.steps = 0
        if round_.steps:
            self._average(session, replica)

    def _average(self, session: Session, replica: Replica) -> None:
        n = session.averaging_weight(self.weighting)
        replica.set_weights(session.aggregate(replica.weights(), n, self.aggregation))
        if self.optimizer_state == "reset":
            replica.reset_optimizer()
        elif self.optimizer_state == "average":
            replica.set_optimizer_state(session.comm.weighted_mean(replica.optimizer_state(), n))
        session.averaged()
