"""Collective algorithms against the closed formulas of their papers."""

from __future__ import annotations

from operator import add

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.time_model import collectives
from trainer.time_model.algorithms import TRANSPORTS, Network
from trainer.time_model.cluster import Choice, Cluster, DirectedLink, Link, Links
from trainer.time_model.collectives import ALGORITHMS, Costs

LATENCY_S, BYTES_PER_S = 1e-3, 1e6
LINK = Link(latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S)
SIZES = (1, 2, 3, 4, 5, 8)

# Each example takes milliseconds, and longer where other processes use the cores.
LAWS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

EACH = [(kind, name) for kind, algorithms in ALGORITHMS.items() for name in algorithms]


def links(size: int, **own: Link) -> Links:
    """LINK between all ranks. own: other links, by pair, such as from_1_to_2."""
    pairs = {tuple(map(int, name.split("_")[1::2])): link for name, link in own.items()}
    return Links(range(size), pairs, LINK, LINK)  # type: ignore[arg-type]


def costs(
    kind: str, name: str, size: int, nbytes: float, root: int = 0, overhead_s: float = 0.0, **rest: bool
) -> Costs:
    rounds = ALGORITHMS[kind][name](size, nbytes, root) if size > 1 else []
    return Costs.of(rounds, links(size), overhead_s, **rest)


def duration(kind: str, name: str, size: int, nbytes: float, **options: object) -> float:
    """Seconds until the last rank leaves, if all enter at once."""
    return max(costs(kind, name, size, nbytes, **options).exits([0.0] * size)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "name", "formula"),
    [
        ("all_reduce", "ring", lambda p, n: 2 * (p - 1) * (LATENCY_S + n / (p * BYTES_PER_S))),
        ("all_reduce", "segmented_ring", lambda p, n: 2 * (p - 1) * (LATENCY_S + n / (p * BYTES_PER_S))),
        ("all_gather", "ring", lambda p, n: (p - 1) * (LATENCY_S + n / BYTES_PER_S)),
        ("reduce_scatter", "ring", lambda p, n: (p - 1) * (LATENCY_S + n / (p * BYTES_PER_S))),
        ("all_to_all", "pairwise", lambda p, n: (p - 1) * (LATENCY_S + n / (p * BYTES_PER_S))),
        ("all_to_all", "direct", lambda p, n: (p > 1) * LATENCY_S + (p - 1) * n / (p * BYTES_PER_S)),
        ("all_gather", "direct", lambda p, n: (p > 1) * LATENCY_S + (p - 1) * n / BYTES_PER_S),
        ("all_reduce", "direct", lambda p, n: 2 * ((p > 1) * LATENCY_S + (p - 1) * n / (p * BYTES_PER_S))),
        ("gather", "linear", lambda p, n: (p > 1) * LATENCY_S + (p - 1) * n / BYTES_PER_S),
        ("broadcast", "linear", lambda p, n: (p > 1) * LATENCY_S + (p - 1) * n / BYTES_PER_S),
        ("barrier", "dissemination", lambda p, n: (p - 1).bit_length() * LATENCY_S),
    ],
)
def test_ranks_that_enter_together_take_the_time_of_the_formula(kind, name, formula, size) -> None:  # type: ignore[no-untyped-def]
    assert duration(kind, name, size, 1200.0) == pytest.approx(formula(size, 1200.0))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_binomial_tree_is_as_deep_as_log_p(size: int) -> None:
    measured = duration("broadcast", "binomial", size, 1200.0)
    formula = (size - 1).bit_length() * (LATENCY_S + 1200 / BYTES_PER_S)
    # In an incomplete tree the deepest rank is not on the last path to start.
    assert measured == pytest.approx(formula) if size & (size - 1) == 0 else measured < formula


