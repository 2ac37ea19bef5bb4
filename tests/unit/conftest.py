"""Small factories and fixtures that several unit tests share: `from tests.unit.conftest import event`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from orchestrator.results.records import RunResult
from orchestrator.runtimes.local.runtime import LocalRuntime
from trainer.core.clock import PHASES
from trainer.core.events import Event
from trainer.data.base import Data
from trainer.data.datasets.synthetic import Synthetic
from trainer.spec.run_spec import RunSpec

PROJECT = Path(__file__).resolve().parents[2]
# Named, because the process that tries a component takes the default one from this process, too.
settings.register_profile("tests", database=DirectoryBasedExampleDatabase(PROJECT / ".hypothesis/examples"))
settings.load_profile("tests")


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train in float64: sums in another order differ by 1e-15, wrong sums by more."""
    import numpy as np
    import torch

    load = Synthetic.load

    def as_double(self: Synthetic, directory: Path) -> Data:
        data = load(self, directory)
        train, test = (
            replace(split, inputs=split.inputs.astype(np.float64)) for split in (data.train, data.test)
        )
        return replace(data, train=train, test=test)

    monkeypatch.setattr(Synthetic, "load", as_double)
    monkeypatch.setattr(Synthetic, "input_type", "float64")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class FakeTime:
    """A clock that advances only when a test advances it."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def event(kind: str, rank: int = 0, time: float = 0.0, **fields: Any) -> Event:
    return Event(time, "run-key", rank, "host", kind, fields)


def rank_fields(**changed: Any) -> dict[str, Any]:
    """The fields of a `result` event."""
    return {
        "steps": 10,
        "samples": 100,
        "train_s": 2.0,
        "work_cpu_s": 1.5,
        "seconds": dict.fromkeys(PHASES, 0.25),
        "bytes_sent": 1000.0,
        "accuracy": 0.9,
        "test_loss": 0.3,
        "local_accuracy": None,
        "weights_digest": "0123456789abcdef",
        "parameters": 50,
        "peak_memory_mb": 300.0,
        **changed,
    }


def run_result(status: str = "ok", **changed: Any) -> RunResult:
    """The result of a run on one node that trained."""
    run = RunSpec.model_validate({"strategy": "serial"})
    fields = {
        "key": run.key,
        "status": status,
        "cause": None if status == "ok" else "node 0: it broke",
        "spec": run.model_dump(mode="json"),
        "topology": "single",
        "runtime": "local",
        "runtime_info": LocalRuntime.info,
        "node_kind": "local processes",
        "started_at": 1000.0,
        "wall_s": 4.0,
        "startup_s": 1.0,
        "teardown_s": 0.5,
        "cores": 2,
        "flags": [],
        "ranks": [{"rank": 0, **rank_fields()}],
        "epochs": [],
        "certificate": None,
    }
    return RunResult.model_validate({**fields, **changed})
