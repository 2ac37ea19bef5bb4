"""Mistakes in what collectives cost: rounds, roots, which rank waits, which algorithm at which size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from operator import add

import numpy as np
import pytest

from trainer.time_model import collectives
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import Choice, Cluster, DirectedLink, Link, Links
from trainer.time_model.collectives import ALGORITHMS, Costs
from trainer.time_model.errors import ClusterError

A, B = 1e-3, 1e6  # latency in seconds, bytes per second
LINK = Link(latency_s=A, bytes_per_s=B)
SIZES = (1, 2, 3, 4, 5, 7, 8)
POWERS = (1, 2, 4, 8)
EACH = [(kind, name) for kind, algorithms in ALGORITHMS.items() for name in algorithms]


def links(size: int, own: dict[tuple[int, int], Link] | None = None) -> Links:
    """LINK between all ranks. own: other links, by pair."""
    return Links(range(size), own or {}, LINK, LINK)


def costs(kind: str, name: str, size: int, nbytes: float, root: int = 0, overhead_s: float = 0.0) -> Costs:
    rounds = ALGORITHMS[kind][name](size, nbytes, root) if size > 1 else []
    return Costs.of(rounds, links(size), overhead_s)


def duration(kind: str, name: str, size: int, nbytes: float) -> float:
    """Seconds until the last rank leaves, if all enter at once."""
    return max(costs(kind, name, size, nbytes, 1).exits([0.0] * size)[0])


def log(size: int) -> int:
    return (size - 1).bit_length()


FORMULAS: list[tuple[str, str, tuple[int, ...], Callable[[int, float], float]]] = [
    ("all_reduce", "ring", SIZES, lambda p, n: 2 * (p - 1) * (A + n / p / B)),
    ("all_reduce", "segmented_ring", SIZES, lambda p, n: 2 * (p - 1) * (A + n / p / B)),
    ("all_reduce", "direct", SIZES, lambda p, n: 2 * ((p > 1) * A + (p - 1) * n / p / B)),
    ("all_reduce", "recursive_doubling", POWERS, lambda p, n: log(p) * (A + n / B)),
    ("all_reduce", "rabenseifner", POWERS, lambda p, n: 2 * log(p) * A + 2 * n * (p - 1) / p / B),
    ("all_gather", "ring", SIZES, lambda p, n: (p - 1) * (A + n / B)),
    ("all_gather", "direct", SIZES, lambda p, n: (p > 1) * A + (p - 1) * n / B),
    ("all_gather", "recursive_doubling", POWERS, lambda p, n: log(p) * A + (p - 1) * n / B),
    ("all_gather", "recursive_doubling", (3, 5, 7), lambda p, n: (p - 1) * (A + n / B)),
    ("reduce_scatter", "ring", SIZES, lambda p, n: (p - 1) * (A + n / p / B)),
    ("reduce_scatter", "all_reduce", SIZES, lambda p, n: 2 * (p - 1) * (A + n / p / B)),
    ("reduce_scatter", "pairwise", SIZES, lambda p, n: (p - 1) * (A + n / p / B)),
    ("reduce_scatter", "direct", SIZES, lambda p, n: (p > 1) * A + (p - 1) * n / p / B),
    ("all_to_all", "pairwise", SIZES, lambda p, n: (p - 1) * (A + n / p / B)),
    ("all_to_all", "direct", SIZES, lambda p, n: (p > 1) * A + (p - 1) * n / p / B),
    ("gather", "linear", (2, 3, 4), lambda p, n: A + (p - 1) * n / B),
    ("broadcast", "linear", SIZES, lambda p, n: (p > 1) * A + (p - 1) * n / B),
    ("broadcast", "binomial", POWERS, lambda p, n: log(p) * (A + n / B)),
    ("barrier", "dissemination", SIZES, lambda p, n: log(p) * A),
    ("barrier", "direct", SIZES, lambda p, n: (p > 1) * A),
    ("shift", "direct", (2, 3, 4), lambda p, n: A + n / B),
]


def test_ranks_that_enter_together_take_the_time_of_the_formula() -> None:
    assert {each[:2] for each in FORMULAS} == {*EACH}
    for kind, name, sizes, formula in FORMULAS:
        for size in sizes:
            expected = pytest.approx(formula(size, 1200.0))
            assert duration(kind, name, size, 1200.0) == expected, (kind, name, size)


def test_a_rank_waits_for_those_whose_data_it_needs() -> None:
    for kind, name in EACH:
        for size in (2, 3, 4, 5, 8):
            ranks, root = np.arange(size), 1
            found = costs(kind, name, size, 4.0, root).array
            waits, own = np.isfinite(found), np.eye(size, dtype=bool)
            assert (found[waits] >= 0).all()
            if kind == "broadcast":
                assert waits[:, root].all()
                assert waits[root].sum() == 1
                from_0 = costs(kind, name, size, 4.0, 0).array
                assert np.array_equal(found, np.roll(from_0, (root, root), axis=(0, 1)))
            elif kind == "gather":
                assert (waits == (own | (ranks == root)[:, None])).all()
            elif kind == "shift":
                assert (waits == (own | np.roll(own, root, axis=0))).all()
            else:
                assert waits.all()


def test_links_overheads_calls_and_answers_count_where_they_are() -> None:
    slow = {(1, 2): Link(latency_s=A, bytes_per_s=B / 10)}
    ring = ALGORITHMS["all_reduce"]["ring"](3, 3000.0, -1)
    # Rank 2 receives four messages of 10 ms over the slow link, one after the other.
    assert max(Costs.of(ring, links(3, slow), 0.0).exits([0.0] * 3)[0]) == pytest.approx(4 * 0.010 + A)
    late = costs("broadcast", "binomial", 4, 0.0).exits([1.0, 9.0, 0.0, 0.0])  # the message is there before
    assert late == (pytest.approx([1.0, 9.0, 1 + A, 1 + 2 * A]), [0, 1, 0, 0])
    # Rank 0 sends to 1 (2 ms), which has rank 2's buffer by then and sends its own (1 ms), then the sum to
    # rank 0 (2 ms). Rank 2 has the buffer of rank 1 a latency after it was sent.
    odd = costs("all_reduce", "recursive_doubling", 3, 1000.0).exits([0.0] * 3)
    assert odd == (pytest.approx([0.005, 0.004, 0.004]), [0, 0, 0])
    one = ALGORITHMS["gather"]["linear"](2, 1000.0, 0)
    back = links(2, {(0, 1): Link(latency_s=5 * A, bytes_per_s=B)})
    n = 1e-3  # seconds of 1000 bytes
    for found, expected in (
        (Costs.of(one, links(2), 0.5), [1 + A + n, 0.5 + n]),
        (Costs.of(one, back, 0.0, acknowledged=True), [A + n, 6 * A + n]),
        (Costs.of(one, back, 0.0, True, answer_s=0.5), [A + n, 0.5 + 6 * A + n]),
        (Costs.of(one, back, 0.0, eager_bytes=1000), [A + n, n]),
        (Costs.of(one, back, 0.0, eager_bytes=999), [6 * A + n, 5 * A + n]),  # asked first
        (Costs.of(one, links(2), 0.0, call_s=[0.0, 0.25]), [0.25 + A + n, 0.25 + n]),
        (Costs.of(one, links(2), 0.0, call_s=[0.0, -9.0]), [0.0, 0.0]),  # none leaves before it enters
    ):
        assert found.exits([0.0, 0.0])[0] == pytest.approx(expected)


def test_equal_links_and_others_many_ranks_and_few_have_the_same_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all ranks do the same, the costs of one rank are those of all."""
    monkeypatch.setattr(collectives, "BLOCK", 3 * 8)  # 8 ranks are 3, 3 and 2
    for (kind, name), (size, nbytes, eager_bytes) in product(
        EACH, ((3, 3000.0, 0), (8, 3000.0, 1e9), (8, 0.0, 0))
    ):
        rounds = ALGORITHMS[kind][name](size, nbytes, 1)
        one, all_ = (
            Costs.of(rounds, links(size, own), 1e-5, call_s=[2e-5] * size, eager_bytes=eager_bytes)
            for own in ({}, {(0, 1): LINK})
        )
        assert np.array_equal(one.array, all_.array)
        entries = np.random.default_rng(0).random(size).tolist()
        sums = [[*map(add, entries, row)] for row in all_.rows]
        expected = [max(each) for each in sums], [each.index(max(each)) for each in sums]
        for few in (1, 32):
            monkeypatch.setattr(collectives, "FEW", few)
            assert all_.exits(entries) == expected