@pytest.mark.parametrize("size", [2, 4, 8])
def test_recursive_doubling_takes_log_p_whole_messages(size: int) -> None:
    steps = size.bit_length() - 1
    expected = steps * (LATENCY_S + 1200 / BYTES_PER_S)
    assert duration("all_reduce", "recursive_doubling", size, 1200.0) == pytest.approx(expected)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_rabenseifner_has_the_latency_of_doubling_and_the_bytes_of_the_ring(size: int) -> None:
    steps = size.bit_length() - 1
    expected = 2 * steps * LATENCY_S + 2 * 1200 * (size - 1) / size / BYTES_PER_S
    assert duration("all_reduce", "rabenseifner", size, 1200.0) == pytest.approx(expected)


@pytest.mark.parametrize("size", [3, 5, 6, 7])
@pytest.mark.parametrize("name", ["recursive_doubling", "rabenseifner"])
def test_other_numbers_of_ranks_need_at_most_a_round_before_and_after(name: str, size: int) -> None:
    power = 1 << (size.bit_length() - 1)
    core, message = duration("all_reduce", name, power, 1200.0), LATENCY_S + 1200 / BYTES_PER_S
    assert core + message < duration("all_reduce", name, size, 1200.0) <= core + 2 * message + 1e-12


def test_three_ranks_double_recursively() -> None:
    exits, origins = costs("all_reduce", "recursive_doubling", 3, 1000.0).exits([0.0] * 3)
    # Rank 0 sends to 1 (2 ms), which has rank 2's buffer by then and sends its own (1 ms), then the sum to
    # rank 0 (2 ms). Rank 2 has the buffer of rank 1 a latency after it was sent.
    assert exits == pytest.approx([0.005, 0.004, 0.004])
    assert origins == [0, 0, 0]


def test_overhead_counts_at_sender_and_receiver() -> None:
    assert duration("shift", "direct", 2, 0.0, root=1, overhead_s=0.5) == pytest.approx(1 + LATENCY_S)


def test_an_acknowledged_sender_waits_for_the_way_back() -> None:
    answered = costs("gather", "linear", 2, 1000.0, acknowledged=True).exits([0.0, 0.0])[0]
    assert answered == pytest.approx([LATENCY_S + 1e-3, 2 * LATENCY_S + 1e-3])


def test_a_straggler_is_the_origin_of_every_exit() -> None:
    exits, origins = costs("all_reduce", "ring", 4, 400.0).exits([0.0, 0.0, 5.0, 0.0])
    assert origins == [2, 2, 2, 2]
    assert max(exits) == pytest.approx(5 + 6 * (LATENCY_S + 1e-4))
    assert min(exits) > 5


def test_the_root_of_a_broadcast_waits_for_none_and_a_leaf_only_for_its_path() -> None:
    exits, origins = costs("broadcast", "binomial", 4, 0.0).exits([1.0, 9.0, 0.0, 0.0])
    assert (exits[0], origins[0]) == (1.0, 0)
    assert (exits[1], origins[1]) == (9.0, 1)  # its message is there already
    assert (exits[2], origins[2]) == (pytest.approx(1 + LATENCY_S), 0)
    assert (exits[3], origins[3]) == (pytest.approx(1 + 2 * LATENCY_S), 0)


def test_a_slow_link_delays_a_ring() -> None:
    slow = links(3, from_1_to_2=Link(latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S / 10))
    ring = ALGORITHMS["all_reduce"]["ring"](3, 3000.0, -1)
    # Rank 2 receives four messages of 10 ms over the slow link, one after the other; the last one is
    # not passed on.
    assert max(Costs.of(ring, slow, 0.0).exits([0.0] * 3)[0]) == pytest.approx(4 * 0.010 + LATENCY_S)


