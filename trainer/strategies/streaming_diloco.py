"""Streaming DiLoCo: fragments of the model take their outer steps in turn, behind the computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainer.compression.base import Compression
from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.strategies.diloco import CODECS, built, outer_step

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.nonblocking import Request
    from trainer.models.base import Model
    from trainer.parallel.fragments import Fragment
    from trainer.training.replica import Replica
    from trainer.training.session import Session


class StreamingDiLoCo(Strategy):
    """Synchronise one fragment of the model at a time, behind later inner steps (Douillard et al. 2025).

    The model is divided into F = `fragments`. Every H = `local_steps` inner steps each fragment p takes the
    outer step of `diloco`, H/F steps after the one before it. In inner step t_p the ranks start to average
    their weights θ_i of the fragment, and go on. `overlap` τ steps later, with the average,

        Δ = θ − Σ n_i θ_i / Σ n_i        v ← μ v + Δ        θ ← θ − η (Δ + μ v)
        θ_i ← α θ_i + (1 − α) θ

    where α = `mixing` keeps a share of the inner steps that were taken meanwhile. So an exchange has about
    1/F of the bytes of `diloco`, and τ steps to send them. With F = 1, τ = 0 and α = 0 it is `diloco`.

    fragments_of: strided fragments have every F-th block of the model (the paper's choice), sequential ones
    have neighbours. The last one has the buffers (BatchNorm statistics), which become their average. After
    the last inner step every fragment takes an outer step without mixing, with the average that is on its
    way if there is one, so the ranks end with the same weights. n_i: the samples of a rank since the
    fragment's last average, or 1, see `weighting`. compression: how the changes θ − θ_i of a fragment are
    sent, as in `diloco`; `sign` has one scale for a fragment.

    Source: Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", Alg. 2, Sec. 2.2.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int = Field(10, ge=1, description="H: inner steps between two outer steps of a fragment")
    fragments: int = Field(2, ge=1, le=1000, description="F: fragments of the model; at most its blocks")
    fragments_of: Literal["strided", "sequential"] = Field(
        "strided", description="which blocks a fragment has: every F-th, or neighbours"
    )
    overlap: int = Field(
        1, ge=0, description="τ: inner steps while an average is on its way; less than H/F"
    )
    mixing: float = Field(0.5, ge=0, lt=1, description="α: share of a rank's own weights after the average")
    outer_lr: float = Field(0.7, gt=0, le=10, description="learning rate of the outer step")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step")
    weighting: Weighting = "size"
    uneven: Uneven = "join"
    compression: Annotated[Compression, CODECS] = Field(
        "none", validate_default=True, description="how the changes of the weights are compressed"
    )

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if self.overlap * self.fragments >= self.local_steps:
            return (
                f"overlap is {self.overlap}; allowed: less than local_steps / fragments, "
                f"{self.local_steps}/{self.fragments}"
            )
        if self.fragments > (blocks := len(model.names)):
            return f"fragments is {self.fragments}; allowed: 1 to {blocks}, the blocks of the model"
        return None

    def train(self, session: Session) -> None:
        from torch import Size

        from trainer.parallel.fragments import fragments

        replica = session.replica()
        session.start(replica)
        parts, weights = fragments(replica, self.fragments, self.fragments_of), replica.weights()
        own = session.own_state(
            steps=0,
            theta=[part.of(weights) for part in parts],  # after the last outer step
            v=[weights.new_zeros(part.parameters) for part in parts],
            samples=[0 for _ in parts],  # since the last average
            sent=[None for _ in parts],  # weights whose average is on its way, their n_i, and since when
            n=[0 for _ in parts],
            sent_at=[0 for _ in parts],
        )
        coders = [built(self.compression, session, [Size([part.parameters])]) for part in parts]
        comm = session.comm
        means: list[Request | None] = [None for _ in parts]
        with session.restarting():
            for p, sent in enumerate(own.sent):
                if sent is not None:
                    means[p] = session.comm.iweighted_mean(sent, own.n[p])
        ended = False
        for epoch in session.epochs(evaluate="average", weighting=self.weighting):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                own.steps += 1
                ended = epoch == session.spec.epochs and batch.step == batch.steps
                for p, part in enumerate(parts):
                    own.samples[p] += batch.samples
                    due = self.local_steps * (p + 1) // self.fragments
                    coder, mean = coders[p], None
                    if request := means[p]:
                        if ended or own.steps - own.sent_at[p] == self.overlap:
                            mean, means[p], own.sent[p] = request.wait(), None, None
                    elif ended or (own.steps - due) % self.local_steps == 0:
                        theta_i = part.of(replica.weights())
                        n = own.samples[p] if self.weighting == "size" else 1
                        own.samples[p] = 0
                        message = coder.message(own.theta[p] - theta_i, n) if coder else None
                        if self.overlap and not ended:
                            own.sent[p], own.n[p], own.sent_at[p] = theta_i, n, own.steps
                            means[p] = (
                                comm.iweighted_mean(theta_i, n)
                                if message is None
                                else comm.iall_gather(message)
                            )
                        elif message is None:
                            mean = comm.weighted_mean(theta_i, n)
                        else:
                            mean = comm.all_gather(message)
                        if part is parts[-1]:
                            session.averaged()
                    if mean is not None and coder:  # it is the ranks' messages
                        theta = own.theta[p]
                        mean = theta - coder.mean_of(mean, len(theta) - part.parameters)
                    if mean is not None:
                        with session.clock.phase("compute"):
                            mixing = 0.0 if ended else self.mixing
                            self._outer_step(replica, part, own.theta[p], own.v[p], mean, mixing)
        for request in filter(None, means):  # if the training ends with the target accuracy
            request.wait()
        if not ended:
            n = session.averaging_weight(self.weighting)
            replica.set_weights(session.aggregate(replica.weights(), n))

    def _outer_step(
        self, replica: Replica, part: Fragment, theta: Tensor, v: Tensor, mean: Tensor, mixing: float
    ) -> None:
        """Move a fragment along the mean change of the ranks, and mix it into this rank's weights."""
        n = part.parameters
        outer_step(theta[:n], mean[:n], v, self.outer_lr, self.outer_momentum)
        theta[n:] = mean[n:]
        mixed = theta.clone()
        if mixing:
            mixed[:n].mul_(1 - mixing).add_(part.of(replica.weights())[:n], alpha=mixing)
        part.put(mixed, replica)
