"""Learning-rate schedules: a subclass of LrSchedule, or a function of step and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any

from trainer.components.facts import Imported, Source
from trainer.components.kind import Elsewhere, Input, Kind, Verdict, counted, law
from trainer.components.parameters import bound
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure
from trainer.lr_schedules.base import LrSchedule


class FunctionLrSchedule(LrSchedule):
    """A function of step and steps as a schedule."""

    function: Any

    def factor(self, step: int, steps: int) -> float:
        return self.function(step, steps)  # type: ignore[no-any-return]


class Training(Input):
    """A training of so many steps."""

    steps: int

    def __str__(self) -> str:
        return counted(self.steps, "step")


class LrScheduleKind(Kind[LrSchedule]):
    """A learning-rate schedule that is tried."""

    name = "lr_schedule"
    base = LrSchedule
    arguments = ("step", "steps")
    needs = ()

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> LrSchedule:
        return FunctionLrSchedule.model_validate({"function": bound(called, parameters, cls.arguments)})

    @property
    def inputs(self) -> Sequence[Training]:
        return [Training(steps=steps) for steps in (1, 2, 3, 10, 1000)]

    def factors(self, training: Training, order: int = 1) -> list[float]:
        return [self.own.factor(step, training.steps) for step in range(training.steps)[::order]][::order]

    @law("each factor is a finite number from 0", essential=True, at_loading=True)
    def runs(self, training: Training) -> Verdict:
        wrong = [each for each in enumerate(self.factors(training)) if not is_factor(each[1])]
        return Failure("a finite number from 0", "{1!r} in step {0}".format(*wrong[0])) if wrong else None

    @law("the last step has a rate above 0", at_loading=True)
    def lasts(self, training: Training) -> Verdict:
        """A schedule that ends before the training does leaves steps that change nothing."""
        last = self.factors(training)[-1]
        return None if last > 0 else Failure("a factor above 0 in the last step", f"{last}")

    @law("a factor depends on step and steps alone", at_loading=True)
    def pure(self, training: Training) -> Verdict:
        """Ranks ask in their own order, and one that resumes asks for later steps alone."""
        scatter_seeds(1)
        return repetition_error(
            self.factors(training),
            lambda: self.factors(training, order=-1),
            lambda *both: "" if both[0] == both[1] else "factors",
            "compute them from step and steps",
        )

    def digest(self) -> str:
        return sha256(repr([*map(self.factors, self.inputs)]).encode()).hexdigest()[:16]

    @law("another process gives the same factors", across=True)
    def process(self, elsewhere: Elsewhere) -> Verdict:
        return elsewhere.difference(self.digest(), "factors")


def is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < inf


class ImportedLrSchedule(Imported, LrSchedule):
    """A user's learning-rate schedule."""

    kind = LrScheduleKind

    def factor(self, step: int, steps: int) -> float:
        factor: float = self.own.factor(step, steps)
        if not is_factor(factor):
            raise ImportFailure(f"{self.name} gives {factor!r} in step {step} of {steps}")
        return factor
