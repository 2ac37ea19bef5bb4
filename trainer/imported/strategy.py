"""Strategies of users: subclasses of Strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, get_origin, get_type_hints

from pydantic import ValidationInfo, ValidatorFunctionWrapHandler, model_validator

from trainer.core.registry import ImportedComponent
from trainer.core.strategy import Strategy
from trainer.imported.signature import configured
from trainer.imported.source import ImportFailure, Source

# What a class declares about itself: the class variables of Strategy.
DECLARED = tuple(name for name, hint in get_type_hints(Strategy).items() if get_origin(hint) is ClassVar)
DECLARED = tuple(name for name in DECLARED if not name.startswith(("model_", "_")))


class StrategyFacts(Source):
    """What is known of a strategy when a sweep is loaded, for the number of ranks of the run.

    declared: its class variables. by_rank: what depends on a rank.
    """

    declared: dict[str, Any]
    replicas: int
    replica_of: list[int]
    reports_samples: list[bool]
    sees_inputs: list[bool]
    updates_use_global_batch: bool
    micro_batch_count: int
    not_checkpointed: str | None
    bubble: float | None


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

    def replicas(self, ranks: int) -> int:
        return self.imported.replicas

    def replica_of(self, rank: int, ranks: int) -> int:
        return self.imported.replica_of[rank]

    def reports_samples(self, rank: int, ranks: int) -> bool:
        return self.imported.reports_samples[rank]

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return self.imported.sees_inputs[rank]

    @property
    def updates_use_global_batch(self) -> bool:
        return self.imported.updates_use_global_batch

    @property
    def micro_batch_count(self) -> int:
        return self.imported.micro_batch_count

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
    possible = ranks >= own.min_nodes and (own.max_nodes is None or ranks <= own.max_nodes)
    if possible and (reason := own.validation_error(model, ranks, batch_size)):
        raise ImportFailure(reason)
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
    )
