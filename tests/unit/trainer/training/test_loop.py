"""The parts that all strategies share: flat views of a replica, exact evaluation, training metrics."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from tests.unit.threads import together
from tests.unit.training import ON_TOKENS, fields_for
from tests.unit.training import train as train_whole
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import Diverged
from trainer.data.base import Split
from trainer.launch.ranks import connect, train
from trainer.losses.base import Loss
from trainer.losses.nll import Nll
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.evaluation import Evaluation
from trainer.training.loader import Batch
from trainer.training.partition import StepSizes
from trainer.training.session import Replica, Session
from trainer.training.task import Task

LENET = {"name": "lenet", "dropout": 0.0}


def task(test_samples: int = 37, **fields: Any) -> Task:
    dataset = {"name": "synthetic", "samples": 60, "test_samples": test_samples, "noise": 1.0}
    run = {"strategy": "all_reduce", "dataset": dataset, "model": LENET, "optimizer": "sgd", "lr": 0.1}
    return Task(RunSpec.model_validate({**run, **fields}), Path())


def replica(of: Task | None = None) -> Replica:
    of = of or task()
    return Replica(of.build_model(0), of, Clock())


def batch(of: Task, samples: slice = slice(0, 16)) -> Batch:
    images = torch.from_numpy(of.data.train.inputs[samples])
    return Batch(images, torch.from_numpy(of.data.train.labels[samples]), 0, StepSizes([len(images)]), 1, 1)


def textbook(model: nn.Module) -> Tensor:
    """The parameters concatenated, each in its logical order."""
    return torch.tensor([number for p in model.parameters() for number in p.detach().flatten().tolist()])


# Flat views


def test_flat_weights_are_the_parameters_in_order_for_any_memory_format() -> None:
    one = replica()
    assert not all(parameter.is_contiguous() for parameter in one.model.parameters())
    flat = one.weights()
    assert flat.is_contiguous()
    assert flat.dtype == torch.float32
    assert flat.shape == (one.parameter_count,) == (15_660,)
    assert torch.equal(flat, textbook(one.model))


def test_weights_can_be_replaced() -> None:
    one, wanted = replica(), torch.arange(15_660, dtype=torch.float32)
    before = one.weights()
    one.set_weights(wanted)
    assert torch.equal(one.weights(), wanted)
    assert torch.equal(textbook(one.model), wanted)
    assert not torch.equal(before, wanted)  # weights() is a copy
    assert all(p.requires_grad and p.is_leaf for p in one.model.parameters())


def test_gradient_can_be_read_and_replaced() -> None:
    of = task()
    one = replica(of)
    one.backward(batch(of))
    gradient = one.gradient()
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in one.model.parameters()]))  # type: ignore[union-attr]
    before = one.weights()
    one.set_gradient(gradient * 2)
    one.step()
    torch.testing.assert_close(one.weights(), before - 0.1 * 2 * gradient)


def test_gradient_is_that_of_the_mean_loss_of_the_last_batch() -> None:
    of = task()
    one, other = replica(of), of.build_model(0)
    nll_loss(other(batch(of).inputs), batch(of).targets).backward()
    expected = torch.cat([p.grad.flatten() for p in other.parameters()])  # type: ignore[union-attr]
    one.backward(batch(of, slice(16, 60)))  # does not accumulate
    one.backward(batch(of))
    torch.testing.assert_close(one.gradient(), expected)
    one.backward(batch(of), weight=0.25)
    torch.testing.assert_close(one.gradient(), expected / 4)
    one.backward(batch(of), weight=0.0)
    assert not one.gradient().any()


def test_mean_of_weighted_gradients_is_the_gradient_of_all_samples() -> None:
    of = task()
    one = replica(of)
    one.backward(batch(of, slice(0, 60)))
    whole = one.gradient()
    parts = [slice(0, 10), slice(10, 43), slice(43, 60)]
    mean = torch.zeros_like(whole)
    for part in parts:
        one.backward(batch(of, part), weight=(part.stop - part.start) / 60 * len(parts))
        mean += one.gradient() / len(parts)
    torch.testing.assert_close(mean, whole)


def test_gradient_with_a_frozen_parameter() -> None:
    of = task()
    one = replica(of)
    next(one.model.parameters()).requires_grad_(False)
    one.backward(batch(of))
    one.set_gradient(one.gradient())


# Evaluation


def session(of: Task, comm: Communicator) -> Session:
    context = NodeContext(comm.rank, comm.size, "memory", Path())
    return Session(context, of, EventWriter("run", comm.rank, None, io.StringIO()), comm)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("test_samples", [2, 37])
def test_evaluation_counts_every_test_sample_once(size: int, test_samples: int) -> None:
    of = task(test_samples, model="lenet", nodes=size)  # its dropout is off in evaluation
    assert of.data.test.inputs.shape[0] == test_samples  # loaded before the ranks are started
    model = of.build_model(0).eval()
    with torch.no_grad():
        output = model(torch.from_numpy(of.data.test.inputs))
    labels = torch.from_numpy(of.data.test.labels)
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
    "strategy",
    [
        name
        for name in STRATEGIES.entries
        if STRATEGIES.load(name).trains and STRATEGIES.load(name).deterministic
        if "memory" in STRATEGIES.load(name).transports
    ],
)
def test_ranks_without_test_samples_call_neither_model_nor_loss(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On gpt, which takes no batch of none; only part of the ranks have the one test sample."""
    seen = [0]
    for name in ("of", "right"):
        monkeypatch.setattr(Nll, name, seeing(getattr(Nll, name), seen))
    ranks = STRATEGIES.load(strategy).max_nodes or 2
    fields = {**ON_TOKENS, **fields_for(strategy)}
    fields["dataset"] = {**ON_TOKENS["dataset"], "samples": 24, "test_samples": 1}
    assert train_whole(strategy, ranks, **fields, loss="nll", epochs=1).results[0].accuracy is not None
    assert min(seen[1:]) > 0


