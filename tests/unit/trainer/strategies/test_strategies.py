"""Equivalences between strategies: equal mathematics gives equal weights. Over transport memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from orchestrator.execution.run_result import certify
from tests.unit.threads import together
from tests.unit.training import SMALL, train
from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.data.certificate import part_digest
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.strategies.diloco import DiLoCo
from trainer.strategies.fedopt import FedOpt
from trainer.strategies.gossip import Graph, mix, neighbours
from trainer.training.loader import BatchLoader, PartitionedSplit
from trainer.training.replica import Replica
from trainer.training.task import Task

ODD = {"dataset": {"name": "synthetic", "samples": 121, "test_samples": 40, "noise": 1.0}}  # 61 and 60
MOMENTUM = {"optimizer": "momentum", "lr": 0.02}
GRAPHS: list[Graph] = ["ring", "exponential", "complete"]
# Strategies that train with threads as ranks. tests/integration compares the others on processes.
THREADED = [
    name
    for name in STRATEGIES.entries
    if "memory" in STRATEGIES.load(name).transports
    and STRATEGIES.load(name).trains
    and STRATEGIES.load(name).max_nodes is None
    and not STRATEGIES.load(name).forks
    and not STRATEGIES.load(name).partitions_model  # see test_partitioned_models.py
]
WITH_SERVER = [name for name in THREADED if STRATEGIES.load(name).servers]
UNEVEN_STRATEGIES = [name for name in THREADED if "uneven" in STRATEGIES.load(name).model_fields]
# DiLoCo without an effective outer step: the outer step moves exactly to the average.
PLAIN_DILOCO = {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0}
PLAIN_FEDOPT = {"name": "fedopt", "server": "momentum", "server_lr": 1.0, "beta1": 0.0}
PLAIN_FEDPROX = {"name": "fedprox", "mu": 0.0}
# Strategies whose own steps can have no effect.
PLAIN = {each["name"]: each for each in (PLAIN_DILOCO, PLAIN_FEDOPT, PLAIN_FEDPROX)}


def nodes(name: str, workers: int) -> int:
    """Number of nodes of a run with this many workers."""
    return workers + STRATEGIES.load(name).servers


def close(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def differ(left: np.ndarray, right: np.ndarray) -> None:
    assert np.abs(left - right).max() > 1e-4


# Every strategy


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
@pytest.mark.parametrize("name", THREADED)
def test_state_bytes_of_each_rank(name: str, optimizer: str, moments: int) -> None:
    training = train(name, nodes(name, 2), optimizer=optimizer, lr=0.02)
    for rank, result in enumerate(training.results):
        # A rank of zero2 has half of each block. Others have two blocks of two tensors each.
        updated, tensors = (result.parameters // 2, 2) if name == "zero2" else (result.parameters, 4)
        steps = tensors * 4 if moments == 2 else 0  # Adam stores a float32 step count per tensor
        optimizer_bytes = 4 * updated * moments + steps
        if name == "parameter_server" and rank >= STRATEGIES.load(name).servers:
            optimizer_bytes = 0  # only the server has optimizer state
        expected = {
            "weights": 4 * result.parameters,
            "gradient": 4 * updated,
            "optimizer": optimizer_bytes,
        }
        assert result.state_bytes == expected


def test_shared_memory_is_counted_once() -> None:
    spec = RunSpec.model_validate({**SMALL, "strategy": "serial"})
    model = torch.nn.Linear(3, 2)
    model.weight.data = torch.zeros(10)[:6].view(2, 3)
    model.register_buffer("same", model.weight.data[0])
    assert Replica(model, Task(spec, Path()), Clock()).state_bytes["weights"] == 4 * (10 + 2)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("name", THREADED)
def test_one_worker_equals_serial(name: str, optimizer: str) -> None:
    fields: dict[str, Any] = {"optimizer": optimizer, "lr": 0.02, "model": "lenet"}  # with dropout
    serial = train("serial", 1, **fields)
    alone = train(PLAIN.get(name, name), nodes(name, 1), **fields)
    close(alone.weights, serial.weights)
    assert alone.results[0].accuracy == serial.results[0].accuracy
    assert (alone.results[0].bytes_sent == 0) == (name not in WITH_SERVER)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", THREADED)
def test_all_ranks_end_with_the_same_weights(name: str, ranks: int) -> None:
    assert train(name, ranks, **ODD).same_weights


@pytest.mark.parametrize(("policy", "samples"), [("join", (61, 60)), ("drop", (60, 60)), ("pad", (61, 61))])
@pytest.mark.parametrize("name", UNEVEN_STRATEGIES)
def test_uneven_parts(name: str, policy: str, samples: tuple[int, int]) -> None:
    training = train({"name": name, "uneven": policy}, nodes(name, 2), **ODD)
    servers = [0] * STRATEGIES.load(name).servers
    assert [result.samples for result in training.results] == [*servers, *(2 * n for n in samples)]
    assert {result.steps for result in training.results} == {2 * (7 if policy != "drop" else 6)}
    certificate = certify([event for events in training.events for event in events])
    assert certificate is not None
    assert certificate.verified  # the loaded samples agree with the split and the policy
    for split in certificate.splits:
        assert split.uneven == policy
        assert split.coverage == pytest.approx(120 / 121 if policy == "drop" else 1)
        assert split.overlap == 0


class Recording(torch.Tensor):
    """Inputs that record which of their samples are read."""

    read: Callable[[list[int]], None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.index_select:
            args[0].read(args[2].tolist())
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "policy"),
    [*product([*UNEVEN_STRATEGIES, "hybrid"], ["join", "drop", "pad"]), ("one_shot", ""), ("pipeline", "")],
)
def test_each_copy_of_the_model_reads_what_the_certificate_counts(
    name: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: dict[int, list[int]] = defaultdict(list)
    stored, gather, this_thread = PartitionedSplit.stored, BatchLoader._gather, threading.local()

    def recording(split: PartitionedSplit, inputs: np.ndarray) -> torch.Tensor:
        tensor = stored(split, inputs).as_subclass(Recording)
        tensor.read = lambda samples: reads[this_thread.rank].extend(samples)
        return tensor

    def gathering(loader: BatchLoader, *arguments: Any) -> Any:
        this_thread.rank = loader._rank
        return gather(loader, *arguments)

    monkeypatch.setattr(PartitionedSplit, "stored", recording)
    monkeypatch.setattr(BatchLoader, "_gather", gathering)
    strategy = {"name": name, "uneven": policy} if policy else name
    ranks = 4 if name == "hybrid" else nodes(name, 2)
    training = train(strategy, ranks, epochs=1, partitioner="quantity")  # 80 samples and 40
    reported = [event.fields for rank in range(ranks) for event in training.of("partition", rank)]
    copies = 1 if name == "pipeline" else 2
    assert [(len(reads[copy]), part_digest(np.array(reads[copy]))) for copy in range(copies)] == [
        (fields["samples"], fields["digest"]) for fields in reported
    ]
    assert sum(len(each) for each in reads.values()) == sum(fields["samples"] for fields in reported)


# Averaging gradients


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ["all_gather", "reduce_broadcast"])
def test_gradient_averaging_strategies_agree(name: str, ranks: int) -> None:
    expected = train("all_reduce", ranks, **ODD, **MOMENTUM)
    found = train(name, ranks, **ODD, **MOMENTUM)
    close(found.weights, expected.weights)


def test_bytes_of_gradient_averaging() -> None:
    """Bytes sent per step for a gradient of n bytes on P ranks."""
    ranks = 3
    means = {name: train(name, ranks) for name in ("all_reduce", "all_gather", "reduce_broadcast")}
    (result, *_) = means["all_reduce"].results
    sent = {name: [r.bytes_sent / result.steps for r in mean.results] for name, mean in means.items()}
    n = 4 * result.parameters
    assert sent["all_reduce"] == pytest.approx([2 * n * 2 / 3] * ranks)
    assert sent["all_gather"] == pytest.approx([n * 2] * ranks)
    assert sent["reduce_broadcast"] == pytest.approx([n * 2, n, n])


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_reduce_equals_one_node_with_the_global_batch(ranks: int) -> None:
    """The reference is plain torch: each step uses the samples of all ranks as one batch."""
    spec = RunSpec.model_validate(
        {**SMALL, "strategy": "all_reduce", "nodes": ranks, "transport": "memory"}
    )
    task = Task(spec, Path())
    model = task.build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, ranks) for rank in range(ranks)]
    for epoch in (1, 2):
        for step in zip(*(loader.batches(epoch) for loader in loaders), strict=True):
            images = torch.cat([batch.inputs for batch, _ in step])
            labels = torch.cat([batch.targets for batch, _ in step])
            optimizer.zero_grad()
            nll_loss(model(images), labels).backward()
            optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    close(train("all_reduce", ranks).weights, expected.numpy())


# Parameter server


@pytest.mark.parametrize("policy", ["join", "drop", "pad"])
@pytest.mark.parametrize("workers", [2, 3])
def test_parameter_server_equals_all_reduce_with_as_many_workers(workers: int, policy: str) -> None:
    """Each step has the same samples in the same order and the same dropout masks."""
    fields: dict[str, Any] = {**ODD, **MOMENTUM, "model": "lenet"}
    expected = train({"name": "all_reduce", "uneven": policy}, workers, **fields)
    found = train({"name": "parameter_server", "uneven": policy}, workers + 1, **fields)
    close(found.weights, expected.weights)
    for rank in range(workers):
        parts = [training.of("partition", at) for training, at in ((expected, rank), (found, rank + 1))]
        assert parts[0]
        assert [part.fields for part in parts[0]] == [part.fields for part in parts[1]]
    splits = [training.of("coverage", at) for training, at in ((expected, 0), (found, 1))]
    assert [split.fields for split in splits[0]] == [split.fields for split in splits[1]]


def test_server_reports_only_its_own_work() -> None:
    training = train("parameter_server", 3)
    server, *workers = training.results
    assert (server.samples, server.steps) == (0, workers[0].steps)
    assert training.of("partition") == training.of("coverage") == training.of("step") == []
    assert [point.fields["loss"] for point in training.of("epoch")] == [None, None]
    assert all(point.fields["loss"] > 0 for rank in (1, 2) for point in training.of("epoch", rank))
    for points in zip(*(training.of("epoch", rank) for rank in range(3)), strict=True):
        assert len({point.fields["accuracy"] for point in points}) == 1
    assert server.seconds["data"] == 0
    assert server.seconds["compute"] > 0
    assert server.seconds["wait"] > 0


def test_bytes_of_parameter_server() -> None:
    """Per step with W workers: each worker sends a gradient of n bytes and receives n bytes of weights."""
    training = train("parameter_server", 4)
    n = 4 * training.results[0].parameters
    sent = [result.bytes_sent / training.results[0].steps for result in training.results]
    assert sent == [3 * n, n, n, n]


# Averaging weights


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("optimizer_state", "optimizer", "equivalent"),
    [
        ("keep", "sgd", "sgd"),
        ("keep", "momentum", "momentum"),  # updates are linear in the momentum, so averaged weights agree
        ("average", "momentum", "momentum"),
        ("reset", "momentum", "sgd"),  # momentum that is reset in every step has no effect
    ],
)
def test_averaging_weights_in_every_step_equals_averaging_gradients(
    ranks: int, optimizer_state: str, optimizer: str, equivalent: str
) -> None:
    local = {"name": "local_sgd", "local_steps": 1, "optimizer_state": optimizer_state}
    expected = train("all_reduce", ranks, lr=0.05, optimizer=equivalent)
    close(train(local, ranks, lr=0.05, optimizer=optimizer).weights, expected.weights)


# Parts of 4 nodes whose steps differ in number: some nodes have no samples left in most steps.
UNEQUAL: dict[str, Any] = {"partitioner": {"name": "dirichlet", "alpha": 0.1}, "seed": 1}
UNEVEN_MODES = ["join", "drop", "pad"]


@pytest.mark.parametrize("uneven", UNEVEN_MODES)
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "local_sgd", "local_steps": 1},
        *({**plain, "local_steps": 1} for plain in PLAIN.values()),
        {"name": "gossip", "graph": "complete", "order": "step_then_mix"},
    ],
    ids=lambda strategy: strategy["name"],
)
def test_averaging_weights_in_every_step_equals_all_reduce_on_unequal_parts(
    strategy: dict[str, Any], uneven: str
) -> None:
    expected = train({"name": "all_reduce", "uneven": uneven}, 4, **UNEQUAL)
    found = train({**strategy, "uneven": uneven}, 4, **UNEQUAL)
    close(found.weights, expected.weights)
    assert found.results[0].accuracy == expected.results[0].accuracy


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_weighting_of_unequal_parts_changes_the_average(weighting: str) -> None:
    expected = train("all_reduce", 4, **UNEQUAL)
    for strategy in (
        {"name": "local_sgd", "local_steps": 1},
        *({**plain, "local_steps": 1} for plain in PLAIN.values()),
        {"name": "gossip", "graph": "complete", "order": "step_then_mix"},
    ):
        found = train({**strategy, "weighting": weighting}, 4, **UNEQUAL)
        (close if weighting == "size" else differ)(found.weights, expected.weights)


@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize("steps", [3, None])
def test_size_counts_the_samples_that_were_trained_on(uneven: str, steps: int | None) -> None:
    """With drop and pad all nodes train on equally many, however unequal the parts are."""
    by_size, equally_weighted = (
        train(
            {"name": "local_sgd", "local_steps": steps, "uneven": uneven, "weighting": each}, 3, **UNEQUAL
        )
        for each in ("size", "equal")
    )
    close(by_size.weights, equally_weighted.weights)


def test_size_counts_the_samples_since_the_last_average() -> None:
    """Two nodes of 30 and 10 samples: the average is that of FederatedAveraging in each round."""
    spec = RunSpec.model_validate(
        {**SMALL, **UNEQUAL, "strategy": "local_sgd", "nodes": 2, "transport": "memory", "epochs": 1}
    )
    task = Task(spec, Path())
    models = [task.build_model(0) for _ in range(2)]
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, 2) for rank in range(2)]
    samples, steps = np.zeros(2), loaders[0].synchronous_steps(1)
    batches = [loader.synchronous_batches(1) for loader in loaders]
    assert len({*loaders[0].steps(1)}) == 2
    for step, pair in enumerate(zip(*batches, strict=True), start=1):
        for node, (model, (batch, indices)) in enumerate(zip(models, pair, strict=True)):
            if len(indices):
                gradients = torch.autograd.grad(
                    nll_loss(model(batch.inputs), batch.targets), [*model.parameters()]
                )
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter -= spec.lr * gradient
            samples[node] += len(indices)
        if step % 2 == 0 or step == steps:
            with torch.no_grad():
                for one, two in zip(*(model.parameters() for model in models), strict=True):
                    mean = (samples[0] * one + samples[1] * two) / samples.sum()
                    one.copy_(mean)
                    two.copy_(mean)
            samples[:] = 0
    expected = torch.cat([parameter.detach().flatten() for parameter in models[0].parameters()])
    found = train({"name": "local_sgd", "local_steps": 2}, 2, **UNEQUAL, epochs=1)
    close(found.weights, expected.numpy())


def test_optimizer_state_modes_differ() -> None:
    kept, average, reset = (
        train({"name": "local_sgd", "local_steps": 2, "optimizer_state": state}, optimizer="adam", lr=0.01)
        for state in ("keep", "average", "reset")
    )
    differ(kept.weights, average.weights)
    differ(kept.weights, reset.weights)
    # keep averages the weights; average also averages Adam's two moments
    n, averages = 4 * kept.results[0].parameters, kept.results[0].steps / 2
    weight = 4  # bytes of each rank's weight in an average
    assert kept.results[0].bytes_sent == pytest.approx(n + (n + weight) * averages)  # rank 0 broadcasts n
    assert average.results[0].bytes_sent == pytest.approx(n + (3 * n + 2 * weight) * averages)


@pytest.mark.parametrize("weighting", ["equal", "size"])
@pytest.mark.parametrize("init", ["broadcast", "independent"])
def test_local_sgd_that_averages_only_at_the_end_equals_one_shot(init: str, weighting: str) -> None:
    both = {"init": init, "weighting": weighting}
    expected = train({"name": "one_shot", **both}, 3, **ODD, **MOMENTUM)
    found = train({"name": "local_sgd", "local_steps": None, **both}, 3, **ODD, **MOMENTUM)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.results[0].accuracy == expected.results[0].accuracy


@pytest.mark.parametrize("strategy", [{"name": "one_shot"}, {"name": "local_sgd", "local_steps": None}])
def test_one_step_weighted_by_size_equals_one_serial_step(strategy: dict[str, Any]) -> None:
    """The mean over samples equals the mean of the parts' means only if weighted by part size."""
    whole = {**ODD, "batch_size": 121, "epochs": 1}
    serial = train("serial", 1, **whole, lr=1.0).weights
    by_size, equally_weighted = (
        train({**strategy, "weighting": weighting}, 2, **whole, lr=1.0).weights
        for weighting in ("size", "equal")
    )
    close(by_size, serial)
    assert np.abs(equally_weighted - serial).max() > 20 * np.abs(by_size - serial).max()


