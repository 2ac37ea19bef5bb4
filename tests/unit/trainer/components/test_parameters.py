"""Mistakes in which parameters a user's component has, and which are part of its key."""

from __future__ import annotations

from typing import Any

from trainer.components.parameters import defaults_left_out
from trainer.strategies.local_sgd import LocalSGD


def test_parameters_that_equal_the_defaults_are_left_out() -> None:
    def own(labels: Any, sizes: tuple[int, ...] = (8, 9), share: float = 0.1) -> None:
        pass

    assert defaults_left_out(own, {"sizes": [8, 9], "share": 0.1, "other": 1}) == {"other": 1}
    assert defaults_left_out(own, {"sizes": [8], "share": 0.2}) == {"sizes": [8], "share": 0.2}
    assert defaults_left_out(LocalSGD, {"local_steps": 10, "weighting": "equal"}) == {"weighting": "equal"}
