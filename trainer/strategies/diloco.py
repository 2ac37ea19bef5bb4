"""DiLoCo: an inner optimizer for local steps, an outer optimizer for their mean change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

from pydantic import Field

from trainer.aggregation.mean import MeanAggregation
from trainer.compression.base import Compression, ErrorFeedback
from trainer.compression.none import NoneCompression
from trainer.core.participation import Participants, Rounds
from trainer.core.registry import ComponentRegistry
from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.spec.parameters import AggregationRule
from trainer.spec.registries import COMPRESSIONS

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.models.base import Model
    from trainer.training.session import Session

# Those whose messages can have weights.
CODECS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression of changes",
    {name: COMPRESSIONS.entries[name] for name in ("none", "int8", "int4", "top_k", "sign")},
)


class DiLoCo(Strategy):
    """Take an outer step along the mean change of H inner steps (Douillard et al. 2023).

    In Alg. 1 each node takes H = `local_steps` steps from θ with the run's optimizer (the paper: AdamW)
    and keeps its state. Then all nodes take the same outer step with Nesterov momentum μ and rate η:

        Δ = θ − Σ n_i θ_i / Σ n_i        v ← μ v + Δ        θ ← θ − η (Δ + μ v)

    weighting: with size, n_i is the number of samples that node i has trained on in the round, because
    parts can be unequal (Sec. 6.1). With equal, n_i = 1, as in Alg. 1. aggregation: what takes the place
    of the average of the θ_i, against Byzantine nodes.

    With η = 1 and μ = 0 this is `local_sgd`. One node is serial training only with these values; otherwise
    it is Lookahead with momentum. A round that the end of the run cuts short ends with an outer step; a
    round that the target accuracy cuts short ends with the average that reached it.

    compression: how the changes θ − θ_i are sent, with error feedback. For n parameters a rank sends the
    bytes of the compression and 4(P−1) for n_i, and changes of buffers as they are.

    The outer step moves parameters; buffers (BatchNorm statistics) become their average.

    Source: Douillard et al. 2023, "Distributed Low-Communication Training", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int = Field(10, ge=1, description="H: inner steps per outer step; the paper's is 500")
    outer_lr: float = Field(0.7, gt=0, le=10, description="learning rate of the outer step")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step")
    participation: Participants = None
    weighting: Weighting = "size"
    aggregation: AggregationRule = Field("mean", validate_default=True)
    uneven: Uneven = "join"
    compression: Annotated[Compression, CODECS] = Field(
        "none", validate_default=True, description="how the changes of the weights are compressed"
    )

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, self.local_steps)

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps == 1

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if isinstance(self.compression, NoneCompression) or isinstance(self.aggregation, MeanAggregation):
            return None
        return "compression needs the mean of what the ranks send; allowed: aggregation: mean"

    def train(self, session: Session) -> None:
        from trainer.parallel.rounds import rounds

        replica = session.replica()
        session.start(replica)
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        # The weights at the start of the round, and its steps.
        start = replica.weights()
        round_ = session.common_state(start=start, velocity=start.new_zeros(n), steps=0)
        of_rounds = self.local_steps, self.weighting, self.uneven, self.aggregation
        compressor = built(self.compression, session, replica.shapes)

        def compressed() -> Tensor:
            assert compressor  # noqa: S101  (else it is not called)
            start: Tensor = round_.start
            weight = session.averaging_weight(self.weighting)
            return start - compressor.weighted_mean(start - replica.weights(), weight)

        exchange = compressed if compressor else None
        for mean in rounds(session, replica, round_, *of_rounds, exchange=exchange):
            with session.clock.phase("compute"):
                chosen = self.outer_lr, self.outer_momentum
                outer_step(round_.start[:n], mean[:n], round_.velocity, *chosen)
                round_.start[n:] = mean[n:]
                replica.set_weights(round_.start)


def built(compression: Compression, session: Session, shapes: Sequence[Size]) -> ErrorFeedback | None:
    """The compressor of a rank; None if it sends weights as they are, or sends nothing."""
    if session.comm.size == 1 or isinstance(compression, NoneCompression):
        return None
    return cast("ErrorFeedback", compression.build(session.comm, shapes, session.task.rngs))


def outer_step(start: Tensor, mean: Tensor, velocity: Tensor, lr: float, momentum: float) -> None:
    """One step of SGD with Nesterov momentum on `start`, in place. All of shape (parameters,)."""
    gradient = start - mean
    velocity.mul_(momentum).add_(gradient)
    start.sub_(gradient.add_(velocity, alpha=momentum), alpha=lr)
