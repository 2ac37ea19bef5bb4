"""Asynchronous parameter server: each gradient is one step, taken when it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.served import Served
from trainer.core.strategy import order_of_arrival

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class AsyncParameterServer(Served):
    """Apply each gradient on arrival; staleness can be bounded (Dean et al. 2012; Ho et al. 2013).

    Rank 0 is the server. A worker pulls the weights, computes a gradient and pushes it; the server takes an
    optimizer step with each gradient on arrival, at the run's lr. P workers together take as many steps as
    `serial`, with stale gradients. Staleness is the number of updates by others between pull and push:
    about P − 1 if links are fast and updates are spread evenly over time, and (P − 1)/2 in lock step.

    max_staleness s bounds it (stale synchronous parallel, Ho et al. 2013): no worker starts a step more
    than s ahead of the slowest worker, so staleness is at most (P − 1)(2s + 1). s = 0 is lock step, but
    a round is still P steps, one per gradient. One worker equals `serial` for every s.

    Source: Dean et al. 2012, "Large Scale Distributed Deep Networks", Sec. 4.1 (Downpour SGD), with an
    exchange in every step.
    """

    elastic_transports: ClassVar[tuple[str, ...]] = ("rpc",)
    caveat: ClassVar[str | None] = order_of_arrival("gradients")

    max_staleness: int | None = Field(
        None,
        ge=0,
        description="steps that a worker may be ahead of the slowest; 0: lock step; null: unbounded",
    )

    def serve(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.parameter_server import BoundedStaleness, Server

        requests = session.comm.requests(session.timeout_s)
        server = Server(replica, session.comm, requests, session.timeout_s)
        for epoch in session.epochs(evaluate="server"):
            steps = session.steps(epoch)
            server.start_epoch(BoundedStaleness(dict(enumerate(steps, start=1)), self.max_staleness))
            for _ in session.server_steps(server.pushes_left(), count=sum(steps)):
                with server.next_push() as gradient:
                    if gradient is None:  # all workers are lost that had steps left
                        break
                    with session.clock.phase("compute"):
                        replica.zero_grad()
                        replica.set_gradient(gradient)
                    replica.step()

    def work(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.parameter_server import Worker

        server = Worker(session.comm, session.comm.requests(session.timeout_s))
        staleness: list[int] = []
        for epoch in session.epochs(evaluate="server"):
            for batch in session.batches(epoch):
                replica.set_flat_parameters(server.pull())
                replica.backward(batch)
                staleness.append(server.push(replica.gradient()))
        session.report_staleness(staleness)
