"""A published experiment beside a sweep: its figures, and the runs that explain a difference."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Values = dict[str, Any]

Measure = Literal["accuracy", "train_s", "time_to_target_s"]


class Published(BaseModel):
    """Figures that somebody else has published for some of a block's runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    runs: Values = Field(description="which of the block's runs, as in skip: fields and their values")
    time_s: float | None = Field(None, gt=0, description="seconds of training, as published")
    accuracy: float | None = Field(None, ge=0, le=1, description="test accuracy, 0 … 1, as published")
    accuracy_change: float | None = Field(
        None, ge=-1, le=1, description="accuracy less that of one node, as published"
    )
    steps_per_epoch: int | None = Field(None, ge=1, description="optimiser steps of a rank in an epoch")
    coverage: float | None = Field(None, ge=0, le=1, description="share of the samples that is used")

    @model_validator(mode="after")
    def _says_something(self) -> Published:
        if all(value is None for name, value in self if name != "runs"):
            figures = ", ".join(name for name in type(self).model_fields if name != "runs")
            raise ValueError(f"no figure is given; name at least one of {figures}")
        return self


class AblationStep(BaseModel):
    """One step of a ladder: a block's runs, in which one thing less is as it was published."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    block: str = Field(description="the name of a block")
    runs: Values = Field(default={}, description="which of its runs, beside the ladder's nodes")
    fixes: str = Field(
        "", description="what is different on the rung before, as in `12 points are due to …`"
    )


class Ablation(BaseModel):
    """From the published form to the best, one change at a time: each change explains its difference."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    measure: Measure = Field(description="what is explained")
    nodes: list[int] = Field(min_length=1, description="node counts, each explained by itself")
    steps: list[AblationStep] = Field(min_length=2, description="the published form first")

    @model_validator(mode="after")
    def _mends(self) -> Ablation:
        if any(not rung.fixes for rung in self.steps[1:]) or self.steps[0].fixes:
            raise ValueError("every rung but the first says with `mends` what is mended")
        return self


class Lab(BaseModel):
    """Where a sweep's published figures come from, and how ours are to be read beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    title: str = Field(min_length=1, description="what the experiment is about, in a line")
    source: str = Field(min_length=1, description="where the exercise and its figures were published")
    hardware: str = Field("not stated", description="what the published figures were measured on")
    differs: list[str] = Field(default=[], description="facts in which our runs differ from the source")
    ablations: list[Ablation] = []


class BlockRecord(BaseModel):
    """A named block as it was carried out: its runs' keys and what was published of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    keys: list[str]
    published: list[Published] = []
