"""Mistakes in laws of learning-rate schedules, and in what a run makes of a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from math import nan
from typing import Any

import pytest
import torch

from tests.support.laws import assert_faults, declaring, failing
from trainer.components.facts import Source
from trainer.components.find import kind_of
from trainer.components.kind import On
from trainer.components.lr_schedule import LrScheduleKind
from trainer.components.parameters import ParameterFailure
from trainer.core.user_code import ImportFailure
from trainer.lr_schedules.base import LrSchedule


def scheduled(factor: Callable[[int, int], Any]) -> LrScheduleKind:
    return LrScheduleKind(declaring(LrSchedule, factor=lambda self, step, steps: factor(step, steps))())


def falling(factor: Callable[[int, int], Any], calls: Iterator[int]) -> Callable[[int, int], Any]:
    return lambda step, steps: factor(step, steps) / (1 + next(calls))


FAULTS: dict[str, LrScheduleKind] = {
    "runs: 2 steps: .*-1 in step 1": scheduled(lambda step, steps: -step),
    "lasts: 2 steps: a factor above 0.*: 0": scheduled(lambda step, steps: int(step < max(1, steps // 2))),
    "pure: 1 step: equal factors: .*second call": scheduled(falling(lambda *_: 1.0, count())),
}


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"process"})


def test_schedules_that_no_run_can_follow_are_refused() -> None:
    def refuse(factor: Any) -> None:
        LrScheduleKind(LrScheduleKind.adapt(factor, {}, Source()), On(loading=True)).load()

    cases: dict[str, Any] = {
        "nan in step 0": lambda step, steps: nan,
        "tensor(1.) in step 0": lambda step, steps: torch.ones(()),
        "0 | above 0 in the last step": lambda step, steps: 1 - (step + 1) / steps,
        "its first parameters must be for step, steps": lambda step: 1.0,
    }
    assert failing(cases, refuse) == {}


def power(step: int, steps: int, exponent: float = 1.0) -> float:
    return float((1 - step / steps) ** exponent)


def test_a_function_has_parameters_and_a_class_a_warm_up() -> None:
    class Power(LrSchedule):
        def factor(self, step: int, steps: int) -> float:
            return power(step, steps, 2.0)

    def run(of: Any, **parameters: Any) -> Any:
        """As a run has it, which knows the warm-up without the code."""
        return LrScheduleKind(LrScheduleKind.adapt(of, parameters, Source())).in_run()

    assert kind_of(power) == kind_of(Power) == "lr_schedule"
    plain, warm = run(power, exponent=2), run(Power, warm_up_steps=2)
    assert (plain.warm_up, warm.warm_up) == ((0, 0), (2, 0))
    expected = [(1 - step / 4) ** 2 for step in range(4)]
    assert [plain.after_warm_up(step, 4, 2) for step in range(4)] == pytest.approx(expected)
    found = [warm.after_warm_up(step, 6, 3) for step in range(6)]
    assert found == pytest.approx([1 / 3, 2 / 3, *expected])
    for of, wrong in ((power, {"slope": 1}), (power, {"warm_up_steps": 1}), (Power, {"warm_up_steps": -1})):
        with pytest.raises(ParameterFailure, match=next(iter(wrong))):
            run(of, **wrong)


def test_a_factor_that_no_law_has_tried_ends_the_run() -> None:
    own = LrScheduleKind.adapt(lambda step, steps: nan if steps == 37 else 1.0, {}, Source())
    run: Any = LrScheduleKind(own, On(name="mine")).in_run()
    with pytest.raises(ImportFailure, match="mine gives nan in step 5 of 37"):
        run.after_warm_up(5, 37, 1)
