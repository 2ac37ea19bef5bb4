"""Synchronous parameter server: rank 0 holds the model, workers compute gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field

from trainer.aggregation.mean import MeanAggregation
from trainer.core.strategy import ALL_TRANSPORTS, Equal, Strategy, Uneven
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.replica import Replica
    from trainer.training.session import Session


class ParameterServer(Strategy):
    """Send gradients to a server that holds the model, in synchronous steps (Li et al. 2014).

    In each step rank 0, the server, receives the workers' gradients, adds them weighted by their share of
    the step's samples, takes an optimizer step and broadcasts the weights. P workers do what P ranks of
    `all_reduce` do, with one more rank. For n bytes of gradient the server receives nP bytes and sends nP.

    aggregation: what takes the place of the weighted sum, against Byzantine workers.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", Alg. 1;
    synchronous steps as in Chen et al. 2016.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    min_nodes: ClassVar[int] = 2
    servers: ClassVar[int] = 1

    uneven: Uneven = "join"
    aggregation: AggregationRule = Field("mean", validate_default=True)

    @property
    def claimed_equal(self) -> Equal | None:
        return self.equals if isinstance(self.aggregation, MeanAggregation) else None

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            if session.is_server:
                self._serve(session, replica, epoch)
            else:
                self._work(session, replica, epoch)

    def _serve(self, session: Session, replica: Replica, epoch: int) -> None:
        replica.zero_grad()
        zeros = replica.gradient()  # the server's own, before any backward pass
        plain = session.takes_plain_mean(self.aggregation)
        for step in session.server_steps(range(session.synchronous_steps(epoch, self.uneven))):
            own = zeros if plain else session.sent_gradient(zeros, samples=0)
            gradients = cast("Tensor", session.comm.gather(own, root=0))  # None only on workers
            with session.clock.phase("compute"):
                if plain:
                    gradient = gradients.sum(dim=0)
                else:
                    samples = session.samples_in_step(epoch, step, self.uneven)
                    gradient = session.aggregate_gradients(gradients[1:], samples, self.aggregation)
                replica.zero_grad()
                replica.set_gradient(gradient)
            replica.step()
            session.comm.broadcast(replica.flat_parameters(), root=0)

    def _work(self, session: Session, replica: Replica, epoch: int) -> None:
        parameters = replica.flat_parameters()
        for batch in session.synchronous_batches(epoch, self.uneven):
            if session.takes_plain_mean(self.aggregation):
                # The sum of the weighted gradients is the mean over the samples of the step.
                replica.backward(batch, weight=batch.share)
                gradient = replica.gradient()
            else:
                replica.backward(batch, weight=float(batch.samples > 0))
                gradient = session.sent_gradient(replica.gradient(), batch.samples)
            session.comm.gather(gradient, root=0)
            session.comm.broadcast(parameters, root=0)
            replica.set_flat_parameters(parameters)
