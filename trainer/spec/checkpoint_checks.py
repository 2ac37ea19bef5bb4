"""Whether a run can go on when something is lost, as it is asked to: checks that misfits.py makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from trainer.spec.registries import STRATEGIES, TRANSPORTS

if TYPE_CHECKING:
    from trainer.core.strategy import Interval
    from trainer.spec.run_spec import RunSpec

CheckError = PydanticCustomError | None


def checkpoints(run: RunSpec) -> CheckError:
    if not run.checkpoints:
        return None
    asked: Interval = "epochs" if run.checkpoint_steps is None else "steps"
    field, name = f"checkpoint_{asked}", run.name_of("strategy")
    if run.checkpoint_epochs is not None and run.checkpoint_steps is not None:
        return PydanticCustomError(field, "give this or checkpoint_epochs, not both")
    if run.checkpoint_epochs is not None and run.checkpoint_epochs >= run.epochs:
        return PydanticCustomError(
            field,
            "{every} would be after the last of {epochs}, where none is taken; allowed: null, or fewer",
            {"every": run.checkpoint_epochs, "epochs": run.epochs},
        )
    if not run.strategy.checkpoint_intervals:
        able = [other for other in STRATEGIES.entries if STRATEGIES.load(other).checkpoint_intervals]
        return PydanticCustomError(
            field,
            "{strategy} cannot go on from a checkpoint; allowed: null, or one of {able}",
            {"strategy": name, "able": ", ".join(able)},
        )
    if asked not in run.strategy.checkpoint_intervals:
        return PydanticCustomError(
            field,
            "ranks of {strategy} go through an epoch apart; allowed: null, and checkpoint_epochs instead",
            {"strategy": name},
        )
    if run.strategy.not_checkpointed and run.world_size > 1:
        return PydanticCustomError(
            field,
            "{strategy} cannot resume from a checkpoint with this compression: it lacks "
            "{not_checkpointed}; allowed: null, or another compression",
            {"strategy": name, "not_checkpointed": run.strategy.not_checkpointed},
        )
    return None


def restarts(run: RunSpec) -> CheckError:
    if not run.restarts:
        return None
    if run.bottleneck_cpus is not None:
        return PydanticCustomError(
            "restarts",
            "{restarts} is not allowed with bottleneck_cpus, which holds back the processes of the start; "
            "it must be 0",
            {"restarts": run.restarts},
        )
    if run.topology == "ddp":
        return None
    allowed = [name for name in TRANSPORTS.entries if TRANSPORTS.load(name).topology == "ddp"]
    return PydanticCustomError(
        "restarts",
        "{restarts} is not allowed over {transport}, whose ranks torchrun does not start; it must be 0, "
        "or the transport one of {allowed}",
        {"restarts": run.restarts, "transport": run.transport, "allowed": ", ".join(allowed)},
    )
