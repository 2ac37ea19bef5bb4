"""Mistakes in what exchanges cost: from whose entry to whose exit, beyond which messages, by which runs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from statistics import fmean

import pytest

from orchestrator.replay.calibration import MOST_S, Calibration
from orchestrator.replay.measured import Exchange, durations
from tests.support.traces import TraceBuilder, builders, traces
from trainer.core.trace import Kind
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import ANY_COLLECTIVE, Cluster, Link, SoftwareCost
from trainer.time_model.simulate import simulate

PLACE = ("local", "gloo")
LINK = Link(latency_s=0.001, bytes_per_s=1e6)
CLUSTER = Cluster(node_speed=[1.0, 1.0], link=LINK, overhead_s=0.0)
MESSAGE_S = 0.002  # of 1000 bytes


def means(ranks: list[TraceBuilder], without_cpu: bool = False) -> dict[Exchange, float]:
    found = durations(traces(ranks), without_cpu)
    return {exchange: fmean(seconds) for exchange, seconds in found.items()}


def with_software(**costs: dict[int, float]) -> Cluster:
    """CLUSTER with seconds by bytes."""
    software = {
        name: [SoftwareCost(bytes=nbytes, seconds=seconds) for nbytes, seconds in points.items()]
        for name, points in costs.items()
    }
    return CLUSTER.model_copy(update={"software": software})


# What exchanges took


def test_a_collective_takes_from_its_last_entry_to_its_last_exit() -> None:
    first, second = builders(2)
    first.timed(Kind.ALL_REDUCE, 1.0, 2.0, 1000).timed(Kind.ALL_REDUCE, 5.0, 6.0, 1000)
    second.timed(Kind.ALL_REDUCE, 1.5, 2.2, 1000, cpu_s=0.1).timed(Kind.ALL_REDUCE, 4.0, 6.0, 1000)
    both = Exchange("all_reduce", (0, 1), 1000)
    assert means([first, second]) == {both: pytest.approx((0.7 + 1.0) / 2)}
    assert means([first, second], without_cpu=True) == {both: pytest.approx((0.6 + 1.0) / 2)}


def test_collectives_of_groups_are_those_of_their_members() -> None:
    ranks = builders(3, groups=[[0, 2]])
    for rank in (0, 2):
        ranks[rank].timed(Kind.ALL_GATHER, 1.0, 1.5, 10, group=1)
    assert means(ranks) == {Exchange("all_gather", (0, 2), 10): pytest.approx(0.5)}


def test_broadcasts_and_gathers_take_until_their_receivers_leave() -> None:
    """And count where a receiver has waited."""
    root, other = builders(2)
    root.timed(Kind.BROADCAST, 1.0, 9.0, 10, peer=0).timed(Kind.BROADCAST, 10.0, 10.1, 10, peer=0)
    other.timed(Kind.BROADCAST, 0.0, 1.5, 10, peer=0).timed(Kind.BROADCAST, 12.0, 12.1, 10, peer=0)
    root.timed(Kind.GATHER, 20.0, 23.4, 10, peer=0).timed(Kind.GATHER, 32.0, 32.1, 10, peer=0)
    other.timed(Kind.GATHER, 23.0, 29.0, 10, peer=0).timed(Kind.GATHER, 30.0, 30.1, 10, peer=0)
    assert means([root, other]) == {
        Exchange("broadcast", (0, 1), 10, root=0): pytest.approx(0.5),
        Exchange("gather", (0, 1), 10, root=0): pytest.approx(0.4),
        Exchange("broadcast_answer", (0, 1), 10, root=0): pytest.approx((8.0 + 0.1) / 2),
        Exchange("gather_answer", (0, 1), 10, root=0): pytest.approx((6.0 + 0.1) / 2),
    }


def test_collectives_that_ranks_wait_for_together_take_until_the_last_leaves() -> None:
    """Of zero1's broadcasts the first has the time of all, whichever rank entered last."""
    root, other = builders(2)
    root.timed(Kind.BROADCAST, 1.0, 9.0, 10, peer=0).timed(Kind.BROADCAST, 9.0, 9.0, 20, peer=1)
    other.timed(Kind.BROADCAST, 2.0, 8.5, 10, peer=0).timed(Kind.BROADCAST, 8.5, 8.5, 20, peer=1)
    found = means([root, other])
    assert found[Exchange("broadcast", (0, 1), 10, root=0)] == pytest.approx(7.0)


