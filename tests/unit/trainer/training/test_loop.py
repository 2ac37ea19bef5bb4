"""Mistakes in what strategies share: evaluation by parts, losses that are not finite, counts."""

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


def test_a_rank_counts_its_steps_and_samples() -> None:
    (result,) = train("serial", 1, batch_size=25).results
    assert (result.steps, result.samples, result.bytes_sent, result.local_accuracy) == (10, 240, 0, None)
