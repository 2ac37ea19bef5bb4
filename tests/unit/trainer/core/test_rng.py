"""Mistakes in random streams: equal where they must differ, a source that the seed varies unasked."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from trainer.core.rng import FIXED_SEED, SOURCE_OF, SOURCES, RngFactory


def draw(seed: int, purpose: str, *index: int) -> list[int]:
    return RngFactory(seed).generator(purpose, *index).integers(0, 2**63, 4).tolist()


def test_equal_names_give_equal_streams_and_others_do_not() -> None:
    indices = [(), (0,), (3,), (0, 0), (3, 0), (0, 3), (1, 1)]
    names = [*product((0, 1), ("order", "partition", "weights"), indices)]
    streams = {tuple(draw(seed, purpose, *index)) for seed, purpose, index in names}
    seeds = {RngFactory(seed).torch_seed(purpose, *index) for seed, purpose, index in names}
    assert len(streams) == len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    assert draw(1, "order", 3) == draw(1, "order", 3)
    rows = np.array(
        [RngFactory(0).generator("order", *each).random(2000) for each in product(range(6), range(5))]
    )
    assert abs(np.corrcoef(rows)[np.triu_indices(len(rows), 1)]).max() < 0.12  # 5 standard deviations


def test_a_seed_varies_only_the_sources_that_are_listed() -> None:
    for vary in (chosen for count in range(4) for chosen in combinations(SOURCES, count)):
        for purpose, source in SOURCE_OF.items():
            first, second, fixed = (
                RngFactory(seed, vary).torch_seed(purpose, 1) for seed in (5, 6, FIXED_SEED)
            )
            assert (first != second) is (source in vary)
            assert (first == fixed) is (source not in vary)


def test_initial_weights_data_and_order_are_varied_one_by_one() -> None:
    assert {source: [each for each in SOURCE_OF if SOURCE_OF[each] == source] for source in SOURCES} == {
        "init": ["weights", "compression"],
        "split": ["partition", "distort"],
        "order": ["order", "participation", "dropout", "augment", "attack"],
    }
    with pytest.raises(KeyError, match="unknown"):
        RngFactory(0).generator("unknown")


def test_streams_do_not_change_between_versions_nor_with_the_global_generator() -> None:
    """With other numbers, results are not comparable with those of earlier versions."""
    np.random.seed(3)
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert RngFactory(7).generator("order", 2, 1).permutation(6).tolist() == [3, 1, 4, 2, 5, 0]
    assert RngFactory(7).torch_seed("weights", 0) == 9085787105343426115
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]
