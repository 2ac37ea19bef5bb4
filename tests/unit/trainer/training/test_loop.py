"""Mistakes in what strategies share: flat views, evaluation by parts, what a rank reports and when."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import nll_loss

from tests.unit.threads import together
from tests.unit.training import ON_TOKENS, fields_for, train
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import Diverged
from trainer.data.base import Split
from trainer.losses.nll import Nll
from trainer.spec.run_spec import RunSpec
from trainer.training.evaluation import Evaluation
from trainer.training.session import Replica, Session
from trainer.training.task import Task


def task(test_samples: int = 37, **fields: Any) -> Task:
    dataset = {"name": "synthetic", "samples": 60, "test_samples": test_samples, "noise": 1.0}
    run = {"strategy": "all_reduce", "dataset": dataset, "optimizer": "sgd", "lr": 0.1}
    run["model"] = {"name": "lenet", "dropout": 0.0}
    return Task(RunSpec.model_validate({**run, **fields}), Path())


def replica(of: Task) -> Replica:
    return Replica(of.build_model(0), of, Clock())


def alone() -> Communicator:
    return MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))


def session(of: Task, comm: Communicator) -> Session:
    context = NodeContext(comm.rank, comm.size, "memory", Path())
    return Session(context, of, EventWriter("run", comm.rank, None, io.StringIO()), comm)


@pytest.mark.parametrize(("size", "test_samples"), [(1, 37), (2, 37), (3, 2)])
def test_evaluation_counts_every_test_sample_once(
    size: int, test_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, alone and together."""
    monkeypatch.setattr("trainer.training.evaluation.BATCH", 8)
    of = task(test_samples, model="lenet", nodes=size)  # its dropout is off in evaluation
    test = of.data.test  # loaded before the ranks are started
    labels = torch.from_numpy(test.labels)
    with torch.no_grad():
        output = of.build_model(0).eval()(torch.from_numpy(test.inputs))
    accuracy = (output.argmax(1) == labels).double().mean().item()

    def body(comm: Communicator) -> list[tuple[float, float]]:
        own = session(of, comm)
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
    for name in ("of", "right"):
        real = getattr(Nll, name)
        monkeypatch.setattr(
            Nll,
            name,
            lambda own, output, *more, real=real: (seen.append(len(output)), real(own, output, *more))[1],
        )
    fields = {**ON_TOKENS, **fields_for(strategy), "loss": "nll", "epochs": 1}
    fields["dataset"] = {**ON_TOKENS["dataset"], "samples": 24, "test_samples": 1}
    assert train(strategy, 2, **fields).results[0].accuracy is not None
    assert min(seen) > 0


def test_chance_is_the_share_of_the_most_frequent_class() -> None:
    def chance(
        labels: list[int], other_targets: Any = None, accuracy_is: str | None = None
    ) -> float | None:
        test = Split(np.zeros((len(labels), 3), np.float32), np.array(labels), other_targets)
        return Evaluation(test, SimpleNamespace(accuracy_is=accuracy_is), alone()).chance  # type: ignore[arg-type]

    assert chance([0, 1, 1, 1, 2]) == 0.6
    assert chance([0, 1], np.ones((2, 1), np.float32)) is chance([0, 1], None, "R²") is None


def test_a_loss_that_is_not_finite_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    of = task()
    one = replica(of)
    one.set_weights(one.weights() * float("nan"))
    with pytest.raises(Diverged, match="the loss is nan on the test split"):
        session(of, alone()).evaluate(one, alone=True)
    monkeypatch.setattr(nn.LogSoftmax, "forward", lambda _, x: x * float("nan"))
    with pytest.raises(Diverged, match="the loss is nan in epoch 1"):
        train("serial", 1)


# What a rank reports


def test_a_rank_counts_its_steps_and_samples() -> None:
    (result,) = train("serial", 1, batch_size=25).results
    assert (result.steps, result.samples, result.bytes_sent, result.local_accuracy) == (10, 240, 0, None)
