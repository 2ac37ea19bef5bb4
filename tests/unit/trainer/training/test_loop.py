"""Mistakes in what strategies share: flat views, evaluation by parts, what a rank reports and when."""

from __future__ import annotations

import io
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from tests.unit.threads import together
from tests.unit.training import ON_TOKENS, Notes, fields_for
from tests.unit.training import train as train_whole
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import Diverged
from trainer.data.base import Split
from trainer.launch.ranks import connect, train
from trainer.losses.nll import Nll
from trainer.spec.run_spec import RunSpec
from trainer.training import metrics
from trainer.training.evaluation import Evaluation
from trainer.training.loader import Batch
from trainer.training.metrics import StepProgress
from trainer.training.partition import StepSizes
from trainer.training.session import Replica, Session
from trainer.training.task import Task

PARAMETERS = 15_660


def task(test_samples: int = 37, **fields: Any) -> Task:
    dataset = {"name": "synthetic", "samples": 60, "test_samples": test_samples, "noise": 1.0}
    run = {"strategy": "all_reduce", "dataset": dataset, "optimizer": "sgd", "lr": 0.1}
    return Task(
        RunSpec.model_validate({**run, "model": {"name": "lenet", "dropout": 0.0}, **fields}), Path()
    )


def replica(of: Task | None = None) -> Replica:
    of = of or task()
    return Replica(of.build_model(0), of, Clock())


def batch(of: Task, samples: slice = slice(0, 16)) -> Batch:
    images = torch.from_numpy(of.data.train.inputs[samples])
    return Batch(images, torch.from_numpy(of.data.train.labels[samples]), 0, StepSizes([len(images)]), 1, 1)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def alone() -> Communicator:
    return MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))


def session(of: Task, comm: Communicator) -> Session:
    context = NodeContext(comm.rank, comm.size, "memory", Path())
    return Session(context, of, EventWriter("run", comm.rank, None, io.StringIO()), comm)


# Flat views


def test_flat_weights_are_a_copy_of_the_parameters_in_order() -> None:
    """In any memory format."""
    one, wanted = replica(), torch.arange(PARAMETERS, dtype=torch.float32)
    assert not all(parameter.is_contiguous() for parameter in one.model.parameters())
    before = one.weights()
    assert (before.dtype, before.shape, one.parameter_count) == (torch.float32, (PARAMETERS,), PARAMETERS)
    assert torch.equal(before, flat(one.model.parameters()))
    one.set_weights(wanted)
    assert torch.equal(one.weights(), wanted)
    assert torch.equal(flat(one.model.parameters()), wanted)
    assert not torch.equal(before, wanted)
    wanted.zero_()
    one.weights().zero_()
    assert one.weights().any()
    assert all(p.requires_grad and p.is_leaf for p in one.model.parameters())


def test_gradient_is_that_of_the_weighted_mean_loss_of_the_last_batch() -> None:
    of = task()
    one, other = replica(of), of.build_model(0)
    nll_loss(other(batch(of).inputs), batch(of).targets).backward()
    expected = flat(p.grad for p in other.parameters())
    one.backward(batch(of, slice(16, 60)))  # does not accumulate
    for weight in (0.0, 0.25, 1.0):
        one.backward(batch(of), weight=weight)
        torch.testing.assert_close(one.gradient(), expected * weight)
    before = one.weights()
    one.set_gradient(expected * 2)
    one.gradient().zero_()
    one.step()
    torch.testing.assert_close(one.weights(), before - 0.1 * 2 * expected)
    next(one.model.parameters()).requires_grad_(False)
    one.set_gradient(one.gradient())


# Evaluation


