"""One-shot averaging: train independently, average once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.participation import Participants, Rounds
from trainer.core.strategy import ALL_TRANSPORTS, Init, Interval, Strategy, Weighting
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from trainer.training.session import Session


class OneShot(Strategy):
    """Train every node alone and average the weights once, at the end (Zinkevich et al. 2010).

    In Alg. 3 each node trains on its own samples, and the final weights are w = 1/P · Σ w_i. The theory is
    for convex losses. Neural networks are not convex: averaging independently initialised models usually
    gives chance accuracy, and from common initial weights it works while the nodes stay in one basin.
    `local_accuracy` in the result is the accuracy of the node's own model before averaging.

    weighting: equal is the paper's, whose nodes have equally many samples. size weights each node by the
    samples that it has trained on, as FederatedAveraging does (McMahan et al. 2017, Alg. 1).

    participation: the whole run is one round; nodes that are not in it never train. aggregation: what takes
    the place of the average, against Byzantine nodes.

    Source: Zinkevich et al. 2010, "Parallelized Stochastic Gradient Descent", Alg. 3.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    evaluates_together: ClassVar[bool] = False
    exchanges_in_steps: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs",)
    alike_between_rounds: ClassVar[bool] = True

    init: Init = "broadcast"
    weighting: Weighting = "equal"
    participation: Participants = None
    aggregation: AggregationRule = Field("mean", validate_default=True)

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, steps=None)

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def train(self, session: Session) -> None:
        replica = session.replica(weights_seed=session.rank if self.init == "independent" else 0)
        session.start(replica, self.init)
        for epoch in session.epochs(evaluate="local"):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
        weight = session.averaging_weight(self.weighting)
        replica.set_weights(session.aggregate(replica.weights(), weight, self.aggregation))
        session.evaluate_final_weights()
