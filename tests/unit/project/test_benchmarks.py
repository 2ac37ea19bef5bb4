"""Mistakes in benchmarks, which CI does not execute: a strategy without a run, a run that is not valid."""

from __future__ import annotations

import os

import pytest

from tests.bench import predictions
from trainer.spec.registries import STRATEGIES


def test_every_strategy_with_traces_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    names = {run.name_of("strategy") for run in predictions.strategies(seed=0)}
    traced = {name for name in STRATEGIES.entries if STRATEGIES.load(name).trains}
    assert traced - names == {"hogwild", "serial"}  # without messages
