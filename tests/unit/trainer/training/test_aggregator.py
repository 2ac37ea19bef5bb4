"""Mistakes in aggregation over ranks: who counts, what attackers send and know, bits and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.threads import together
from tests.unit.training import Training, train
from trainer.aggregation.mean import MeanAggregation
from trainer.comm.memory import MemoryCommunicator
from trainer.core.rng import RngFactory
from trainer.spec.registries import AGGREGATIONS
from trainer.spec.run_spec import RunSpec
from trainer.training.aggregator import Aggregator

N = 31  # weights of a rank: no multiple of the ranks
RANKS = 7


def spec(rule: Any, attack: Any = None) -> RunSpec:
    byzantine = attack and {"nodes": [5, 6], "attack": attack}
    strategy = {"name": "local_sgd", "aggregation": rule}
    run = {"strategy": strategy, "nodes": RANKS, "transport": "memory", "byzantine": byzantine}
    return RunSpec.model_validate(run)


def own_weights(rank: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank))


def aggregator(comm: MemoryCommunicator, run: RunSpec) -> Aggregator:
    return Aggregator(comm, run, RngFactory(0), 10, comm.rank)


def aggregated(run: RunSpec, weights: Sequence[int], idle: int = -1) -> list[tuple[Tensor, Aggregator]]:
    """For each rank its aggregated weights and its aggregator. idle: a rank that has not trained."""

    def body(comm: MemoryCommunicator) -> tuple[Tensor, Aggregator]:
        own, weight, rule = aggregator(comm, run), weights[comm.rank], run.aggregation or MeanAggregation()
        trained = weight > 0 and comm.rank != idle
        return own.weights(own_weights(comm.rank), weight, trained, 0, rule), own

    return together(RANKS, body)


def of_whole_vectors(name: str, weights: Sequence[int]) -> Tensor:
    rows = torch.stack([own_weights(rank) for rank in range(len(weights))])
    return AGGREGATIONS.parse(name).combine(rows, torch.tensor(weights).float())


def test_all_ranks_get_the_same_bits_of_what_whole_vectors_give() -> None:
    weights = [1 + rank % 3 for rank in range(RANKS)]
    for name in AGGREGATIONS.entries:
        (first, _), *others = aggregated(spec(name), weights)
        assert all(torch.equal(first, found) for found, _ in others)
        torch.testing.assert_close(first, of_whole_vectors(name, weights), rtol=1e-5, atol=1e-6)


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
    lengths = torch.rand(RANKS, generator=torch.Generator().manual_seed(8))  # in each slice

    def body(memory: MemoryCommunicator) -> Tensor:
        comm = RingCommunicator(memory.rank, memory.size, memory.clock, memory._group)
        row = torch.zeros(RANKS, RANKS)  # in each slice one number for each rank
        row[:, comm.rank] = lengths
        rule = AGGREGATIONS.parse("krum")
        return aggregator(comm, spec("krum")).weights(row.view(-1), 1, True, 0, rule)

    for found in together(RANKS, body):
        assert torch.equal(found.view(RANKS, RANKS)[:, 0], lengths)


def test_only_ranks_that_have_trained_count() -> None:
    """Without enough of them, the weights of a rank that has not trained stay, from the last average."""
    for name in ("median", "krum", "geometric_median"):
        least = AGGREGATIONS.parse(name).least
        for counting in range(1, RANKS):
            weights = [2, 1, 3, 1, 1, 2][:counting]
            others = [0] * (RANKS - counting - 1)
            found, own = aggregated(spec(name), [*weights, *others, 5], idle=RANKS - 1)[0]
            expected = of_whole_vectors(name, weights) if counting >= least else own_weights(counting)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            assert own.without_effect == (counting < least)


# What Byzantine ranks send


LITTLE = {"name": "little_is_enough", "z": 2.0}


@pytest.mark.parametrize(
    ("attack", "weights", "sent"),
    [
        ({"name": "sign_flip", "scale": 3.0}, [1] * 7, lambda _, own: -3 * own),
        ({"name": "noise", "std": 100.0}, [1] * 5 + [0, 0], lambda _, own: own),  # without samples
        # Knows the honest ranks with samples:
        (LITTLE, [1, 1, 1, 1, 0, 1, 1], lambda honest, _: honest.mean(0) - 2 * honest.std(0, correction=0)),
    ],
    ids=["sign_flip", "idle", "little_is_enough"],
)
def test_an_attack_changes_what_a_rank_has_learnt_since_the_start_of_the_round(
    attack: dict[str, Any], weights: list[int], sent: Any
) -> None:
    run = spec("mean", attack)

    def body(comm: MemoryCommunicator) -> Tensor:
        own, weight = aggregator(comm, run), weights[comm.rank]
        own.begin_round(SimpleNamespace(weights=lambda: torch.ones(N)))  # type: ignore[arg-type]
        return own.weights(1 + own_weights(comm.rank), weight, weight > 0, 0, MeanAggregation())

    learnt = [own_weights(rank) for rank in range(RANKS)]
    honest = torch.stack([learnt[rank] for rank in range(5) if weights[rank]])
    changes = torch.stack([*learnt[:5], *(sent(honest, learnt[rank]) for rank in (5, 6))])
    share = torch.tensor(weights) / sum(weights)
    for found in together(RANKS, body):
        torch.testing.assert_close(found, 1 + share @ changes, rtol=1e-5, atol=1e-5)


# Trainings


def trained(strategy: Any, nodes: int = 5, scale: float | None = 1e3, **fields: Any) -> Training:
    """scale: of the last node's attack, if any."""
    attack = {"nodes": [-1], "attack": {"name": "sign_flip", "scale": scale}} if scale else None
    return train(strategy, nodes, **{"epochs": 1, "byzantine": attack, **fields})


