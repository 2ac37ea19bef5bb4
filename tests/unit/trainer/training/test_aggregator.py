"""Aggregation over ranks: what leaves a rank, what it costs, and trainings under attack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.virtual_training import VirtualTraining, train_virtually
from tests.unit.threads import together
from tests.unit.training import Training, train
from trainer.aggregation.mean import MeanAggregation
from trainer.comm.memory import MemoryCommunicator
from trainer.core.rng import RngFactory
from trainer.spec.registries import AGGREGATIONS
from trainer.spec.run_spec import RunSpec
from trainer.training.aggregator import Aggregator

N = 31  # weights of a rank: no multiple of the ranks


def spec(rule: Any, ranks: int, **fields: Any) -> RunSpec:
    strategy = {"name": "local_sgd", "aggregation": rule}
    return RunSpec.model_validate({"strategy": strategy, "nodes": ranks, "transport": "memory", **fields})


def own_weights(rank: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank))


def aggregator(comm: MemoryCommunicator, run: RunSpec) -> Aggregator:
    return Aggregator(comm, run, RngFactory(0), 10, comm.rank)


def aggregated(run: RunSpec, weights: list[int]) -> list[tuple[Tensor, Aggregator, float]]:
    """For each rank its aggregated weights, its aggregator and the bytes that it sent."""
    rule = run.aggregation or MeanAggregation()

    def body(comm: MemoryCommunicator) -> tuple[Tensor, Aggregator, float]:
        own, weight = aggregator(comm, run), weights[comm.rank]
        found = own.weights(own_weights(comm.rank), weight, weight > 0, 0, rule)
        return found, own, comm.bytes_sent

    return together(run.world_size, body)


@pytest.mark.parametrize("name", AGGREGATIONS.entries)
@pytest.mark.parametrize("ranks", [7, 9])
def test_all_ranks_get_the_same_bits_of_what_whole_vectors_give(name: str, ranks: int) -> None:
    run, weights = spec(name, ranks), [1 + rank % 3 for rank in range(ranks)]
    (first, _, _), *others = aggregated(run, weights)
    assert all(torch.equal(first, found) for found, _, _ in others)
    rows = torch.stack([own_weights(rank) for rank in range(ranks)])
    expected = AGGREGATIONS.parse(name).combine(rows, torch.tensor(weights).float())
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-6)


class RingCommunicator(MemoryCommunicator):
    """Each part of a buffer is summed from another rank on, as in a ring (and so over gloo)."""

    def _all_reduce(self, buffer: Tensor) -> None:
        brought = [*self._all_gather(buffer)]
        for first, part in enumerate(buffer.tensor_split(self.size)):
            start = part.storage_offset() - buffer.storage_offset()
            in_turn = [*brought[first:], *brought[:first]]
            part.copy_(sum(each[start : start + len(part)] for each in in_turn))


def test_vectors_at_equal_distances_tie_in_any_transport() -> None:
    """Ranks 1 … 6 are as far from rank 0 as from each other: all scores are equal, and rank 0 is first."""
    ranks = 7
    run = spec("krum", ranks)
    lengths = torch.rand(ranks, generator=torch.Generator().manual_seed(8))  # in each slice

    def body(memory: MemoryCommunicator) -> Tensor:
        comm = RingCommunicator(memory.rank, memory.size, memory.clock, memory._group)
        row = torch.zeros(ranks, ranks)  # in each slice one number for each rank
        row[:, comm.rank] = lengths
        return aggregator(comm, run).weights(row.view(-1), 1, True, 0, AGGREGATIONS.parse("krum"))

    for found in together(ranks, body):
        assert torch.equal(found.view(ranks, ranks)[:, 0], lengths)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "bulyan"])
def test_bytes_are_those_of_an_all_reduce(name: str) -> None:
    ranks, plain = 7, aggregated(spec("mean", 7), [1] * 7)[0][2]
    padding, distances = 8 * ranks, 8 * ranks**2
    for _, _, sent in aggregated(spec(name, ranks), [1] * ranks):
        assert plain <= sent <= plain + 2 * padding + (distances if name == "bulyan" else 0)


@pytest.mark.parametrize("name", ["median", "krum", "geometric_median"])
def test_a_rank_without_samples_does_not_count(name: str) -> None:
    weights = [2, 1, 0, 3, 1, 1, 2]
    found, own, _ = aggregated(spec(name, 7), weights)[0]
    trained = [rank for rank in range(7) if weights[rank]]
    rows = torch.stack([own_weights(rank) for rank in trained])
    expected = AGGREGATIONS.parse(name).combine(rows, torch.tensor([2.0, 1, 3, 1, 1, 2]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert own.without_effect == 0


def test_too_few_vectors_change_nothing() -> None:
    """Ranks without samples hold the weights of the last aggregation, here those of rank 2."""
    for found, own, _ in aggregated(spec("krum", 7), [1, 1, 0, 1, 1, 0, 0]):
        assert torch.equal(found, own_weights(2))
        assert own.without_effect == 1


# What Byzantine ranks send


def changed(run: RunSpec, weights: list[int]) -> Tensor:
    """The mean of 7 ranks that start at 1 and add their own weights."""

    class Started:
        def weights(self) -> Tensor:
            return torch.ones(N)

    def body(comm: MemoryCommunicator) -> Tensor:
        own = aggregator(comm, run)
        own.begin_round(Started())  # type: ignore[arg-type]
        weight = weights[comm.rank]
        return own.weights(1 + own_weights(comm.rank), weight, weight > 0, 0, MeanAggregation())

    found: list[Tensor] = together(7, body)
    assert all(torch.equal(each, found[0]) for each in found)
    return found[0]


def test_an_attack_changes_what_a_rank_has_learnt_since_the_start_of_the_round() -> None:
    run = spec("mean", 7, byzantine={"nodes": [-1], "attack": {"name": "sign_flip", "scale": 3.0}})
    changes = [own_weights(rank) for rank in range(6)] + [-3 * own_weights(6)]
    torch.testing.assert_close(changed(run, [1] * 7), 1 + torch.stack(changes).mean(dim=0))


def test_a_byzantine_rank_without_samples_sends_its_own_vector() -> None:
    run = spec("mean", 7, byzantine={"nodes": [-1], "attack": {"name": "noise", "std": 100.0}})
    changes = torch.stack([own_weights(rank) for rank in range(6)]).mean(dim=0)
    torch.testing.assert_close(changed(run, [1] * 6 + [0]), 1 + changes)


def test_attackers_know_the_honest_ranks_with_samples() -> None:
    attack = {"name": "little_is_enough", "z": 2.0}
    run = spec("mean", 7, byzantine={"nodes": [5, 6], "attack": attack})
    honest = torch.stack([own_weights(rank) for rank in range(4)])  # rank 4 has no samples
    sent = honest.mean(dim=0) - 2 * honest.std(dim=0, unbiased=False)
    expected = torch.stack([*honest, sent, sent]).mean(dim=0)
    torch.testing.assert_close(changed(run, [1, 1, 1, 1, 0, 1, 1]), 1 + expected, rtol=1e-5, atol=1e-5)


def test_noise_differs_between_steps_and_ranks() -> None:
    run = spec("mean", 7, byzantine={"nodes": [5, 6], "attack": "noise"})

    def body(comm: MemoryCommunicator) -> list[Tensor]:
        own = aggregator(comm, run)
        return [own.gradient(torch.zeros(N), 1, step) for step in (1, 2, 1)]

    honest, *_, fifth, sixth = together(7, body)
    assert not any(vector.any() for vector in honest)
    assert torch.equal(fifth[0], fifth[2])
    assert not torch.equal(fifth[0], fifth[1])
    assert not torch.equal(fifth[0], sixth[0])


def test_what_attackers_learn_costs_no_bytes() -> None:
    attack = {"name": "little_is_enough", "z": 2.0}
    attacked = spec("median", 7, byzantine={"nodes": [6], "attack": attack})
    for (_, _, sent), (_, _, plain) in zip(
        aggregated(attacked, [1] * 7), aggregated(spec("median", 7), [1] * 7), strict=True
    ):
        assert sent == plain


# Trainings

DIGITS = {
    "dataset": "digits",
    "model": {"name": "mlp", "hidden": [32]},
    "batch_size": 16,
    "lr": 0.1,
    "epochs": 4,
    "transport": "memory",
    "save_weights": True,
}
HARD = {"name": "sign_flip", "scale": 10.0}


def trained(strategy: Any, nodes: int, **fields: Any) -> VirtualTraining:
    run = {**DIGITS, "strategy": strategy, "nodes": nodes, **fields}
    return train_virtually(RunSpec.model_validate(run))


def accuracy(training: VirtualTraining | Training) -> float:
    assert len({result.weights_digest for result in training.results}) == 1
    found = training.results[0].accuracy
    assert found is not None
    return found


@pytest.mark.parametrize("strategy", ["local_sgd", "parameter_server"])
@pytest.mark.parametrize("rule", AGGREGATIONS.entries)
def test_every_rule_but_the_mean_withstands_an_attack(strategy: str, rule: str) -> None:
    form = {"name": rule, **({"f": 2} if "f" in AGGREGATIONS.load(rule).model_fields else {})}
    nodes = 12 if strategy == "parameter_server" else 11
    byzantine = {"nodes": [-1, -2], "attack": HARD}
    found = trained({"name": strategy, "aggregation": form}, nodes, byzantine=byzantine)
    assert accuracy(found) < 0.3 if rule == "mean" else accuracy(found) > 0.6


@pytest.mark.parametrize("strategy", ["diloco", "fedopt", "fedprox", "one_shot", "all_gather"])
def test_every_strategy_with_aggregation_is_attacked_and_withstands(strategy: str) -> None:
    parameters = {"server": "momentum", "beta1": 0.0} if strategy == "fedopt" else {}
    byzantine = {"nodes": [-1], "attack": {"name": "sign_flip", "scale": 4.2}}
    mean, median = (
        accuracy(trained({"name": strategy, "aggregation": rule, **parameters}, 5, byzantine=byzantine))
        for rule in ("mean", "median")
    )
    assert mean < 0.3
    assert median > 0.5


def test_the_evaluated_average_is_that_of_the_rule() -> None:
    """After the only epoch and before the only average, and after the average."""
    strategy = {"name": "local_sgd", "local_steps": None, "aggregation": "median"}
    found = trained(strategy, 5, epochs=1, byzantine={"nodes": [0], "attack": HARD})
    (epoch,) = [event for event in found.events[0] if event.kind == "epoch"]
    one_shot = trained(
        {"name": "one_shot", "weighting": "size", "aggregation": "median"},
        5,
        epochs=1,
        byzantine={"nodes": [0], "attack": HARD},
    )
    assert epoch.fields["accuracy"] == accuracy(one_shot)


def test_flipped_labels_are_trained_on() -> None:
    honest, flipped = (
        trained("one_shot", 2, byzantine=byzantine)
        for byzantine in (None, {"nodes": [1], "attack": "label_flip"})
    )
    assert honest.results[1].local_accuracy is not None
    assert honest.results[1].local_accuracy > 0.6
    assert flipped.results[1].local_accuracy is not None
    assert flipped.results[1].local_accuracy < 0.2
    assert flipped.results[0].local_accuracy == honest.results[0].local_accuracy


@pytest.mark.parametrize("strategy", ["local_sgd", "all_gather", "parameter_server"])
def test_uneven_parts_and_too_few_vectors(strategy: str) -> None:
    """With parts of different size, the last steps of an epoch have too few ranks for Krum."""
    nodes = 6 if strategy == "parameter_server" else 5
    fields = {"partitioner": "quantity", "dataset": {"name": "synthetic", "samples": 600}, "epochs": 2}
    found = trained({"name": strategy, "aggregation": "krum"}, nodes, **fields)
    assert accuracy(found) > 0
    assert (found.results[0].aggregations_without_effect or 0) > 0
    enough = trained({"name": strategy, "aggregation": "median"}, nodes, **fields)
    assert enough.results[0].aggregations_without_effect is None


def test_ranks_of_a_byzantine_node_attack_together() -> None:
    fields: dict[str, Any] = {"processes_per_node": 2, "byzantine": {"nodes": [1], "attack": HARD}}
    two = train("local_sgd", 3, **fields)
    four = train("local_sgd", 6, byzantine={"nodes": [2, 3], "attack": HARD})
    assert np.array_equal(two.weights, four.weights)