def test_clocks_count_from_the_start_of_each_rank() -> None:
    first, second = builders(2)
    first.timed(Kind.BARRIER, 1.0, 2.0)
    second.timed(Kind.BARRIER, 0.0, 1.0)  # its clock started a second later
    found = durations([first.trace(), second.trace(started_s=1.0)], without_cpu=False)
    assert found == {Exchange("barrier", (0, 1), 0): [pytest.approx(1.0)]}


def test_all_reduces_beside_the_computation_that_ranks_wait_for_at_once() -> None:
    ranks = builders(2)
    for rank, late in zip(ranks, (0.0, 0.2), strict=True):
        # One alone; one whose ranks computed meanwhile; two at once.
        rank.timed(Kind.START_ALL_REDUCE, 1.0 + late, 1.0 + late, 1000)
        rank.timed(Kind.WAIT_STARTED, 1.0 + late, 1.5)
        rank.timed(Kind.START_ALL_REDUCE, 2.0, 2.0, 1000).timed(Kind.WAIT_STARTED, 3.0, 3.0)
        rank.timed(Kind.START_ALL_REDUCE, 4.0, 4.0, 1000).timed(Kind.START_ALL_REDUCE, 4.0, 4.0, 1000)
        rank.timed(Kind.WAIT_STARTED, 4.0, 5.0)
    assert means(ranks) == {Exchange("start_all_reduce", (0, 1), 1000): pytest.approx(0.3)}


def test_a_message_takes_from_the_later_of_send_and_receive() -> None:
    first, second = builders(2)
    first.timed(Kind.SEND, 1.0, 1.1, 1000, peer=1).timed(Kind.SEND, 3.0, 3.1, 1000, peer=1)
    second.timed(Kind.RECEIVE, 0.0, 1.4, 1000, peer=0).timed(Kind.RECEIVE, 3.5, 3.7, 1000, peer=0)
    assert means([first, second]) == {
        Exchange("send", (0, 1), 1000): pytest.approx(0.1),
        Exchange("receive", (0, 1), 1000): pytest.approx((0.4 + 0.2) / 2),
    }


def test_a_request_takes_its_way_and_that_of_the_answer() -> None:
    server, worker = builders(2)
    worker.timed(Kind.REQUEST, 1.0, 4.0, 600, peer=0)
    server.timed(Kind.TAKE, 0.0, 1.3, 600, peer=1).timed(Kind.RESPOND, 3.8, 3.9, 400, peer=1)
    assert means([server, worker]) == {Exchange("request", (1, 0), 1000): pytest.approx(0.3 + 0.2)}


# Costs


def recorded(seconds: float) -> list[TraceBuilder]:
    """An all-reduce of 1000 bytes that takes so long."""
    ranks = builders(2)
    for rank in ranks:
        rank.timed(Kind.ALL_REDUCE, 1.0, 1.0 + seconds, 1000)
    return ranks


MODELLED_S = Network(CLUSTER, "gloo").costs("all_reduce", (0, 1), 1000, -1).exits([0.0, 0.0])[0][0]


@pytest.mark.parametrize(
    ("strategy", "without", "expected"),
    [
        ("ddp", "", 0.2),  # the fastest of the same strategy that was not loaded
        ("ddp", "1", 0.25),
        ("ddp", "1 2", 0.1),  # rather a loaded run of the same strategy
        ("fsdp", "", 0.3),
        ("fsdp", "3", 0.2),
        ("gossip", "", 0.2),  # of all that were not loaded
    ],
)
def test_runs_of_the_same_strategy_come_first_then_undisturbed_ones_then_the_fastest(
    strategy: str, without: str, expected: float
) -> None:
    calibration = Calibration()
    for key, of, beyond_s, loaded in (
        ("0", "ddp", 0.1, True),
        ("1", "ddp", 0.2, False),
        ("2", "ddp", 0.25, False),
        ("3", "fsdp", 0.3, True),
        ("4", "zero1", 0.4, False),
    ):
        if key not in without.split()[1:]:
            found = traces(recorded(MODELLED_S + beyond_s))
            calibration.add(key, of, PLACE, found, CLUSTER, loaded)
    costs = calibration.costs(PLACE, strategy, without.split()[0] if without else "none of them")
    assert costs.keys() == {"all_reduce", ANY_COLLECTIVE}
    (cost,) = costs["all_reduce"]
    assert (cost.bytes, cost.seconds) == (1000, pytest.approx(expected))
    assert calibration.costs(("local", "mpi"), strategy, "") == {}
    assert (calibration.count(PLACE), calibration.count(("local", "mpi"))) == (
        5 - len(without.split()[1:]),
        0,
    )