def seeing(function: Any, seen: list[int]) -> Any:
    """The method of a loss, which notes how many samples it is called with."""

    def noting(own: Loss, output: Tensor, *more: Any) -> Tensor:
        seen.append(len(output))
        found: Tensor = function(own, output, *more)
        return found

    return noting


def test_evaluation_in_batches_equals_evaluation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of, comm = task(), MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))
    whole = session(of, comm).evaluate(replica(of), alone=True)
    monkeypatch.setattr("trainer.training.evaluation.BATCH", 8)
    assert session(of, comm).evaluate(replica(of), alone=True) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("labels", "other_targets", "chance"),
    [([0, 1, 1, 1, 2], None, 0.6), ([0, 1], None, 0.5), ([0, 1], np.ones((2, 1), np.float32), None)],
)
def test_chance_is_the_share_of_the_most_frequent_class(
    labels: list[int], other_targets: Any, chance: float | None
) -> None:
    inputs = np.zeros((len(labels), 3), np.float32)
    comm = MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))
    evaluation = Evaluation(Split(inputs, np.array(labels), other_targets), task().spec.loss, comm)
    assert evaluation.chance == chance


def test_evaluation_of_nan_weights_raises_diverged() -> None:
    of, comm = task(), MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))
    one = replica(of)
    one.set_weights(torch.full((15_660,), float("nan")))
    with pytest.raises(Diverged, match="the loss is nan on the test split"):
        session(of, comm).evaluate(one, alone=True)


# A whole training on one rank


def test_metrics_of_a_training(tmp_path: Path) -> None:
    of = task(strategy="serial", epochs=2, batch_size=25, save_weights=True)
    context = NodeContext(0, 1, "memory", Path(), out_dir=tmp_path)
    result = train(
        context, of, EventWriter(of.spec.key, 0, None, io.StringIO()), connect(context, threads=1)
    )
    assert (result.steps, result.samples, result.parameters) == (6, 120, 15_660)
    assert result.train_s == pytest.approx(
        sum(result.seconds.values()) - result.seconds["evaluate"], abs=1e-4
    )
    assert result.work_cpu_s > 0
    assert (result.bytes_sent, result.local_accuracy) == (0, None)
    weights = np.load(tmp_path / "weights.npy")
    assert weights.shape == (15_660,)
    assert np.isfinite(weights).all()
