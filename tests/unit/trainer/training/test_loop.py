"""Mistakes in what strategies share: evaluation by parts, losses that are not finite, counts."""

from __future__ import annotations

import io
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import nll_loss

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from tests.unit.training import ON_TOKENS, Notes, fields_for, train
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import Diverged
from trainer.data.base import Split
from trainer.losses.nll import Nll
from trainer.spec.run_spec import RunSpec
from trainer.strategies.serial import Serial
from trainer.training.evaluation import Evaluation
from trainer.training.metrics import StepProgress
from trainer.training.session import Session
from trainer.training.task import Task


def alone() -> Communicator:
    return MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))


@pytest.mark.parametrize(("size", "test_samples"), [(1, 37), (2, 37), (3, 2)])
def test_evaluation_counts_every_test_sample_once(
    size: int, test_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, alone and together."""
    monkeypatch.setattr("trainer.training.evaluation.BATCH", 8)
    dataset = {"name": "synthetic", "samples": 60, "test_samples": test_samples, "noise": 1.0}
    run = {"strategy": "all_reduce", "dataset": dataset, "nodes": size, "model": "lenet"}
    of = Task(RunSpec.model_validate(run), Path())
    test = of.data.test  # loaded before the ranks are started
    labels = torch.from_numpy(test.labels)
    with torch.no_grad():  # dropout is off in evaluation
        output = of.build_model(0).eval()(torch.from_numpy(test.inputs))
    accuracy = (output.argmax(1) == labels).double().mean().item()

    def body(comm: Communicator) -> list[tuple[float, float]]:
        context = NodeContext(comm.rank, comm.size, "memory", Path())
        own = Session(context, of, EventWriter("run", comm.rank, None, io.StringIO()), comm)
        mine = own.replica()
        reported = [own.evaluate(mine, alone=alone) for alone in (False, True)]
        assert mine.model.training
        return reported

    for reported in together(size, body, Clock):
        for seen in reported:
            assert seen == pytest.approx((accuracy, nll_loss(output, labels).item()), rel=1e-5)


@pytest.mark.parametrize("strategy", ["parameter_server", "hybrid", "pipeline", "context_parallel"])
def test_ranks_without_test_samples_call_neither_model_nor_loss(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On gpt, which takes no batch of none; only part of the ranks have the one test sample."""
    seen = list[int]()

    def noting(real: Any) -> Any:
        return lambda own, output, *more: (seen.append(len(output)), real(own, output, *more))[1]

    for name in ("of", "right"):
        monkeypatch.setattr(Nll, name, noting(getattr(Nll, name)))
    fields = {**ON_TOKENS, **fields_for(strategy), "loss": "nll", "epochs": 1}
    fields["dataset"] = {**ON_TOKENS["dataset"], "samples": 24, "test_samples": 1}
    assert train(strategy, 2, **fields).results[0].accuracy is not None
    assert min(seen) > 0


def test_chance_is_the_share_of_the_most_frequent_class() -> None:
    def chance(labels: list[int], others: Any = None, accuracy_is: str | None = None) -> float | None:
        loss: Any = SimpleNamespace(accuracy_is=accuracy_is)
        return Evaluation(Split(np.zeros((9, 3)), np.array(labels), others), loss, alone()).chance

    assert chance([0, 1, 1, 1, 2]) == 0.6
    assert chance([0, 1], np.ones((2, 1))) is chance([0, 1], None, "R²") is None


def test_a_loss_that_is_not_finite_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for training, where in ((True, "in epoch 1"), (False, "on the test split")):
        factor = {training: float("nan"), not training: 1.0}
        monkeypatch.setattr(nn.LogSoftmax, "forward", lambda own, x, by=factor: x * by[own.training])
        with pytest.raises(Diverged, match=f"the loss is nan {where}"):
            train("serial", 1)


def test_step_events_have_the_speed_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more than half a second has passed: 8 samples in 0.75 s, then 2 in 1 s."""
    now, events = FakeTime(), Notes(0)
    monkeypatch.setattr(time, "perf_counter", now)
    replica: Any = SimpleNamespace(loss=torch.tensor(0.5), batch_accuracy=0.25)
    progress: Any = StepProgress(2, 3, replica, events)
    for step, (seconds, samples) in enumerate([(0.5, 6), (0.25, 2), (1.0, 2), (0.25, 9)], start=4):
        now.pass_(seconds)
        progress.after_step(SimpleNamespace(step=step, steps=9), samples)
    same = {"epoch": 2, "epochs": 3, "steps": 9, "loss": 0.5, "accuracy": 0.25}
    expected = [{**same, "step": 5, "samples_per_s": 8 / 0.75}, {**same, "step": 6, "samples_per_s": 2.0}]
    assert [event.fields for event in events.events] == expected


def test_the_result_and_the_events_of_a_run_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    trains = Serial.train
    stale = [1, 4, 4]
    monkeypatch.setattr(
        Serial, "train", lambda own, each: (trains(own, each), each.report_staleness(stale))
    )
    training = train("serial", 1, batch_size=25, warm_up_epochs=1, optimizer="momentum")
    found = training.results[0].model_dump(exclude_none=True)
    epochs = [event.fields for event in training.of("epoch")]
    numbers = [(each["epoch"], each["epochs"], each["lr"], each["target_reached"]) for each in epochs]
    assert numbers == [(1, 2, 0.05, False), (2, 2, 0.1, False)]
    measured = {name: found[name] for name in ("train_s", "work_cpu_s", "seconds", "peak_memory_mb")}
    learnt = {name: epochs[-1][name] for name in ("accuracy", "test_loss")}
    saved = 25 * (4 * (784 + 8 + 10) + 8) + 4  # what blocks pass on, the targets, and their total weight
    counts = {"steps": 10, "samples": 240, "parameters": 6370, "bytes_sent": 0.0, "activation_bytes": saved}
    others = {"staleness_mean": 3.0, "staleness_max": 4, "test_samples": 40, "chance_accuracy": 0.1}
    assert found == measured | learnt | counts | others | {
        "weights_digest": sha256(training.weights).hexdigest()[:16],
        "state_bytes": dict.fromkeys(("weights", "gradient", "optimizer"), 4 * 6370),
    }
