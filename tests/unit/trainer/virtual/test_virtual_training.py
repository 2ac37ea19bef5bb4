"""Mistakes of virtual nodes that train: other bits than threads, than one process, or times of no cluster.

Each case is trained once; every test compares that training with another way to get the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.virtual_training import VirtualTraining, train_virtually
from tests.unit.trace_laws import exchanges
from tests.unit.training import fields_for
from trainer.core.clock import Clock
from trainer.core.trace import WORK_PHASES
from trainer.data.cache import DatasetCache
from trainer.launch import threads
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.time_model.described import cluster_of_run
from trainer.time_model.outcome import Replay
from trainer.time_model.simulate import simulate
from trainer.training.replica import Replica
from trainer.training.task import Task
from trainer.virtual import sample
from trainer.virtual.options import MEASURED, VirtualOptions

DATASETS = DatasetCache()
DATA = {"name": "synthetic", "classes": 4, "samples": 75, "test_samples": 20}
SMALL_IMAGES = {**DATA, "height": 12, "width": 12}
PRICED = VirtualOptions(seconds_per_sample=0.01, seconds_per_step=0.01 / 3)
CERTIFICATE = ("partition", "coverage")
# What only training finds out.
LEARNED = {"accuracy", "test_loss", "test_samples", "chance_accuracy", "local_accuracy", "weights_digest"}


class Case(NamedTuple):
    strategy: Any
    nodes: int = 3
    fields: dict[str, Any] = {}  # noqa: RUF012  (nobody changes it)

    @property
    def kind(self) -> Any:
        """The class of the strategy."""
        return STRATEGIES.load(self.strategy if isinstance(self.strategy, str) else self.strategy["name"])

    def spec(self, **others: Any) -> RunSpec:
        run = {"dataset": DATA, "model": "lenet", "epochs": 2, "batch_size": 8, "save_weights": True}
        return RunSpec.model_validate(
            {**run, "strategy": self.strategy, "nodes": self.nodes, **self.fields, **others}
        )


ABSENT = {"participation": {"fraction": 0.4}}
SPECIAL: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "pipeline": ({"split_points": ["conv2", "fc1"]}, 3, {}),
    "hybrid": ({"split_points": ["conv2"]}, 4, {}),
    # Of two pairs of layers, the second exchanges in the backward pass.
    "tensor_parallel": ({}, 3, {"model": {"name": "mlp", "hidden": [9, 8, 7]}}),
    "local_sgd": ({"optimizer_state": "average"}, 3, {}),
    "hierarchical_sgd": ({"local_steps": 2, "group_averages": 2}, 4, {}),
    "gossip": (ABSENT, 5, {}),
    "push_sum": ({"graph": "random", "overlap": 2}, 5, {}),
    "sparta": ({"delay": 2}, 3, {}),
    "async_diloco": ({"local_steps": 4, "dynamic_steps": True}, 4, {}),
    "async_elastic_averaging": ({"local_steps": 2}, 4, {}),
    "fedbuff": ({"local_steps": 2, "buffer": 2, "max_staleness": 1}, 4, {}),
    "demo": ({"chunk": 5, "top_k": 3}, 3, {"optimizer": "sgd"}),
    "noloco": ({"local_steps": 2}, 5, {}),
    "elastic_averaging": ({"local_steps": 2}, 3, {}),
    "scaffold": ({"local_steps": 2}, 3, {"optimizer": "sgd"}),
    "fednova": ({"local_steps": 3}, 3, {"optimizer": "momentum"}),
    "diloco": ({"local_steps": 2, **ABSENT}, 5, {}),
    "fedprox": ({"local_steps": 2, **ABSENT}, 5, {}),
}


def cases() -> Iterator[tuple[str, Case]]:
    """Every strategy, and what ranks share or divide."""
    for strategy in STRATEGIES.entries:
        kind = STRATEGIES.load(strategy)
        if kind.virtual and strategy != "serial":
            parameters, nodes, fields = SPECIAL.get(strategy, ({}, 3, {}))
            fields = {"optimizer": "adam", "lr": 0.01, **fields_for(strategy), **fields}
            if not kind.partitions_model:
                fields["partitioner"] = "quantity"
            yield strategy, Case({"name": strategy, **parameters}, nodes, fields)
    for compression, uneven in (("top_k", "drop"), ("power_sgd", "pad")):
        compressed = {"name": "all_reduce", "compression": compression, "uneven": uneven}
        yield compression, Case(compressed, 4, {"model": {"name": "mlp", "hidden": [8]}})
    mesh = {"name": "hybrid", "mesh": {"pipeline": 2, "tensor": 2}, "split_points": ["flatten"]}
    yield "hybrid-tensor", Case(mesh, 4)
    vgg = {"name": "vgg_small", "width": 4, "norm": "sync_batch"}
    yield "sync_batch", Case("all_reduce", 2, {"dataset": SMALL_IMAGES, "model": vgg, "epochs": 1})
    yield "recompute-dropout", Case("all_reduce", 3, {"recompute": "full"})
    # Absent ranks share memory.
    reset = {"name": "local_sgd", "local_steps": 2, "optimizer_state": "reset", **ABSENT}
    wide = {"dataset": SMALL_IMAGES, "model": {"name": "wide_resnet", "widen": 1}, "epochs": 1}
    yield "absent-statistics", Case(reset, 5, {**wide, "optimizer": "momentum"})
    attack = {"nodes": [-1], "attack": {"name": "little_is_enough", "z": 1.0}}
    attacked = {"partitioner": "quantity", "byzantine": attack}
    yield "krum", Case({"name": "parameter_server", "aggregation": "krum"}, 7, attacked)
    outer = {"name": "diloco", "local_steps": 2, "compression": "int4", **ABSENT}
    yield "int4", Case(outer, 5, {"partitioner": "quantity"})
    overlapping = {"name": "streaming_diloco", "local_steps": 4, "compression": "int4"}
    yield "int4-overlap", Case(overlapping, 3)


CASES = dict(cases())
TRANSPORTS = dict(zip(CASES, cycle(["gloo", "mpi", "rpc"]), strict=False))
THREADED = [name for name, case in CASES.items() if "memory" in case.kind.transports]
# Every kind of exchange, and memory that ranks share.
IN_PROCESSES = (
    *("all_reduce", "all_gather", "reduce_broadcast", "gossip", "async_parameter_server"),
    *("diloco", "absent-statistics", "krum", "fsdp"),
)
SAMPLED = [
    name
    for name, case in CASES.items()
    if not case.kind.partitions_model
    # What a rank exchanges in a backward pass, and by value, is not known without computation.
    and name not in ("sync_batch", "krum")
]


def of_cluster(name: str) -> RunSpec:
    """The run of a case on a cluster whose links take time, and whose last node is slow."""
    known = CASES[name].kind.transports
    transport = TRANSPORTS[name] if TRANSPORTS[name] in known else known[0]
    link = {"latency_ms": 1, "bandwidth_mbit": 100}
    return CASES[name].spec(transport=transport, trace="full", node_speed={-1: 0.25}, link=link)


@cache
def shares_of(name: str) -> Mapping[Hashable, float]:
    """The shares of a step that virtual nodes measure: the same for the two ways to run a case."""
    task = Task(CASES[name].spec(), Path(), DATASETS)
    return sample.shares(task, Replica(task.build_model(0), task, Clock()))


@contextmanager
def same_shares(name: str) -> Iterator[None]:
    found = shares_of(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "shares", lambda *_: found)
        yield


@cache
def trained(name: str) -> VirtualTraining:
    with same_shares(name):
        return train_virtually(of_cluster(name), PRICED, DATASETS)


def each_of(names: Iterable[str]) -> Any:
    """Parametrize a test, in turn with the other tests of the same case."""
    return pytest.mark.parametrize("name", [*names], scope="module")


@each_of(THREADED)
def test_weights_are_those_of_threads(name: str) -> None:
    virtual = trained(name)
    expected = threads.train(CASES[name].spec(transport="memory"), datasets=DATASETS)
    assert np.array_equal(virtual.weights, expected.weights)
    facts = ("weights_digest", "accuracy", "samples", "bytes_sent", "bytes_to")
    for own, other in zip(virtual.results, expected.results, strict=True):
        assert [getattr(own, fact) for fact in facts] == [getattr(other, fact) for fact in facts]
    assert [*map(exchanges, virtual.traces)] == [*map(exchanges, expected.traces)]
    found, certified = (
        [(each.kind, each.fields) for of_rank in events for each in of_rank if each.kind in CERTIFICATE]
        for events in (virtual.events, expected.events)
    )
    assert found == certified


def assert_times_of_the_traces(spec: RunSpec, training: VirtualTraining) -> Replay:
    """The times of a replay; the phases of each rank add up to them, and its work to that of its phases."""
    staleness = getattr(spec.strategy, "max_staleness", None)
    replay = simulate(training.traces, cluster_of_run(spec), staleness, intervals=True)
    for replayed, result, times in zip(replay.ranks, training.results, training.times, strict=True):
        assert replayed.end_s == pytest.approx(times.end_s, rel=1e-9)
        phases = {name: value for name, value in result.seconds.items() if name != "evaluate"}
        assert sum(phases.values()) == pytest.approx(result.train_s, abs=1e-5)
        worked = sum(phases[name] for name in WORK_PHASES)
        assert worked == pytest.approx(sum(times.work_s), abs=1e-5)
        assert phases["cpu_contention"] == 0
        # Waits of requests and of a server are not attributed.
        served = [each for each in replayed.intervals if each.name in ("request", "take")]
        for cause, attributed_s in enumerate(result.wait_s_by_rank or []):
            of_requests_s = sum(each.wait_s for each in served if each.cause == cause)
            assert attributed_s == pytest.approx(times.wait_s.get(cause, 0.0) - of_requests_s, abs=2e-6)
    return replay


@each_of(CASES)
def test_the_time_is_that_of_a_replay_of_the_traces(name: str) -> None:
    assert_times_of_the_traces(of_cluster(name), trained(name))


def test_measured_work_takes_the_time_of_a_replay_too() -> None:
    for name in ("all_reduce", "parameter_server"):
        training = train_virtually(of_cluster(name), MEASURED, DATASETS)
        assert_times_of_the_traces(of_cluster(name), training)


def facts(training: VirtualTraining) -> list[Any]:
    """What must not depend on the number of processes."""
    results = [result.model_dump(exclude={"peak_memory_mb"}) for result in training.results]
    events = [[(each.kind, each.fields) for each in own if each.kind != "step"] for own in training.events]
    traces = [(trace.header, trace.records.tolist()) for trace in training.traces]
    return [training.weights.tolist(), results, events, traces, list(training.times)]


@each_of(IN_PROCESSES)
def test_bits_and_times_are_those_of_one_process(name: str) -> None:
    priced = PRICED.model_copy(update={"workers": 2 + len(name) % 2})
    with same_shares(name):
        found = train_virtually(of_cluster(name), priced, DATASETS)
    assert facts(found) == facts(trained(name))


@each_of(SAMPLED)
def test_sampled_exchanges_are_those_of_a_training_with_the_same_costs(name: str) -> None:
    sampled = PRICED.model_copy(update={"compute": "sampled"})
    with same_shares(name):
        spec = of_cluster(name).model_copy(update={"save_weights": False})
        played = train_virtually(spec, sampled, DATASETS)
    for rank, other in zip(played.times, trained(name).times, strict=True):
        assert (rank.end_s, rank.wait_s) == (other.end_s, other.wait_s)
    for result, full in zip(played.results, trained(name).results, strict=True):
        of_cost = {*LEARNED, "peak_memory_mb"}
        assert result.model_dump(exclude=of_cost) == full.model_dump(exclude=of_cost)
        assert {getattr(result, each) for each in LEARNED} == {None}
        assert result.seconds["evaluate"] == 0
    assert {event.kind for events in played.events for event in events} == {"train_start", "train_end"}


@pytest.mark.parametrize("staleness", [None, 0])
def test_asynchronous_updates_come_in_the_order_of_the_cluster(staleness: int | None) -> None:
    case = Case({"name": "async_parameter_server", "max_staleness": staleness}, 4)
    spec = case.spec(link={"latency_ms": 5}, transport="rpc", node_speed={-1: 0.1}, trace="full")
    found = train_virtually(spec, PRICED, DATASETS)
    replay = assert_times_of_the_traces(spec, found)
    for replayed, times in zip(replay.ranks, found.times, strict=True):
        assert dict(replayed.wait_s) == pytest.approx(dict(times.wait_s), abs=1e-6)
    largest = max(result.staleness_max or 0 for result in found.results)
    # In lock step each of the two other workers pushes at most once between a pull and its push.
    assert largest <= 2 if staleness == 0 else largest > 2
