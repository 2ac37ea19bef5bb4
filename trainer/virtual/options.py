"""How virtual nodes compute: what the orchestrator tells the process that runs them. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

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
        ge=0,
        le=1e3,
        description="CPU seconds per sample of a training step, on a core of speed 1; null: as measured",
    )
    seconds_per_step: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        description="CPU seconds of a training step beside those of its samples; needs seconds_per_sample",
    )
    seconds_per_update: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        description="further CPU seconds of an optimizer step, such as all of a server's step; needs "
        "seconds_per_sample",
    )
    workers: int = Field(
        default=1, ge=1, description="processes that share the nodes, at most one per core of the machine"
    )

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and not self.trains:
            raise ValueError(
                f"workers is {self.workers}, but compute is sampled, so that there is nothing to share; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_costs(self) -> Self:
        for name in ("seconds_per_step", "seconds_per_update"):
            if (value := getattr(self, name)) and self.seconds_per_sample is None:
                raise ValueError(f"{name} is {value:g} without seconds_per_sample; set both")
        if self.seconds_per_sample == 0 and not self.seconds_per_step:
            raise ValueError("seconds_per_sample is 0, so that a step takes no time; allowed: above 0")
        return self

    @property
    def trains(self) -> bool:
        """Whether runs train a model."""
        return self.compute == "full"


MEASURED = VirtualOptions()
