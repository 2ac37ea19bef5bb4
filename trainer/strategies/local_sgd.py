"""Local SGD: train locally for some steps, then average the weights."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

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
    from collections.abc import Sequence

    from trainer.training.replica import Replica
    from trainer.training.session import Session


Steps = Annotated[int, Field(ge=1)]


class Stage(BaseModel):
    """The local steps between two averages in some epochs. until: the last of them; None: of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    steps: Steps
    until: int | None = Field(default=None, ge=1)


class LocalSGD(Strategy):
    """Average the weights every H local steps (Stich 2019; FedAvg: McMahan et al. 2017).

    Each node takes H = `local_steps` steps on its own samples, then all nodes take the average

        w ← Σ n_i w_i / Σ n_i

    weighting: with size, n_i is the number of samples that node i has trained on since the last average,
    as in FederatedAveraging (McMahan et al. 2017, Alg. 1), whose random set of clients `participation`
    gives. A node without samples left has n_i = 0, and H = 1 with plain SGD is `all_reduce` on any parts.
    With equal, n_i = 1 (Stich 2019, Alg. 1), so a node without samples left pulls the average back to where
    the round started; with `participation` only nodes with samples count.

    H = null averages only at the end, as `one_shot`. H can be a schedule: with [{steps: 1, until: 5},
    {steps: 8}] it is 1 in epochs 1 to 5, and 8 after them, which is post-local SGD (Lin et al. 2020,
    "Don't Use Large Mini-Batches, Use Local SGD", Sec. 3). Then a round that an epoch cuts short ends when
    it has the H steps of the next one. Evaluation after an epoch uses the average of the
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

    local_steps: Steps | list[Stage] | None = Field(
        10,
        description="H: steps between two averages; null: average at the end alone; or a schedule, as "
        "[{steps: 1, until: 5}, {steps: 8}], of which each entry holds until the end of an epoch",
    )
    participation: Participants = None
    weighting: Weighting = "size"
    aggregation: AggregationRule = Field("mean", validate_default=True)
    optimizer_state: OptimizerState = "keep"
    init: Init = "broadcast"
    uneven: Uneven = "join"

    @property
    def rounds(self) -> Rounds | None:
        # With a schedule there is no participation.
        steps = None if isinstance(self.local_steps, list) else self.local_steps
        return Rounds.of(self.participation, steps)

    @property
    def updates_use_global_batch(self) -> bool:
        return all(each.steps == 1 for each in self._schedule)

    @property
    def _schedule(self) -> Sequence[Stage]:
        if isinstance(self.local_steps, list):
            return self.local_steps
        return [Stage(steps=self.local_steps or 2**62)]

    def local_steps_in(self, epoch: int) -> int:
        """H in an epoch."""
        return next(each.steps for each in self._schedule if each.until is None or epoch <= each.until)

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        ends = [each.until or 0 for each in self._schedule[:-1]]
        if not self._schedule or self._schedule[-1].until or any(a >= b for a, b in pairwise([0, *ends])):
            return (
                f"local_steps has entries until {[each.until for each in self._schedule]}; allowed: "
                "ascending epochs, and none in the last entry, which holds until the end"
            )
        if self.participation and isinstance(self.local_steps, list):
            return "local_steps is a schedule, and rounds of participation are equally long; allowed: one H"
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
                if round_.steps >= self.local_steps_in(epoch):
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
