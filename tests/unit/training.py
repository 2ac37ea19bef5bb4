"""Complete trainings on transport memory, in the test process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.launch.threads import RecordedEvents as Notes
from trainer.launch.threads import Training, threads_in_torch
from trainer.launch.threads import train as train_spec
from trainer.spec.run_spec import RunSpec

__all__ = ["ON_TOKENS", "SMALL", "Notes", "Training", "fields_for", "threads_in_torch", "train"]

SMALL = {
    "dataset": {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [8]},
    "batch_size": 10,
    "lr": 0.1,
    "epochs": 2,
}
# What strategies need whose ranks divide the tokens of a sample.
ON_TOKENS: dict[str, Any] = {
    "dataset": {"name": "induction", "length": 23, "tokens": 30, "samples": 121, "test_samples": 40},
    "model": {"name": "gpt", "layers": 1, "width": 16, "heads": 8},
}


def fields_for(strategy: str) -> dict[str, Any]:
    """The fields without which a run of a strategy is refused."""
    experts = {**ON_TOKENS, "model": {**ON_TOKENS["model"], "experts": 8}}
    return {"context_parallel": ON_TOKENS, "expert_parallel": experts}.get(strategy, {})


def train(strategy: Any, ranks: int = 2, checkpoints: Path | None = None, **fields: Any) -> Training:
    """Train with one thread per rank. Raises the first exception of a rank.

    checkpoints: directory of the checkpoints, if any.
    """
    run = {**SMALL, "strategy": strategy, "nodes": ranks, "transport": "memory", **fields}
    return train_spec(RunSpec.model_validate({**run, "save_weights": True}), checkpoints)