@pytest.mark.parametrize("eager_bytes", [0, 1e9])
@pytest.mark.parametrize("nbytes", [0.0, 3000.0])
@pytest.mark.parametrize("size", [2, 3, 8, 40])
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_equal_links_and_others_have_the_same_costs(
    kind: str, name: str, size: int, nbytes: float, eager_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all ranks do the same, the costs of one rank are those of all."""
    monkeypatch.setattr(collectives, "BLOCK", 15 * 40)  # 40 ranks are 15, 15 and 10
    rounds = ALGORITHMS[kind][name](size, nbytes, 1)
    equal, same = links(size), links(size, from_0_to_1=LINK)
    assert (equal.uniform, same.uniform) == (LINK, None)
    one, all_ = (
        Costs.of(rounds, each, 1e-5, call_s=[2e-5] * size, eager_bytes=eager_bytes)
        for each in (equal, same)
    )
    assert np.array_equal(one.array, all_.array)
    entries = np.random.default_rng(0).random(size).tolist()
    exits, origins = all_.exits(entries)
    assert exits == [max(map(add, entries, row)) for row in all_.rows]
    assert origins == [
        [*map(add, entries, row)].index(left) for row, left in zip(all_.rows, exits, strict=True)
    ]


@pytest.mark.parametrize(("kind", "name"), EACH)
@LAWS
@given(
    size=st.integers(2, 7),
    nbytes=st.sampled_from([0.0, 4.0, 1e5]),
    entries=st.lists(st.floats(0, 10), min_size=7, max_size=7),
    later=st.lists(st.floats(0, 10), min_size=7, max_size=7),
)
def test_no_rank_leaves_before_it_enters_and_later_entries_never_help(
    kind: str, name: str, size: int, nbytes: float, entries: list[float], later: list[float]
) -> None:
    plan = costs(kind, name, size, nbytes, root=1)
    before = plan.exits(entries[:size])[0]
    after = plan.exits([a + b for a, b in zip(entries, later, strict=True)][:size])[0]
    for entered, left, delayed in zip(entries, before, after, strict=False):
        assert entered <= left <= delayed


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_collectives_that_need_all_ranks_wait_for_all(kind: str, size: int) -> None:
    for name in ALGORITHMS[kind]:
        for late in range(size):
            entries = [0.0] * size
            entries[late] = 100.0
            assert min(costs(kind, name, size, 4.0).exits(entries)[0]) >= 100, (name, late)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("nbytes", [0, 4, 10_000, 10_000_000])
def test_every_transport_has_an_algorithm_for_every_collective(
    transport: str, kind: str, size: int, nbytes: int
) -> None:
    network = Network(Cluster(node_speed=[1.0] * size, link=LINK), transport)
    assert len(network.costs(kind, range(size), nbytes, 0).rows) == size


def test_open_mpi_switches_from_doubling_to_a_ring() -> None:
    network = Network(Cluster(node_speed=[1.0] * 2, link=LINK), "mpi")
    assert network.algorithm("all_reduce", 2, 4) == "recursive_doubling"
    assert network.algorithm("all_reduce", 2, 1000) == "recursive_doubling"
    assert network.algorithm("all_reduce", 2, 100_000) == "ring"
    assert network.algorithm("all_reduce", 4, 1_000_000) == "rabenseifner"


def test_the_description_can_choose_algorithms_by_size() -> None:
    cluster = Cluster(
        node_speed=[1.0, 1.0],
        link=LINK,
        algorithms={
            "all_reduce": [
                Choice(algorithm="recursive_doubling", below_bytes=100),
                Choice(algorithm="ring"),
            ]
        },
    )
    network = Network(cluster, "gloo")
    assert [network.algorithm("all_reduce", 2, n) for n in (99, 100)] == ["recursive_doubling", "ring"]


def test_directed_links_and_nodes_with_several_ranks() -> None:
    fast = DirectedLink(source=0, target=1, latency_s=0.0, bytes_per_s=1e9)
    cluster = Cluster(node_speed=[1.0, 0.5], processes_per_node=2, link=LINK, links=[fast])
    link = cluster.links_of(range(4)).between
    assert link(0, 2) == link(1, 3) == fast
    assert link(2, 0) == LINK
    assert link(0, 1) == cluster.intra_node
    assert [cluster.speed_of(rank) for rank in range(4)] == [1.0, 1.0, 0.5, 0.5]
