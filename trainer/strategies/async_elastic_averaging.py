"""Asynchronous elastic averaging SGD: each node and a server's centre pull each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.served import Served
from trainer.core.strategy import order_of_arrival

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class AsyncElasticAveraging(Served):
    """Pull each node and a server's centre together, without waiting for others (Zhang et al. 2015).

    Rank 0 is the server and holds the centre x̃. Worker i takes τ = `local_steps` steps with the run's
    optimizer, pulls x̃, and both move towards each other:

        x_i ← x_i − α (x_i − x̃)        x̃ ← x̃ + α (x_i − x̃)

    with α = β/P for P workers, and both on the right as they were at the pull. Workers keep their own x_i.
    In Alg. 1 the gradient of the step beside a pull is computed before it; here the pull follows the step.

    An epoch ends with a pull, because the centre is evaluated (ours). The centre is the result. BatchNorm
    statistics are averaged at the end of an epoch. In a round a worker sends n bytes, and the server n.

    Source: Zhang et al. 2015, "Deep Learning with Elastic Averaging SGD", Alg. 1; β = 0.9 is theirs.
    """

    caveat: ClassVar[str | None] = order_of_arrival("differences")

    local_steps: int = Field(10, ge=1, description="τ: steps of a worker between two pulls")
    beta: float = Field(0.9, gt=0, le=1, description="β = P α: how far the pulls of all workers go")

    def serve(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.asynchronous_rounds import pushes

        local_steps = [self.local_steps] * (session.size - 1)
        for push in pushes(session, replica, local_steps, max_staleness=None):
            with session.clock.phase("compute"):
                replica.set_flat_parameters(replica.flat_parameters() - push.change)

    def work(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.parameter_server import Worker

        server = Worker(session.comm, session.comm.requests(session.timeout_s))
        alpha = self.beta / (session.size - 1)
        staleness: list[int] = []
        for epoch in session.epochs(evaluate="server"):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
                if batch.step % self.local_steps and batch.step < batch.steps:
                    continue
                centre = server.pull()
                with session.clock.phase("compute"):
                    x_i = replica.flat_parameters()
                    pull = alpha * (centre - x_i)
                    replica.set_flat_parameters(x_i + pull)
                staleness.append(server.push(pull))
        session.report_staleness(staleness)
