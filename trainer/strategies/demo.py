"""DeMo: nodes keep momentum of their own, and exchange its largest frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class DeMo(Strategy):
    """Exchange the k largest frequencies of each chunk of the momentum in each step (Peng et al. 2024).

    Node i adds its gradient to a momentum of its own. Of each chunk of it, it sends the k coefficients of
    the cosine transform with the largest magnitude, and subtracts them. All nodes take the same step:

        δ_i ← β δ_i + η g_i            q_i = top-k of DCT(δ_i)            δ_i ← δ_i − IDCT(q_i)
        θ ← θ − η sign(IDCT(Q))        Q = the mean of the q_i

    So the momentum is also the error feedback, and all replicas hold the same weights. Three choices are
    those of the authors' code: the mean of a coefficient is over the nodes that have sent it, not over all;
    η is part of the momentum, which matters where it changes; and the sign. If k is the whole chunk and
    β = 0, it is sign SGD with the mean gradient.

    A side of a chunk is the largest divisor of the tensor's side that is at most `chunk`. Sides of a tensor
    beyond the first count as one (ours). DeMo is an optimizer, so the run's is plain SGD, and `clip_norm`
    applies to the sign. g_i is weighted by the node's samples of the step; a node without samples left
    sends what its momentum holds (ours).

    A node sends 6 (P − 1) bytes per coefficient: a float32, and an int16 for its place in the chunk.

    Source: Peng et al. 2024, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870, Alg. 1, and the
    authors' code, bloc97/DeMo, whose β, k and chunk are the defaults. We have compared it with this code,
    not with the paper.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    optimizers: ClassVar[tuple[str, ...]] = ("sgd", "textbook_sgd")

    decay: float = Field(0.999, ge=0, lt=1, description="β: share of the momentum that each step keeps")
    top_k: int = Field(32, ge=1, le=128**2, description="k: coefficients of a chunk that a node sends")
    chunk: int = Field(64, ge=1, le=128, description="the longest side of a chunk")
    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        from trainer.parallel.frequencies import Frequencies

        replica = session.replica()
        session.start(replica)
        own = session.own_state(delta=replica.flat_parameters() * 0)
        code = Frequencies(replica.shapes, self.chunk, self.top_k, session.comm.device)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                replica.backward(batch, batch.share * session.size)
                with session.clock.phase("compute"):
                    own.delta = self.decay * own.delta + replica.lr * replica.gradient()
                    q_i = code.encode(own.delta)
                    own.delta -= code.decode(q_i.unsqueeze(0))
                of_all = session.comm.all_gather(q_i)
                with session.clock.phase("compute"):
                    replica.set_gradient(code.decode(of_all).sign())
                replica.step()