@pytest.mark.parametrize("steps", [1, 4, 5, 12, 100])
def test_local_steps_between_two_averages(steps: int) -> None:
    training = train({"name": "local_sgd", "local_steps": steps}, 2)  # 12 steps in all
    (rank, other) = training.results
    averages = -(-12 // steps)  # the last round may be shorter
    assert other.bytes_sent == pytest.approx(averages * 4 * (rank.parameters + 1))  # and its weight
    assert training.same_weights


def test_evaluation_uses_the_average_without_changing_the_replicas() -> None:
    training = train({"name": "local_sgd", "local_steps": None}, 2)
    for rank in (0, 1):
        points = training.of("epoch", rank)
        assert [point.fields["accuracy"] for point in points] == [
            point.fields["accuracy"] for point in training.of("epoch")
        ]
        assert points[-1].fields["consensus_distance"] > 0.01  # the replicas have not been averaged yet
        assert points[-1].fields["accuracy"] == training.results[rank].accuracy


# DiLoCo, FedOpt and FedProx


@pytest.mark.parametrize("name", PLAIN)
def test_without_a_step_of_its_own_it_equals_local_sgd(name: str) -> None:
    for steps in (3, 5):
        expected = train({"name": "local_sgd", "local_steps": steps}, 3, **ODD, **MOMENTUM)
        found = train({**PLAIN[name], "local_steps": steps}, 3, **ODD, **MOMENTUM)
        close(found.weights, expected.weights)


def test_server_steps_are_those_of_the_paper() -> None:
    """Reddi et al. 2021, Alg. 2, number by number."""
    eta, beta1, beta2, tau = 0.3, 0.9, 0.8, 0.05
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 4))
    for server in ("adagrad", "yogi", "adam"):
        x, m, v = rng.normal(size=4), np.zeros(4), np.full(4, tau**2)
        state = [torch.from_numpy(each.copy()) for each in (x, m, v)]
        own = {} if server == "adagrad" else {"beta2": beta2}
        strategy = FedOpt(server=server, server_lr=eta, beta1=beta1, tau=tau, **own)
        for mean in means:
            for i in range(4):
                change = mean[i] - x[i]
                m[i] = beta1 * m[i] + (1 - beta1) * change
                if server == "adagrad":
                    v[i] = v[i] + change**2
                elif server == "yogi":
                    v[i] = v[i] - (1 - beta2) * change**2 * np.sign(v[i] - change**2)
                else:
                    v[i] = beta2 * v[i] + (1 - beta2) * change**2
                x[i] = x[i] + eta * m[i] / (np.sqrt(v[i]) + tau)
            strategy.server_step(state[0], torch.from_numpy(mean), *state[1:])
            for found, expected in zip(state, (x, m, v), strict=True):
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_momentum_of_the_server_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(50, generator=generator)
    theirs = ours.clone().requires_grad_()
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9)
    m, v = torch.zeros(50), torch.zeros(50)
    for _ in range(4):
        mean = torch.randn(50, generator=generator)
        theirs.grad = theirs.detach() - mean
        sgd.step()
        FedOpt(server="momentum", server_lr=0.7, beta1=0.9).server_step(ours, mean, m, v)
        torch.testing.assert_close(ours, theirs.detach())


