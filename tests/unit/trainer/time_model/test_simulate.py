"""Mistakes in the replay of traces: order, clocks of nodes, units of links, what overlaps, who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.traces import TraceBuilder, builders, traces
from trainer.core.trace import Kind
from trainer.time_model.cluster import Choice, Cluster, Link
from trainer.time_model.errors import ReplayError
from trainer.time_model.outcome import Replay
from trainer.time_model.simulate import simulate

LATENCY_S, BYTES_PER_S = 0.125, 1000.0  # exact in binary, so that most times are
ASKED_S = 2 * LATENCY_S  # over gloo, a message is sent when its receiver has asked for it
LINK = Link(latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S)
FREE = Link(latency_s=0.0, bytes_per_s=1e15)


def cluster_of(size: int, link: Link = LINK, **fields: object) -> Cluster:
    return Cluster.model_validate({"node_speed": [1.0] * size, "link": link, "overhead_s": 0.0, **fields})


def replayed(ranks: Sequence[TraceBuilder], link: Link = LINK, **fields: object) -> Replay:
    options: Any = {name: fields.pop(name) for name in ("max_staleness", "intervals") if name in fields}
    replay = simulate(traces(ranks), cluster_of(len(ranks), link, **fields), **options)
    assert_laws(replay)
    return replay


def assert_laws(replay: Replay) -> None:
    """The phases of a rank add up to its end, and none is negative."""
    assert replay.cluster_s == max(rank.end_s for rank in replay.ranks)
    for rank in replay.ranks:
        phases = [*rank.work_s, rank.communicate_s, *rank.wait_s.values()]
        assert min(phases) >= -1e-12
        assert sum(phases) == pytest.approx(rank.end_s)
        assert rank.overlapped_s >= 0
        for interval, following in zip(rank.intervals, rank.intervals[1:], strict=False):
            assert interval.end <= following.start


def ends(replay: Replay) -> list[float]:
    return [rank.end_s for rank in replay.ranks]


def waits(replay: Replay) -> list[dict[int, Any]]:
    return [dict(rank.wait_s) for rank in replay.ranks]


# Work


def test_work_takes_cpu_time_over_speed() -> None:
    replay = replayed([TraceBuilder(0, 1).work(1.0).work(0.5, "data")], node_speed=[0.5])
    assert replay.cluster_s == 3.0
    assert replay.ranks[0].work_s == [1.0, 2.0, 0.0]


def test_epochs_end_where_the_next_one_begins_and_steps_at_their_marks() -> None:
    ranks = builders(2)
    for rank, cpu_s in zip(ranks, (1.0, 2.0), strict=True):
        for epoch in (1, 2):
            rank.add(Kind.EPOCH, peer=epoch).work(cpu_s).add(Kind.STEP).add(Kind.BARRIER)
    replay = replayed(ranks, FREE, intervals=True)
    assert [rank.epoch_ends_s for rank in replay.ranks] == [{1: 2.0, 2: 4.0}] * 2
    assert [rank.step_ends_s for rank in replay.ranks] == [[1.0, 3.0], [2.0, 4.0]]


# Collectives


@pytest.mark.parametrize(
    ("kind", "peer", "end_s"),
    [
        (Kind.ALL_REDUCE, -1, 2 * (ASKED_S + 0.2)),
        (Kind.ALL_GATHER, -1, ASKED_S + 0.4),
        (Kind.ALL_TO_ALL, -1, ASKED_S + 0.2),
        (Kind.GATHER, 0, ASKED_S + 0.4),
        (Kind.BROADCAST, 1, ASKED_S + 0.4),
        (Kind.BARRIER, -1, LATENCY_S),
        (Kind.SHIFT, 1, ASKED_S + 0.4),
        (Kind.REDUCE_SCATTER, -1, 2 * (ASKED_S + 0.2)),  # gloo: an all-reduce
    ],
)
def test_collectives_of_two_ranks(kind: Kind, peer: int, end_s: float) -> None:
    ranks = [rank.work(1.0).add(kind, 0 if kind is Kind.BARRIER else 400, peer) for rank in builders(2)]
    replay = replayed(ranks)
    assert replay.cluster_s == pytest.approx(1 + end_s)
    assert max(rank.communicate_s for rank in replay.ranks) == pytest.approx(end_s)


def test_the_description_chooses_the_algorithm() -> None:
    ranks = [rank.add(Kind.ALL_REDUCE, 600) for rank in builders(4)]
    choice = {"all_reduce": [Choice(algorithm="recursive_doubling")]}
    assert replayed(ranks, algorithms=choice).cluster_s == pytest.approx(2 * (ASKED_S + 0.6))


@pytest.mark.parametrize(("transport", "call_s"), [("gloo", 0.25), ("rpc", 0.25), ("mpi", 0.0)])
def test_calling_a_library_takes_cpu_time_unless_it_polls(transport: str, call_s: float) -> None:
    before, after = (
        replayed(
            [rank.work(1.0).add(Kind.BARRIER, cpu_s=cpu_s) for rank in builders(2, transport)],
            node_speed=[1.0, 0.5],
        )
        for cpu_s in (0.0, 0.25)
    )
    # Half as fast a node takes twice as long for the call, and both leave later by as much.
    assert after.cluster_s - before.cluster_s == pytest.approx(2 * call_s)
    assert after.ranks[0].communicate_s - before.ranks[0].communicate_s == pytest.approx(call_s)


def test_the_last_rank_is_charged_with_the_waiting_of_its_group() -> None:
    ranks = [
        rank.work(cpu_s).add(Kind.BARRIER) for rank, cpu_s in zip(builders(3), (1.0, 4.0, 2.0), strict=True)
    ]
    assert waits(replayed(ranks, FREE)) == [{1: 3}, {}, {1: 2}]
    slow = [rank.work(1.0).add(Kind.BARRIER) for rank in builders(2)]
    assert waits(replayed(slow, FREE, node_speed=[1.0, 0.25])) == [{1: 3.0}, {}]
    pairs = [[0, 1], [0, 1], [2, 3], [2, 3]]
    apart = [TraceBuilder(rank, 4, groups=[pair]).work(1.0 + rank) for rank, pair in enumerate(pairs)]
    for rank in apart:
        rank.add(Kind.BARRIER, group=1)
    assert ends(replayed(apart, FREE)) == [2.0, 2.0, 4.0, 4.0]


def test_communicators_of_the_same_ranks_have_messages_of_their_own() -> None:
    sender, receiver = (TraceBuilder(rank, 2, "mpi", groups=[[0, 1], [0, 1]]) for rank in range(2))
    sender.add(Kind.SEND, 500, 1, group=1).work(1.0).add(Kind.SEND, 500, 1, group=2)
    receiver.add(Kind.RECEIVE, 500, 0, group=2).work(1.0).add(Kind.RECEIVE, 500, 0, group=1)
    assert ends(replayed([sender, receiver])) == pytest.approx([1.0, 2.5 + LATENCY_S])


# Point to point


@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
def test_a_message_takes_latency_and_transfer(transport: str) -> None:
    sender, receiver = builders(2, transport)
    sender.work(1.0).send(1, 500, index=0)
    receiver.add(Kind.RECEIVE, 500, 0)
    replay = replayed([sender, receiver])
    answer_s = 2 * LATENCY_S if transport == "rpc" else 0.0
    assert ends(replay) == pytest.approx([1.5 + answer_s, 1.5 + LATENCY_S])
    assert replay.ranks[1].wait_s[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("transport", "nbytes", "asks"), [("gloo", 500, True), ("mpi", 65536, False), ("mpi", 65537, True)]
)
def test_a_large_message_is_sent_when_its_receiver_has_asked(
    transport: str, nbytes: int, asks: bool
) -> None:
    sender, receiver = builders(2, transport)
    sender.send(1, nbytes, index=0)
    receiver.work(3.0).add(Kind.RECEIVE, nbytes, 0)
    fast = Link(latency_s=LATENCY_S, bytes_per_s=65536.0)
    sent_s = nbytes / 65536
    replay = replayed([sender, receiver], fast)
    if asks:
        assert ends(replay) == pytest.approx([3 + LATENCY_S + sent_s, 3 + ASKED_S + sent_s])
        assert replay.ranks[0].wait_s[1] == pytest.approx(3.0)
    else:
        assert ends(replay) == pytest.approx([sent_s, 3.0])


def test_software_may_cost_less_than_the_model_has_for_its_messages() -> None:
    sender, receiver = builders(2, "mpi")
    sender.work(1.0).add(Kind.SEND, 500, 1)
    receiver.add(Kind.RECEIVE, 500, 0)
    cheaper = {"receive": [{"bytes": 0, "seconds": -1.0}]}
    replay = replayed([sender, receiver], software=cheaper)
    assert ends(replay) == pytest.approx([1.0, 0.5 + LATENCY_S])
    assert waits(replay)[1] == {0: pytest.approx(0.5 + LATENCY_S)}  # no longer than the exchange


def test_messages_share_the_ports_of_their_sender_and_of_their_receiver() -> None:
    one = builders(3, "mpi")
    one[0].add(Kind.SEND, 65536, 1).add(Kind.SEND, 500, 2)  # the first one is just small enough not to wait
    one[1].work(100.0).add(Kind.RECEIVE, 65536, 0)
    one[2].add(Kind.RECEIVE, 500, 0)
    assert ends(replayed(one))[1:] == pytest.approx([100.0, 65.536 + LATENCY_S + 0.5])
    many = builders(3, "mpi")
    many[0].add(Kind.RECEIVE, 500, 1).add(Kind.RECEIVE, 500, 2)  # in order of time, that of rank 2 first
    many[1].work(0.25).add(Kind.SEND, 500, 0)
    many[2].add(Kind.SEND, 500, 0)
    assert ends(replayed(many))[0] == pytest.approx(LATENCY_S + 1.0)


def test_a_message_on_its_way_does_not_delay_a_collective() -> None:
    ranks = [TraceBuilder(rank, 3, "mpi", groups=[[0, 1]] if rank < 2 else []) for rank in range(3)]
    ranks[2].add(Kind.SEND, 500, 0)
    for rank in ranks[:2]:
        rank.add(Kind.BARRIER, group=1)
    ranks[0].add(Kind.RECEIVE, 500, 2)
    assert ends(replayed(ranks)) == pytest.approx([LATENCY_S + 0.5, LATENCY_S, 0.0])


def test_a_request_follows_what_its_rank_sends_to_the_sender() -> None:
    first, second = builders(2)
    first.work(1.0).add(Kind.SEND, 500, 1).add(Kind.RECEIVE, 1000, 1).add(Kind.SEND_WAIT, 0, 1)
    second.add(Kind.SEND, 1000, 0).add(Kind.RECEIVE, 500, 0).add(Kind.SEND_WAIT, 0, 0)
    # Rank 1 asks at once. Rank 0 sends for 0.5 s, and its request for the other message comes behind.
    assert replayed([first, second]).cluster_s == pytest.approx(1.5 + LATENCY_S + LATENCY_S + 1.0)


def gpipe(stages: int, micro_batches: int) -> list[TraceBuilder]:
    """One step of GPipe with forward and backward passes of 1 s."""
    ranks = builders(stages)
    for rank, trace in enumerate(ranks):
        for source, to in ((rank - 1, rank + 1), (rank + 1, rank - 1)):
            for _ in range(micro_batches):
                if 0 <= source < stages:
                    trace.add(Kind.RECEIVE, 4, source)
                trace.work(1.0)
                if 0 <= to < stages:
                    trace.add(Kind.SEND, 4, to)
        for to in {rank - 1, rank + 1} & {*range(stages)}:
            trace.add(Kind.SEND_WAIT, micro_batches - 1, to)
    return ranks


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (3, 4)])
def test_gpipe_has_the_bubble_of_its_formula(stages: int, micro_batches: int) -> None:
    replay = replayed(gpipe(stages, micro_batches), FREE)
    steps = micro_batches + stages - 1
    assert replay.cluster_s == pytest.approx(2 * steps)
    work = sum(sum(rank.work_s) for rank in replay.ranks)
    assert 1 - work / (stages * replay.cluster_s) == pytest.approx((stages - 1) / steps)


# Beside the computation

RING_S = 2 * (ASKED_S + 0.5)  # of 1000 bytes between two ranks


@pytest.mark.parametrize("hidden_s", [1.0, 5.0], ids=["a part", "all"])
def test_a_started_all_reduce_runs_beside_the_computation(hidden_s: float) -> None:
    ranks = builders(2)
    for rank in ranks:
        rank.work(1.0).add(Kind.START_ALL_REDUCE, 1000).work(hidden_s).add(Kind.WAIT_STARTED)
    replay = replayed(ranks)
    assert ends(replay) == pytest.approx([1 + max(hidden_s, RING_S)] * 2)
    assert [rank.communicate_s for rank in replay.ranks] == pytest.approx([max(RING_S - hidden_s, 0)] * 2)
    assert [rank.overlapped_s for rank in replay.ranks] == pytest.approx([min(hidden_s, RING_S)] * 2)


def test_started_all_reduces_run_one_by_one_when_the_last_rank_has_handed_them_over() -> None:
    ranks = builders(2)
    ranks[1].work(4.0)
    for rank in ranks:
        rank.add(Kind.START_ALL_REDUCE, 1000).add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED)
    replay = replayed(ranks)
    assert replay.cluster_s == pytest.approx(4 + 2 * RING_S)
    assert waits(replay) == [{1: pytest.approx(4.0)}, {}]


# A server


def served(
    worker_s: Sequence[float], steps: int | Sequence[int], service_s: float = 0.5
) -> list[TraceBuilder]:
    """Workers that pull, compute and push; a server that was recorded serving them in turns."""
    size = len(worker_s) + 1
    counts = [steps] * len(worker_s) if isinstance(steps, int) else steps
    ranks = builders(size, "rpc")
    for step in range(max(counts)):
        for worker in range(1, size):
            if step < counts[worker - 1]:
                ranks[0].add(Kind.TAKE, 0, worker).add(Kind.RESPOND, 100, worker)
                ranks[0].add(Kind.TAKE, 100, worker).work(service_s).add(Kind.RESPOND, 0, worker)
                ranks[worker].add(Kind.REQUEST, 0, 0).work(worker_s[worker - 1])
                ranks[worker].add(Kind.REQUEST, 100, 0).add(Kind.STEP)
    for rank in ranks:
        rank.add(Kind.BARRIER)
    return ranks


def push_ends(replay: Replay, worker: int) -> list[float]:
    intervals = replay.ranks[worker].intervals
    return [each.end for each in intervals if each.name == "request" and each.bytes]


def test_one_worker_alternates_with_its_server() -> None:
    replay = replayed(served([2.0], steps=3), FREE)
    assert replay.cluster_s == pytest.approx(3 * 2.5)
    assert waits(replay) == [{1: pytest.approx(3 * 2.0)}, {0: pytest.approx(3 * 0.5)}]


def test_each_message_of_a_request_takes_its_time_and_its_software() -> None:
    # Pull: request, response of 100 bytes. Push: request of 100 bytes, response. Then the barrier, whose
    # messages are answered.
    expected = 2.5 + 4 * LATENCY_S + 2 * 0.1 + 2 * LATENCY_S
    assert replayed(served([2.0], steps=1)).cluster_s == pytest.approx(expected)
    software = {"request": [{"bytes": 0, "seconds": 0.0}, {"bytes": 200, "seconds": 2.0}]}
    slower = replayed(served([2.0], steps=1), software=software)
    assert slower.cluster_s == pytest.approx(expected + 2 * 1.0)  # 100 bytes in each request and its answer


def test_requests_are_taken_in_replayed_order_of_arrival() -> None:
    replay = replayed(served([1.0, 8.0], steps=2), FREE, intervals=True)
    # Worker 1 takes its two steps while worker 2 computes its first, though the recorded server took turns.
    assert push_ends(replay, 1) == pytest.approx([1.5, 3.0])
    assert push_ends(replay, 2) == pytest.approx([8.5, 17.0])
    busy = replayed(served([1.0, 1.0], steps=1), FREE)
    assert [rank.wait_s[0] for rank in busy.ranks[1:]] == pytest.approx([0.5 + 0.5, 1.0])


@pytest.mark.parametrize(
    ("steps", "max_staleness", "expected", "waited_s"),
    [
        (3, None, [1.5, 3.0, 4.5], 0.0),
        (3, 1, [1.5, 3.0, 8.5 + 1.5], 8.5 - 3),  # a third step only after the first push of the slow worker
        (3, 0, [1.5, 8.5 + 1.5, 17 + 1.5], 8.5 - 1.5 + 17 - 10),  # in lock step
        ([3, 1], 0, [1.5, 8.5 + 1.5, 8.5 + 3.0], 8.5 - 1.5),  # who has finished holds nobody up
    ],
)
def test_bounded_staleness_is_applied_again(
    steps: Any, max_staleness: int | None, expected: list[float], waited_s: float
) -> None:
    """One worker computes for 1 s a step, one for 8 s; each push takes 0.5 s."""
    replay = replayed(served([1.0, 8.0], steps), FREE, max_staleness=max_staleness, intervals=True)
    assert push_ends(replay, 1) == pytest.approx(expected)
    # The slow worker is charged with the pulls that it delays.
    pulls = [each for each in replay.ranks[1].intervals if each.name == "request" and each.cause == 2]
    assert sum(pull.wait_s for pull in pulls) == pytest.approx(waited_s)


# Traces that do not fit together

Build = Callable[[TraceBuilder, TraceBuilder], object]
ENDED = r"rank 0, record \d.*never ends: the trace of rank 1 has ended"
WRONG: dict[str, tuple[Build, str]] = {
    "absent collective": (
        lambda a, b: (a.add(Kind.BARRIER).add(Kind.ALL_REDUCE, 400), b.add(Kind.BARRIER)),
        r"rank 0, record 1 .*all_reduce.*rank 1 has ended",
    ),
    "different collectives": (
        lambda a, b: (a.add(Kind.ALL_REDUCE, 400), b.work(1.0).add(Kind.ALL_REDUCE, 800)),
        r"rank 1, record 1 .*800.*rank 0, record 0 .*400",
    ),
    "deadlock": (
        lambda a, b: (
            a.add(Kind.RECEIVE, 4, 1).add(Kind.SEND, 4, 1),
            b.add(Kind.RECEIVE, 4, 0).add(Kind.SEND, 4, 0),
        ),
        r"rank 0, record 0 .*rank 1, record 0",
    ),
    "receive alone": (lambda a, b: a.add(Kind.RECEIVE, 4, 1), ENDED),
    "send alone": (lambda a, b: a.send(1, 4, index=0), ENDED),
    "start alone": (lambda a, b: a.add(Kind.START_ALL_REDUCE, 4).add(Kind.WAIT_STARTED), ENDED),
    "request alone": (lambda a, b: a.add(Kind.REQUEST, 4, 1), ENDED),
    "server alone": (lambda a, b: a.add(Kind.TAKE, 4, 1).add(Kind.RESPOND, 0, 1), ENDED),
    "respond alone": (lambda a, b: a.add(Kind.RESPOND, 0, 1), r"rank 0, record 0 .*not taken"),
    "no answer": (lambda a, b: a.add(Kind.TAKE, 4, 1), "the request of rank 1 is not answered"),
    "no such peer": (lambda a, b: a.add(Kind.SEND, 4, 2), r"rank 0, record 0 .*no peer 2 of 2"),
    "no such phase": (lambda a, b: a.add(Kind.WORK, peer=3), r"rank 0, record 0 .*no phase 3 of 3"),
    "no such send": (lambda a, b: a.add(Kind.SEND_WAIT, 0, 1), r"rank 0, record 0 .*has not started"),
    "never started": (
        lambda a, b: a.add(Kind.START_ALL_REDUCE, 4),
        r"rank 0: 4 bytes .*rank 1 never starts",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_traces_that_do_not_fit_name_the_record(name: str) -> None:
    build, message = WRONG[name]
    ranks = builders(2)
    build(*ranks)
    with pytest.raises(ReplayError, match=message):
        simulate(traces(ranks), cluster_of(2))


def test_a_message_that_no_rank_receives_and_wrong_numbers_of_ranks_are_errors() -> None:
    ranks = builders(2, "mpi")
    ranks[0].add(Kind.SEND, 4, 1)
    with pytest.raises(ReplayError, match=r"rank 0, record 0 \(send.*never received"):
        simulate(traces(ranks), cluster_of(2))
    with pytest.raises(ReplayError, match="the cluster has 3 ranks, the run 2"):
        simulate(traces(builders(2)), cluster_of(3))
    with pytest.raises(ReplayError, match="rank 0: its trace is of rank 1 of 2"):
        simulate(traces(builders(2))[::-1], cluster_of(2))


# Laws

LAWS = settings(max_examples=40, deadline=None)
SECONDS = st.floats(0.0, 2.0)
TRANSPORT = st.sampled_from(["gloo", "mpi", "rpc"])
KINDS = st.sampled_from(
    [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.BROADCAST, Kind.BARRIER, Kind.GATHER, Kind.SHIFT]
)


@st.composite
def synchronous_programs(draw: st.DrawFn) -> list[TraceBuilder]:
    """Ranks that compute for different times and call the same collectives."""
    ranks = builders(draw(st.integers(1, 4)), draw(TRANSPORT))
    for kind in draw(st.lists(KINDS, max_size=6)):
        nbytes = draw(st.integers(1, 10_000))
        peer = 0 if kind in (Kind.GATHER, Kind.BROADCAST) else 1
        for rank in ranks:
            rank.work(draw(SECONDS)).add(kind, nbytes, peer)
    return [rank.work(draw(SECONDS)) for rank in ranks]


@st.composite
def exchanges(draw: st.DrawFn) -> list[TraceBuilder]:
    """Ranks that exchange messages, collectives of a group and requests, in one order that all follow."""
    transport = draw(TRANSPORT)
    ranks = [TraceBuilder(rank, 4, transport, groups=[[0, 1, 2]] if rank < 3 else []) for rank in range(4)]
    sends: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(0, 12))):
        for rank in ranks:
            rank.work(draw(SECONDS))
        kind = draw(st.sampled_from(["message", "beside", "group", "request"]))
        first, second = draw(st.permutations(range(4)))[:2]
        nbytes = draw(st.sampled_from([4, 1000, 100_000]))
        if kind == "message":
            ranks[first].add(Kind.SEND, nbytes, second)
            ranks[second].add(Kind.RECEIVE, nbytes, first)
            sends[first, second] = sends.get((first, second), 0) + 1
        elif kind == "request":
            ranks[first].add(Kind.REQUEST, nbytes, second)
            ranks[second].add(Kind.TAKE, nbytes, first).work(0.5).add(Kind.RESPOND, 4, first)
        elif kind == "group":
            for rank in ranks[:3]:
                rank.add(Kind.ALL_REDUCE, nbytes, group=1)
        else:
            for rank in ranks:
                rank.add(Kind.START_ALL_REDUCE, nbytes).work(0.25).add(Kind.WAIT_STARTED)
    for (first, second), count in sends.items():
        ranks[first].add(Kind.SEND_WAIT, count - 1, second)
    return ranks


@LAWS
@given(st.one_of(exchanges(), synchronous_programs()))
def test_programs_that_follow_one_order_end_and_do_so_again(ranks: list[TraceBuilder]) -> None:
    first = replayed(ranks, intervals=True)
    assert first == replayed(ranks, intervals=True)
    records = [trace.records.tolist() for trace in traces(ranks)]
    work = [sum(record[4] for record in own if record[0] == Kind.WORK) for own in records]
    assert [sum(rank.work_s) for rank in first.ranks] == pytest.approx(work)
    assert first.records == sum(map(len, records))


@LAWS
@given(synchronous_programs(), *[st.floats(1.0, 10.0)] * 3)
def test_a_faster_cluster_is_never_slower(
    ranks: list[TraceBuilder], nodes: float, bandwidth: float, latency: float
) -> None:
    faster = Link(latency_s=LATENCY_S / latency, bytes_per_s=BYTES_PER_S * bandwidth)
    base = replayed(ranks).cluster_s
    assert replayed(ranks, faster, node_speed=[nodes] * len(ranks)).cluster_s <= base * (1 + 1e-12)
    none, scaled = (
        replayed(ranks, FREE, node_speed=[each] * len(ranks)).cluster_s for each in (1.0, nodes)
    )
    assert scaled == pytest.approx(none / nodes, abs=1e-9)