def test_a_run_alone_does_not_calibrate_itself_and_broken_traces_nothing() -> None:
    calibration = Calibration()
    calibration.add("run", "all_reduce", PLACE, traces(recorded(1.0)), CLUSTER)
    assert calibration.costs(PLACE, "all_reduce", without="run") == {}
    broken = [rank.timed(Kind.GATHER, 1.0, 2.0, 10, peer=7) for rank in builders(2)]
    calibration.add("broken", "all_reduce", PLACE, traces(broken), CLUSTER)
    assert calibration.costs(PLACE, "all_reduce", without="run") == {}


def test_a_collective_faster_than_its_messages_shortens_them() -> None:
    """But it takes some time, and messages between two ranks cost at least what the probe measured."""
    calibration = Calibration()
    calibration.add("run", "all_reduce", PLACE, traces(recorded(0.0001)), CLUSTER)
    costs = calibration.costs(PLACE, "all_reduce", "")
    assert costs["all_reduce"][0].seconds < 0
    ranks = all_reduce()
    calibrated = CLUSTER.model_copy(update={"software": costs})
    assert replayed(ranks, calibrated) == pytest.approx(0.0001, rel=0.01)
    impossible = with_software(all_reduce={1000: -5.0})
    assert replayed(ranks, impossible) == 0.0
    first, second = builders(2)
    first.timed(Kind.SEND, 1.0, 1.0, 1000, peer=1)
    second.timed(Kind.RECEIVE, 1.0, 1.0, 1000, peer=0)
    calibration.add("messages", "pipeline", PLACE, traces([first, second]), CLUSTER)
    assert calibration.costs(PLACE, "pipeline", "")["receive"][0].seconds == 0.0


def test_over_rpc_a_rank_that_only_sends_waits_for_the_answer() -> None:
    place, ranks = ("local", "rpc"), builders(2)
    for number in range(3):
        ranks[0].timed(Kind.BROADCAST, number, number + 0.9, 1000, peer=0)
        ranks[1].timed(Kind.BROADCAST, number - 0.1, number + 0.2, 1000, peer=0)
    calibration = Calibration()
    calibration.add("run", "all_reduce", place, traces(ranks), CLUSTER)
    costs = calibration.costs(place, "all_reduce", "")
    assert costs.keys() == {"broadcast", "broadcast_answer", ANY_COLLECTIVE}
    again = [rank.add(Kind.BROADCAST, 1000, peer=0) for rank in builders(2, "rpc")]
    found = simulate(traces(again), CLUSTER.model_copy(update={"software": costs}))
    assert [rank.end_s for rank in found.ranks] == [pytest.approx(0.9), pytest.approx(0.2)]


def test_of_a_loaded_run_the_lower_quartile_counts() -> None:
    ranks = builders(2)
    for number, seconds in enumerate((0.1, 0.2, 0.9)):
        for rank in ranks:
            rank.timed(Kind.BARRIER, number, number + seconds)
    for loaded, expected in ((False, 0.4), (True, 0.15)):
        calibration = Calibration()
        calibration.add("run", "all_reduce", PLACE, traces(ranks), CLUSTER, loaded)
        (cost,) = calibration.costs(PLACE, "all_reduce", "")["barrier"]
        assert cost.seconds == pytest.approx(expected, abs=0.01)


def test_messages_and_requests_have_costs_of_their_own() -> None:
    server, worker = builders(2)
    worker.timed(Kind.REQUEST, 1.0, 2.0, 500, peer=0).timed(Kind.SEND, 3.0, 3.2, 1000, peer=0)
    server.timed(Kind.TAKE, 0.0, 1.0, 500, peer=1).timed(Kind.RESPOND, 1.9, 2.0, 500, peer=1)
    server.timed(Kind.RECEIVE, 3.0, 3.5, 1000, peer=1)
    calibration = Calibration()
    calibration.add("run", "all_reduce", PLACE, traces([server, worker]), CLUSTER)
    costs = calibration.costs(PLACE, "all_reduce", "")
    assert costs.keys() == {"request", "send", "receive"}
    assert costs["send"][0].seconds == pytest.approx(0.2)
    assert costs["request"][0].seconds == pytest.approx(0.1 - 2 * 0.0015)
    assert costs["receive"][0].seconds == pytest.approx(0.5 - MESSAGE_S)


