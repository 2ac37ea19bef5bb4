"""Mistakes in what ranks average, with which weights, when, and at the cost of which bytes.

The laws of `check` say of every strategy that its ranks agree, that one replica equals `serial`, and that
it equals what it declares: see test_conformance_strategies.py.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle
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
from trainer.core.participation import Round
from trainer.data.certificate import part_digest
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.strategies.diloco import DiLoCo
from trainer.strategies.fedopt import DEFAULT_LR, FedOpt, Server
from trainer.strategies.gossip import Graph, mix, neighbours
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.task import Task

MOMENTUM: dict[str, Any] = {"optimizer": "momentum", "lr": 0.02}
# Parts of 4 nodes whose steps differ in number: some nodes have no samples left in most steps.
UNEQUAL: dict[str, Any] = {"partitioner": {"name": "dirichlet", "alpha": 0.1}, "seed": 1}
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
UNEVEN = [name for name in THREADED if "uneven" in STRATEGIES.load(name).model_fields]
# Strategies whose own steps have no effect.
PLAIN: dict[str, dict[str, Any]] = {
    "diloco": {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0},
    "fedopt": {"name": "fedopt", "server": "momentum", "server_lr": 1.0, "beta1": 0.0},
    "fedprox": {"name": "fedprox", "mu": 0.0},
}
COMPLETE = {"name": "gossip", "graph": "complete", "order": "step_then_mix"}


def nodes(name: str, workers: int) -> int:
    """The number of nodes of a run with this many workers."""
    return workers + STRATEGIES.load(name).servers


def close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def differ(left: np.ndarray, right: np.ndarray) -> None:
    assert np.abs(left - right).max() > 1e-4


def task_of(strategy: str, ranks: int, **fields: Any) -> Task:
    run = {**SMALL, "strategy": strategy, "nodes": ranks, "transport": "memory", **fields}
    return Task(RunSpec.model_validate(run), Path())


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in tensors])


def gradient(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return flat(torch.autograd.grad(nll_loss(model(inputs), targets), [*model.parameters()]))


# State, samples and bytes of ranks

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def test_state_bytes_of_each_rank() -> None:
    for name, optimizer in (
        *((name, "adam") for name in THREADED),
        ("all_reduce", "sgd"),
        ("zero2", "momentum"),
    ):
        for rank, result in enumerate(train(name, nodes(name, 2), optimizer=optimizer, epochs=1).results):
            # A rank of zero2 has half of each block. Others have two blocks of two tensors each.
            updated, tensors = (result.parameters // 2, 2) if name == "zero2" else (result.parameters, 4)
            counts = tensors * 4 if optimizer == "adam" else 0  # a float32 step count per tensor
            state = 4 * updated * MOMENTS[optimizer] + counts
            if name == "parameter_server" and rank:
                state = 0  # only the server has optimizer state
            expected = {"weights": 4 * result.parameters, "gradient": 4 * updated, "optimizer": state}
            assert result.state_bytes == expected, name


def test_shared_memory_is_counted_once() -> None:
    model = torch.nn.Linear(3, 2)
    model.weight.data = torch.zeros(10)[:6].view(2, 3)
    model.register_buffer("same", model.weight.data[0])
    assert Replica(model, task_of("serial", 1), Clock()).state_bytes["weights"] == 4 * (10 + 2)


# Every strategy with a policy that is not its default, and some with all.
POLICIES = [
    *zip([*UNEVEN, "hybrid"], cycle(["drop", "pad"])),
    *(("all_reduce", policy) for policy in ("join", "drop", "pad")),
    *(("parameter_server", policy) for policy in ("join", "drop", "pad")),
    *(("one_shot", ""), ("pipeline", "")),
]


def test_unequal_parts_are_read_as_the_policy_says_and_the_certificate_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gather = BatchLoader._gather

    def recording(loader: BatchLoader, indices: np.ndarray, *step: int) -> Any:
        reads[loader._rank].extend(indices.tolist())
        return gather(loader, indices, *step)

    monkeypatch.setattr(BatchLoader, "_gather", recording)
    for name, policy in POLICIES:
        reads: dict[int, list[int]] = defaultdict(list)
        strategy = {"name": name, "uneven": policy} if policy else name
        ranks = 4 if name == "hybrid" else nodes(name, 2)
        training = train(strategy, ranks, epochs=1, partitioner="quantity")  # 80 samples and 40
        samples = {"drop": [40, 40], "pad": [80, 80]}.get(policy, [80, 40])
        if name == "pipeline":
            samples = [120]
        assert [each.samples for each in training.results if each.samples] == samples, name
        reported = [event.fields for rank in range(ranks) for event in training.of("partition", rank)]
        digests = [part_digest(np.array(reads[copy])) for copy in range(len(reads))]
        assert [(each["samples"], each["digest"]) for each in reported] == [
            *zip(samples, digests, strict=True)
        ]
        certificate = certify([event for events in training.events for event in events])
        assert certificate is not None
        assert certificate.verified
        for split in certificate.splits:
            assert (split.uneven, split.overlap) == (policy or "join", 0)
            assert split.coverage == pytest.approx(80 / 120 if policy == "drop" else 1)


def test_bytes_of_a_step() -> None:
    """Of a gradient of n bytes on P ranks; the ring all-reduce sends 2n(P−1)/P."""
    ranks = 3
    sent = {}
    for name in ("all_reduce", "all_gather", "reduce_broadcast", "parameter_server"):
        results = train(name, ranks).results
        n = 4 * results[0].parameters
        sent[name] = [each.bytes_sent / each.steps / n for each in results]
        for rank, each in enumerate(sent[name]):
            declared = STRATEGIES.parse(name).step_bytes(n, rank, ranks)
            assert declared is None or declared == pytest.approx(each * n)
    assert sent == {
        "all_reduce": pytest.approx([4 / 3] * 3),
        "all_gather": pytest.approx([2] * 3),
        "reduce_broadcast": pytest.approx([2, 1, 1]),
        "parameter_server": pytest.approx([2, 1, 1]),
    }


# Averaging gradients


def test_all_reduce_equals_one_node_with_the_global_batch() -> None:
    """The reference is plain torch: each step uses the samples of all ranks as one batch."""
    task = task_of("all_reduce", 2)
    model = task.build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.spec.lr)
    loaders = [BatchLoader(task.data.train, task.spec, task.rngs, rank, 2) for rank in range(2)]
    for epoch in (1, 2):
        for step in zip(*(loader.batches(epoch) for loader in loaders), strict=True):
            inputs, targets = (
                torch.cat([getattr(batch, of) for batch, _ in step]) for of in ("inputs", "targets")
            )
            optimizer.zero_grad()
            nll_loss(model(inputs), targets).backward()
            optimizer.step()
    close(train("all_reduce", 2).weights, flat(model.parameters()))


def test_workers_of_a_parameter_server_do_what_ranks_of_all_reduce_do() -> None:
    """The same samples in the same order with the same dropout masks; and the server trains on none."""
    fields: dict[str, Any] = {"partitioner": "quantity", "model": "lenet", **MOMENTUM}
    expected, found = train("all_reduce", 2, **fields), train("parameter_server", 3, **fields)
    close(found.weights, expected.weights)
    for kind, ranks in (("partition", 2), ("coverage", 1)):
        for rank in range(ranks):
            parts = [[each.fields for each in expected.of(kind, rank)]]
            parts += [[each.fields for each in found.of(kind, rank + 1)]]
            assert parts[0] == parts[1] != []
    server, worker, _ = found.results
    assert (server.samples, server.steps, server.seconds["data"]) == (0, worker.steps, 0)
    assert min(server.seconds["compute"], server.seconds["wait"]) > 0
    assert found.of("partition") == found.of("coverage") == found.of("step") == []
    points = [*zip(*(found.of("epoch", rank) for rank in range(3)), strict=True)]
    assert [[each.fields["loss"] is None for each in of_epoch] for of_epoch in points] == [
        [True, False, False]
    ] * 2
    assert [len({each.fields["accuracy"] for each in of_epoch}) for of_epoch in points] == [1, 1]


# Averaging weights


def test_averaging_weights_in_every_step_equals_averaging_gradients() -> None:
    for optimizer_state, equivalent, fields in (
        ("keep", "momentum", {}),  # updates are linear in the momentum, so averaged weights agree
        ("average", "momentum", UNEQUAL),
        ("reset", "sgd", UNEQUAL),  # momentum that is reset in every step has no effect
    ):
        local = {"name": "local_sgd", "local_steps": 1, "optimizer_state": optimizer_state}
        expected = train("all_reduce", 4, **{**fields, "lr": 0.05, "optimizer": equivalent})
        found = train(local, 4, **{**fields, "lr": 0.05, "optimizer": "momentum"})
        close(found.weights, expected.weights)


@pytest.mark.parametrize("uneven", ["join", "drop", "pad"])
def test_averaging_weights_in_every_step_equals_all_reduce_on_unequal_parts(uneven: str) -> None:
    local: dict[str, Any] = {"name": "local_sgd"}
    in_steps = {
        "join": [local, PLAIN["fedopt"]],
        "drop": [local, PLAIN["fedprox"]],
        "pad": [PLAIN["diloco"]],
    }
    expected = train({"name": "all_reduce", "uneven": uneven}, 4, **UNEQUAL)
    for strategy in (*({**each, "local_steps": 1} for each in in_steps[uneven]), COMPLETE):
        found = train({**strategy, "uneven": uneven}, 4, **UNEQUAL)
        close(found.weights, expected.weights)
        assert found.results[0].accuracy == expected.results[0].accuracy
        if uneven == "join":
            equally = train({**strategy, "uneven": uneven, "weighting": "equal"}, 4, **UNEQUAL)
            differ(equally.weights, expected.weights)


def test_optimizer_states_that_are_averaged_are_sent() -> None:
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


@pytest.mark.parametrize(("init", "weighting"), [("broadcast", "size"), ("independent", "equal")])
def test_local_sgd_that_averages_only_at_the_end_equals_one_shot(init: str, weighting: str) -> None:
    """Each epoch evaluates the average, with the weights of the nodes, and leaves the replicas apart."""
    both = {"init": init, "weighting": weighting}
    fields = {"partitioner": "quantity", **MOMENTUM}
    expected = train({"name": "one_shot", **both}, 3, **fields)
    found = train({"name": "local_sgd", "local_steps": None, **both}, 3, **fields)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.results[0].test_loss == pytest.approx(expected.results[0].test_loss)
    for rank in range(3):
        first, last = found.of("epoch", rank)
        assert first.fields["accuracy"] == found.of("epoch")[0].fields["accuracy"]
        assert last.fields["accuracy"] == found.results[rank].accuracy
        assert last.fields["consensus_distance"] > 0.01


def test_local_steps_between_two_averages() -> None:
    for steps in (1, 5, 11, 12, 100):
        training = train({"name": "local_sgd", "local_steps": steps}, 2)  # 12 steps in all
        rank, other = training.results
        averages = -(-12 // steps)  # the last round may be shorter
        assert other.bytes_sent == pytest.approx(averages * 4 * (rank.parameters + 1))  # and its weight
        assert training.same_weights


# DiLoCo, FedOpt and FedProx


@pytest.mark.parametrize("server", ["adagrad", "yogi", "adam"])
def test_server_steps_are_those_of_the_paper(server: Server) -> None:
    """Reddi et al. 2021, Alg. 2, number by number."""
    eta, beta1, beta2, tau = 0.3, 0.9, 0.8, 0.05
    rng = np.random.default_rng(0)
    x, m, v = rng.normal(size=4), np.zeros(4), np.full(4, tau**2)
    state = [torch.from_numpy(each.copy()) for each in (x, m, v)]
    own = {} if server == "adagrad" else {"beta2": beta2}
    strategy = FedOpt(server=server, server_lr=eta, beta1=beta1, tau=tau, **own)
    for mean in rng.normal(size=(5, 4)):
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


def test_momentum_of_the_outer_step_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    for nesterov in (True, False):
        ours = torch.randn(50, generator=generator)
        theirs = ours.clone().requires_grad_()
        sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=nesterov)
        m, v = torch.zeros(50), torch.zeros(50)
        for _ in range(4):
            mean = torch.randn(50, generator=generator)
            theirs.grad = theirs.detach() - mean
            sgd.step()
            if nesterov:
                DiLoCo().outer_step(ours, mean, m)
            else:
                FedOpt(server="momentum", server_lr=0.7, beta1=0.9).server_step(ours, mean, m, v)
            torch.testing.assert_close(ours, theirs.detach())


def test_the_first_round_of_a_server_starts_from_its_defaults() -> None:
    """v starts at τ², m at 0; η is 1 with momentum and 0.01 otherwise."""
    start = flat(task_of("serial", 1).build_model(0).parameters())
    mean, tau = torch.from_numpy(train("serial", 1).weights), 0.001
    for server in DEFAULT_LR:
        x, eta = start.clone(), 1.0 if server == "momentum" else 0.01
        FedOpt(server=server, server_lr=eta).server_step(x, mean, 0 * x, 0 * x + tau**2)
        close(train({"name": "fedopt", "server": server, "local_steps": 100}, 1).weights, x)


def test_the_proximal_term_pulls_back_by_the_distance_from_the_start_of_the_round() -> None:
    mu, steps_per_round = 4.0, 2
    task = task_of("serial", 1, epochs=1)
    model = task.build_model(0)
    for step, (batch, _) in enumerate(BatchLoader(task.data.train, task.spec, task.rngs, 0, 1).batches(1)):
        weights = flat(model.parameters())
        if step % steps_per_round == 0:
            start = weights
        pull = mu * (weights - start)
        weights = weights - task.spec.lr * (gradient(model, batch.inputs, batch.targets) + pull)
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
    found = train({"name": "fedprox", "mu": mu, "local_steps": steps_per_round}, 1, epochs=1)
    close(found.weights, flat(model.parameters()))


# Gossip


def mixing_matrix(graph: Graph, size: int) -> np.ndarray:
    distances = neighbours(graph, size)
    matrix = np.zeros((size, size))
    for rank in range(size):
        for distance in [0, *distances]:
            matrix[rank, (rank - distance) % size] += 1 / (len(distances) + 1)
    return matrix


def test_neighbours_are_those_of_the_graph() -> None:
    """The mixing matrix is doubly stochastic and primitive."""
    expected: dict[Graph, list[list[int]]] = {
        "ring": [[], [1], [1, 2], [1, 3], [1, 7], [1, 8]],
        "exponential": [[], [1], [1, 2], [1, 2], [1, 2, 4], [1, 2, 4, 8]],
        "complete": [[], [1], [1, 2], [1, 2, 3], [*range(1, 8)], [*range(1, 9)]],
    }
    for graph, distances in expected.items():
        for size, of_size in zip((1, 2, 3, 4, 8, 9), distances, strict=True):
            assert neighbours(graph, size) == of_size
            matrix = mixing_matrix(graph, size)
            np.testing.assert_allclose([matrix.sum(axis=0), matrix.sum(axis=1)], 1)
            assert (np.linalg.matrix_power(matrix, size) > 0).all()


class Weights:
    """A replica that has only weights."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights

    def weights(self) -> torch.Tensor:
        return self._weights.clone()

    def set_weights(self, flat: torch.Tensor) -> None:
        self._weights = flat


