"""RunSpec: everything that defines one training, checked before anything starts. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trainer.comm import TRANSPORTS
from trainer.data.base import DataError, Dataset, Partitioner
from trainer.data.datasets import DATASETS
from trainer.data.partitioners import PARTITIONERS
from trainer.models import MODELS
from trainer.models.base import Model
from trainer.optimizers import OPTIMIZERS, Optimizer
from trainer.registry import ComponentRegistry, Registry
from trainer.strategies import STRATEGIES
from trainer.strategies.base import Strategy

__all__ = ["MISFITS", "REGISTRIES", "DataError", "Registry", "RunSpec"]

REGISTRIES: dict[str, ComponentRegistry[Any]] = {
    "dataset": DATASETS,
    "partitioner": PARTITIONERS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "strategy": STRATEGIES,
}

# Types of the errors that concern a run as a whole: each is the name of the field to change.
MISFITS = ("transport", "nodes", "model")

# Fields that say how a run is carried out, not what is computed: they are no part of its identity.
_NOT_IDENTITY = {"timeout_s"}


def _known_transport(name: str) -> str:
    TRANSPORTS.load(name)
    return name


class RunSpec(BaseModel):
    """One training with everything fixed. Components are a name or `{name: ..., parameter: ...}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    strategy: Annotated[Strategy, STRATEGIES] = Field(description="how nodes work together on one model")
    transport: Annotated[str, AfterValidator(_known_transport)] = Field(
        "",
        description="what carries the bytes; default: the strategy's first",
        json_schema_extra={"enum": list(TRANSPORTS.entries)},
    )
    nodes: int = Field(1, ge=1, le=1024, description="nodes that take part in the run")
    dataset: Annotated[Dataset, DATASETS] = Field("digits", validate_default=True)
    partitioner: Annotated[Partitioner, PARTITIONERS] = Field(
        "random_partition", validate_default=True, description="which samples each node trains on"
    )
    model: Annotated[Model, MODELS] = Field("lenet", validate_default=True)
    optimizer: Annotated[Optimizer, OPTIMIZERS] = Field("sgd", validate_default=True)
    lr: float = Field(0.05, gt=0, le=100, description="learning rate")
    batch_size: int = Field(32, ge=1, le=65536, description="samples per step on each node")
    epochs: int = Field(3, ge=1, le=10_000, description="passes of each node over its samples")
    seed: int = Field(0, ge=0, lt=2**32, description="of all randomness in the run")
    threads: int = Field(1, ge=1, le=256, description="torch threads per rank")
    save_weights: bool = Field(False, description="keep the final weights as weights.npy beside the result")
    timeout_s: float = Field(600, gt=0, le=7 * 86400, description="the run is stopped after this")

    @model_validator(mode="before")
    @classmethod
    def _default_transport(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "transport" in values or "strategy" not in values:
            return values
        try:
            strategy = STRATEGIES.parse(values["strategy"])
        except (ValidationError, PydanticCustomError):
            return values  # the field's own check says what is wrong with it
        return {**values, "transport": strategy.transports[0]}

    @model_validator(mode="after")
    def _fits_together(self) -> RunSpec:
        name, strategy = self.name_of("strategy"), self.strategy
        if self.transport not in strategy.transports:
            context = {
                "strategy": name,
                "transport": self.transport,
                "allowed": ", ".join(strategy.transports),
            }
            raise PydanticCustomError(
                "transport", "{strategy} cannot use {transport}; allowed: {allowed}", context
            )
        low, high = strategy.min_nodes, strategy.max_nodes
        if self.nodes < low or (high is not None and self.nodes > high):
            limits = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
            raise PydanticCustomError(
                "nodes",
                "{strategy} cannot run on {nodes} nodes; allowed: {limits}",
                {"strategy": name, "nodes": self.nodes, "limits": limits},
            )
        if reason := self.model.misfit(self.dataset.shape):
            raise PydanticCustomError(
                "model",
                "{model} cannot learn from {dataset}: {reason}",
                {"model": self.name_of("model"), "dataset": self.name_of("dataset"), "reason": reason},
            )
        samples = self.dataset.train_samples
        if strategy.uses_partition and self.nodes > samples:
            raise PydanticCustomError(
                "nodes",
                "{nodes} nodes are more than the {samples} training samples of {dataset}",
                {"nodes": self.nodes, "samples": samples, "dataset": self.name_of("dataset")},
            )
        return self

    def name_of(self, field: str) -> str:
        """The registered name of a component field, e.g. `name_of("strategy")`."""
        return REGISTRIES[field].name_of(getattr(self, field))

    @property
    def topology(self) -> str:
        """How the nodes are wired: it follows from the transport."""
        return TRANSPORTS.load(self.transport).topology

    @property
    def ranks_are_threads(self) -> bool:
        """Whether several ranks share one interpreter, and so hinder each other."""
        return self.topology == "single" and not self.strategy.forks and self.nodes > 1

    def canonical(self) -> dict[str, Any]:
        """What is computed, without defaults: equal for equal work, whatever a later version adds."""
        fields: dict[str, Any] = {}
        for field, value in self:
            info = type(self).model_fields[field]
            if field in REGISTRIES:
                dumped = REGISTRIES[field].dump(value, exclude_defaults=True)
                if dumped != {"name": info.default}:
                    fields[field] = dumped
            elif field not in _NOT_IDENTITY and value != info.default:
                fields[field] = value
        return fields

    @property
    def key(self) -> str:
        """The stable run key: the same run has the same key in every sweep, order and version."""
        digest = sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.name_of('strategy')}-{self.transport}-n{self.nodes}-s{self.seed}-{digest}"
