"""FedProx: local steps that a proximal term keeps near the weights from which they started."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.participation import Participants, Rounds
from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from trainer.training.loader import Batch
    from trainer.training.session import Session


class FedProx(Strategy):
    """Average the weights every H local steps on a loss with a proximal term (Li et al. 2020).

    In Alg. 2 node k approximately minimises its own loss F_k plus a term that grows with the distance from
    w, the weights with which the round began:

        h_k(w_k) = F_k(w_k) + μ/2 ‖w_k − w‖²

    Here it takes H = `local_steps` steps of the run's optimizer on h_k, whose gradient is ∇F_k(w_k) +
    μ (w_k − w). Then all nodes take the average of the w_k. With μ = 0 this is `local_sgd`. With H = 1
    it equals `local_sgd` for every μ, because the proximal term is 0 at w, where each step starts.

    weighting: with size, node k counts with the samples that it has trained on in the round, as in
    FedAvg (McMahan et al. 2017). With equal all count the same, as in Alg. 2, which instead draws nodes
    with more samples more often. aggregation: what takes the place of the average, against Byzantine
    nodes.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Alg. 2.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    alike_between_rounds: ClassVar[bool] = True

    local_steps: int = Field(10, ge=1, description="H: local steps per average")
    mu: float = Field(0.1, ge=0, le=1e3, description="μ: weight of the proximal term; 0 is local_sgd")
    participation: Participants = None
    weighting: Weighting = "size"
    aggregation: AggregationRule = Field("mean", validate_default=True)
    uneven: Uneven = "join"

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, self.local_steps)

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps == 1

    def train(self, session: Session) -> None:
        from trainer.parallel.rounds import rounds

        replica = session.replica()
        session.start(replica)
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        round_ = session.common_state(w=replica.weights(), steps=0)

        def proximal_step(batch: Batch) -> None:
            replica.backward(batch)
            with session.clock.phase("compute"):
                distance = replica.flat_parameters() - round_.w[:n]
                replica.set_gradient(replica.gradient().add_(distance, alpha=self.mu))
            replica.step()

        chosen = self.local_steps, self.weighting, self.uneven, self.aggregation
        for mean in rounds(session, replica, round_, *chosen, proximal_step):
            round_.w = mean
            replica.set_weights(mean)
