"""Mistakes in buckets of gradients: other sizes than torch's, a late start, a gradient that is missing."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor

from tests.support.virtual_training import train_virtually
from tests.unit.training import SMALL, train
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.nonblocking import Request
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.parallel.buckets import Buckets, divided
from trainer.parallel.sharded_weights import ShardedWeightsReplica
from trainer.spec.run_spec import RunSpec
from trainer.strategies.zero3 import all_gather, reduce_scatter
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.task import Task

WIDE = {"name": "mlp", "hidden": [600, 600, 600]}  # 1.4 MB in each of the two layers in the middle
SMALL_BUCKETS = {"name": "all_reduce", "bucket_mib": 1e-3}


def test_buckets_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 200_000, (200,), generator=generator).tolist()
    kinds = torch.randint(0, 3, (200,), generator=generator).tolist()
    types = torch.float32, torch.float64, torch.float32
    parameters = [torch.empty(size, dtype=types[kind]) for size, kind in zip(sizes, kinds, strict=True)]
    order = torch.randperm(200, generator=generator).tolist()
    library: Any = dist
    expected, _ = library._compute_bucket_assignment_by_size(
        [parameters[number] for number in order], [2**20, 3 * 2**20], [False] * 200, order
    )
    assert sorted(divided(parameters, order, 1, 3)) == sorted(map(list, expected))


def test_a_bucket_starts_while_gradients_before_it_are_missing() -> None:
    task = Task(RunSpec.model_validate({**SMALL, "model": WIDE, "strategy": "all_reduce"}), Path())
    replica = Replica(task.build_model(0), task, Clock())
    ((batch, _), *_) = BatchLoader(task.data.train, task.spec, task.rngs, 0, 1).batches(1)
    comm = MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))
    model: Any = replica.model
    begun: list[tuple[int, bool]] = []

    def average(part: Tensor) -> Request:
        begun.append((len(part), model.fc1.weight.grad is None))
        return comm.iall_reduce(part, "mean")

    buckets = Buckets(replica, average, mib=1)
    expected = []
    for _ in range(2):
        replica.listen(None)
        replica.backward(batch)
        expected.append(replica.gradient())
        replica.listen(buckets._on_moment)
        buckets.backward(batch)
        assert torch.equal(replica.gradient(), expected[-1])
    of_layer, first = 600 * 600 + 600, 784 * 600 + 600
    whole = (replica.parameter_count, False)
    assert begun == [whole, (of_layer + 601 * 10, True), (of_layer, True), (first, False)]
    model.fc2.weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"^fc2.weight gets a gradient in some steps only"):
        buckets.backward(batch)


@pytest.mark.parametrize(
    "fields", [{}, {"accumulate": 3, "clip_norm": 0.1}, {"partitioner": "quantity"}], ids=str
)
def test_buckets_change_no_bit(fields: dict[str, Any]) -> None:
    whole, parts = (train(name, 3, **fields) for name in ("all_reduce", SMALL_BUCKETS))
    assert np.array_equal(parts.weights, whole.weights)
    assert [each.bytes_sent for each in parts.results] == [each.bytes_sent for each in whole.results]
    assert [each.state_bytes for each in parts.results] == [each.state_bytes for each in whole.results]


@pytest.mark.parametrize("name", ["zero3", "fsdp"])
@pytest.mark.parametrize(("nodes", "copies"), [(4, 2), (3, 3), (8, 2)])
@pytest.mark.parametrize("fields", [{}, {"accumulate": 3, "clip_norm": 0.1}], ids=["plain", "clipped"])
def test_copies_of_shards_train_as_all_reduce(
    name: str, nodes: int, copies: int, fields: dict[str, Any]
) -> None:
    shards, form = nodes // copies, {"name": name, "replicate": copies}
    run = {**SMALL, "nodes": nodes, "transport": "gloo", "save_weights": True, **fields}
    own, whole = (
        train_virtually(RunSpec.model_validate({**run, "strategy": each})) for each in (form, "all_reduce")
    )
    np.testing.assert_allclose(own.weights, whole.weights, rtol=1e-4, atol=1e-6)
    if copies == nodes and not fields:
        assert np.array_equal(own.weights, whole.weights)
    assert len({each.weights_digest for each in own.results}) == 1
    result, expected = own.results[0], whole.results[0]
    size, steps = 4 * result.parameters, result.steps * fields.get("accumulate", 1)
    sent = 3 * size * (shards - 1) / shards + 2 * size / shards * (copies - 1) / copies
    norms = 4 * 2 * (shards - 1) / shards * result.steps * bool(fields)  # an all-reduce of a number
    assert result.bytes_sent == pytest.approx(sent * steps + norms, rel=0.005)  # of padding
    assert result.state_bytes is not None
    assert expected.state_bytes is not None
    for what, held in result.state_bytes.items():
        assert held == pytest.approx(expected.state_bytes[what] / shards, rel=0.01), what


def test_few_bytes_of_hybrid_sharding_pass_between_the_copies() -> None:
    """Ranks 0 and 1 shard a copy; rank 2 is the one with the rows of rank 0."""
    form = {
        **SMALL,
        "nodes": 4,
        "transport": "gloo",
        "strategy": {"name": "zero3", "replicate": 2},
        "save_weights": True,
    }
    trace = train_virtually(RunSpec.model_validate(form)).traces[0]
    exchanged = {
        (Kind(each["kind"]).name, *trace.header.members(each["group"]))
        for each in trace.records
        if each["bytes"] > 40  # of the smaller block half a row
    }
    assert exchanged == {("START_ALL_GATHER", 0, 1), ("REDUCE_SCATTER", 0, 1), ("ALL_REDUCE", 0, 2)}


def test_copies_that_do_not_divide_the_nodes_are_refused() -> None:
    for name in ("zero3", "fsdp"):
        form = {**SMALL, "nodes": 4, "transport": "gloo", "strategy": {"name": name, "replicate": 3}}
        with pytest.raises(ValidationError, match="replicate is 3 on 4 nodes; allowed: 1, 2, 4"):
            RunSpec.model_validate(form)


@pytest.mark.parametrize("reshard", [True, False])
def test_a_rank_of_zero3_resumes_with_its_rows_and_holds_no_more(reshard: bool) -> None:
    task = Task(RunSpec.model_validate({**SMALL, "optimizer": "adam", "strategy": "zero3"}), Path())
    batches = [batch for batch, _ in BatchLoader(task.data.train, task.spec, task.rngs, 0, 1).batches(1)]
    comm = MemoryCommunicator(0, 1, Clock(), ThreadGroup(1))
    made = [
        ShardedWeightsReplica(
            task.build_model(0, seed), task, comm, comm, all_gather, reduce_scatter, reshard
        )
        for seed in (0, 1)
    ]
    for at, replica in enumerate(made):
        for batch in batches[3 * at : 3 * at + 3]:
            for each in made[: at + 1]:
                each.backward(batch)
                each.step()
        if not at:
            made[1].restore(deepcopy(replica.state()))
    assert torch.equal(made[0].weights(), made[1].weights())
    assert all(not each.untyped_storage().nbytes() for each in made[0].model.parameters())
