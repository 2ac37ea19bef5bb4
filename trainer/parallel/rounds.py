"""Rounds: all ranks take local steps, then average their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

from torch import Tensor

from trainer.aggregation.base import Aggregation
from trainer.core.strategy import Uneven, Weighting
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.session import Session


def rounds(
    session: Session,
    replica: Replica,
    state: SimpleNamespace,
    local_steps: int,
    weighting: Weighting,
    uneven: Uneven,
    aggregation: Aggregation,
    step: Callable[[Batch], None] | None = None,
    exchange: Callable[[Tensor, float], Tensor] | None = None,
) -> Iterator[Tensor]:
    """Train in rounds. The caller sets the weights with which the next round starts.

    A round that the end of the run cuts short is a round. One that the target accuracy cuts short is not:
    it ends with the average, which has reached the target.

    Args:
        state: the common state of the strategy, whose `steps` are those of the present round.
        local_steps: the steps of a round.
        weighting, uneven, aggregation: parameters of the strategy.
        step: takes a local step; None: one of the run's optimizer.
        exchange: what a rank's weights become after a round, by its weight; None: `session.aggregate`.

    Yields:
        What the ranks' weights become after each round, shape (parameters + buffers,).
    """

    def plain_step(batch: Batch) -> None:
        replica.backward(batch)
        replica.step()

    def plain_exchange(weights: Tensor, weight: float) -> Tensor:
        return session.aggregate(weights, weight, aggregation)

    def averaged(by: Callable[[Tensor, float], Tensor]) -> Tensor:
        found = by(replica.weights(), session.averaging_weight(weighting))
        session.averaged()
        return found

    take, by = step or plain_step, exchange or plain_exchange
    for epoch in session.epochs(evaluate="average", weighting=weighting, aggregation=aggregation):
        for batch in session.synchronous_batches(epoch, uneven):
            if batch.samples:
                take(batch)
            state.steps += 1
            last = epoch == session.spec.epochs and batch.step == batch.steps
            if state.steps == local_steps or last:
                yield averaged(by)
                state.steps = 0
    if state.steps:
        replica.set_weights(averaged(plain_exchange))
