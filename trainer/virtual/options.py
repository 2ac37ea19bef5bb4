"""How virtual nodes compute: what the orchestrator tells the process that runs them. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from trainer.time_model.cluster import Description

VIRTUAL = "SHARDYARD_VIRTUAL"  # the variable of the environment that has the options, in JSON


class VirtualOptions(Description):
    """Options of virtual nodes."""

    seconds_per_sample: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        description="CPU seconds per sample of a training step, on a core of speed 1; null: as measured",
    )


MEASURED = VirtualOptions()