@pytest.mark.parametrize("started_s", [1e300, -1e300, inf, -inf, nan])
def test_costs_are_possible_whatever_the_clock_of_a_node(started_s: float) -> None:
    first, second = recorded(1.0)
    for pair in (
        [first.trace(), second.trace(started_s=started_s)],
        [first.trace(started_s=started_s), second.trace()],
    ):
        calibration = Calibration()
        calibration.add("run", "all_reduce", PLACE, pair, CLUSTER)
        costs = calibration.costs(PLACE, "all_reduce", "")
        assert all(abs(cost.seconds) < MOST_S for found in costs.values() for cost in found)


# Replays


def replayed(ranks: list[TraceBuilder], cluster: Cluster) -> float:
    return simulate(traces(ranks), cluster).cluster_s


def all_reduce() -> list[TraceBuilder]:
    return [rank.add(Kind.ALL_REDUCE, 1000) for rank in builders(2)]


def started() -> list[TraceBuilder]:
    return [rank.add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED) for rank in builders(2)]


def message() -> list[TraceBuilder]:
    first, second = builders(2)
    return [first.send(1, 1000, 0), second.add(Kind.RECEIVE, 1000, peer=0)]


def request() -> list[TraceBuilder]:
    server, worker = builders(2)
    server.add(Kind.TAKE, 1000, peer=1).add(Kind.RESPOND, 1000, peer=1)
    return [server, worker.add(Kind.REQUEST, 1000, peer=0)]


@pytest.mark.parametrize(
    ("program", "described", "extra_s"),
    [
        (all_reduce, {"all_reduce": {1000: 0.25}}, 0.25),
        (all_reduce, {"all_reduce": {500: 0.1, 1500: 0.3}}, 0.2),
        (all_reduce, {"all_reduce": {2000: 0.3, 3000: 0.4}}, 0.3),
        (all_reduce, {"all_reduce": {500: 0.1}, ANY_COLLECTIVE: {1000: 0.9}}, 0.1),
        (all_reduce, {"barrier": {0: 0.5}, ANY_COLLECTIVE: {1000: 0.7}}, 0.7),
        (all_reduce, {"barrier": {0: 0.5}, "receive": {0: 0.5}}, 0.0),
        (started, {"start_all_reduce": {1000: 0.5}, "all_reduce": {1000: 0.1}}, 0.5),
        (started, {"collective": {1000: 0.2}}, 0.2),
        (message, {"receive": {0: 0.5}}, 0.5),
        (message, {"send": {0: 0.5}}, 0.5 - 0.003),  # the message arrives meanwhile
        (request, {"request": {0: 0.5}, "collective": {0: 9.0}}, 0.5),
    ],
    ids=range(11),
)
def test_an_exchange_costs_its_software_once(
    program: Callable[[], list[TraceBuilder]], described: dict[str, dict[int, float]], extra_s: float
) -> None:
    free_s = replayed(program(), CLUSTER)
    assert replayed(program(), with_software(**described)) == pytest.approx(free_s + extra_s)
    (rank,) = builders(1)
    alone = with_software(all_reduce={0: 1.0}).model_copy(update={"node_speed": [1.0]})
    assert replayed([rank.add(Kind.ALL_REDUCE, 1000)], alone) == 0.0


@pytest.mark.parametrize(("kind", "receiver"), [(Kind.BROADCAST, 1), (Kind.GATHER, 0)])
def test_only_senders_of_a_broadcast_and_a_gather_have_its_cost(kind: Kind, receiver: int) -> None:
    """A receiver that enters late has called nothing that others wait for."""
    ranks = [
        rank.work(9.0 * (at == receiver)).add(kind, 1000, peer=0) for at, rank in enumerate(builders(2))
    ]
    name = kind.name.lower()
    assert replayed(ranks, with_software(**{name: {0: 0.5}})) == pytest.approx(replayed(ranks, CLUSTER))
    prompt = [rank.add(kind, 1000, peer=0) for rank in builders(2)]
    # The receiver's request arrives meanwhile.
    assert replayed(prompt, with_software(**{name: {0: 0.5}})) == pytest.approx(0.5 + MESSAGE_S)
