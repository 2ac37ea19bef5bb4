"""FedBuff: a server that applies the changes of nodes K at a time, as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainer.core.served import Served
from trainer.core.strategy import order_of_arrival

if TYPE_CHECKING:
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class FedBuff(Served):
    """Apply the changes of nodes as they arrive, K at a time (Nguyen et al. 2022).

    Rank 0 is the server. A worker pulls its weights w, takes H = `local_steps` steps with the run's
    optimizer to y, pushes Δ = w − y and pulls again, without waiting for others. The server adds up the
    changes, and takes a step with every K = `buffer` of them:

        w ← w − η_g/K Σ s(τ_k) Δ_k        s(τ) = 1/√(1 + τ)

    where staleness τ counts the server's steps since the pull. staleness_weight: constant is s = 1.

    With K = P workers, max_staleness: 0, η_g = 1 and equal parts it is `local_sgd` with equal weighting.
    max_staleness is that of `async_parameter_server`, in rounds (ours).

    An epoch ends all rounds, because the server is evaluated (ours): a worker's last round can have fewer
    steps, and the server then takes a step with the mean of the changes that it has, as in FLSim. BatchNorm
    statistics are averaged at the end of an epoch. In a round a worker sends n bytes of change, and the
    server n bytes of weights.

    Source: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", Alg. 1. We have
    compared it with the code of FLSim, not with the paper, of which s(τ) is the weight in the experiments.
    """

    caveat: ClassVar[str | None] = order_of_arrival("changes")

    local_steps: int = Field(10, ge=1, description="H: steps of a worker between a pull and its push")
    buffer: int = Field(1, ge=1, description="K: changes per step of the server, at most one per worker")
    server_lr: float = Field(1.0, gt=0, le=10, description="η_g: learning rate of the server")
    staleness_weight: Literal["inverse_sqrt", "constant"] = Field(
        "inverse_sqrt", description="s(τ): weight of a change of staleness τ; inverse_sqrt: 1/√(1 + τ)"
    )
    max_staleness: int | None = Field(
        None, ge=0, description="rounds that a worker may be ahead of the slowest; null: unbounded"
    )

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        workers = ranks - self.servers
        if self.buffer <= workers:
            return None
        return f"buffer is {self.buffer}, and the server has {workers} workers; allowed: 1 to {workers}"

    def serve(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.asynchronous_rounds import pushes

        local_steps = [self.local_steps] * (session.size - 1)
        total, count = replica.flat_parameters() * 0, 0
        for push in pushes(session, replica, local_steps, self.max_staleness, self.buffer):
            with session.clock.phase("compute"):
                weight = (1 + push.staleness) ** -0.5 if self.staleness_weight == "inverse_sqrt" else 1.0
                total, count = total + weight * push.change, count + 1
                if count == self.buffer or push.last:
                    replica.set_flat_parameters(replica.flat_parameters() - self.server_lr / count * total)
                    total, count = total * 0, 0

    def work(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.asynchronous_rounds import work

        work(session, replica, self.local_steps)