def mixed(graph: Graph, start: np.ndarray, times: int = 1, round_: Round | None = None) -> np.ndarray:
    """The weights of ranks, a row each, after so many mixes in a graph."""

    def body(comm: Communicator) -> np.ndarray:
        replica: Any = Weights(torch.from_numpy(start[comm.rank].copy()))
        for _ in range(times):
            mix(replica, comm, neighbours(graph, len(start)), *([round_] if round_ else []))
        found: np.ndarray = replica.weights().numpy()
        return found

    return np.stack(together(len(start), body))


def test_mix_multiplies_by_the_mixing_matrix() -> None:
    for graph, size in (("ring", 5), ("exponential", 8), ("complete", 3), ("ring", 2)):
        start = np.random.default_rng(0).normal(size=(size, 7)).astype(np.float32)
        expected = np.linalg.matrix_power(mixing_matrix(graph, size), 2) @ start
        np.testing.assert_allclose(mixed(graph, start, times=2), expected, rtol=1e-5, atol=1e-6)


def test_mixing_without_some_nodes_keeps_the_mean() -> None:
    start = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    for graph, present in (("ring", {0, 1, 3}), ("ring", {2}), ("complete", {0, 1, 3})):
        found = mixed(graph, start, round_=Round(0, frozenset(present)))
        np.testing.assert_allclose(found.mean(axis=0), start.mean(axis=0), atol=1e-6)
        absent = [rank for rank in range(5) if rank not in present]
        np.testing.assert_array_equal(found[absent], start[absent])
        if (graph, len(present)) == ("ring", 3):
            np.testing.assert_allclose(found[0], (2 * start[0] + start[1]) / 3, rtol=1e-5)
