"""Named random number streams."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trainer.core.rng import FIXED_SEED, SOURCE_OF, SOURCES, RngFactory

# Stream names: seed, purpose, indices.
NAMES = [
    *((0, "order", 0, 1), (0, "order", 0, 2), (0, "order", 1, 1), (0, "order", 1, 0)),
    *((1, "order", 0, 1), (0, "partition", 1), (0, "partition", 2), (0, "weights", 1), (0, "dropout", 1)),
]


def draw(seed: int, purpose: str, *indices: int) -> list[int]:
    return RngFactory(seed).generator(purpose, *indices).integers(0, 2**63, 4).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_equal_names_give_equal_streams_in_any_call_order(name: tuple[int, str, int]) -> None:
    seed, purpose, *indices = name
    rngs = RngFactory(seed)
    first = rngs.generator(purpose, *indices)
    rngs.generator("augment").random(100)
    first.random()
    again = rngs.generator(purpose, *indices).integers(0, 2**63, 4).tolist()
    assert again == draw(seed, purpose, *indices)
    assert rngs.torch_seed(purpose, *indices) == RngFactory(seed).torch_seed(purpose, *indices)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_seed_varies_only_the_sources_that_are_listed(count: int) -> None:
    for vary in combinations(SOURCES, count):
        for purpose, source in SOURCE_OF.items():
            first, second, fixed = (
                RngFactory(seed, vary).generator(purpose, 1).integers(0, 2**63, 4).tolist()
                for seed in (5, 6, FIXED_SEED)
            )
            assert (first != second) is (source in vary)
            assert (first == fixed) is (source not in vary)
            assert fixed == draw(FIXED_SEED, purpose, 1)


def test_purpose_without_a_source_is_an_error() -> None:
    with pytest.raises(KeyError, match="unknown"):
        RngFactory(0).generator("unknown")


def test_different_names_give_different_streams() -> None:
    for one, other in combinations(NAMES, 2):
        assert draw(*one) != draw(*other)
        assert RngFactory(one[0]).torch_seed(*one[1:]) != RngFactory(other[0]).torch_seed(*other[1:])


def test_prefix_of_the_indices_gives_a_different_stream() -> None:
    assert draw(0, "order") != draw(0, "order", 0)
    assert draw(0, "order", 3) != draw(0, "order", 3, 0)


def test_streams_are_uncorrelated() -> None:
    rows = np.array(
        [
            RngFactory(0).generator("order", rank, epoch).random(2000)
            for rank in range(6)
            for epoch in range(5)
        ]
    )
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert abs(correlations).max() < 0.12  # 5 standard deviations


def test_numpy_global_generator_is_not_used() -> None:
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    RngFactory(0).generator("order").random()
    RngFactory(0).torch_seed("order")
    assert np.random.random() == expected


def test_torch_seeds_have_63_bits() -> None:
    numbers = [RngFactory(seed).torch_seed("dropout", 1) for seed in (0, 1, 2, 2**32 - 1)]
    assert all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers)
    assert max(numbers) > 2**60


def test_streams_do_not_change_between_versions() -> None:
    # With other numbers, results are not comparable with those of earlier versions.
    assert RngFactory(7).generator("order", 2, 1).permutation(6).tolist() == [3, 1, 4, 2, 5, 0]
    assert RngFactory(7).torch_seed("weights", 0) == 9085787105343426115
