"""Push-sum: directed gossip, with a weight that removes the bias of an uneven graph."""

from __future__ import annotations

from collections import deque
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.strategies.gossip import step_scale

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.nonblocking import Request
    from trainer.training.session import Session


class PushSum(Strategy):
    """Send a share of weights and a scalar to receivers of a directed graph (SGP, Assran et al. 2019).

    Node i holds x_i and w_i, which starts at 1, and computes its gradient at z_i = x_i / w_i. In Alg. 1 it
    takes a step, sends to its d receivers and adds what it receives, with p = 1/(d + 1):

        x_i ← x_i − η p_i g_i(z_i)
        x_i ← p x_i + Σ p_j x_j    w_i ← p w_i + Σ p_j w_j    over the senders j    z_i ← x_i / w_i

    Σ x_i and Σ w_i are preserved on every graph, so the z_i approach the mean of the x_i. Where a node
    receives more often than others, w_i grows with x_i.

    graph: exponential has one receiver, in step k at distance 2^(k mod ⌈log₂ P⌉) on the ring of nodes (the
    paper's). A list of distances has a receiver at each of them, in each step. With these two W is doubly
    stochastic, w_i stays 1 without overlap, and with [1, P − 1] it is `gossip` with order: step_then_mix.
    random has one receiver, drawn anew by each node (ours), so w_i differs from 1.

    overlap: with τ > 0 a message is added τ steps later, behind which the nodes go on (τ-OSGP, Sec. 3).
    weighting: p_i of the step, see `gossip`. The run ends with Σ x_i / Σ w_i.

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
        if not isinstance(self.graph, list) or ranks == 1:
            return None
        receivers = {distance % ranks for distance in self.graph}
        if len(receivers) < len(self.graph) or 0 in receivers:
            return f"graph {self.graph} on {ranks} nodes names a receiver twice or the sender itself"
        if (divisor := gcd(ranks, *self.graph)) > 1:
            return (
                f"graph {self.graph} on {ranks} nodes is not strongly connected: all distances are "
                f"multiples of {divisor}; allowed: distances without a common divisor with {ranks}"
            )
        return None

    def train(self, session: Session) -> None:
        import torch

        comm, replica = session.comm, session.replica()
        session.start(replica)
        x = replica.weights()
        own = session.own_state(steps=0, x=x, w=x.new_ones(1), sent=[])
        on_their_way: deque[tuple[list[Request], list[Request]]] = deque()

        def push(step: int, message: Tensor) -> None:
            receivers, senders = self.peers(session, step)
            receives = [comm.irecv(torch.empty_like(message), rank) for rank in senders]
            on_their_way.append((receives, [comm.isend(message, rank) for rank in receivers]))

        def add_received() -> None:
            receives, sends = on_their_way.popleft()
            own.sent.pop(0)
            for request in receives:
                message = request.wait()
                own.x, own.w = own.x + message[:-1], own.w + message[-1:]
            for request in sends:
                request.wait()

        with session.restarting():
            for number, message in enumerate(own.sent):
                push(own.steps - len(own.sent) + number, message)
        for epoch in session.epochs(evaluate="average", weighting=None):
            for batch in session.synchronous_batches(epoch, self.uneven):
                z = replica.weights()
                if batch.samples:
                    replica.backward(batch)
                    replica.scaled_step(step_scale(self.weighting, batch, comm.parent_ranks))
                with session.clock.phase("compute"):
                    own.x = own.x + (replica.weights() - z)
                    p = 1 / (len(self.peers(session, own.steps)[0]) + 1)
                    own.x, own.w = p * own.x, p * own.w
                    own.sent.append(torch.cat([own.x, own.w]))
                push(own.steps, own.sent[-1])
                own.steps += 1
                if len(on_their_way) > self.overlap:
                    add_received()
                replica.set_weights(own.x / own.w)
        while on_their_way:
            add_received()
        total = torch.cat([own.x, own.w])
        comm.all_reduce(total, "sum")
        replica.set_weights(total[:-1] / total[-1])

    def peers(self, session: Session, step: int) -> tuple[list[int], list[int]]:
        """The ranks that this one sends to in a step, from 0, and those that it receives from."""
        rank, size = session.rank, session.size
        if size == 1:
            return [], []
        if self.graph == "random":
            rng = session.task.rngs.generator("peers", step)
            receivers = (np.arange(size) + rng.integers(1, size, size)) % size
            return [int(receivers[rank])], np.flatnonzero(receivers == rank).tolist()
        distances = self.graph
        if distances == "exponential":
            distances = [2 ** (step % (size - 1).bit_length())]
        return [(rank + d) % size for d in distances], [(rank - d) % size for d in distances]
