"""Whether a run can go on when something is lost, as it is asked to: checks that misfits.py makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from trainer.comm import TRANSPORTS
from trainer.strategies import STRATEGIES

if TYPE_CHECKING:
    from trainer.spec import RunSpec
    from trainer.strategies.base import Interval

Misfit = PydanticCustomError | None


def snapshots(run: RunSpec) -> Misfit:
    if not run.snapshots:
        return None
    asked: Interval = "epochs" if run.snapshot_steps is None else "steps"
    field, name = f"snapshot_{asked}", run.name_of("strategy")
    if run.snapshot_epochs is not None and run.snapshot_steps is not None:
        return PydanticCustomError(field, "give this or snapshot_epochs, not both")
    if run.snapshot_epochs is not None and run.snapshot_epochs >= run.epochs:
        return PydanticCustomError(
            field,
            "{every} would be after the last of {epochs}, where none is taken; allowed: null, or fewer",
            {"every": run.snapshot_epochs, "epochs": run.epochs},
        )
    if not run.strategy.resumes:
        able = [other for other in STRATEGIES.entries if STRATEGIES.load(other).resumes]
        return PydanticCustomError(
            field,
            "{strategy} cannot go on from a snapshot; allowed: null, or one of {able}",
            {"strategy": name, "able": ", ".join(able)},
        )
    if asked not in run.strategy.resumes:
        return PydanticCustomError(
            field,
            "ranks of {strategy} go through an epoch apart; allowed: null, and snapshot_epochs instead",
            {"strategy": name},
        )
    if run.strategy.unsaved and run.world_size > 1:
        return PydanticCustomError(
            field,
            "{strategy} cannot go on from a snapshot with this compression, since {unsaved} is not in it; "
            "allowed: null, or another compression",
            {"strategy": name, "unsaved": run.strategy.unsaved},
        )
    return None


def restarts(run: RunSpec) -> Misfit:
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