@pytest.mark.parametrize(("size", "test_samples"), [(1, 37), (2, 37), (3, 37), (3, 2)])
def test_evaluation_counts_every_test_sample_once(
    size: int, test_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, alone and together."""
    monkeypatch.setattr("trainer.training.evaluation.BATCH", 8)
    of = task(test_samples, model="lenet", nodes=size)  # its dropout is off in evaluation
    test = of.data.test  # loaded before the ranks are started
    with torch.no_grad():
        output = of.build_model(0).eval()(torch.from_numpy(test.inputs))
    labels = torch.from_numpy(test.labels)
    accuracy = (output.argmax(1) == labels).double().mean().item()
    loss = nll_loss(output, labels).item()

    def body(comm: Communicator) -> list[tuple[float, float]]:
        own = session(of, comm)
        mine = own.replica()
        reported = [own.evaluate(mine, alone=alone) for alone in (False, True)]
        assert mine.model.training
        return reported

    for reported in together(size, body, Clock):
        for seen in reported:
            assert seen == pytest.approx((accuracy, loss), rel=1e-5)


@pytest.mark.parametrize(
    "strategy", ["all_reduce", "parameter_server", "hybrid", "pipeline", "context_parallel", "local_sgd"]
)
def test_ranks_without_test_samples_call_neither_model_nor_loss(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On gpt, which takes no batch of none; only part of the ranks have the one test sample."""
    seen = [0]

    def noting(function: Any) -> Any:
        return lambda own, output, *more: (seen.append(len(output)), function(own, output, *more))[1]

    for name in ("of", "right"):
        monkeypatch.setattr(Nll, name, noting(getattr(Nll, name)))
    fields = {**ON_TOKENS, **fields_for(strategy), "loss": "nll", "epochs": 1}
    fields["dataset"] = {**ON_TOKENS["dataset"], "samples": 24, "test_samples": 1}
    assert train_whole(strategy, 2, **fields).results[0].accuracy is not None
    assert min(seen[1:]) > 0


@pytest.mark.parametrize(
    ("labels", "other_targets", "accuracy_is", "chance"),
    [
        ([0, 1, 1, 1, 2], None, None, 0.6),
        ([0, 1], None, None, 0.5),
        ([0, 1], np.ones((2, 1), np.float32), None, None),
        ([0, 1], None, "R²", None),
    ],
)
def test_chance_is_the_share_of_the_most_frequent_class(
    labels: list[int], other_targets: Any, accuracy_is: str | None, chance: float | None
) -> None:
    test = Split(np.zeros((len(labels), 3), np.float32), np.array(labels), other_targets)
    loss: Any = SimpleNamespace(accuracy_is=accuracy_is)
    assert Evaluation(test, loss, alone()).chance == chance


def test_evaluation_of_nan_weights_raises_diverged() -> None:
    of = task()
    one = replica(of)
    one.set_weights(torch.full((PARAMETERS,), float("nan")))
    with pytest.raises(Diverged, match="the loss is nan on the test split"):
        session(of, alone()).evaluate(one, alone=True)


# What a rank reports


def test_metrics_of_a_training(tmp_path: Path) -> None:
    of = task(strategy="serial", epochs=2, batch_size=25, save_weights=True)
    context = NodeContext(0, 1, "memory", Path(), out_dir=tmp_path)
    result = train(context, of, Notes(0), connect(context, threads=1))
    assert (result.steps, result.samples, result.parameters) == (6, 120, PARAMETERS)
    booked = sum(result.seconds.values()) - result.seconds["evaluate"]
    assert result.train_s == pytest.approx(booked, abs=1e-4)
    assert (result.work_cpu_s or 0) > 0
    assert (result.bytes_sent, result.local_accuracy) == (0, None)
    weights = np.load(tmp_path / "weights.npy")
    assert weights.shape == (PARAMETERS,)
    assert np.isfinite(weights).all()


def test_samples_are_reported_by_workers_and_coverage_by_the_first() -> None:
    done = train_whole("parameter_server", 3, epochs=1)
    for kind, ranks in (("partition", [1, 2]), ("coverage", [1])):
        assert [rank for rank in range(3) if done.of(kind, rank)] == ranks
    assert [event.fields["loss"] is None for rank in range(3) for event in done.of("epoch", rank)] == [
        True,
        False,
        False,
    ]


def test_a_rank_that_is_absent_in_an_epoch_has_no_loss_of_it() -> None:
    """6 steps an epoch, and as many a round."""
    rounds = {"name": "local_sgd", "local_steps": 6, "participation": {"schedule": [[0, 1], [0]]}}
    done = train_whole(rounds, 2)
    assert [event.fields["loss"] is None for event in done.of("epoch", 1)] == [False, True]
    assert [event.fields["loss"] is None for event in done.of("epoch", 0)] == [False, False]


def test_consensus_distance_is_a_mean_over_ranks() -> None:
    of = task(nodes=2)
    assert of.data
    found = together(2, lambda comm: session(of, comm)._rms(torch.tensor(3.0 + comm.rank)))
    assert found == pytest.approx([sqrt((9 + 16) / 2)] * 2)


def test_speed_counts_the_samples_since_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    now, of, notes = [100.0], task(), Notes(0)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    one = replica(of)
    one.backward(batch(of))
    progress = StepProgress(1, 3, one, notes)
    for seconds, samples in ((0.25, 10), (0.25, 20), (0.5, 30), (2.0, 40)):
        now[0] += seconds
        progress.after_step(batch(of), samples)
    assert [event.fields["samples_per_s"] for event in notes.events] == [60.0, 20.0]
    one.loss = torch.tensor(float("inf"))
    now[0] += 0.6
    with pytest.raises(Diverged, match="the loss is inf in epoch 1, step 1"):
        progress.after_step(batch(of), 1)


def test_the_loss_at_the_end_of_an_epoch_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.LogSoftmax, "forward", lambda _, x: x * float("nan"))
    with pytest.raises(Diverged, match="the loss is nan in epoch 1"):
        train_whole("serial", 1)