def test_the_proximal_term_pulls_back_by_the_distance_from_the_start_of_the_round() -> None:
    """After two steps from w: the second one has the gradient of μ/2 ‖w₁ − w‖² beside the loss's."""
    samples = {"dataset": {**SMALL["dataset"], "samples": 20}, "batch_size": 10, "epochs": 1}
    spec = RunSpec.model_validate({**SMALL, **samples, "strategy": "serial"})
    task = Task(spec, Path())
    model = task.build_model(0)
    batch, _ = next(BatchLoader(task.data.train, spec, task.rngs, 0, 1).batches(1))
    loss = nll_loss(model(batch.inputs), batch.targets)
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    first_step = -spec.lr * torch.cat([each.flatten() for each in gradients]).numpy()
    without = train("serial", 1, **samples)
    for mu in (0.5, 4.0):
        found = train({"name": "fedprox", "mu": mu, "local_steps": 2}, 1, **samples)
        close(found.weights, without.weights - spec.lr * mu * first_step)


def test_outer_step_equals_torch_nesterov() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(50, generator=generator)
    theirs = ours.clone().requires_grad_()
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    velocity = torch.zeros(50)
    for _ in range(4):
        mean = torch.randn(50, generator=generator)
        theirs.grad = theirs.detach() - mean
        sgd.step()
        DiLoCo().outer_step(ours, mean, velocity)
        torch.testing.assert_close(ours, theirs.detach())


