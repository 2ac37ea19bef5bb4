"""Streaming DiLoCo: fragments of the model take their outer steps in turn, behind the computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

from pydantic import Field

from trainer.compression.base import Compression
from trainer.core.strategy import ALL_TRANSPORTS, Strategy, Uneven, Weighting
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
        parts = fragments(replica, self.fragments, self.fragments_of)
        for part in parts:
            part.compressor = built(self.compression, session, [Size([part.parameters])])
        steps, ended = 0, False
        for epoch in session.epochs(evaluate="average", weighting=self.weighting):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                steps += 1
                ended = epoch == session.spec.epochs and batch.step == batch.steps
                for number, part in enumerate(parts, 1):
                    part.samples += batch.samples
                    if part.request and (ended or steps - part.sent_at == self.overlap):
                        self._outer_step(session, replica, part, part.request.wait(), ended)
                        part.request = None
                        continue
                    due = self.local_steps * number // self.fragments
                    if ended or (steps - due) % self.local_steps == 0:
                        self._average(session, replica, part, steps, ended)
                        if number == self.fragments:
                            session.averaged()
        for part in parts:  # if the training ends with the target accuracy
            if part.request:
                part.request.wait()
        if not ended:
            n = session.averaging_weight(self.weighting)
            replica.set_weights(session.aggregate(replica.weights(), n))

    def _average(self, session: Session, replica: Replica, part: Fragment, step: int, ended: bool) -> None:
        """Start to average a fragment, or average it at once."""
        own, n = part.of(replica.weights()), part.samples if self.weighting == "size" else 1
        part.samples = 0
        comm, overlaps = session.comm, self.overlap and not ended
        if part.compressor:
            message = part.compressor.message(part.outer - own, n)
            found = comm.iall_gather(message) if overlaps else comm.all_gather(message)
        else:
            found = comm.iweighted_mean(own, n) if overlaps else comm.weighted_mean(own, n)
        if overlaps:
            part.request, part.sent_at = cast("Request", found), step
        else:
            self._outer_step(session, replica, part, cast("Tensor", found), ended)

    def _outer_step(
        self, session: Session, replica: Replica, part: Fragment, mean: Tensor, ended: bool
    ) -> None:
        """Move a fragment along the mean change of the ranks, and mix it into this rank's weights.

        mean: of the ranks' weights; their messages, if what they send is compressed.
        """
        n = part.parameters
        if part.compressor:
            mean = part.outer - part.compressor.mean_of(mean, len(part.outer) - n)
        with session.clock.phase("compute"):
            outer_step(part.outer[:n], mean[:n], part.velocity, self.outer_lr, self.outer_momentum)
            part.outer[n:] = mean[n:]
            mixed, mixing = part.outer.clone(), 0.0 if ended else self.mixing
            if mixing:
                own = part.of(replica.weights())[:n]
                mixed[:n].mul_(1 - mixing).add_(own, alpha=mixing)
            part.put(mixed, replica)
