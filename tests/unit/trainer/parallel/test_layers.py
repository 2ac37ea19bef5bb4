"""Mistakes in layers that ranks divide: sizes of shards, masks of dropout, delayed gradients.

test_partitioned_models.py trains with them, and with attention and experts that ranks divide.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.unit.threads import running_clock
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.models.layers.dropout import ChannelDropout
from trainer.parallel.split_backward import SplitLayers
from trainer.parallel.tensor_layers import ParallelLayer, ShardedDropout, Sharding
from trainer.strategies.tensor_parallel import column_parallel, row_parallel


def rank_of(rank: int, size: int) -> MemoryCommunicator:
    """A communicator for code that reads only its rank and size."""
    return MemoryCommunicator(rank, size, running_clock(), ThreadGroup(size))


def test_a_split_backward_pass_computes_the_gradient_of_weights_last() -> None:
    def model(sharded: bool) -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(12, 4))
        model.append(nn.Linear(4, 2))
        for at, forward in ((3, column_parallel), (4, row_parallel)) if sharded else ():
            model[at] = ParallelLayer(model[at], rank_of(0, 1), forward)
        return model

    plain, split = model(sharded=False), model(sharded=True)
    layers = SplitLayers(split)
    inputs = [torch.randn(5, 2, 4, 4).requires_grad_() for _ in range(2)]
    passes = []
    for x in inputs:
        split(x).square().sum().backward()
        assert [each.grad for each in split.parameters() if each.dim() > 1] == [None] * 3  # both come first
        passes.append(layers.take())
    found = [x.grad for x in inputs]
    for each in passes:
        layers.run(each)
    for x, gradient in zip(inputs, found, strict=True):
        x.grad = None
        plain(x).square().sum().backward()
        torch.testing.assert_close(gradient, x.grad, rtol=0, atol=0)
    for mine, other in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=0)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 9))
def test_shards_have_whole_units_and_the_first_ones_the_remainder(
    units: int, unit_size: int, ranks: int
) -> None:
    sizes = Sharding.of_units(units, unit_size, rank_of(0, ranks)).sizes
    assert len(sizes) == ranks
    assert sum(sizes) == units * unit_size
    assert [*sizes] == sorted(sizes, reverse=True)
    assert all(size % unit_size == 0 for size in sizes)
    assert sizes[0] - sizes[-1] <= unit_size
    whole = torch.arange(units * unit_size * 2).view(2, -1)
    shards = [Sharding(sizes, rank).shard(whole, dim=1) for rank in range(ranks)]
    assert torch.equal(torch.cat(shards, dim=1), whole)
    assert Sharding(sizes, 0).repeated(3).sizes == tuple(3 * size for size in sizes)


def test_sharded_channel_dropout_draws_the_mask_of_the_whole_model() -> None:
    """No registered model has channel dropout inside a pair yet."""
    whole = ChannelDropout(0.5, torch.Generator().manual_seed(3))
    expected = whole(torch.ones(6, 10, 4, 5))
    for rank in range(3):
        sharding = Sharding((4, 3, 3), rank)
        drawing = ChannelDropout(0.5, torch.Generator().manual_seed(3))
        mine = ShardedDropout(drawing, sharding)(torch.ones(6, sharding.sizes[rank], 4, 5))
        assert torch.equal(mine, sharding.shard(expected, dim=1))