# Gossip


def mixing_matrix(graph: Graph, size: int) -> np.ndarray:
    distances = neighbours(graph, size)
    matrix = np.zeros((size, size))
    for rank in range(size):
        for distance in [0, *distances]:
            matrix[rank, (rank - distance) % size] += 1 / (len(distances) + 1)
    return matrix


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("graph", GRAPHS)
def test_mixing_matrix_is_doubly_stochastic_and_primitive(graph: Graph, size: int) -> None:
    matrix = mixing_matrix(graph, size)
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert len(set(neighbours(graph, size))) == len(neighbours(graph, size))
    assert (np.linalg.matrix_power(matrix, size) > 0).all()


def test_neighbours() -> None:
    assert [neighbours("ring", size) for size in (1, 2, 3, 6)] == [[], [1], [1, 2], [1, 5]]
    assert [neighbours("exponential", size) for size in (1, 2, 3, 8, 9)] == [
        [],
        [1],
        [1, 2],
        [1, 2, 4],
        [1, 2, 4, 8],
    ]
    assert [neighbours("complete", size) for size in (1, 2, 4)] == [[], [1], [1, 2, 3]]


class Weights:
    """A replica that has only weights."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights

    def weights(self) -> torch.Tensor:
        return self._weights.clone()

    def set_weights(self, flat: torch.Tensor) -> None:
        self._weights = flat


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("size", [2, 5, 8])
def test_mix_multiplies_by_the_mixing_matrix(graph: Graph, size: int) -> None:
    start = np.random.default_rng(0).normal(size=(size, 7)).astype(np.float32)

    def body(comm: Communicator) -> np.ndarray:
        replica: Any = Weights(torch.from_numpy(start[comm.rank].copy()))
        mix(replica, comm, neighbours(graph, size))
        mix(replica, comm, neighbours(graph, size))
        found: np.ndarray = replica.weights().numpy()
        return found

    expected = np.linalg.matrix_power(mixing_matrix(graph, size), 2) @ start
    np.testing.assert_allclose(np.stack(together(size, body)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("init", ["broadcast", "independent"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_gossip_on_the_complete_graph_equals_local_sgd(init: str, ranks: int) -> None:
    gossip = {"name": "gossip", "graph": "complete", "order": "step_then_mix", "init": init}
    local = {"name": "local_sgd", "local_steps": 1, "init": init}
    close(train(gossip, ranks, **MOMENTUM).weights, train(local, ranks, **MOMENTUM).weights)


def test_gossip_equals_reference() -> None:
    """D-PSGD on two nodes in plain torch: mix, then apply the gradient at the weights before mixing."""
    spec = RunSpec.model_validate({**SMALL, "strategy": "gossip", "nodes": 2, "transport": "memory"})
    task = Task(spec, Path())
    models = [task.build_model(0) for _ in range(2)]
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, 2) for rank in range(2)]
    for epoch in (1, 2):
        for step in zip(*(loader.batches(epoch) for loader in loaders), strict=True):
            gradients = []
            for model, (batch, _) in zip(models, step, strict=True):
                loss = nll_loss(model(batch.inputs), batch.targets)
                gradients.append(torch.autograd.grad(loss, [*model.parameters()]))
            with torch.no_grad():
                for one, two, *g in zip(*(m.parameters() for m in models), *gradients, strict=True):
                    mean = (one + two) / 2
                    one.copy_(mean - spec.lr * g[0])
                    two.copy_(mean - spec.lr * g[1])
    pairs = zip(*(model.parameters() for model in models), strict=True)
    expected = torch.cat([((one + two) / 2).detach().flatten() for one, two in pairs])
    close(train("gossip", 2).weights, expected.numpy())


def test_gossip_reaches_consensus() -> None:
    """From independent weights, with a negligible learning rate: sparser graphs converge more slowly."""
    apart = {
        graph: [
            point.fields["consensus_distance"]
            for point in train({"name": "gossip", "graph": graph, "init": "independent"}, 6, lr=1e-6).of(
                "epoch"
            )
        ]
        for graph in GRAPHS
    }
    for graph in ("ring", "exponential"):
        first, second = apart[graph]
        assert second < first / 2
    assert apart["ring"][0] > 2 * apart["exponential"][0] > 1000 * apart["complete"][0]
