"""Mistakes in what exchanges and steps cost: from whose entry to whose exit, by which runs, with bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from statistics import fmean
from typing import Any

import pytest

from orchestrator.replay.calibration import MOST_S, Calibration
from orchestrator.replay.measured import Exchange, durations
from orchestrator.replay.work import LEAST, MOST, Work, first_step_cpu_s, partial_step_cpu_s, step_cpu_s
from tests.support.traces import TraceBuilder, builders, traces
from trainer.core.trace import Kind, Trace
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import ANY_COLLECTIVE, Cluster, Link, SoftwareCost
from trainer.time_model.simulate import simulate

PLACE, BOTH = ("local", "gloo"), (0, 1)
CLUSTER = Cluster(node_speed=[1.0, 1.0], link=Link(latency_s=0.001, bytes_per_s=1e6), overhead_s=0.0)

Timed = list[tuple[Any, ...]]  # of a rank: kind, entry, exit, bytes, peer, group, CPU seconds


def timed(*ranks: Timed, **options: Any) -> list[TraceBuilder]:
    built = builders(len(ranks), **options)
    for builder, records in zip(built, ranks, strict=True):
        for record in records:
            builder.timed(*record)
    return built


def costs_of(
    ranks: list[TraceBuilder], loaded: bool = False, place: tuple[str, str] = PLACE, **fields: Any
) -> dict[str, list[SoftwareCost]]:
    """Of a run of which these are the traces. fields: of the headers of all but the first."""
    calibration = Calibration()
    found = [ranks[0].trace(), *(rank.trace(**fields) for rank in ranks[1:])]
    calibration.add("run", "all_reduce", place, found, CLUSTER, loaded)
    return calibration.costs(place, "all_reduce", without="")


MEASURED: dict[str, tuple[list[Timed], dict[Exchange, float]]] = {
    "collectives take from the last entry to the last exit": (
        [
            [(Kind.ALL_REDUCE, 1.0, 2.0, 1000), (Kind.ALL_REDUCE, 5.0, 6.0, 1000)],
            [(Kind.ALL_REDUCE, 1.5, 2.2, 1000), (Kind.ALL_REDUCE, 4.0, 6.0, 1000)],
        ],
        {Exchange("all_reduce", BOTH, 1000): (0.7 + 1.0) / 2},
    ),
    "collectives of a group are those of its members": (
        [[(Kind.ALL_GATHER, 1.0, 1.5, 10, -1, 1)], [], [(Kind.ALL_GATHER, 1.0, 1.5, 10, -1, 1)]],
        {Exchange("all_gather", (0, 2), 10): 0.5},
    ),
    "a broadcast counts where a receiver has waited, until it leaves": (
        [
            [(Kind.BROADCAST, 1.0, 9.0, 10, 0), (Kind.BROADCAST, 10.0, 10.1, 10, 0)],
            [(Kind.BROADCAST, 0.0, 1.5, 10, 0), (Kind.BROADCAST, 12.0, 12.1, 10, 0)],
        ],
        {Exchange("broadcast", BOTH, 10, 0): 0.5, Exchange("broadcast_answer", BOTH, 10, 0): 4.05},
    ),
    "a gather counts where its root has waited, until it leaves, and senders leave earlier": (
        [
            [(Kind.GATHER, 2.0, 2.3, 10, 1, 0, 0.1), (Kind.GATHER, 8.0, 8.2, 10, 1)],
            [(Kind.GATHER, 1.0, 4.0, 10, 1), (Kind.GATHER, 9.0, 9.9, 10, 1)],
        ],
        {Exchange("gather", BOTH, 10, 1): 2.0, Exchange("gather_answer", BOTH, 10, 1): 0.2},
    ),
    "of collectives that are waited for together, the first has the time of all": (
        [
            [(Kind.BROADCAST, 1.0, 9.0, 10, 0), (Kind.BROADCAST, 9.0, 9.0, 20, 1)],
            [(Kind.BROADCAST, 2.0, 8.5, 10, 0), (Kind.BROADCAST, 8.5, 8.5, 20, 1)],
        ],
        {
            Exchange("broadcast", BOTH, 10, root=0): 7.0,
            Exchange("broadcast_answer", BOTH, 10, root=0): 8.0,
            Exchange("broadcast_answer", BOTH, 20, root=1): 0.0,
        },
    ),
    "of started all-reduces, those alone count whose ranks wait for them at once": (
        [
            # One alone; one whose ranks computed meanwhile; two at once.
            [(Kind.START_ALL_REDUCE, 1.0 + late, 1.0 + late, 1000), (Kind.WAIT_STARTED, 1.0 + late, 1.5)]
            + [(Kind.START_ALL_REDUCE, 2.0, 2.0, 1000), (Kind.WAIT_STARTED, 3.0, 3.0)]
            + [(Kind.START_ALL_REDUCE, 4.0, 4.0, 1000)] * 2
            + [(Kind.WAIT_STARTED, 4.0, 5.0)]
            + [(Kind.START_ALL_REDUCE, 6.0, 6.0, 1000), (Kind.WAIT_STARTED, 6.0 + late / 1000, 6.3 + late)]
            for late in (0.0, 0.2)
        ],
        {Exchange("start_all_reduce", BOTH, 1000): 0.3},
    ),
    "a message takes from the later of send and receive, in the order of its group": (
        [
            [(Kind.SEND, 1.0, 1.1, 1000, 1, 1), (Kind.SEND, 3.0, 3.1, 1000, 2)],
            [],
            [(Kind.RECEIVE, 3.5, 3.7, 1000, 0), (Kind.RECEIVE, 0.0, 1.4, 1000, 0, 1)],
        ],
        {Exchange("send", (0, 2), 1000): 0.1, Exchange("receive", (0, 2), 1000): (0.4 + 0.2) / 2},
    ),
    "a request takes its way and that of the answer": (
        [
            [(Kind.TAKE, 0.0, 1.3, 600, 1, 1), (Kind.RESPOND, 3.8, 3.9, 400, 1, 1)],
            [],
            [(Kind.REQUEST, 1.0, 4.0, 600, 0, 1)],
        ],
        {Exchange("request", (2, 0), 1000): 0.3 + 0.2},
    ),
}


@pytest.mark.parametrize("rule", MEASURED)
def test_exchanges_take_from_the_entry_to_the_exit_that_their_kind_has(rule: str) -> None:
    ranks, expected = MEASURED[rule]
    found = durations(traces(timed(*ranks, groups=[[0, 2]] if len(ranks) > 2 else [])), without_cpu=False)
    assert {exchange: fmean(seconds) for exchange, seconds in found.items()} == pytest.approx(expected)


def test_the_cpu_time_of_the_last_caller_counts_unless_it_is_left_out_and_clocks_have_starts() -> None:
    first, second = timed([(Kind.BARRIER, 1.0, 2.0)], [(Kind.BARRIER, 0.5, 1.2, 0, -1, 0, 0.1)])
    for without_cpu, seconds in ((False, 0.7), (True, 0.6)):
        found = durations([first.trace(), second.trace(started_s=1.0)], without_cpu)
        expected = {Exchange("barrier", BOTH, 0): [pytest.approx(seconds)]}
        assert found == expected | ({Exchange("barrier_call", BOTH, 0): [0.1]} if without_cpu else {})


def replayed_s(ranks: list[TraceBuilder], software: dict[str, list[SoftwareCost]]) -> float:
    return simulate(traces(ranks), CLUSTER.model_copy(update={"software": software})).cluster_s


def recorded(seconds: float) -> list[TraceBuilder]:
    """An all-reduce of 1000 bytes that takes so long."""
    return timed(*2 * [[(Kind.ALL_REDUCE, 1.0, 1.0 + seconds, 1000)]])


MODELLED_S = Network(CLUSTER, "gloo").costs("all_reduce", BOTH, 1000, -1).exits([0.0, 0.0])[0][0]


@pytest.mark.parametrize(
    ("strategy", "own", "missing", "expected"),
    [
        ("ddp", "", "", 0.2),  # the fastest of the same strategy that was not loaded
        ("ddp", "1", "", 0.25),
        ("ddp", "1", "2", 0.1),  # rather a loaded run of the same strategy
        ("fsdp", "", "", 0.3),
        ("fsdp", "3", "", 0.2),
        ("gossip", "", "", 0.2),  # of all that were not loaded
    ],
)
def test_runs_of_the_same_strategy_come_first_then_undisturbed_ones_then_the_fastest(
    strategy: str, own: str, missing: str, expected: float
) -> None:
    calibration, strategies = Calibration(), ("ddp", "ddp", "ddp", "fsdp", "zero1")
    for number, (of, beyond_s) in enumerate(zip(strategies, (0.1, 0.2, 0.25, 0.3, 0.4), strict=True)):
        if str(number) != missing:
            found, loaded = traces(recorded(MODELLED_S + beyond_s)), number in (0, 3)
            calibration.add(str(number), of, PLACE, found, CLUSTER, loaded)
    costs = calibration.costs(PLACE, strategy, without=own)
    assert costs.keys() == {"all_reduce", ANY_COLLECTIVE}
    assert [(cost.bytes, cost.seconds) for cost in costs["all_reduce"]] == [(1000, pytest.approx(expected))]
    assert calibration.costs(("local", "mpi"), strategy, "") == {}
    assert [calibration.count(place) for place in (PLACE, ("local", "mpi"))] == [5 - len(missing), 0]


def test_broken_traces_calibrate_nothing_and_costs_are_possible_whatever_the_clock_of_a_node() -> None:
    assert costs_of(timed(*2 * [[(Kind.GATHER, 1.0, 2.0, 10, 7)]])) == {}
    for started_s in (1e300, -1e300, inf, -inf, nan):
        for ranks in (recorded(1.0), recorded(1.0)[::-1]):
            found = costs_of(ranks, started_s=started_s)
            assert all(abs(cost.seconds) < MOST_S for costs in found.values() for cost in costs)


def test_a_collective_faster_than_its_messages_shortens_them_and_a_message_does_not() -> None:
    costs = costs_of(recorded(0.0001))
    assert costs["all_reduce"][0].seconds < 0
    impossible = {"all_reduce": [SoftwareCost(bytes=1000, seconds=-5.0)]}
    assert replayed_s(ALL_REDUCE, costs) == pytest.approx(0.0001, rel=0.01)
    assert replayed_s(ALL_REDUCE, impossible) == 0.0
    message = timed([(Kind.SEND, 1.0, 1.0, 1000, 1)], [(Kind.RECEIVE, 1.0, 1.0, 1000, 0)])
    assert costs_of(message)["receive"][0].seconds == 0.0


def test_over_rpc_a_rank_that_only_sends_waits_for_the_answer() -> None:
    ranks = timed(
        [(Kind.BROADCAST, number, number + 0.9, 1000, 0) for number in range(3)],
        [(Kind.BROADCAST, number - 0.1, number + 0.2, 1000, 0) for number in range(3)],
    )
    costs = costs_of(ranks, place=("local", "rpc"))
    assert costs.keys() == {"broadcast", "broadcast_answer", ANY_COLLECTIVE}
    again = [rank.add(Kind.BROADCAST, 1000, peer=0) for rank in builders(2, "rpc")]
    found = simulate(traces(again), CLUSTER.model_copy(update={"software": costs}))
    assert [rank.end_s for rank in found.ranks] == [pytest.approx(0.9), pytest.approx(0.2)]


def called(place: str, size: int, root_s: float, other_s: float) -> list[TraceBuilder]:
    """A gather on rank 0 and an all-reduce, whose calls take so many CPU seconds."""
    each_s = [root_s] + [other_s] * (size - 1)
    return timed(
        *(
            [(Kind.GATHER, 0.0, 1.0, 1000, 0, 0, cpu), (Kind.ALL_REDUCE, 2.0, 3.0, 1000, -1, 0, root_s)]
            for cpu in each_s
        ),
        transport=place,
    )


@pytest.mark.parametrize(
    ("transport", "root_s", "other_s"),
    [
        ("gloo", 0.1, 0.2),  # a call is one call
        ("rpc", 0.2, 0.2),  # the root has messages from three ranks, which take as much as itself: 4 for 2
    ],
)
def test_ranks_of_a_simulation_pay_for_their_calls(transport: str, root_s: float, other_s: float) -> None:
    """Of two ranks, it is known that calls take 0.1 s on the root, and 0.2 s elsewhere."""
    place = ("local", transport)
    software = costs_of(called(transport, 2, 0.1, 0.2), place=place)
    calls = {name: costs for name, costs in software.items() if name.endswith("_call")}
    assert {name: cost.seconds for name, (cost,) in calls.items()} == {
        "all_reduce_call": 0.1,
        "gather_call": 0.2,
        "gather_receive_call": 0.1,
        "collective_call": 0.1,
    }
    four = CLUSTER.model_copy(update={"node_speed": [1.0] * 4, "software": calls})
    played = [
        rank.add(Kind.GATHER, 1000, peer=0).add(Kind.ALL_REDUCE, 1000) for rank in builders(4, transport)
    ]
    again = simulate(traces(played), four)
    paid = simulate(traces(called(transport, 4, root_s, other_s)), four.model_copy(update={"software": {}}))
    assert [rank.end_s for rank in again.ranks] == pytest.approx([rank.end_s for rank in paid.ranks])
    assert Network(four, transport).call_s("all_gather", 2, 0, 1000, -1) == 0.1  # the least of all


def test_of_a_loaded_run_the_lower_quartile_counts() -> None:
    ranks = timed(*2 * [[(Kind.BARRIER, at, at + seconds) for at, seconds in enumerate((0.1, 0.2, 0.9))]])
    for loaded, expected in ((False, 0.4), (True, 0.15)):
        assert costs_of(ranks, loaded)["barrier"][0].seconds == pytest.approx(expected, abs=0.01)


def test_messages_and_requests_have_costs_of_their_own() -> None:
    server = [(Kind.TAKE, 0.0, 1.0, 500, 1), (Kind.RESPOND, 1.9, 2.0, 500, 1)]
    worker = [(Kind.REQUEST, 1.0, 2.0, 500, 0), (Kind.SEND, 3.0, 3.2, 1000, 0)]
    costs = costs_of(timed([*server, (Kind.RECEIVE, 3.0, 3.5, 1000, 1)], worker))
    assert {name: cost.seconds for name, (cost,) in costs.items()} == pytest.approx(
        {"send": 0.2, "request": 0.1 - 2 * 0.0015, "receive": 0.5 - 0.002}
    )


ALL_REDUCE = [rank.add(Kind.ALL_REDUCE, 1000) for rank in builders(2)]
STARTED = [rank.add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED) for rank in builders(2)]
SENDER, RECEIVER = builders(2)
MESSAGE = [SENDER.send(1, 1000, 0), RECEIVER.add(Kind.RECEIVE, 1000, 0)]
LATE = [rank.work(9.0 * at).add(Kind.BROADCAST, 1000, 0) for at, rank in enumerate(builders(2))]


@pytest.mark.parametrize(
    ("ranks", "costs", "extra_s"),
    [
        (ALL_REDUCE, {"all_reduce": {500: 0.1, 1500: 0.3}}, 0.2),
        (ALL_REDUCE, {"all_reduce": {2000: 0.3, 3000: 0.4}}, 0.3),
        (ALL_REDUCE, {"all_reduce": {500: 0.1}, ANY_COLLECTIVE: {1000: 0.9}}, 0.1),
        (ALL_REDUCE, {"barrier": {0: 0.5}, ANY_COLLECTIVE: {1000: 0.7}}, 0.7),
        (ALL_REDUCE, {"barrier": {0: 0.5}, "receive": {0: 0.5}}, 0.0),
        (STARTED, {"start_all_reduce": {1000: 0.5}, "all_reduce": {1000: 0.1}}, 0.5),
        (MESSAGE, {"receive": {0: 0.5}, ANY_COLLECTIVE: {0: 9.0}}, 0.5),
        (MESSAGE, {"send": {0: 0.5}}, 0.5 - 0.003),  # the message arrives meanwhile
        (LATE, {"broadcast": {0: 0.5}}, 0.0),  # a late receiver has called nothing that others wait for
    ],
    ids=range(9),
)
def test_an_exchange_costs_its_software_once(
    ranks: list[TraceBuilder], costs: dict[str, dict[int, float]], extra_s: float
) -> None:
    software = {
        name: [SoftwareCost(bytes=nbytes, seconds=seconds) for nbytes, seconds in points.items()]
        for name, points in costs.items()
    }
    assert replayed_s(ranks, software) == pytest.approx(replayed_s(ranks, {}) + extra_s)


def steps(*epochs: Sequence[float]) -> Trace:
    """Epochs whose steps take so many CPU seconds of work, in two phases, and some for their exchanges."""
    rank = TraceBuilder(0, 1)
    for number, seconds in enumerate(epochs, start=1):
        rank.add(Kind.EPOCH, peer=number)
        for step_s in seconds:
            rank.work(step_s / 4, "data").work(3 * step_s / 4).add(Kind.BARRIER, cpu_s=9.0).add(Kind.STEP)
    return rank.trace()


def test_cpu_time_of_a_step_is_that_of_whole_batches() -> None:
    """A rank with fewer samples than others goes on exchanging: its mean over all steps is too low."""
    trace, idle = steps(*2 * [(0.4, 0.4, 0.1, 0.0, 0.0, 0.0)]), TraceBuilder(0, 1).work(5.0).trace()
    found = step_cpu_s([trace, trace, trace, idle, steps([0.04])], [2, 0, None, None, None])
    assert found == pytest.approx([0.4, 0.15, 0.18, 0.0, 0.04])  # without a whole batch: of all steps
    assert partial_step_cpu_s(trace, 2) == pytest.approx(0.1)
    assert partial_step_cpu_s(trace, 6) is None


def test_the_first_step_of_a_run_has_a_cost_of_its_own() -> None:
    first = steps((0.9, 0.4, 0.1), (0.6, 0.5, 0.1))  # the third batch of an epoch is not whole
    assert first_step_cpu_s(first, 2) == first_step_cpu_s(first, None) == pytest.approx((0.5, 0.4))
    assert first_step_cpu_s(steps((0.3, 0.4, 0.1), (0.6, 0.5, 0.1)), 2) == pytest.approx((0.5, 0.0))
    assert first_step_cpu_s(steps((0.9,)), 1) == pytest.approx((0.9, 0.0))  # none to compare it with
    assert first_step_cpu_s(TraceBuilder(0, 1).work(5.0).trace(), None) == (0.0, 0.0)


def test_inflation_is_relative_to_undisturbed_runs_of_the_same_work() -> None:
    work = Work()
    work.add_undisturbed("quiet 0", "ddp", [0.1, 0.3])
    work.add_undisturbed("quiet 1", "ddp", [0.3, 0.5])
    work.add_shared("as many", "ddp", PLACE, [0.3, 0.6])
    work.add_shared("more", "ddp", PLACE, [0.3, 0.3, 0.3, 0.6])
    assert work.inflation("as many") == pytest.approx([1.5, 1.5])
    assert work.inflation("more") == pytest.approx([0.375 / 0.3] * 4)
    assert work.inflation("quiet 0") == []


def test_inflation_of_other_work_is_that_of_runs_at_the_same_place() -> None:
    work = Work()
    work.add_undisturbed("quiet", "ddp", [0.1, 0.1])
    for number, steps_s in enumerate(([0.11] * 2, [0.13] * 2, [0.19] * 4, [0.12] * 2)):
        work.add_shared(str(number), "ddp", PLACE, steps_s)
    work.add_shared("other work", "fsdp", PLACE, [7.0, 7.0])
    work.add_shared("other ranks", "fsdp", PLACE, [7.0] * 3)
    work.add_shared("elsewhere", "fsdp", ("docker", 2), [7.0, 7.0])
    assert work.inflation("other work") == pytest.approx([1.2, 1.2])  # with as many ranks
    assert work.inflation("other ranks") == pytest.approx([1.25] * 3)  # the median of all
    assert work.inflation("elsewhere") == []


def test_inflation_has_bounds_and_needs_steps() -> None:
    for quiet, shared, expected in (
        ([1e-9, 0.1, 0.1], [5.0, 0.1, 0.01], [MOST, 1.0, LEAST]),
        ([], [0.2, 0.2], []),
        ([0.1, 0.0], [0.2, 0.2], []),
        ([0.1, 0.1], [0.1, 0.0], []),
    ):
        work = Work()
        work.add_undisturbed("quiet", "ddp", quiet)
        work.add_shared("shared", "ddp", PLACE, shared)
        assert work.inflation("shared") == pytest.approx(expected)