# Clusters


def network(transport: str, size: int = 2, **fields: object) -> Network:
    return Network(Cluster.model_validate({"node_speed": [1.0] * size, "link": LINK, **fields}), transport)


def test_algorithms_of_a_transport_are_those_of_its_library() -> None:
    """Open MPI changes that of an all-reduce with its size, and with the number of ranks."""
    doubling, ring = "recursive_doubling", "ring"
    few = {0: doubling, 4096: ring, 8192: doubling, 16384: ring, 262144: "rabenseifner"}
    for size, changes in ((2, few), (3, few), (4, {0: doubling, 8192: "rabenseifner"})):
        for (_, before), (limit, name) in pairwise(changes.items()):
            found = [network("mpi").algorithm("all_reduce", size, n) for n in (limit - 1, limit)]
            assert found == [before, name], (size, limit)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")
    for transport, algorithms in {
        "gloo": ["segmented_ring", ring, "all_reduce", "direct", "binomial", "dissemination"],
        "mpi": [doubling, ring, "pairwise", "pairwise", "binomial", "dissemination"],
        "rpc": ["direct", "direct", "direct", "direct", "linear", "direct"],
    }.items():
        assert [network(transport).algorithm(kind, 4, 0) for kind in kinds] == algorithms


def test_a_description_can_choose_algorithms_and_overheads() -> None:
    choices = [Choice(algorithm="recursive_doubling", below_bytes=100), Choice(algorithm="ring")]
    found = network("gloo", algorithms={"all_reduce": choices}, overhead_s=0.0)
    assert [found.algorithm("all_reduce", 2, n) for n in (99, 100)] == ["recursive_doubling", "ring"]
    assert [found.overhead_s, network("gloo").overhead_s] == [0.0, 10e-6]
    assert found.message_s((0, 1), 1000) == pytest.approx(A + 1e-3)
    assert network("gloo").message_s((0, 1), 1000) == pytest.approx(20e-6 + A + 1e-3)
    with pytest.raises(ClusterError, match=r"transport nccl .*known: gloo"):
        network("nccl")


def test_links_have_directions_and_nodes_have_several_ranks() -> None:
    fast = DirectedLink(source=0, target=1, latency_s=0.0, bytes_per_s=1e9)
    described = {"node_speed": [1.0, 0.5], "processes_per_node": 2, "link": LINK, "links": [fast]}
    cluster = Cluster.model_validate({**described, "cpu_inflation": [1.0, 2.0, 1.0, 4.0]})
    link = cluster.links_of(range(4)).between
    assert link(0, 2) == link(1, 3) == fast
    assert (link(2, 0), link(0, 1), link(3, 2)) == (LINK, cluster.intra_node, cluster.intra_node)
    assert cluster.links_of([3, 0]).between(1, 0) == fast
    assert [cluster.speed_of(rank) for rank in range(4)] == [1.0, 2.0, 0.5, 2.0]
    with pytest.raises(ValueError, match="cpu_inflation: 1 values for 4 ranks"):
        Cluster.model_validate({**described, "cpu_inflation": [1.0]})