@pytest.mark.parametrize("strategy", ["local_sgd", "parameter_server", "fedopt", "one_shot", "all_gather"])
def test_every_strategy_is_attacked_and_withstands(strategy: str) -> None:
    """Ranks with too few others for Krum keep their weights, which is counted."""
    every = {"fedopt": {"server": "momentum", "beta1": 0.0}, "local_sgd": {"local_steps": 2}}
    own = every.get(strategy, {})
    nodes = 6 if strategy == "parameter_server" else 5
    mean, median = (
        trained({"name": strategy, "aggregation": rule, **own}, nodes) for rule in ("mean", "median")
    )
    assert np.abs(mean.weights).max() > 10 > 1 > np.abs(median.weights).max()
    assert median.results[0].aggregations_without_effect is None
    if strategy in ("local_sgd", "all_gather", "parameter_server"):
        few = trained({"name": strategy, "aggregation": "krum", **own}, nodes, None, partitioner="quantity")
        assert few.same_weights
        assert few.results[0].aggregations_without_effect is not None


def test_the_evaluated_average_is_that_of_the_rule() -> None:
    """After the only epoch and before the only average, and after the average."""
    found = trained({"name": "local_sgd", "local_steps": None, "aggregation": "median"})
    one_shot = trained({"name": "one_shot", "weighting": "size", "aggregation": "median"})
    assert found.of("epoch")[0].fields["test_loss"] == one_shot.results[0].test_loss


def test_flipped_labels_are_trained_on() -> None:
    easy = {"dataset": {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 0.1}, "epochs": 5}
    attack = {"nodes": [1], "attack": "label_flip"}
    honest, flipped = (trained("one_shot", 2, None, **easy, byzantine=each) for each in (None, attack))
    right, wrong = ([each.local_accuracy or 0 for each in of.results] for of in (honest, flipped))
    assert right[0] == wrong[0] > 0.5
    assert right[1] > 0.5 > 0.2 > wrong[1]
