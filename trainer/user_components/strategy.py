"""Strategies of users: subclasses of Strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    create_model,
    model_validator,
)

from trainer.components.facts import Source
from trainer.components.parameters import configured
from trainer.core.participation import Rounds
from trainer.core.registry import ImportedComponent
from trainer.core.strategy import Recompute, Strategy, runs_on
from trainer.core.user_code import ImportFailure

# What a class declares about itself: the class variables of Strategy.
_TYPES = {
    name: get_args(hint)[0]
    for name, hint in get_type_hints(Strategy).items()
    if get_origin(hint) is ClassVar and not name.startswith(("model_", "_"))
}
DECLARED = tuple(_TYPES)
_Declared = create_model(  # type: ignore[call-overload]
    "_Declared",
    __config__=ConfigDict(extra="forbid"),
    **{name: (each, ...) for name, each in _TYPES.items()},
)


def _declared(values: dict[str, Any]) -> dict[str, Any]:
    """Class variables of a strategy. Raises ValueError for others, and for values of other types."""
    _Declared.model_validate(values)
    return values


class StrategyFacts(Source):
    """What is known of a strategy when a sweep is loaded, for the number of ranks of the run.

    declared: its class variables. The lists have an item for each rank.
    """

    declared: Annotated[dict[str, Any], AfterValidator(_declared)]
    replicas: int = Field(ge=1, le=2**16)
    replica_of: list[Annotated[int, Field(ge=0, lt=2**16)]] = Field(max_length=2**16)
    reports_samples: list[bool] = Field(max_length=2**16)
    sees_inputs: list[bool] = Field(max_length=2**16)
    updates_use_global_batch: bool
    micro_batch_count: int = Field(ge=1, le=2**20)
    not_checkpointed: str | None
    bubble: float | None
    rounds: Rounds | None = None
    parts_of_work: int = Field(1, ge=1, le=2**24)
    recompute_errors: dict[Recompute, str] = Field({})


class ImportedStrategy(ImportedComponent, Strategy):
    """A user's strategy."""

    imported: StrategyFacts

    @model_validator(mode="wrap")
    @classmethod
    def _declaring(cls, values: Any, handler: ValidatorFunctionWrapHandler, _: ValidationInfo) -> Any:
        """An instance of a subclass that declares what the user's class does."""
        found = handler(values)
        if cls is not ImportedStrategy or not isinstance(found, ImportedStrategy):
            return found
        return _subclass(json.dumps(found.imported.declared, sort_keys=True)).model_validate(values)

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        found = self.imported
        if {len(found.replica_of), len(found.reports_samples), len(found.sees_inputs)} != {ranks}:
            return f"{self.name} was tried for {len(found.replica_of)} ranks, and the run has {ranks}"
        return super().validation_error(model, ranks, batch_size)

    def replicas(self, ranks: int) -> int:
        return self.imported.replicas

    def replica_of(self, rank: int, ranks: int) -> int:
        return self.imported.replica_of[rank]

    def reports_samples(self, rank: int, ranks: int) -> bool:
        return self.imported.reports_samples[rank]

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return self.imported.sees_inputs[rank]

    @property
    def rounds(self) -> Rounds | None:
        return self.imported.rounds

    @property
    def updates_use_global_batch(self) -> bool:
        return self.imported.updates_use_global_batch

    @property
    def micro_batch_count(self) -> int:
        return self.imported.micro_batch_count

    @property
    def parts_of_work(self) -> int:
        return self.imported.parts_of_work

    def recompute_error(self, recompute: Recompute) -> str | None:
        return self.imported.recompute_errors.get(recompute)

    @property
    def not_checkpointed(self) -> str | None:
        return self.imported.not_checkpointed

    def bubble(self, ranks: int) -> float | None:
        return self.imported.bubble

    def shared_state(self, task: Any) -> Any:
        return build(self.imported, self.parameters).shared_state(task)

    def train(self, session: Any) -> None:
        build(self.imported, self.parameters).train(session)


@lru_cache
def _subclass(declared: str) -> type[ImportedStrategy]:
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(declared).items()
    }
    return type("DeclaringStrategy", (ImportedStrategy,), {"__module__": __name__, **values})


def build(source: Source, parameters: Mapping[str, Any]) -> Strategy:
    """The strategy. Raises ImportFailure or ParameterFailure."""
    called = source.load()
    if not (isinstance(called, type) and issubclass(called, Strategy)):
        raise ImportFailure("it is no subclass of trainer.core.strategy.Strategy")
    if not getattr(called, "transports", ()):
        raise ImportFailure('it declares no transports, such as transports = ("gloo", "mpi")')
    return configured(called, parameters)


def facts(
    source: Source, parameters: Mapping[str, Any], ranks: int, model: Any, batch_size: int
) -> StrategyFacts:
    """What a spec says about the strategy, for a run of so many ranks. Raises ImportFailure."""
    own = build(source, parameters)
    if runs_on(own, ranks) and (reason := own.validation_error(model, ranks, batch_size)):
        raise ImportFailure(reason)
    aggregation = getattr(own, "aggregation", None)
    if aggregation is not None and aggregation.tolerated(ranks) is not None:
        raise ImportFailure("a strategy of your own takes the mean; allowed: aggregation: mean")
    everyone = range(ranks)
    return StrategyFacts(
        **dict(source),
        declared={name: getattr(own, name) for name in DECLARED},
        replicas=own.replicas(ranks),
        replica_of=[own.replica_of(rank, ranks) for rank in everyone],
        reports_samples=[own.reports_samples(rank, ranks) for rank in everyone],
        sees_inputs=[own.sees_inputs(rank, ranks) for rank in everyone],
        updates_use_global_batch=own.updates_use_global_batch,
        micro_batch_count=own.micro_batch_count,
        not_checkpointed=own.not_checkpointed,
        bubble=own.bubble(ranks),
        rounds=own.rounds,
        parts_of_work=own.parts_of_work,
        recompute_errors={
            each: reason for each in get_args(Recompute) if (reason := own.recompute_error(each))
        },
    )
