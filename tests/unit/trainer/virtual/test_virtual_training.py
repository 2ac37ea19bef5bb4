"""Virtual nodes learn what threads learn, bit for bit, in the time that a replay of their traces gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.support.virtual_training import VirtualTraining, train_virtually
from tests.unit.training import fields_for
from trainer.comm.base import CommunicationError
from trainer.core.trace import WORK_PHASES, Kind
from trainer.data.cache import DatasetCache
from trainer.launch import threads
from trainer.spec.registries import AGGREGATIONS, COMPRESSIONS, OPTIMIZERS, PARTITIONERS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.time_model.described import cluster_of_run
from trainer.time_model.simulate import simulate
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.options import VirtualOptions
from trainer.virtual.run import in_turns

DATA = {"name": "synthetic", "classes": 4, "samples": 120, "test_samples": 40}
BY_THREADS = [
    name
    for name in STRATEGIES.entries
    if STRATEGIES.load(name).virtual and "memory" in STRATEGIES.load(name).transports and name != "serial"
]
WHOLE_MODEL = [name for name in BY_THREADS if not STRATEGIES.load(name).partitions_model]
TAKE_PART = [name for name in BY_THREADS if "participation" in STRATEGIES.load(name).model_fields]
PRICED = VirtualOptions(seconds_per_sample=0.01)


def spec_of(strategy: Any, nodes: int, **fields: Any) -> RunSpec:
    model = "mlp" if str(strategy).startswith("tensor") else {"name": "lenet"}
    chosen = {"dataset": DATA, "model": model, "epochs": 2, "batch_size": 8, "save_weights": True}
    if isinstance(strategy, str):
        chosen |= fields_for(strategy)
    if strategy in ("pipeline", "hybrid"):  # by default their stages follow from measured times
        stages = 2 if strategy == "hybrid" else nodes
        strategy = {"name": strategy, "split_points": ["conv2", "fc1", "fc2"][: stages - 1]}
    return RunSpec.model_validate(
        {"strategy": strategy, "transport": "memory", "nodes": nodes, **chosen, **fields}
    )


@pytest.fixture(scope="module")
def datasets() -> DatasetCache:
    return DatasetCache()


def cases() -> Iterator[Any]:
    """Every strategy, with every partitioner, optimizer and compression that it takes, on 2 to 8 nodes."""
    for strategy in BY_THREADS:
        for nodes in (2, 4, 8):
            if strategy not in ("pipeline", "tensor_parallel", "hybrid") or nodes < 8:
                yield pytest.param(strategy, nodes, {}, id=f"{strategy}-{nodes}")
    # Of two pairs of layers, the second exchanges in the backward pass.
    yield pytest.param("tensor_parallel", 4, {"model": "lenet5"}, id="tensor_parallel-backward")
    points = ["conv2", "fc1", "fc2"]
    for nodes, schedule in ((2, "interleaved"), (4, "zero_bubble")):
        staged = {"name": "pipeline", "schedule": schedule, "split_points": points}
        yield pytest.param(staged, nodes, {}, id=schedule)
    mesh = {"name": "hybrid", "mesh": {"pipeline": 2, "tensor": 2}, "split_points": ["flatten"]}
    yield pytest.param(mesh, 4, {}, id="hybrid-tensor")
    residual = {"model": {"name": "wide_resnet", "widen": 1}, "recompute": "full", "epochs": 1}
    yield pytest.param("local_sgd", 3, residual, id="recompute-statistics")
    yield pytest.param("all_reduce", 3, {"recompute": "full"}, id="recompute-dropout")
    synchronised = {"model": {"name": "vgg_small", "width": 4, "norm": "sync_batch"}, "epochs": 1}
    yield pytest.param("all_reduce", 2, synchronised, id="all_reduce-sync_batch")
    for strategy in WHOLE_MODEL:
        for partitioner in PARTITIONERS.entries:
            fields = {"partitioner": partitioner}
            yield pytest.param(strategy, 3, fields, id=f"{strategy}-{partitioner}", marks=pytest.mark.slow)
    for strategy in BY_THREADS:
        for optimizer in OPTIMIZERS.entries:
            if OPTIMIZERS.load(optimizer).layerwise and not STRATEGIES.load(strategy).full_gradients:
                continue
            fields = {"optimizer": optimizer, "lr": 0.01}
            yield pytest.param(strategy, 2, fields, id=f"{strategy}-{optimizer}", marks=pytest.mark.slow)
    for rule in AGGREGATIONS.entries:
        for strategy in ("local_sgd", "parameter_server"):
            attacked = {
                "partitioner": "quantity",
                "byzantine": {"nodes": [-1], "attack": {"name": "little_is_enough", "z": 1.0}},
            }
            with_it = {"name": strategy, "aggregation": rule}
            yield pytest.param(with_it, 8, attacked, id=f"{strategy}-{rule}-attacked")
    # Absent ranks share memory.
    statistics = {"model": {"name": "wide_resnet", "widen": 1}, "optimizer": "momentum", "epochs": 1}
    for strategy in TAKE_PART:
        steps = {} if strategy in ("one_shot", "gossip") else {"local_steps": 2}
        absent = {"name": strategy, "participation": {"fraction": 0.4}, **steps}
        yield pytest.param(absent, 5, {}, id=f"{strategy}-absent")
    absent = {"name": "local_sgd", "local_steps": 2, "participation": {"fraction": 0.4}}
    yield pytest.param(absent, 5, statistics, id="local_sgd-absent-statistics")
    for compression in COMPRESSIONS.entries:
        with_it = {"name": "all_reduce", "compression": compression}
        yield pytest.param(with_it, 4, {}, id=f"all_reduce-{compression}")


@pytest.mark.parametrize(("strategy", "nodes", "fields"), [*cases()])
def test_weights_are_those_of_threads(
    strategy: Any, nodes: int, fields: dict[str, Any], datasets: DatasetCache
) -> None:
    spec = spec_of(strategy, nodes, **fields)
    expected = threads.train(spec, datasets=datasets)
    found = train_virtually(spec, datasets=datasets)
    assert np.array_equal(found.weights, expected.weights)
    for own, other in zip(found.results, expected.results, strict=True):
        assert (own.weights_digest, own.accuracy, own.samples) == (
            other.weights_digest,
            other.accuracy,
            other.samples,
        )
        assert (own.bytes_sent, own.bytes_to) == (other.bytes_sent, other.bytes_to)
    assert [_certificate(events) for events in found.events] == [
        _certificate(events) for events in expected.events
    ]


def _certificate(events: list[Any]) -> list[Any]:
    return [(event.kind, event.fields) for event in events if event.kind in ("partition", "coverage")]


@pytest.mark.parametrize(
    "block",
    [torch.inference_mode(), torch.autocast("cpu"), None],
    ids=["inference", "autocast", "backward"],
)
def test_an_exchange_whose_state_a_coroutine_would_lose_is_refused(block: Any) -> None:
    errors: dict[int, str] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            if block:
                with block:
                    comm.barrier()
            weight = torch.ones(1, requires_grad=True)
            loss = weight * 2
            loss.register_hook(lambda _: comm.barrier())
            loss.backward()
        except CommunicationError as error:
            errors[comm.rank] = str(error)
            comm.abort()

    in_turns(body, spec_of("all_reduce", 2))
    assert "needs_thread" in errors[0]


def test_ranks_pause_with_a_state_of_autograd_of_their_own() -> None:
    found: dict[int, list[bool]] = {}
    saved: dict[int, int] = {0: 0, 1: 0}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        comm.barrier()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved[comm.rank] += 1
            return tensor

        with torch.set_grad_enabled(comm.rank == 1), saved_tensors_hooks(pack, lambda tensor: tensor):
            comm.barrier()
            product = torch.ones(1, requires_grad=True) * torch.ones(1)
            found[comm.rank] = [torch.is_grad_enabled(), product.requires_grad]
            comm.barrier()
        found[comm.rank].append(torch.is_grad_enabled())
        torch.ones(1, requires_grad=True) * torch.ones(1)

    in_turns(body, spec_of("all_reduce", 2))
    assert found == {0: [False, False, True], 1: [True, True, True]}
    assert saved == {0: 0, 1: 1}


# Time


def test_a_rank_does_not_pay_for_the_work_of_others() -> None:
    measured: list[float] = []

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        comm.barrier()
        if comm.rank == 1:
            with comm.clock.phase("compute"):
                until = time.thread_time() + 0.2
                while time.thread_time() < until:
                    pass
        with comm.clock.phase("compute"):
            comm.node.pause((int(Kind.BARRIER), 0, -1, 0, 0.0, 0.0, 0.0))
        comm.clock.stop()
        measured.append(comm.clock.cpu_seconds["compute"])

    in_turns(body, spec_of("all_reduce", 2))
    assert min(measured) < 0.1 < max(measured)


def replayed(spec: RunSpec, training: VirtualTraining, staleness: int | None = None) -> list[float]:
    replay = simulate(training.traces, cluster_of_run(spec), staleness)
    return [rank.end_s for rank in replay.ranks]


@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
@pytest.mark.parametrize("strategy", BY_THREADS)
def test_the_time_is_that_of_a_replay_of_the_traces(
    strategy: str, transport: str, datasets: DatasetCache
) -> None:
    spec = spec_of(
        strategy,
        4 if strategy == "hybrid" else 3,
        transport=transport,
        trace="full",
        epochs=1,
        node_speed={-1: 0.25},
        link={"latency_ms": 1, "bandwidth_mbit": 100},
    )
    training = train_virtually(spec, datasets=datasets)
    assert replayed(spec, training) == pytest.approx([rank.end_s for rank in training.times], rel=1e-9)
    assert training.results[0].seconds["cpu_contention"] == 0
    for result, times in zip(training.results, training.times, strict=True):
        phases = {name: value for name, value in result.seconds.items() if name != "evaluate"}
        assert sum(phases.values()) == pytest.approx(result.train_s, abs=1e-5)
        worked = sum(phases[name] for name in WORK_PHASES)
        assert worked == pytest.approx(sum(times.work_s), abs=1e-5)


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_asynchronous_updates_come_in_the_order_of_the_cluster_and_repeat(
    staleness: int | None, datasets: DatasetCache
) -> None:
    strategy = {"name": "async_parameter_server", "max_staleness": staleness}
    slow = {"link": {"latency_ms": 5}, "node_speed": {-1: 0.1}, "transport": "rpc"}
    spec = spec_of(strategy, 4, **slow)
    first, again = (train_virtually(spec, PRICED, datasets) for _ in range(2))
    assert np.array_equal(first.weights, again.weights)
    assert [rank.end_s for rank in first.times] == [rank.end_s for rank in again.times]
    assert replayed(spec, first, staleness) == pytest.approx([rank.end_s for rank in first.times], rel=1e-9)
    for result in first.results[1:]:
        booked = sum(value for name, value in result.seconds.items() if name != "evaluate")
        assert booked == pytest.approx(result.train_s, abs=1e-5)
        # Each step pulls and pushes, there and back, beside the time in the server.
        assert result.seconds["communicate"] >= result.steps * 4 * 0.005
    largest = max(result.staleness_max or 0 for result in first.results)
    # In lock step each of the two other workers pushes at most once between a pull and its push.
    assert largest <= 2 if staleness == 0 else largest > 2
    equal = train_virtually(spec_of(strategy, 4, **{**slow, "node_speed": {-1: 1.0}}), PRICED, datasets)
    assert equal.cluster_s < first.cluster_s / 3
    if staleness != 0:
        assert not np.array_equal(equal.weights, first.weights)  # another order


def test_a_sample_costs_what_is_given_and_exchanges_what_the_link_needs(datasets: DatasetCache) -> None:
    link = {"latency_ms": 10, "bandwidth_mbit": 1000}
    spec = spec_of("all_reduce", 2, epochs=1, transport="gloo", link=link, node_speed={0: 0.5})
    training = train_virtually(spec, VirtualOptions(seconds_per_sample=0.01), datasets)
    steps = training.results[0].steps
    assert steps == 8  # 60 samples of each node in batches of 8
    work = [sum(rank.work_s) for rank in training.times]
    assert work == pytest.approx([60 * 0.01 / 0.5, 60 * 0.01])
    exchanged = training.times[0].communicate_s
    # The ring of two ranks sends two messages of each segment, one after the other, and each waits until
    # its receiver has asked for it.
    assert steps * 4 * 0.010 < exchanged < steps * 4 * 0.010 + 0.05
    assert training.times[0].end_s == pytest.approx(work[0] + exchanged)
    assert training.results[0].seconds["compute"] == pytest.approx(60 * 0.01 / 0.5)
    assert training.times[1].wait_s[0] > 60 * 0.01  # rank 0 works twice as long


def test_every_rank_has_a_core() -> None:
    spec = spec_of("all_reduce", 2, processes_per_node=2, transport="gloo", cpus=0.5, node_speed=[1, 0.5])
    cluster = cluster_of_run(spec)
    assert [cluster.speed_of(rank) for rank in range(4)] == [1, 1, 0.5, 0.5]


# Failures


def test_ranks_that_wait_for_each_other_are_named_at_once() -> None:

    errors: dict[int, Exception] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            if comm.rank == 0:
                comm.recv(torch.zeros(1), source=1)
            else:
                comm.barrier()
        except CommunicationError as error:
            errors[comm.rank] = error

    spec = spec_of("all_reduce", 2)
    in_turns(body, spec)
    assert "rank 0 (receive of 4 bytes, peer 1); rank 1 (barrier)" in str(errors[0])
    assert "other states" not in str(errors[0])
    assert str(errors[0]) == str(errors[1])


@pytest.mark.parametrize("training", [True, False])
def test_different_collectives_of_a_group_are_an_error(training: bool) -> None:

    errors: dict[int, Exception] = {}

    def body(comm: VirtualCommunicator) -> None:
        if training:
            comm.clock.start()
        try:
            comm.all_reduce(torch.zeros(2 + comm.rank), "sum")
        except CommunicationError as error:
            errors[comm.rank] = error
            comm.abort()

    in_turns(body, spec_of("all_reduce", 2))
    assert errors.keys() == {0, 1}
    assert str(errors[1]) == "rank 1 calls all_reduce of 12 bytes, where others call all_reduce of 8 bytes"


def test_the_failure_of_a_rank_ends_the_others() -> None:

    ended: dict[int, str] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            if comm.rank == 2:
                raise ValueError("mine")
            comm.barrier()
            comm.barrier()
        except (CommunicationError, ValueError) as error:
            ended[comm.rank] = str(error)
            comm.abort()

    in_turns(body, spec_of("all_reduce", 4))
    assert ended.keys() == {0, 1, 2, 3}
    assert ended[2] == "mine"
    assert "another rank" in ended[0]


def test_a_rank_that_is_alone_is_named_first() -> None:
    errors: dict[int, Exception] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            if comm.rank == 7:
                comm.recv(torch.zeros(1), source=6)
            comm.barrier()
        except CommunicationError as error:
            errors[comm.rank] = error

    in_turns(body, spec_of("all_reduce", 9))
    assert str(errors[0]).endswith(
        "rank 7 (receive of 4 bytes, peer 6); rank 0 (barrier), as 7 other ranks"
    )


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_peer_that_does_not_exist_is_an_error(peer: int) -> None:
    errors: dict[int, str] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            comm.send(torch.zeros(1), to=peer)
        except CommunicationError as error:
            errors[comm.rank] = str(error)
            comm.abort()

    in_turns(body, spec_of("all_reduce", 2))
    assert errors[0] == f"there is no rank {peer}; the group has 2"


def test_a_price_that_nobody_pays_is_an_error() -> None:
    """As with a strategy that computes gradients itself."""
    errors: dict[int, str] = {}

    def body(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        comm.barrier()
        try:
            comm.close()
        except CommunicationError as error:
            errors[comm.rank] = str(error)

    in_turns(body, spec_of("all_reduce", 2), PRICED)
    assert errors.keys() == {0, 1}
    assert "virtual.seconds_per_sample" in errors[0]
