"""Mistakes of servers that apply changes of local steps as they arrive.

Nodes are virtual, so that the order of arrival follows from their speeds. References are in plain torch and
float64, in the order that the server's trace shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.virtual_training import VirtualTraining, train_virtually
from tests.unit.plain_torch import PARTS, Nodes, close
from tests.unit.training import SMALL, train
from trainer.comm.errors import CommunicationError
from trainer.core.trace import Kind
from trainer.data.cache import DatasetCache
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.virtual.options import VirtualOptions

DATASETS = DatasetCache()
PRICED = VirtualOptions(seconds_per_sample=0.01, seconds_per_step=0.01)
MOMENTUM: dict[str, Any] = {"optimizer": "momentum", "lr": 0.02}
# Of three workers, the last is the slowest.
SPEEDS: dict[str, Any] = {"node_speed": {-1: 0.3, -2: 0.8}, "link": {"latency_ms": 1}}
FEDBUFF: dict[str, Any] = {"name": "fedbuff", "local_steps": 2}
ASYNC: dict[str, Any] = {"name": "async_diloco", "outer_lr": 0.6, "outer_momentum": 0.8}
SERVER: dict[str, Any] = {"name": "async_parameter_server"}
ELASTIC: dict[str, Any] = {"name": "async_elastic_averaging", "local_steps": 2, "beta": 0.6}


def train_served(
    strategy: dict[str, Any], workers: int = 3, checkpoints: Path | None = None, **fields: Any
) -> VirtualTraining:
    placed = {"nodes": workers + 1, "transport": "rpc", "trace": "full", "save_weights": True}
    run = {**SMALL, "strategy": strategy, **placed, **fields}
    return train_virtually(RunSpec.model_validate(run), PRICED, DATASETS, checkpoints)


def arrivals(training: VirtualTraining) -> list[list[tuple[int, bool]]]:
    """By epoch: the workers from 0 whose requests the server takes, and whether they are pushes."""
    epochs: list[list[tuple[int, bool]]] = []
    for kind, _, peer, nbytes, *_ in training.traces[0].records.tolist():
        if kind == Kind.EPOCH:
            epochs.append([])
        elif kind == Kind.TAKE:
            epochs[-1].append((peer - 1, nbytes > 0))
    return epochs


def replayed(
    training: VirtualTraining,
    nodes: Nodes,
    local_steps: list[int],
    apply: Callable[[Tensor, Tensor, tuple[int, int], bool], Tensor],
) -> Tensor:
    """The server's weights in the end. apply: what they become by a push.

    It gets the weights, the change, how many pushes there were before its pull and before it in the epoch,
    and whether it is the last.
    """
    epochs = arrivals(training)
    length, x = nodes.steps // len(epochs), nodes.x[0]
    for number, requests in enumerate(epochs):
        pulled: dict[int, tuple[Tensor, int]] = {}
        taken, count = [0] * len(nodes.x), 0
        for place, (i, is_push) in enumerate(requests):
            if not is_push:
                pulled[i] = x, count
                continue
            start, version = pulled[i]
            y, steps = start.clone(), range(taken[i], min(taken[i] + local_steps[i], length))
            for t in steps:
                y -= nodes.task.spec.lr * nodes.gradient(i, number * length + t, y)
            taken[i] = steps.stop
            x = apply(x, start - y, (version, count), place == len(requests) - 1)
            count += 1
    return x


@pytest.mark.parametrize(("buffer", "weight"), [(1, "inverse_sqrt"), (2, "inverse_sqrt"), (3, "constant")])
def test_a_server_applies_a_buffer_of_stale_changes(buffer: int, weight: str) -> None:
    form = {**FEDBUFF, "buffer": buffer, "staleness_weight": weight, "server_lr": 0.8}
    found = train_served(form, **PARTS, **SPEEDS)
    nodes, held, seen = Nodes("local_sgd"), list[Tensor](), set[int]()

    def apply(x: Tensor, change: Tensor, counts: tuple[int, int], last: bool) -> Tensor:
        staleness = counts[1] // buffer - counts[0] // buffer
        seen.add(staleness)
        held.append(change / (1 + staleness) ** 0.5 if weight == "inverse_sqrt" else change)
        if len(held) < buffer and not last:
            return x
        mean = torch.stack(held).mean(dim=0)
        held.clear()
        return x - 0.8 * mean

    close(found.weights, replayed(found, nodes, [2, 2, 2], apply))
    assert len(seen) > 1
    assert max(result.staleness_max or 0 for result in found.results) == max(seen)


def test_a_full_buffer_in_lock_step_is_local_sgd() -> None:
    """Of 4 steps an epoch, with dropout and momentum, which workers keep."""
    fields = {"model": "lenet", **MOMENTUM}
    form = {**FEDBUFF, "buffer": 3, "staleness_weight": "constant", "max_staleness": 0}
    local = {"name": "local_sgd", "local_steps": 2, "weighting": "equal"}
    found, expected = train_served(form, **fields, **SPEEDS), train(local, 3, **fields)
    close(found.weights, expected.weights)
    assert [result.staleness_max for result in found.results] == [None, 0, 0, 0]


def test_a_round_is_one_exchange_with_the_server() -> None:
    server, *workers = train_served({**FEDBUFF, "local_steps": 3}, **PARTS).results
    n = 4 * server.parameters
    rounds = [3 * -(-(worker.steps // 3) // 3) for worker in workers]
    assert [worker.bytes_sent for worker in workers] == [n * each for each in rounds]
    assert (server.bytes_sent, server.steps) == (n * sum(rounds), sum(rounds))


def test_buffers_that_never_fill_are_refused() -> None:
    error = STRATEGIES.parse({**FEDBUFF, "buffer": 4}).validation_error(None, 4, 10) or ""
    assert "allowed: 1 to 3" in error
    assert STRATEGIES.parse({**FEDBUFF, "buffer": 3}).validation_error(None, 4, 10) is None


@pytest.mark.parametrize(
    ("delay", "activation", "dynamic", "local_steps"),
    [(2, 0.0, False, [3, 3, 3]), (2, 0.4, False, [3, 3, 3]), (None, 0.1, True, [3, 2, 1])],
)
def test_momentum_waits_for_changes(
    delay: int | None, activation: float, dynamic: bool, local_steps: list[int]
) -> None:
    form = {**ASYNC, "local_steps": 3, "dynamic_steps": dynamic, "delay": delay, "activation": activation}
    found = train_served(form, **PARTS, **SPEEDS)
    nodes, n, t = Nodes("local_sgd"), delay or 3, 0
    m = delta = torch.zeros_like(nodes.x[0])

    def apply(x: Tensor, change: Tensor, counts: tuple[int, int], last: bool) -> Tensor:
        nonlocal t, m, delta
        t, delta = t + 1, delta + change / n
        if t % n:
            return x - 0.6 * (activation * 0.8 * m + change / n)
        m, delta = 0.8 * m + delta, torch.zeros_like(delta)
        return x - 0.6 * ((1 - (n - 1) * activation) * 0.8 * m + change / n)

    close(found.weights, replayed(found, nodes, local_steps, apply))
    assert max(result.staleness_max or 0 for result in found.results) > 1


def test_one_worker_without_delay_is_diloco_on_one_node() -> None:
    """Of 12 steps an epoch, with dropout and momentum, which the worker keeps."""
    fields = {"model": "lenet", **MOMENTUM}
    outer = {"local_steps": 4, "outer_lr": 0.6, "outer_momentum": 0.8}
    found = train_served({**ASYNC, "local_steps": 4}, 1, **fields)
    close(found.weights, train({"name": "diloco", **outer}, 1, **fields).weights)


def test_rounds_are_as_long_as_nodes_are_fast() -> None:
    form = STRATEGIES.parse({**ASYNC, "dynamic_steps": True, "local_steps": 100})
    assert form.local_steps_of([1.0, 0.5, 0.29, 0.001]) == [100, 50, 29, 1]
    assert form.local_steps_of([0.5, 0.25]) == [100, 50]
    assert STRATEGIES.parse(ASYNC).local_steps_of([0.5, 0.25]) == [10, 10]


def test_workers_and_centre_pull_each_other() -> None:
    """Workers keep their own weights between two pulls, and over the end of an epoch."""
    found = train_served(ELASTIC, **PARTS, **SPEEDS)
    nodes, epochs = Nodes("local_sgd"), arrivals(found)
    length, centre = nodes.steps // len(epochs), nodes.x[0].clone()
    for number, requests in enumerate(epochs):
        taken, pull = [0] * 3, [torch.empty(0)] * 3
        for i, is_push in requests:
            if is_push:
                centre = centre - pull[i]
                continue
            steps = range(taken[i], min(taken[i] + 2, length))
            for t in steps:
                nodes.x[i] -= nodes.task.spec.lr * nodes.gradient(i, number * length + t, nodes.x[i])
            taken[i], pull[i] = steps.stop, 0.2 * (centre - nodes.x[i])
            nodes.x[i] += pull[i]
    close(found.weights, centre)
    assert max(result.staleness_max or 0 for result in found.results) > 0


@pytest.mark.parametrize(
    "form",
    [{**FEDBUFF, "buffer": 2}, {**ASYNC, "local_steps": 3, "delay": 4}, ELASTIC, SERVER],
    ids=lambda form: form["name"],
)
def test_an_interrupted_run_ends_with_the_same_weights(
    form: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes have momentum, and changes are left for the outer momentum of the next epoch."""
    fields = {**PARTS, **SPEEDS, **MOMENTUM, "checkpoint_epochs": 1}
    whole = train_served(form, 3, tmp_path / "whole", **fields)
    changes = [sum(is_push for _, is_push in requests) for requests in arrivals(whole)]
    assert changes[0] % form.get("delay", changes[0] + 1)
    step, taken = Replica.step, list[Replica]()

    def interrupting_step(self: Replica) -> None:
        taken.append(self)
        if len(taken) > sum(result.steps for result in whole.results[1:]) // 2:
            raise RuntimeError
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "step", interrupting_step)
        with pytest.raises((CommunicationError, RuntimeError)):  # of the server
            train_served(form, 3, tmp_path / "below", **fields)
    resumed = train_served(form, 3, tmp_path / "below", **fields)
    assert [event.fields["epoch"] for event in resumed.events[0] if event.kind == "resumed"] == [1]
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    assert resumed.results[0].bytes_sent == whole.results[0].bytes_sent


@pytest.mark.parametrize(("delay", "allowed"), [(None, "1/N, 0.333"), (2, "1/N, 0.5")])
def test_more_than_all_momentum_is_refused(delay: int | None, allowed: str) -> None:
    for activation, expected in ((0.6, allowed), (0.3, "")):
        form = STRATEGIES.parse({**ASYNC, "delay": delay, "activation": activation})
        error = form.validation_error(None, 4, 10) or ""
        assert (bool(error), expected in error) == (bool(expected), True)
