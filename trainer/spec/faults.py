"""Faults that a run injects into itself: what happens to which node, and when. Imports no torch."""

from __future__ import annotations

from random import Random
from typing import Annotated, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

LONGEST_S = 7 * 86400  # as a run's timeout_s
LAST_STEP = 2**31

Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
StepNumber = Annotated[int, Field(ge=1, le=LAST_STEP)]


class Strict(BaseModel):
    """A frozen part of a fault, whose values are not converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Action(Strict):
    """What happens to a node.

    Attributes:
        drops_packets: It acts on the TCP connections between ranks.
    """

    drops_packets: ClassVar[bool] = False

    node: int = Field(ge=0, lt=1024, description="number of the node, from 0")

    @property
    def lasting(self) -> bool:
        """Whether it stays in force until training ends, over restarts of the ranks."""
        return self.durations.get("seconds", 0.0) is None

    @property
    def durations(self) -> dict[str, float | None]:
        """Its fields in seconds."""
        fields = type(self).model_fields
        return {name: getattr(self, name) for name in ("seconds", "return_after") if name in fields}


class Kill(Action):
    """SIGKILL of the node's ranks."""

    return_after: Seconds | None = Field(
        None, description="seconds after which the node comes back; only with on_loss: continue"
    )


class Pause(Action):
    """SIGSTOP of the node's ranks, and SIGCONT after `seconds`."""

    seconds: Seconds = Field(description="seconds for which the node's processes are stopped")


class Slow(Action):
    """Every step of the node takes `factor` times as long."""

    factor: float = Field(gt=1, le=1000, description="how many times as long the node's steps take")
    seconds: Seconds | None = Field(None, description="seconds that it lasts; null: until training ends")


class CutOff(Action):
    """The node receives no packet from other nodes."""

    drops_packets: ClassVar[bool] = True

    seconds: Seconds = Field(description="seconds for which no packet arrives at the node")


class Drop(Action):
    """A share of the packets that arrive at the node is lost."""

    drops_packets: ClassVar[bool] = True

    share: float = Field(gt=0, lt=1, description="share of the arriving packets that is lost")
    seconds: Seconds | None = Field(None, description="seconds that it lasts; null: until training ends")


class RandomStep(Strict):
    """A step that is drawn uniformly."""

    steps: list[StepNumber] = Field(
        min_length=2, max_length=2, description="first and last step that can be drawn"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the draw")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.steps[0] > self.steps[1]:
            raise PydanticCustomError(
                "steps",
                "the first step {first} is after the last {last}; allowed: [first, last]",
                {"first": self.steps[0], "last": self.steps[1]},
            )
        return self


class Moment(Strict):
    """When a fault fires: exactly one of its fields."""

    epoch: int | None = Field(None, ge=1, le=10_000, description="at the start of this epoch")
    step: StepNumber | None = Field(None, description="before the node's step of this number, from 1")
    second: Annotated[float, Field(ge=0, le=LONGEST_S)] | None = Field(
        None, description="this many seconds after training started"
    )
    random: RandomStep | None = Field(None, description="before a step that is drawn with a seed")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        _check_exactly_one(self, "moment", tuple(type(self).model_fields))
        return self

    @property
    def drawn_step(self) -> int | None:
        """The step before which the fault fires; None if it does not depend on steps."""
        return Random(self.random.seed).randint(*self.random.steps) if self.random else self.step

    @property
    def place(self) -> str:
        """`epoch 3`, `step 40` or `second 2.5`."""
        if self.epoch is not None:
            return f"epoch {self.epoch}"
        return f"second {self.second:g}" if self.drawn_step is None else f"step {self.drawn_step}"


ACTIONS = ("kill", "pause", "slow", "cut_off", "drop")


class Fault(Strict):
    """One fault: exactly one action, and when it fires."""

    kill: Kill | None = Field(None, description="kill the node's processes")
    pause: Pause | None = Field(None, description="stop the node's processes for a time")
    slow: Slow | None = Field(None, description="make the node's steps take longer")
    cut_off: CutOff | None = Field(None, description="let no packet from other nodes arrive at the node")
    drop: Drop | None = Field(None, description="lose a share of the packets that arrive at the node")
    at: Moment = Field(description="when it happens")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        _check_exactly_one(self, "action", ACTIONS)
        return self

    @property
    def action(self) -> str:
        """The name of its action."""
        return next(name for name in ACTIONS if getattr(self, name) is not None)

    @property
    def effect(self) -> Kill | Pause | Slow | CutOff | Drop:
        """Its action with its parameters."""
        effect: Kill | Pause | Slow | CutOff | Drop = getattr(self, self.action)
        return effect

    @property
    def node(self) -> int:
        """The number of the node that it happens to."""
        return self.effect.node

    @property
    def title(self) -> str:
        """`kill of node 2 at epoch 3`."""
        return f"{self.action} of node {self.node} at {self.at.place}"


def keys_of_fault(*path: str | int) -> list[str]:
    """Keys allowed in a fault, or in the part of it at `path`; empty if that is no mapping."""
    part: type[Strict] = Fault
    for name in path:
        annotation = part.model_fields[str(name)].annotation
        parts = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
        inside = [each for each in parts if issubclass(each, Strict)]
        if not inside:
            return []
        part = inside[0]
    return list(part.model_fields)


def _check_exactly_one(part: Strict, what: str, names: tuple[str, ...]) -> None:
    """Raise an error unless exactly one of the fields is set."""
    given = [name for name in names if getattr(part, name) is not None]
    if len(given) != 1:
        raise PydanticCustomError(
            what,
            "{given} instead of one {what}; allowed: exactly one of {allowed}",
            {"given": " and ".join(given) or "none", "what": what, "allowed": ", ".join(names)},
        )
