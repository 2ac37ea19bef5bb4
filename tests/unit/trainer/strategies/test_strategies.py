"""Mistakes in what ranks average, with which weights, when, and at the cost of which bytes.

The laws of `check` say of every strategy that its ranks agree, that one replica equals `serial`, and that
it equals what it declares: see components/test_strategy.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from orchestrator.execution.run_result import certify
from tests.unit.plain_torch import PARTS, close, flat, gradient, loaded, set_weights, task_of
from tests.unit.training import train
from trainer.comm.memory import MemoryCommunicator
from trainer.core.clock import Clock
from trainer.data.certificate import part_digest
from trainer.spec.registries import STRATEGIES
from trainer.strategies.diloco import outer_step
from trainer.strategies.fedopt import DEFAULT_LR, FedOpt, Server
from trainer.strategies.gossip import Graph, neighbours
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.session import Session

MOMENTUM: dict[str, Any] = {"optimizer": "momentum", "lr": 0.02}
# Parts of 4 nodes whose steps differ in number: some nodes have no samples left in most steps.
UNEQUAL: dict[str, Any] = {"partitioner": {"name": "dirichlet", "alpha": 0.1}, "seed": 1}
# Strategies that train with threads as ranks. tests/integration compares the others on processes.
UNEVEN = [
    name
    for name, strategy in ((name, STRATEGIES.load(name)) for name in STRATEGIES.entries)
    if "uneven" in strategy.model_fields and "memory" in strategy.transports
    # See test_partitioned_models.py for those that partition it.
    if not (strategy.forks or strategy.partitions_model or strategy.max_nodes)
]
# Strategies whose own steps have no effect.
PLAIN: dict[str, dict[str, Any]] = {
    "diloco": {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0},
    "fedopt": {"name": "fedopt", "server": "momentum", "server_lr": 1.0, "beta1": 0.0},
    "fedprox": {"name": "fedprox", "mu": 0.0},
}
COMPLETE = {"name": "gossip", "graph": "complete", "order": "step_then_mix"}


def nodes(name: str, workers: int) -> int:
    """The number of nodes of a run with this many workers."""
    return workers + STRATEGIES.load(name).servers


def differ(left: np.ndarray, right: np.ndarray) -> None:
    assert np.abs(left - right).max() > 1e-4


# State, samples and bytes of ranks


def test_state_bytes_of_each_rank() -> None:
    adam = 2 * 4, 4 * 4  # bytes per parameter, and of the step counts of four tensors
    for name, optimizer, of_gradient, of_ranks in (
        ("all_reduce", "adam", 4, [adam, adam]),
        ("zero2", "momentum", 2, [(2, 0), (2, 0)]),  # a rank has half of each block
        ("parameter_server", "adam", 4, [adam, (0, 0), (0, 0)]),  # only the server has any
    ):
        results = train(name, len(of_ranks), optimizer=optimizer, epochs=1).results
        for result, (each, counts) in zip(results, of_ranks, strict=True):
            n = result.parameters
            expected = {"weights": 4 * n, "gradient": of_gradient * n, "optimizer": each * n + counts}
            assert result.state_bytes == expected, name


def test_shared_memory_is_counted_once() -> None:
    model = torch.nn.Linear(3, 2)
    model.weight.data = torch.zeros(10)[:6].view(2, 3)
    model.register_buffer("same", model.weight.data[0])
    assert Replica(model, task_of("serial", 1), Clock()).state_bytes["weights"] == 4 * (10 + 2)


# Every strategy with a policy that is not its default, and some with all.
POLICIES = [
    *zip([*UNEVEN, "hybrid"], cycle(["drop", "pad"])),
    *(("all_reduce", policy) for policy in ("join", "drop", "pad")),
    *(("parameter_server", policy) for policy in ("join", "drop", "pad")),
    *(("one_shot", ""), ("pipeline", "")),
]


def test_unequal_parts_are_read_as_the_policy_says_and_the_certificate_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gather = BatchLoader._gather

    def recording(loader: BatchLoader, indices: np.ndarray, *step: int) -> Any:
        if loader._sees_inputs:
            reads[loader._rank].extend(indices.tolist())
        return gather(loader, indices, *step)

    monkeypatch.setattr(BatchLoader, "_gather", recording)
    for name, policy in POLICIES:
        reads: dict[int, list[int]] = defaultdict(list)
        strategy = {"name": name, "uneven": policy} if policy else name
        ranks = 4 if name == "hybrid" else nodes(name, 2)
        training = train(strategy, ranks, epochs=1, partitioner="quantity")  # 80 samples and 40
        samples = {"drop": [40, 40], "pad": [80, 80]}.get(policy, [80, 40])
        if name == "pipeline":
            samples = [120]
        assert [each.samples for each in training.results if each.samples] == samples, name
        reported = [event.fields for rank in range(ranks) for event in training.of("partition", rank)]
        read = zip(samples, (part_digest(np.array(reads[copy])) for copy in range(len(reads))), strict=True)
        assert [(each["samples"], each["digest"]) for each in reported] == [*read]
        certificate = certify([event for events in training.events for event in events])
        assert certificate is not None
        assert certificate.verified
        for split in certificate.splits:
            assert (split.uneven, split.overlap) == (policy or "join", 0)
            assert split.coverage == pytest.approx(80 / 120 if policy == "drop" else 1)


def test_bytes_of_a_step() -> None:
    """Of a gradient of n bytes on P ranks; the ring all-reduce sends 2n(P−1)/P."""
    ring, from_all, to_all = [4 / 3] * 3, [2] * 3, [2, 1, 1]
    names = ("all_reduce", "all_gather", "reduce_broadcast", "parameter_server")
    for name, expected in zip(names, (ring, from_all, to_all, to_all), strict=True):
        for rank, each in enumerate(train(name, 3).results):
            n, sent = 4 * each.parameters, each.bytes_sent / each.steps
            assert sent == pytest.approx(expected[rank] * n), name
            assert STRATEGIES.parse(name).step_bytes(n, rank, 3) in (None, pytest.approx(sent))


# Averaging gradients. test_batch_norm.py compares it with plain torch.


def test_workers_of_a_parameter_server_do_what_ranks_of_all_reduce_do() -> None:
    """The same samples in the same order with the same dropout masks; and the server trains on none."""
    fields: dict[str, Any] = {"partitioner": "quantity", "model": "lenet", **MOMENTUM}
    expected, found = train("all_reduce", 2, **fields), train("parameter_server", 3, **fields)
    close(found.weights, expected.weights)
    server, worker, _ = found.results
    assert (server.samples, server.steps, server.seconds["data"]) == (0, worker.steps, 0)
    assert min(server.seconds["compute"], server.seconds["wait"]) > 0
    assert found.of("partition") == found.of("coverage") == found.of("step") == []
    for of_epoch in zip(*(found.of("epoch", rank) for rank in range(3)), strict=True):
        assert [each.fields["loss"] is None for each in of_epoch] == [True, False, False]
        assert len({each.fields["accuracy"] for each in of_epoch}) == 1


# Averaging weights


def test_averaging_weights_in_every_step_equals_averaging_gradients() -> None:
    for optimizer_state, equivalent, fields in (
        ("keep", "momentum", {}),  # updates are linear in the momentum, so averaged weights agree
        ("average", "momentum", UNEQUAL),
        ("reset", "sgd", UNEQUAL),  # momentum that is reset in every step has no effect
    ):
        local = {"name": "local_sgd", "local_steps": 1, "optimizer_state": optimizer_state}
        expected = train("all_reduce", 4, **{**fields, "lr": 0.05, "optimizer": equivalent})
        found = train(local, 4, **{**fields, "lr": 0.05, "optimizer": "momentum"})
        close(found.weights, expected.weights)


@pytest.mark.parametrize("uneven", ["join", "drop", "pad"])
def test_averaging_weights_in_every_step_equals_all_reduce_on_unequal_parts(uneven: str) -> None:
    local: dict[str, Any] = {"name": "local_sgd"}
    in_steps = {
        "join": [local, PLAIN["fedopt"]],
        "drop": [local, PLAIN["fedprox"]],
        "pad": [PLAIN["diloco"]],
    }
    expected = train({"name": "all_reduce", "uneven": uneven}, 4, **UNEQUAL)
    for strategy in (*({**each, "local_steps": 1} for each in in_steps[uneven]), COMPLETE):
        found = train({**strategy, "uneven": uneven}, 4, **UNEQUAL)
        close(found.weights, expected.weights)
        assert found.results[0].accuracy == expected.results[0].accuracy
        if uneven == "join":
            equally = train({**strategy, "uneven": uneven, "weighting": "equal"}, 4, **UNEQUAL)
            differ(equally.weights, expected.weights)


def test_optimizer_states_that_are_averaged_are_sent() -> None:
    kept, average, reset = (
        train({"name": "local_sgd", "local_steps": 2, "optimizer_state": state}, optimizer="adam", lr=0.01)
        for state in ("keep", "average", "reset")
    )
    differ(kept.weights, average.weights)
    differ(kept.weights, reset.weights)
    # keep averages the weights, average also Adam's two moments. Rank 0 broadcasts the initial weights.
    n, averages, weight = 4 * kept.results[0].parameters, kept.results[0].steps / 2, 4
    assert kept.results[0].bytes_sent == pytest.approx(n + (n + weight) * averages)
    assert average.results[0].bytes_sent == pytest.approx(n + (3 * n + 2 * weight) * averages)


@pytest.mark.parametrize(("init", "weighting"), [("broadcast", "size"), ("independent", "equal")])
def test_local_sgd_that_averages_only_at_the_end_equals_one_shot(init: str, weighting: str) -> None:
    """Each epoch evaluates the average, with the weights of the nodes, and leaves the replicas apart."""
    both = {"init": init, "weighting": weighting}
    fields = {"partitioner": "quantity", **MOMENTUM}
    expected = train({"name": "one_shot", **both}, 3, **fields)
    found = train({"name": "local_sgd", "local_steps": None, **both}, 3, **fields)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.results[0].test_loss == pytest.approx(expected.results[0].test_loss)
    for rank in range(3):
        first, last = found.of("epoch", rank)
        assert first.fields["accuracy"] == found.of("epoch")[0].fields["accuracy"]
        assert last.fields["accuracy"] == found.results[rank].accuracy
        assert last.fields["consensus_distance"] > 0.01


# DiLoCo, FedOpt and FedProx


@pytest.mark.parametrize("server", ["adagrad", "yogi", "adam"])
def test_server_steps_are_those_of_the_paper(server: Server) -> None:
    """Reddi et al. 2021, Alg. 2, number by number."""
    eta, beta1, beta2, tau = 0.3, 0.9, 0.8, 0.05
    rng = np.random.default_rng(0)
    x, m, v = rng.normal(size=4), np.zeros(4), np.full(4, tau**2)
    state = [torch.from_numpy(each.copy()) for each in (x, m, v)]
    own = {} if server == "adagrad" else {"beta2": beta2}
    strategy = FedOpt(server=server, server_lr=eta, beta1=beta1, tau=tau, **own)
    for mean in rng.normal(size=(5, 4)):
        for i in range(4):
            change = mean[i] - x[i]
            m[i] = beta1 * m[i] + (1 - beta1) * change
            if server == "adagrad":
                v[i] = v[i] + change**2
            elif server == "yogi":
                v[i] = v[i] - (1 - beta2) * change**2 * np.sign(v[i] - change**2)
            else:
                v[i] = beta2 * v[i] + (1 - beta2) * change**2
            x[i] = x[i] + eta * m[i] / (np.sqrt(v[i]) + tau)
        strategy.server_step(state[0], torch.from_numpy(mean), *state[1:])
        for found, expected in zip(state, (x, m, v), strict=True):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_momentum_of_the_outer_step_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    for nesterov in (True, False):
        ours = torch.randn(50, generator=generator)
        theirs = ours.clone().requires_grad_()
        sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=nesterov)
        m, v = torch.zeros(50), torch.zeros(50)
        for _ in range(4):
            mean = torch.randn(50, generator=generator)
            theirs.grad = theirs.detach() - mean
            sgd.step()
            if nesterov:
                outer_step(ours, mean, m, 0.7, 0.9)
            else:
                FedOpt(server="momentum", server_lr=0.7, beta1=0.9).server_step(ours, mean, m, v)
            torch.testing.assert_close(ours, theirs.detach())


def test_the_first_round_of_a_server_starts_from_its_defaults() -> None:
    """v starts at τ², m at 0; η is 1 with momentum and 0.01 otherwise."""
    start = flat(task_of("serial", 1).build_model(0).parameters())
    mean, tau = torch.from_numpy(train("serial", 1).weights), 0.001
    for server in DEFAULT_LR:
        x, eta = start.clone(), 1.0 if server == "momentum" else 0.01
        FedOpt(server=server, server_lr=eta).server_step(x, mean, 0 * x, 0 * x + tau**2)
        close(train({"name": "fedopt", "server": server, "local_steps": 100}, 1).weights, x)


# Rounds in which not every rank takes part, and gossip

EVERYONE = [[0, 1, 2]]
SCHEDULE = [[0, 2], [1], [0, 1, 2], [2]]
H = 5  # 7 steps per epoch: rounds begin in the middle of an epoch


def reference(
    schedule: Sequence[Sequence[int]], steps_per_round: Sequence[int], weighting: str, mu: float = 0.0
) -> tuple[np.ndarray, list[list[int]]]:
    """Local SGD in plain torch, with the proximal term of FedProx. steps_per_round: of each, and more.

    Returns the weights, and the samples of each node and epoch.
    """
    task, batches = loaded("local_sgd")
    model, steps = task.build_model(0), len(batches[0])
    counts = [[0] * task.spec.epochs for _ in range(3)]
    start = flat(model.parameters())
    firsts = (each for each in accumulate(steps_per_round, initial=0) if each < steps)
    for number, (first, length) in enumerate(zip(firsts, steps_per_round, strict=False)):
        total, weights = torch.zeros_like(start), 0
        for node in schedule[number % len(schedule)]:
            set_weights(model, start)
            samples = 0
            for step in range(first, min(first + length, steps)):
                batch = batches[node][step]
                if batch.samples:
                    samples += batch.samples
                    counts[node][step * task.spec.epochs // steps] += batch.samples
                    now = flat(model.parameters())
                    change = gradient(model, batch.inputs, batch.targets) + mu * (now - start)
                    set_weights(model, now - task.spec.lr * change)
            n = samples if weighting == "size" else min(samples, 1)
            total += n * flat(model.parameters())
            weights += n
        if weights:
            start = total / weights
    return start.numpy(), counts


STREAMING = {"name": "streaming_diloco", "local_steps": 6}
DELAYED = {"name": "delayed_all_reduce"}


@pytest.mark.parametrize(
    ("strategy", "twin", "fields"),
    [
        (
            {**STREAMING, "fragments": 1, "overlap": 0, "mixing": 0},
            {"name": "diloco", "local_steps": 6},
            {"model": "lenet", **PARTS},
        ),
        (
            {**STREAMING, "fragments": 1, "overlap": 0, "mixing": 0, "compression": "int8"},
            {"name": "diloco", "local_steps": 6, "compression": "int8"},
            {"model": "lenet", **PARTS},
        ),
        ({**DELAYED, "delay": 0}, {"name": "all_reduce"}, {**PARTS, **MOMENTUM}),
        (
            {"name": "local_sgd", "local_steps": [{"steps": 4}]},
            {"name": "local_sgd", "local_steps": 4},
            PARTS,
        ),
    ],
)
def test_strategies_are_their_twins_bit_for_bit(
    strategy: dict[str, Any], twin: dict[str, Any], fields: dict[str, Any]
) -> None:
    found, expected = train(strategy, 3, **fields), train(twin, 3, **fields)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.results[0].bytes_sent == pytest.approx(expected.results[0].bytes_sent)


@pytest.mark.parametrize(("order", "weighting"), [("strided", "size"), ("sequential", "equal")])
def test_streaming_diloco_moves_its_fragments_as_in_plain_torch(order: str, weighting: str) -> None:
    """Of three blocks: the first and the last, and the second; or the first, and the others."""
    parameters = {**STREAMING, "fragments_of": order, "overlap": 2, "mixing": 0.25, "weighting": weighting}
    fields = {**PARTS, "model": {"name": "mlp", "hidden": [9, 7]}}
    task, batches = loaded("streaming_diloco", **fields)
    model, steps = task.build_model(0), len(batches[0])
    ends = np.cumsum([0, *filter(None, (sum(p.numel() for p in block.parameters()) for block in model))])
    blocks = [torch.arange(start, end) for start, end in pairwise(ends)]
    parts = [blocks[::2], blocks[1::2]] if order == "strided" else [blocks[:1], blocks[1:]]
    theta = flat(model.parameters())
    velocity, nodes_ = torch.zeros_like(theta), [theta.clone() for _ in range(3)]
    on_its_way: dict[int, torch.Tensor] = {}
    for t, of_step in enumerate(zip(*batches, strict=True), 1):
        for node, batch in enumerate(of_step):
            if batch.samples:
                set_weights(model, nodes_[node])
                nodes_[node] -= task.spec.lr * gradient(model, batch.inputs, batch.targets)
        for p, at in enumerate(map(torch.cat, parts)):
            sent_at = next((s for s in range(t, max(t - 3, 0), -1) if s % 6 == (3, 0)[p]), None)
            if sent_at == t or (t == steps and sent_at is None):  # it is sent; rank weights are kept here
                since = next((s for s in range(t - 1, 0, -1) if s % 6 == (3, 0)[p]), 0)
                counts = [sum(batch.samples for batch in own[since:t]) for own in batches]
                weights = counts if weighting == "size" else [1, 1, 1]
                mean = sum(w * x[at] for w, x in zip(weights, nodes_, strict=True)) / sum(weights)
                on_its_way[p] = mean
            if t == steps or (sent_at is not None and t - sent_at == 2):
                change = theta[at] - on_its_way[p]
                velocity[at] = 0.9 * velocity[at] + change
                theta[at] -= 0.7 * (change + 0.9 * velocity[at])
                mixing = 0.25 if t < steps else 0.0
                for x in nodes_:
                    x[at] = mixing * x[at] + (1 - mixing) * theta[at]
    found = train(parameters, 3, **fields)
    close(found.weights, theta)


@pytest.mark.parametrize("delay", [1, 3])
def test_delayed_gradients_are_applied_as_in_plain_torch(delay: int) -> None:
    task, batches = loaded("delayed_all_reduce")
    model, gradients = task.build_model(0), list[torch.Tensor]()
    weights = flat(model.parameters())
    for of_step in zip(*batches, strict=True):
        set_weights(model, weights)
        total = sum(batch.samples for batch in of_step)
        gradients.append(
            sum(
                (
                    batch.samples / total * gradient(model, batch.inputs, batch.targets)
                    for batch in of_step
                    if batch.samples
                ),
                torch.zeros_like(weights),
            )
        )
        if len(gradients) > delay:
            weights = weights - task.spec.lr * gradients.pop(0)
    for left in gradients:
        weights = weights - task.spec.lr * left
    close(train({**DELAYED, "delay": delay}, 3, **PARTS).weights, weights)


@pytest.mark.parametrize(
    ("strategy", "weighting", "schedule"),
    [
        ({"name": "local_sgd"}, "size", EVERYONE),
        ({"name": "local_sgd"}, "equal", SCHEDULE),
        (PLAIN["diloco"], "equal", SCHEDULE),
        (PLAIN["fedopt"], "size", SCHEDULE),
        ({"name": "fedprox", "mu": 4.0}, "size", SCHEDULE),
        ({"name": "one_shot"}, "size", SCHEDULE),
    ],
    ids=["everyone", "local_sgd", *PLAIN, "one_shot"],
)
def test_rounds_equal_reference(
    strategy: dict[str, Any], weighting: str, schedule: list[list[int]]
) -> None:
    taking_part = {} if schedule is EVERYONE else {"participation": {"schedule": schedule}}
    rounds = {} if strategy["name"] == "one_shot" else {"local_steps": H}  # else the run is one round
    training = train({**strategy, **rounds, "weighting": weighting, **taking_part}, 3, **PARTS)
    lengths = [rounds.get("local_steps", 100)] * 100
    weights, counts = reference(schedule, lengths, weighting, strategy.get("mu", 0.0))
    close(training.weights, weights)
    assert training.same_weights

    certificate = certify([event for events in training.events for event in events])
    assert certificate is not None
    assert certificate.verified
    samples = [[0] * 3 for _ in range(3)]
    for part in certificate.parts:
        samples[part.rank][part.epoch - 1] = part.samples
    assert samples == counts
    assert [split.coverage for split in certificate.splits] == [
        sum(each[epoch] for each in counts) / 120 for epoch in range(3)
    ]


def test_local_steps_can_follow_a_schedule() -> None:
    """Of 7 steps per epoch: an entry begins with the steps of the round in progress, 1 and then 3."""
    stages = [{"steps": 3, "until": 1}, {"steps": 5, "until": 2}, {"steps": 1}]
    lengths = [3, 3, 5, 4, *([1] * 100)]
    found = train({"name": "local_sgd", "local_steps": stages}, 3, **PARTS)
    assert found.results[0].steps == 3 * 7
    close(found.weights, reference(EVERYONE, lengths, "size")[0])


def test_the_certificate_counts_rounds() -> None:
    participation = {"schedule": [[0, 1], [1], [1, 2], [1]]}
    form = {"name": "local_sgd", "local_steps": 2, "participation": participation}
    events = [event for own in train(form, 3).events for event in own]  # 4 steps per epoch: 2 rounds
    certificate = certify(events)
    assert certificate is not None
    rounds = {(part.rank, part.epoch): part.rounds for part in certificate.parts}
    assert rounds == {(0, 1): 1, (1, 1): 2, (2, 1): 0, (0, 2): 0, (1, 2): 2, (2, 2): 1}
    assert {part.js_divergence for part in certificate.parts if not part.samples} == {None}
    # A rank that has not trained in an epoch has no loss there.
    points = [each for each in events if each.kind == "epoch" and each.fields["loss"] is None]
    assert {(each.rank, each.fields["epoch"]) for each in points} == {(2, 1), (0, 2)}


@pytest.mark.parametrize(
    ("graph", "nodes", "schedule"),
    [
        ("ring", 2, None),
        ("ring", 3, [[0, 1], [1]]),
        ("ring", 5, [[0, 1, 3], [2]]),
        ("exponential", 5, None),
        ("complete", 4, [[0, 1, 3], [1, 2]]),
    ],
)
def test_gossip_equals_reference(graph: Graph, nodes: int, schedule: list[list[int]] | None) -> None:
    """D-PSGD in plain torch: mix, then apply the gradient at the weights before mixing."""
    participation = None if schedule is None else {"schedule": schedule}
    training = train({"name": "gossip", "graph": graph, "participation": participation}, nodes, **PARTS)
    task, batches = loaded("gossip", nodes)
    models = [task.build_model(0) for _ in range(nodes)]
    for step in range(len(batches[0])):
        present = schedule[step % len(schedule)] if schedule else range(nodes)
        samples = [batches[node][step].samples if node in present else 0 for node in range(nodes)]
        before = [flat(model.parameters()) for model in models]
        for node in present:
            others = [(node - distance) % nodes for distance in (0, *neighbours(graph, nodes))]
            mixed = sum(before[other if other in present else node] for other in others) / len(others)
            if samples[node]:
                batch, scale = batches[node][step], samples[node] * len(present) / sum(samples)
                mixed -= task.spec.lr * scale * gradient(models[node], batch.inputs, batch.targets)
            set_weights(models[node], mixed)
    mean = sum(flat(model.parameters()) for model in models) / nodes
    close(training.weights, mean)

    # After the last epoch, the mean over all nodes was evaluated, also over those that never trained.
    set_weights(models[0], mean)
    test = task.data.test
    with torch.no_grad():
        loss = nll_loss(models[0](torch.from_numpy(test.inputs)), torch.from_numpy(test.labels))
    assert training.results[0].test_loss == pytest.approx(loss.item(), rel=1e-4)


def test_a_rank_that_returns_takes_over_weights_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, share = {"name": "diloco", "local_steps": 2}, Session._share_position
    expected = train(rounds, 3, epochs=3).weights

    def share_what_is_lost(own: Session, epoch: int) -> int:
        if own.rank == 0:  # it returns before each epoch
            own._replica.set_weights(0 * own._replica.weights())
            vars(own._common).update({name: 0 * value for name, value in vars(own._common).items()})
        return share(own, epoch)

    monkeypatch.setattr(Session, "_share_position", share_what_is_lost)
    monkeypatch.setattr(MemoryCommunicator, "admit", lambda _: [0])
    np.testing.assert_array_equal(train(rounds, 3, epochs=3).weights, expected)


def test_neighbours_are_those_of_the_graph() -> None:
    expected: dict[Graph, list[list[int]]] = {
        "ring": [[], [1], [1, 2], [1, 3], [1, 7], [1, 8]],
        "exponential": [[], [1], [1, 2], [1, 2], [1, 2, 4], [1, 2, 4, 8]],
        "complete": [[], [1], [1, 2], [1, 2, 3], [*range(1, 8)], [*range(1, 9)]],
    }
    for graph, distances in expected.items():
        assert [neighbours(graph, size) for size in (1, 2, 3, 4, 8, 9)] == distances
