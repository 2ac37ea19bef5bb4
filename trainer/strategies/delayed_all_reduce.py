"""Delayed all-reduce: gradients are averaged behind the computation of later ones."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class DelayedAllReduce(Strategy):
    """Apply the mean gradient of D steps before, averaged behind the work of later ones (Li et al. 2018).

    In step t all ranks apply the gradient of step t − D, computed at the weights of that time:

        θ_{t+1} = θ_t − η · mean over ranks of ∇loss(θ_{t−D})

    All replicas hold the same weights at all times. With D = 0 it is `all_reduce`. The first D steps apply
    nothing, and the last D gradients are applied after the last step, so as many updates are made.

    Source: Li et al. 2018, "Pipe-SGD", Sec. 3: pipeline width K = D + 1.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    delay: int = Field(1, ge=0, le=100, description="D: steps between a gradient and its use")
    uneven: Uneven = "join"

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float | None:
        return 2 * gradient_bytes * (ranks - 1) / ranks

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        own = session.own_state(sent=[])  # gradients of this rank whose mean is on its way
        with session.restarting():
            on_their_way = deque(session.comm.iall_reduce(sent.clone(), "mean") for sent in own.sent)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                replica.backward(batch, batch.share * session.size)
                gradient = replica.gradient()
                if self.delay == 0:
                    session.comm.all_reduce(gradient, "mean")
                    replica.set_gradient(gradient)
                    replica.step()
                    continue
                own.sent.append(gradient)
                on_their_way.append(session.comm.iall_reduce(gradient.clone(), "mean"))
                last = epoch == session.spec.epochs and batch.step == batch.steps
                while len(on_their_way) > (0 if last else self.delay):
                    replica.set_gradient(on_their_way.popleft().wait())
                    own.sent.pop(0)
                    replica.step()
        for request in on_their_way:  # the target accuracy has ended the training
            request.wait()
