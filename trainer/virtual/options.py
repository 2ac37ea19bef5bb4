"""How virtual nodes compute: what the orchestrator tells the process that runs them. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.time_model.cluster import Description

VIRTUAL = "SHARDYARD_VIRTUAL"  # the variable of the environment that has the options, in JSON


class VirtualOptions(Description):
    """Options of virtual nodes."""

    compute: Literal["full", "sampled"] = Field(
        default="full",
        description="full: every step is computed; sampled: a few steps are measured, all others cost as "
        "much and are skipped, so that nothing is trained and no run has an accuracy",
    )
    seconds_per_sample: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        description="CPU seconds per sample of a training step, on a core of speed 1; null: as measured",
    )

    @property
    def trains(self) -> bool:
        """Whether runs train a model."""
        return self.compute == "full"


MEASURED = VirtualOptions()
