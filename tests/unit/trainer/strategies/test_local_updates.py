"""Mistakes in strategies that average weights of few nodes, few weights, or corrected changes.

References are in plain torch and float64. What is equal to another strategy is compared with that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.unit.plain_torch import PARTS, Nodes, close, mean
from tests.unit.training import train
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

MOMENTUM: dict[str, Any] = {"optimizer": "momentum", "lr": 0.02}
EQUAL: dict[str, Any] = {"weighting": "equal"}
HIERARCHICAL = {"name": "hierarchical_sgd"}
LOCAL = {"name": "local_sgd"}
SERVER = {"server": "momentum", "beta1": 0.6, "server_lr": 0.8}
MIXED = {"name": "gossip", "order": "step_then_mix"}


@pytest.mark.parametrize(
    ("strategy", "twin", "nodes", "fields"),
    [
        # One group, and groups of one node.
        (
            {**HIERARCHICAL, "group_size": 3, "local_steps": 4, "group_averages": 3},
            {**LOCAL, "local_steps": 4},
            3,
            {"model": "lenet", **MOMENTUM, **PARTS},
        ),
        (
            {**HIERARCHICAL, "group_size": 1, "local_steps": 2, "group_averages": 2},
            {**LOCAL, "local_steps": 4},
            3,
            PARTS,
        ),
        ({"name": "sparta", "share": 1.0}, {**LOCAL, "local_steps": 1, **EQUAL}, 3, PARTS),
    ],
)
def test_equal_strategies_have_equal_bits(
    strategy: dict[str, Any], twin: dict[str, Any], nodes: int, fields: dict[str, Any]
) -> None:
    found, expected = train(strategy, nodes, **fields), train(twin, nodes, **fields)
    np.testing.assert_array_equal(found.weights, expected.weights)


@pytest.mark.parametrize(
    ("strategy", "twin", "nodes", "fields"),
    [
        (
            {**HIERARCHICAL, "local_steps": 3, "group_averages": 1},
            {**LOCAL, "local_steps": 3},
            4,
            {**MOMENTUM, **PARTS},
        ),
        ({"name": "push_sum", "graph": [1, 3]}, {**MIXED, "graph": "ring"}, 4, {**MOMENTUM, **PARTS}),
        ({"name": "push_sum"}, MIXED, 2, PARTS),
        # The first round, and rounds in which all nodes take as many steps.
        ({"name": "scaffold", "local_steps": 100}, {**LOCAL, "local_steps": 100}, 3, PARTS),
        (
            {"name": "fednova", "local_steps": 2},
            {**LOCAL, "local_steps": 2, "optimizer_state": "reset"},
            3,
            MOMENTUM,
        ),
        (
            {"name": "noloco", "local_steps": 4, "alpha": 0.6, "beta": 0.8, "gamma": 1.5},
            {"name": "fedopt", "local_steps": 4, **SERVER, **EQUAL},
            2,
            {"model": "lenet", **MOMENTUM, **PARTS},
        ),
    ],
)
def test_equal_strategies_have_equal_weights(
    strategy: dict[str, Any], twin: dict[str, Any], nodes: int, fields: dict[str, Any]
) -> None:
    found, expected = train(strategy, nodes, **fields), train(twin, nodes, **fields)
    close(found.weights, expected.weights)
    assert found.same_weights


def test_groups_average_more_often_than_all() -> None:
    nodes, groups = Nodes("hierarchical_sgd", 4), ((0, 1), (2, 3))
    n, n_of_group = [0] * 4, [0, 0]
    for t in range(nodes.steps):
        nodes.descend(t)
        n = [n[i] + nodes.samples(i, t) for i in range(4)]
        n_of_group = [n_of_group[g] + sum(nodes.samples(i, t) for i in groups[g]) for g in range(2)]
        ended = t == nodes.steps - 1
        if (t + 1) % 3 == 0 or ended:
            for group in groups:
                if total := sum(n[i] for i in group):
                    found = sum(n[i] * nodes.x[i] for i in group) / total
                    for i in group:
                        nodes.x[i] = found.clone()
            n = [0] * 4
        if (t + 1) % 9 == 0 or ended:
            found = mean([nodes.x[0], nodes.x[2]], n_of_group)
            nodes.x, n_of_group = [found.clone() for _ in range(4)], [0, 0]
    form = {**HIERARCHICAL, "local_steps": 3, "group_averages": 3}
    close(train(form, 4, **PARTS).weights, nodes.x[0])


def test_a_node_sends_most_bytes_within_its_group() -> None:
    """Of n bytes on 4 nodes: 6 averages of a group, of which 3 are followed by one with the other group."""
    form = {**HIERARCHICAL, "local_steps": 1, "group_averages": 2}
    result = train(form, 4, epochs=2).results[0]
    assert result.steps == 6
    n = 4 * (result.parameters + 1)  # and the weight
    assert result.bytes_sent == pytest.approx(6 * n + 3 * n)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_share_of_the_weights_is_averaged_in_each_step(delay: int) -> None:
    nodes = Nodes("sparta")
    size = len(nodes.x[0])
    drawn = [
        nodes.task.rngs.generator("entries", t + 1).choice(size, round(0.3 * size), False, shuffle=False)
        for t in range(nodes.steps)
    ]
    sent: list[list[torch.Tensor]] = []
    for t in range(nodes.steps):
        nodes.descend(t)
        sent.append([x[drawn[t]].clone() for x in nodes.x])
        if (began := t - delay) >= 0:
            for x, own in zip(nodes.x, sent[began], strict=True):
                x[drawn[began]] += mean(sent[began]) - own
    found = train({"name": "sparta", "share": 0.3, "delay": delay}, 3, **PARTS)
    close(found.weights, mean(nodes.x))
    assert len({*np.concatenate(drawn)}) > 0.99 * size


@pytest.mark.parametrize(("graph", "overlap"), [("random", 0), ("random", 3), ("exponential", 2), ([2], 1)])
def test_push_sum_removes_the_bias_of_its_graph(graph: Any, overlap: int) -> None:
    """Column-stochastic matrices on weights and scalars; what is on its way is in neither."""
    count = 5
    nodes = Nodes("push_sum", count, lr=0.03)
    x, w = torch.stack(nodes.x), torch.ones(count, dtype=torch.float64)
    on_their_way: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k in range(nodes.steps):
        samples = [nodes.samples(i, k) for i in range(count)]
        for i in range(count):
            scale = samples[i] * count / sum(samples)
            x[i] -= nodes.task.spec.lr * scale * nodes.gradient(i, k, x[i] / w[i])
        if graph == "random":
            steps = nodes.task.rngs.generator("peers", k).integers(1, count, count)
        else:
            steps = np.full(count, 2 ** (k % 3) if graph == "exponential" else graph[0])
        sent = torch.zeros(count, count, dtype=torch.float64)
        for i in range(count):
            sent[(i + steps[i]) % count, i] = 0.5
        on_their_way.append((sent @ x, sent @ w))
        x, w = x / 2, w / 2
        if len(on_their_way) > overlap:
            received = on_their_way.pop(0)
            x, w = x + received[0], w + received[1]
        assert graph != "random" or k < 3 or w.std() > 0.05
    for received in on_their_way:
        x, w = x + received[0], w + received[1]
    assert w.sum().item() == pytest.approx(count)
    form = {"name": "push_sum", "graph": graph, "overlap": overlap}
    found = train(form, count, **PARTS, lr=0.03)
    close(found.weights, x.sum(dim=0) / count)


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_control_variates_correct_local_steps(weighting: str) -> None:
    nodes, eta, length = Nodes("scaffold"), 0.1, 5
    x, c = nodes.x[0], torch.zeros_like(nodes.x[0])
    own = [c.clone() for _ in range(3)]
    for first in range(0, nodes.steps, length):
        steps = range(first, min(first + length, nodes.steps))
        weights, changes = [], []
        for i in range(3):
            y, taken = x.clone(), [t for t in steps if nodes.samples(i, t)]
            for t in taken:
                y -= eta * (nodes.gradient(i, t, y) - own[i] + c)
            variate = own[i] - c + (x - y) / (len(taken) * eta) if taken else own[i]
            changes.append((y - x, variate - own[i]))
            own[i] = variate
            weights.append(sum(nodes.samples(i, t) for t in steps) if weighting == "size" else 1)
        x = x + 0.8 * mean([of_x for of_x, _ in changes], weights)
        c = c + mean([of_c for _, of_c in changes], weights)
    form = {"name": "scaffold", "local_steps": length, "global_lr": 0.8, "weighting": weighting}
    close(train(form, 3, **PARTS, lr=eta).weights, x)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_changes_are_normalised_by_the_weights_of_their_gradients(rho: float) -> None:
    """Rounds of an epoch: the nodes take 7, 4 and 3 steps."""
    optimizer = {"name": "momentum", "momentum": rho} if rho else "sgd"
    nodes = Nodes("fednova", optimizer=optimizer)
    x, length = nodes.x[0], nodes.steps // 3
    for first in range(0, nodes.steps, length):
        n, a, d = [], [], []
        for i in range(3):
            y, v = x.clone(), torch.zeros_like(x)
            taken = [t for t in range(first, first + length) if nodes.samples(i, t)]
            for t in taken:
                v = rho * v + nodes.gradient(i, t, y)
                y -= nodes.task.spec.lr * v
            n.append(sum(nodes.samples(i, t) for t in taken))
            a.append(sum(rho**age for k in range(len(taken)) for age in range(k + 1)))
            d.append((x - y) / a[-1])
        assert len({*a}) == 3
        x = x - sum(share * each for share, each in zip(n, a, strict=True)) / sum(n) * mean(d, n)
    form = {"name": "fednova", "local_steps": length}
    close(train(form, 3, **PARTS, optimizer=optimizer).weights, x)


@pytest.mark.parametrize("beta", [0.6, 1.0])
def test_nodes_and_centre_pull_each_other(beta: float) -> None:
    nodes = Nodes("elastic_averaging", 4)
    centre = nodes.x[0].clone()
    for t in range(nodes.steps):
        nodes.descend(t)
        if (t + 1) % 4 == 0 or t == nodes.steps - 1:
            distances = [x - centre for x in nodes.x]
            for x, distance in zip(nodes.x, distances, strict=True):
                x -= beta / 4 * distance
            centre += beta / 4 * sum(distances)
    form = {"name": "elastic_averaging", "local_steps": 4, "beta": beta}
    found = train(form, 4, **PARTS)
    close(found.weights, centre)
    assert found.results[0].test_loss == pytest.approx(nodes.test_loss(centre), rel=1e-4)
    assert found.of("epoch")[0].fields["consensus_distance"] > 0.01


def test_pairs_take_outer_steps() -> None:
    """Of 3 nodes, one is alone in each round."""
    nodes, length, rounds = Nodes("noloco"), 4, 0
    phi, delta = [x.clone() for x in nodes.x], [torch.zeros_like(x) for x in nodes.x]
    for t in range(nodes.steps):
        nodes.descend(t)
        if (t + 1) % length and t < nodes.steps - 1:
            continue
        order = nodes.task.rngs.generator("peers", rounds).permutation(3).tolist()
        rounds += 1
        change, before = [x - p for x, p in zip(nodes.x, phi, strict=True)], [*phi]
        for pair in (order[:2], order[2:]):
            for i in pair:
                together = before[i] - mean([before[j] for j in pair])
                delta[i] = 0.5 * delta[i] + 0.7 * mean([change[j] for j in pair]) - 1.2 * together
                phi[i] = before[i] + delta[i]
                nodes.x[i] = phi[i].clone()
    found = train({"name": "noloco", "local_steps": length, "gamma": 1.2}, 3, **PARTS)
    close(found.weights, mean(phi))


REFUSED: list[tuple[Any, int, str]] = [
    ({**HIERARCHICAL, "group_size": 3}, 4, "allowed: 1, 2, 4"),
    ({"name": "push_sum", "graph": [2, 4]}, 6, "not strongly connected on 6 nodes"),
    ({"name": "push_sum", "graph": [3, 4]}, 6, ""),
    ({"name": "push_sum", "graph": [1, 7]}, 6, "not strongly connected on 6 nodes"),
    ({"name": "push_sum", "graph": [6]}, 6, "not strongly connected on 6 nodes"),
    ({"name": "push_sum", "graph": []}, 6, "not strongly connected on 6 nodes"),
]


def test_graphs_and_groups_that_do_not_fit_are_refused() -> None:
    for form, ranks, refused in REFUSED:
        error = STRATEGIES.parse(form).validation_error(None, ranks, 10) or ""
        assert (bool(error), refused in error) == (bool(refused), True), f"{form}, {ranks}: {error}"


def test_optimizers_that_the_mathematics_does_not_fit_are_refused() -> None:
    for strategy, optimizer, allowed in (
        ("scaffold", "momentum", "allowed: sgd, textbook_sgd"),
        ("fednova", "adam", "textbook_momentum"),
        ("demo", "momentum", "allowed: sgd, textbook_sgd"),
    ):
        with pytest.raises(ValidationError) as caught:
            RunSpec.model_validate({"strategy": strategy, "nodes": 2, "optimizer": optimizer})
        (error,) = caught.value.errors()
        assert (error["type"], allowed in error["msg"]) == ("optimizer", True)
    assert RunSpec.model_validate({"strategy": "fednova", "nodes": 2, "optimizer": "momentum"})
