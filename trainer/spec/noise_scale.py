"""Which runs can measure the gradient noise scale. Imports no torch."""

from __future__ import annotations

from trainer.aggregation.mean import MeanAggregation
from trainer.compression.none import NoneCompression
from trainer.spec.run_spec import RunSpec


def unmeasured_reason(spec: RunSpec) -> str | None:
    """Why a run has no gradient noise scale; None: its ranks measure it."""
    strategy, partitioner = spec.strategy, spec.partitioner
    reasons = {
        "noise_scale is false": not spec.noise_scale,
        "one replica": spec.num_replicas == 1,
        "not measured by this strategy": not strategy.averages_gradients,
        "its partitions are no random samples": not partitioner.random_parts,
        "gradients are compressed": not isinstance(
            getattr(strategy, "compression", NoneCompression()), NoneCompression
        ),
        "gradients are aggregated by another rule than the mean": not isinstance(
            spec.aggregation, MeanAggregation | None
        ),
        "some nodes are Byzantine": spec.byzantine is not None,
        "the loss gives samples weights": spec.loss.weighted,
        "layers with sync_batch connect the gradients of ranks": spec.model.has_synchronous_layers,
        "ranks have no gradient of a batch, only those of micro-batches": spec.accumulate > 1
        and not strategy.full_gradients,
        "ranks may be lost": spec.on_loss == "continue",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
