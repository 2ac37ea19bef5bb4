"""Benchmarks, which CI does not execute, have valid runs for every strategy."""

from __future__ import annotations

import os

import pytest

from tests.bench import predictions, virtual_error
from trainer.spec.registries import STRATEGIES


def test_every_strategy_with_traces_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    names = {run.name_of("strategy") for run in predictions.strategies(seed=0)}
    traced = {name for name in STRATEGIES.entries if STRATEGIES.load(name).trains}
    assert traced - names == {"hogwild", "serial"}  # without messages


def test_every_virtual_strategy_is_compared_with_real_nodes() -> None:
    names = {run.name_of("strategy") for run in virtual_error.runs(seed=0)}
    virtual = {name for name in STRATEGIES.entries if STRATEGIES.load(name).virtual}
    assert virtual - names == {"async_parameter_server", "serial"}
