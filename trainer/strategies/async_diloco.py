"""Asynchronous DiLoCo: a server whose outer momentum waits for several changes."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.core.served import Served
from trainer.core.strategy import order_of_arrival

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.training.replica import Replica
    from trainer.training.session import Session


class AsyncDiLoCo(Served):
    """Take outer steps with the changes of nodes as they arrive, and delayed momentum (Liu et al. 2024).

    Rank 0 is the server. A worker pulls its weights θ, takes H = `local_steps` steps with the run's
    optimizer to θ', pushes the change g = θ − θ' and pulls again, without waiting for others. The server
    takes a step with each change t = 1, 2, …, but changes the momentum m only with every Nth (delayed
    Nesterov):

        Δ ← Δ + g
        t divisible by N:  m ← β m + Δ/N    θ ← θ − ε (g/N + (1 − cN + c) β m)    Δ ← 0
        otherwise:                          θ ← θ − ε (g/N + c β m)

    With N = 1 each change is an outer step of `diloco`, so one worker is `diloco` on one node. With c = 0
    only every Nth step has momentum. N is by default the number of workers (ours).

    dynamic_steps: dynamic local updates (DyLU). Worker i takes ⌊H v_i / max v⌋ steps, at least one, so that
    slow workers are not staler. The speeds v are the run's `node_speed` (ours: the paper measures them).

    An epoch ends all rounds, because the server is evaluated (ours): a worker's last round can have fewer
    steps. m, Δ and t continue. BatchNorm statistics are averaged at the end of an epoch. In a round a
    worker sends n bytes of change, and the server n bytes of weights.

    Source: Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling", arXiv 2401.09135, Sec.
    5. We have compared the steps of the server with the code of HALoS (utnslab/halos), not with the paper.
    """

    caveat: ClassVar[str | None] = order_of_arrival("changes")

    local_steps: int = Field(10, ge=1, description="H: steps of a worker between a pull and its push")
    dynamic_steps: bool = Field(False, description="whether H is in proportion to the node's speed (DyLU)")
    outer_lr: float = Field(0.7, gt=0, le=10, description="ε: learning rate of the server")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="β: Nesterov momentum of the server")
    delay: int | None = Field(
        None, ge=1, le=2**14, description="N: changes per change of the momentum; null: one of each worker"
    )
    activation: float = Field(
        0.0, ge=0, le=1, description="c: share of the momentum in the steps between, at most 1/N"
    )

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        most = 1 / (self.delay or ranks - 1)
        if self.activation <= most:
            return None
        return f"activation is {self.activation:g}; allowed: 0 to 1/N, {most:.3g}"

    def local_steps_of(self, speeds: Sequence[float]) -> list[int]:
        """The steps of a round of workers with these speeds."""
        if not self.dynamic_steps:
            return [self.local_steps] * len(speeds)
        # Rounded first: 100 · 0.29 is less than 29.
        relative = (round(self.local_steps * speed / max(speeds), 9) for speed in speeds)
        return [max(1, floor(each)) for each in relative]

    def serve(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.asynchronous_rounds import pushes

        n, c, beta = self.delay or session.size - 1, self.activation, self.outer_momentum
        zeros = replica.flat_parameters() * 0
        own = session.own_state(t=0, m=zeros, delta=zeros)
        local_steps = self.local_steps_of(session.spec.node_speeds[1:])
        for push in pushes(session, replica, local_steps, max_staleness=None):
            with session.clock.phase("compute"):
                own.t, own.delta, share = own.t + 1, own.delta + push.change, c
                if own.t % n == 0:
                    own.m, own.delta, share = beta * own.m + own.delta / n, zeros, 1 - c * n + c
                step = push.change / n + share * beta * own.m
                replica.set_flat_parameters(replica.flat_parameters() - self.outer_lr * step)

    def work(self, session: Session, replica: Replica) -> None:
        from trainer.parallel.asynchronous_rounds import work

        work(session, replica, self.local_steps_of(session.spec.node_speeds[1:])[session.rank - 1])
