"""A lab: the published figures that a sweep reproduces, and ablations that explain differences."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Values = dict[str, Any]

Measure = Literal["accuracy", "train_s", "time_to_target_s"]


class Published(BaseModel):
    """Published figures for some of a block's runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    runs: Values = Field(description="the runs meant: fields and values, as in skip")
    time_s: float | None = Field(None, gt=0, description="seconds of training, as published")
    accuracy: float | None = Field(None, ge=0, le=1, description="test accuracy, 0 … 1, as published")
    accuracy_change: float | None = Field(
        None, ge=-1, le=1, description="accuracy less that of one node, as published"
    )
    steps_per_epoch: int | None = Field(None, ge=1, description="optimiser steps per rank and epoch")
    coverage: float | None = Field(None, ge=0, le=1, description="share of the training set that is used")

    @model_validator(mode="after")
    def _has_a_figure(self) -> Published:
        if all(value is None for name, value in self if name != "runs"):
            figures = ", ".join(name for name in type(self).model_fields if name != "runs")
            raise ValueError(f"no figure; set at least one of {figures}")
        return self


class AblationStep(BaseModel):
    """One step of an ablation: a block's runs, with one more cause removed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    block: str = Field(description="the name of a block")
    runs: Values = Field(default={}, description="which of its runs, in addition to the ablation's nodes")
    fixes: str = Field("", description="the cause that this step removes, as in `12 points are due to …`")


class Ablation(BaseModel):
    """Steps from the published form to the baseline; each explains its part of the difference."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    measure: Measure = Field(description="the measure that is explained")
    nodes: list[int] = Field(min_length=1, description="node counts, explained separately")
    steps: list[AblationStep] = Field(min_length=2, description="the published form first")

    @model_validator(mode="after")
    def _fixes(self) -> Ablation:
        if any(not step.fixes for step in self.steps[1:]) or self.steps[0].fixes:
            raise ValueError("every step but the first needs `fixes`, and the first must not have it")
        return self


class Lab(BaseModel):
    """Source of a sweep's published figures, and how to compare with them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    title: str = Field(min_length=1, description="the experiment in one line")
    source: str = Field(min_length=1, description="where the figures were published")
    hardware: str = Field("not stated", description="what the published figures were measured on")
    differs: list[str] = Field(default=[], description="how our runs differ from the source")
    ablations: list[Ablation] = []


class BlockRecord(BaseModel):
    """A named block of an executed sweep: its runs' keys and their published figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    keys: list[str]
    published: list[Published] = []
