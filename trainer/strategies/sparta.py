"""SPARTA: a random share of the weights is averaged in each step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session


class Sparta(Strategy):
    """Average a random share p of the weights in each step, all others at the end (EXO Gym's SPARTA).

    After its own step t each node averages the weights I_t, p n of the n, which are drawn anew:

        w_i[I_t] ← mean over nodes of w_j[I_t]

    So the replicas drift apart, and each weight is averaged every 1/p steps. At the end all weights are
    averaged. With p = 1 it is `local_sgd` with H = 1 and weighting: equal.

    delay: with D > 0 the average arrives D steps later, behind which the nodes go on, and a node adds what
    its own steps have changed meanwhile (ours):

        w_i[I_t] ← mean over nodes of w_j[I_t] as they were in step t + what node i has changed since

    Every node draws I_t from the run's seed and t, so no mask is sent (ours; EXO Gym sends it, and draws
    each weight with probability p). Nodes count alike: one without samples left pulls the average back.
    Weights are parameters and buffers; EXO Gym averages parameters alone.

    Source: EXO Gym, `exogym/strategy/sparta.py`, where p = 0.005; we know of no paper.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    share: float = Field(0.05, gt=0, le=1, description="p: share of the weights that a step averages")
    delay: int = Field(0, ge=0, le=100, description="D: steps while an average is on its way")
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return self.share == 1 and self.delay == 0

    def train(self, session: Session) -> None:
        import torch

        replica = session.replica()
        session.start(replica)
        n = len(replica.weights())
        count, rngs = max(1, round(self.share * n)), session.task.rngs
        own = session.own_state(steps=0, sent=[])  # sent: weights whose average is on its way
        with session.restarting():
            on_their_way = deque(session.comm.iweighted_mean(sent, 1) for sent in own.sent)

        def drawn(step: int) -> Tensor:
            chosen = rngs.generator("entries", step).choice(n, count, replace=False, shuffle=False)
            return torch.from_numpy(chosen).sort().values.to(session.comm.device)

        for epoch in session.epochs(evaluate="average", weighting=None):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                own.steps += 1
                weights = replica.weights()
                own.sent.append(weights[drawn(own.steps)])
                if self.delay:
                    on_their_way.append(session.comm.iweighted_mean(own.sent[-1], 1))
                    if len(on_their_way) <= self.delay:
                        continue
                    mean = on_their_way.popleft().wait()
                else:
                    mean = session.comm.weighted_mean(own.sent[-1], 1)
                with session.clock.phase("compute"):
                    at, sent = drawn(own.steps - self.delay), own.sent.pop(0)
                    weights[at] = mean + (weights[at] - sent)
                    replica.set_weights(weights)
        for request in on_their_way:  # they do not change the mean
            request.wait()
        replica.set_weights(session.comm.weighted_mean(replica.weights(), 1))
