"""Rounds: all ranks take local steps, then average their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

from torch import Tensor

from trainer.aggregation.base import Aggregation
from trainer.core.strategy import Uneven, Weighting
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.session import MEAN, Session


def rounds(
    session: Session,
    replica: Replica,
    state: SimpleNamespace,
    local_steps: int,
    weighting: Weighting | None,
    uneven: Uneven,
    aggregation: Aggregation = MEAN,
    step: Callable[[Batch], None] | None = None,
    exchange: Callable[[], Tensor] | None = None,
) -> Iterator[Tensor]:
    """Train in rounds. The caller sets the weights with which the next round starts.

    A round that the end of the run cuts short is a round. One that the target accuracy cuts short is not:
    it ends with the average, which has reached the target.

    Args:
        state: the common state of the strategy, whose `steps` are those of the present round.
        local_steps: the steps of a round.
        weighting, uneven, aggregation: parameters of the strategy.
        step: takes a local step; None: one of the run's optimizer.
        exchange: what the ranks exchange after a round; None: their weights, for the average.

    Yields:
        What the exchange brings; the average has shape (parameters + buffers,).
    """

    def plain_step(batch: Batch) -> None:
        replica.backward(batch)
        replica.step()

    def mean() -> Tensor:
        weight = session.averaging_weight(weighting)
        return session.aggregate(replica.weights(), weight, aggregation)

    take, bring = step or plain_step, exchange or mean
    for epoch in session.epochs(evaluate="average", weighting=weighting, aggregation=aggregation):
        for batch in session.synchronous_batches(epoch, uneven):
            if batch.samples:
                take(batch)
            state.steps += 1
            last = epoch == session.spec.epochs and batch.step == batch.steps
            if state.steps == local_steps or last:
                brought = bring()
                session.averaged()
                yield brought
                state.steps = 0
    if state.steps:
        replica.set_weights(mean())
