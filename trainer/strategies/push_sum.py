"""Push-sum: directed gossip, with a weight that removes the bias of an uneven graph."""

from __future__ import annotations

from collections import deque
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainer.comm.nonblocking import Request, wait_all
from trainer.core.strategy import CPU_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.strategies.gossip import step_scale

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session


class PushSum(Strategy):
    """Send a share of weights and a scalar to receivers of a directed graph (SGP, Assran et al. 2019).

    Node i holds x_i and w_i, which starts at 1, and computes its gradient at z_i = x_i / w_i. In Alg. 1 it
    takes a step, sends to its d receivers and adds what it receives, with p = 1/(d + 1):

        x_i ← x_i − η p_i g_i(z_i)
        x_i ← p x_i + Σ p_j x_j    w_i ← p w_i + Σ p_j w_j    over the senders j    z_i ← x_i / w_i

    Σ x_i and Σ w_i are preserved on every graph, so the z_i approach the mean of the x_i.
    graph: exponential has one receiver, in step k at distance 2^(k mod ⌈log₂ P⌉) on the ring (the paper's).
    A list has receivers at these distances in each step; [1, P − 1] is `gossip` with order: step_then_mix.
    On both, w_i is 1 without overlap. With random each node draws one receiver per step (ours).
    overlap: a message is added τ steps later, behind which the nodes go on (overlap SGP). weighting: p_i of
    the step, see `gossip`. The run ends with Σ x_i / Σ w_i.

    Source: Assran et al. 2019, "Stochastic Gradient Push for Distributed Deep Learning", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    graph: Literal["exponential", "random"] | list[int] = Field(
        "exponential", description="receivers of a node: exponential, random, or distances such as [1, 2]"
    )
    overlap: int = Field(0, ge=0, le=100, description="τ: steps while a message is on its way")
    weighting: Weighting = "size"
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        if ranks == 1 or not isinstance(self.graph, list):
            return None
        distances = {distance % ranks for distance in self.graph} - {0}
        if gcd(ranks, *distances) == 1 and len(distances) == len(self.graph):
            return None
        return (
            f"graph {self.graph} is not strongly connected on {ranks} nodes, or names a receiver twice; "
            f"allowed: different distances from 1 to {ranks - 1} without a common divisor with {ranks}"
        )

    def train(self, session: Session) -> None:
        import torch

        comm, replica = session.comm, session.replica()
        session.start(replica)
        own = session.own_state(steps=0, x=replica.weights(), w=torch.ones(1, device=comm.device), sent=[])
        on_their_way: deque[tuple[list[Request], list[Request]]] = deque()

        def push(step: int, message: Tensor) -> None:
            receivers, senders = self.peers(session, step)
            receives = [comm.irecv(torch.empty_like(message), rank) for rank in senders]
            on_their_way.append((receives, [comm.isend(message, rank) for rank in receivers]))

        def add_received() -> None:
            receives, sends = on_their_way.popleft()
            for message in wait_all(receives):
                own.x, own.w = own.x + message[:-1], own.w + message[-1:]
            wait_all(sends)
            own.sent.pop(0)

        with session.restarting():
            for step, message in enumerate(own.sent, own.steps - len(own.sent)):
                push(step, message)
        for epoch in session.epochs(evaluate="average", weighting=None):
            for batch in session.synchronous_batches(epoch, self.uneven):
                z = replica.weights()
                if batch.samples:
                    replica.backward(batch)
                    replica.scaled_step(step_scale(self.weighting, batch, comm.parent_ranks))
                with session.clock.phase("compute"):
                    p = 1 / (len(self.peers(session, own.steps)[0]) + 1)
                    own.x, own.w = p * (own.x + (replica.weights() - z)), p * own.w
                    own.sent.append(torch.cat([own.x, own.w]))
                push(own.steps, own.sent[-1])
                own.steps += 1
                if len(on_their_way) > self.overlap:
                    add_received()
                replica.set_weights(own.x / own.w)
        while on_their_way:
            add_received()
        comm.all_reduce(total := torch.cat([own.x, own.w]), "sum")
        replica.set_weights(total[:-1] / total[-1])

    def peers(self, session: Session, step: int) -> tuple[list[int], list[int]]:
        """The ranks that this one sends to in a step, from 0, and those that it receives from."""
        rank, size, distances = session.rank, session.size, self.graph
        if size == 1:
            distances = []
        elif self.graph == "random":
            rng = session.task.rngs.generator("peers", step)
            receivers = (np.arange(size) + rng.integers(1, size, size)) % size
            return [int(receivers[rank])], np.flatnonzero(receivers == rank).tolist()
        elif not isinstance(distances, list):
            distances = [2 ** (step % (size - 1).bit_length())]
        return [(rank + d) % size for d in distances], [(rank - d) % size for d in distances]
