"""A lab: the published figures that a sweep reproduces, and ablations that explain differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]

_FIELD = re.compile(r"\{(\w+)\}")

NOT_STATED = "not stated"

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
    rounds_to_target: int | None = Field(
        None, ge=1, description="rounds until the target accuracy, of a strategy with participation"
    )
    steps_per_epoch: int | None = Field(None, ge=1, description="optimizer steps per rank and epoch")
    coverage: float | None = Field(None, ge=0, le=1, description="share of the training set that is used")
    staleness: float | None = Field(
        None, ge=0, description="updates by other workers between the pull and the push of a gradient, mean"
    )
    bubble: float | None = Field(
        None, ge=0, lt=1, description="share of time that the stages of a pipeline wait, mean over stages"
    )
    activations: float | None = Field(
        None, gt=0, description="stored activations of the rank that stores most, relative to `serial`"
    )
    state: float | None = Field(
        None,
        gt=0,
        description="weights, gradient and optimizer state of the fullest rank, relative to `serial`",
    )
    sent: float | None = Field(
        None, gt=0, description="bytes that a rank sends in a step, in multiples of the model's weights"
    )
    exchange_share: float | None = Field(
        None, gt=0, le=1, description="share of time in exposed exchanges and waiting"
    )
    derived: list[str] = Field(
        default=[],
        description="the figures that the source does not state but that follow from its code or formulas",
    )

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are set, by name."""
        return {name: value for name, value in self if name in FIGURES and value is not None}

    @model_validator(mode="after")
    def _has_a_figure(self) -> Published:
        if not self.figures:
            raise ValueError(f"no figure; set at least one of {', '.join(FIGURES)}")
        if unset := [name for name in self.derived if name not in self.figures]:
            raise ValueError(
                f"derived: {unset[0]!r} is not a figure of this entry; allowed: {', '.join(self.figures)}"
            )
        return self


FIGURES = tuple(name for name in Published.model_fields if name not in ("runs", "derived"))


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
    hardware: str = Field(NOT_STATED, description="what the published figures were measured on")
    differs: list[str] = Field(
        default=[],
        description="how our runs differ from the source; {epochs} and the names of other fields of a run "
        "are replaced by their values in the report's runs",
    )
    ablations: list[Ablation] = []

    @field_validator("differs")
    @classmethod
    def _check_fields(cls, differs: list[str]) -> list[str]:
        for name in (name for text in differs for name in _FIELD.findall(text)):
            if name not in RunSpec.model_fields:
                raise ValueError(
                    f"{{{name}}} is not a field of a run; allowed: {', '.join(RunSpec.model_fields)}"
                )
        return differs

    def differences(self, runs: Sequence[RunSpec]) -> list[str]:
        """`differs`, with the values of these runs."""
        return [_FIELD.sub(lambda match: _values(runs, match[1]), text) for text in self.differs]


def _values(runs: Sequence[RunSpec], field: str) -> str:
    """The distinct values of a field: `sgd`, `1, 2`."""
    values = [run.name_of(field) if field in REGISTRIES else getattr(run, field) for run in runs]
    return ", ".join(
        dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    )


class BlockRecord(BaseModel):
    """A named block of an executed sweep: its runs' keys and their published figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    keys: list[str]
    published: list[Published] = []
