"""Replay of traces against times computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
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
    options = {name: fields.pop(name) for name in ("max_staleness", "intervals") if name in fields}
    replay = simulate(traces(ranks), cluster_of(len(ranks), link, **fields), **options)  # type: ignore[arg-type]
    assert_laws(replay)
    return replay


def assert_laws(replay: Replay) -> None:
    """The phases of a rank add up to its end, and none is negative."""
    for rank in replay.ranks:
        phases = [*rank.work_s, rank.communicate_s, *rank.wait_s.values()]
        assert min(phases) >= -1e-12
        assert sum(phases) == pytest.approx(rank.end_s)
        assert rank.overlapped_s >= 0
        for interval, following in zip(rank.intervals, rank.intervals[1:], strict=False):
            assert interval.end <= following.start


def ends(replay: Replay) -> list[float]:
    return [rank.end_s for rank in replay.ranks]


# Work


def test_work_takes_cpu_time_over_speed() -> None:
    replay = replayed([TraceBuilder(0, 1).work(1.0).work(0.5, "data")], node_speed=[0.5])
    assert replay.cluster_s == 3.0
    assert replay.ranks[0].work_s == [1.0, 2.0, 0.0]


def test_one_shot_scales_perfectly() -> None:
    for size in (1, 2, 4):
        ranks = [rank.work(8 / size).add(Kind.ALL_REDUCE, 400) for rank in builders(size)]
        assert replayed(ranks, FREE).cluster_s == pytest.approx(8 / size)


def test_epochs_end_where_the_next_one_begins() -> None:
    ranks = builders(2)
    for rank, cpu_s in zip(ranks, (1.0, 2.0), strict=True):
        for epoch in (1, 2):
            rank.add(Kind.EPOCH, peer=epoch).work(cpu_s).add(Kind.STEP).add(Kind.BARRIER)
    replay = replayed(ranks, FREE)
    assert [rank.epoch_ends_s for rank in replay.ranks] == [{1: 2.0, 2: 4.0}] * 2


# Collectives


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_reduce_takes_the_time_of_the_ring(size: int) -> None:
    ranks = [rank.work(1.0).add(Kind.ALL_REDUCE, 600) for rank in builders(size)]
    ring = 2 * (size - 1) * (ASKED_S + 600 / size / BYTES_PER_S)
    replay = replayed(ranks)
    assert ends(replay) == pytest.approx([1 + ring] * size)
    assert [rank.communicate_s for rank in replay.ranks] == pytest.approx([ring] * size)


@pytest.mark.parametrize(("transport", "call_s"), [("gloo", 0.25), ("rpc", 0.25), ("mpi", 0.0)])
def test_calling_a_library_takes_cpu_time_unless_it_polls(transport: str, call_s: float) -> None:
    def run(cpu_s: float) -> Replay:
        return replayed(
            [rank.work(1.0).add(Kind.BARRIER, cpu_s=cpu_s) for rank in builders(2, transport)],
            node_speed=[1.0, 0.5],
        )

    before, after = run(0.0), run(0.25)
    # Half as fast a node takes twice as long for the call, and both leave later by as much.
    assert after.cluster_s - before.cluster_s == pytest.approx(2 * call_s)
    assert after.ranks[0].communicate_s - before.ranks[0].communicate_s == pytest.approx(call_s)


def test_recursive_doubling_by_choice() -> None:
    ranks = [rank.add(Kind.ALL_REDUCE, 600) for rank in builders(4)]
    choice = {"all_reduce": [Choice(algorithm="recursive_doubling")]}
    assert replayed(ranks, algorithms=choice).cluster_s == pytest.approx(2 * (ASKED_S + 0.6))


def test_a_straggler_is_charged_with_the_waiting() -> None:
    ranks = builders(3)
    for rank, cpu_s in zip(ranks, (1.0, 4.0, 2.0), strict=True):
        rank.work(cpu_s).add(Kind.BARRIER)
    replay = replayed(ranks, FREE)
    assert [rank.wait_s for rank in replay.ranks] == [{1: 3}, {}, {1: 2}]


def test_a_slow_node_is_a_straggler() -> None:
    ranks = [rank.work(1.0).add(Kind.BARRIER) for rank in builders(2)]
    replay = replayed(ranks, FREE, node_speed=[1.0, 0.25])
    assert replay.cluster_s == 4.0
    assert replay.ranks[0].wait_s == {1: 3.0}


@pytest.mark.parametrize(
    ("kind", "peer", "end_s"),
    [
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
    ranks = [rank.add(kind, 0 if kind is Kind.BARRIER else 400, peer) for rank in builders(2)]
    assert replayed(ranks).cluster_s == pytest.approx(end_s)


def test_groups_are_independent() -> None:
    ranks = [
        TraceBuilder(rank, 4, groups=[[0, 1] if rank < 2 else [2, 3]]).work(1.0 + rank) for rank in range(4)
    ]
    for rank in ranks:
        rank.add(Kind.BARRIER, group=1)
    assert ends(replayed(ranks, FREE)) == [2.0, 2.0, 4.0, 4.0]


# Point to point


@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
def test_a_message_takes_latency_and_transfer(transport: str) -> None:
    sender, receiver = builders(2, transport)
    sender.work(1.0).send(1, 500, index=0)
    receiver.add(Kind.RECEIVE, 500, 0)
    replay = replayed([sender, receiver])
    assert replay.ranks[1].end_s == pytest.approx(1 + LATENCY_S + 0.5)
    assert replay.ranks[1].wait_s[0] == pytest.approx(1.0)
    # Over rpc, the sender gets an answer.
    sent = 1 + 0.5 + (2 * LATENCY_S if transport == "rpc" else 0.0)
    assert replay.ranks[0].end_s == pytest.approx(sent)


def test_over_gloo_a_send_waits_for_its_receiver() -> None:
    sender, receiver = builders(2)
    sender.send(1, 500, index=0)
    receiver.work(3.0).add(Kind.RECEIVE, 500, 0)
    replay = replayed([sender, receiver])
    assert replay.ranks[0].wait_s[1] == pytest.approx(3.0)
    assert replay.ranks[0].end_s == pytest.approx(3 + LATENCY_S + 0.5)  # the receiver says that it is ready
    assert replay.ranks[1].end_s == pytest.approx(3 + 2 * LATENCY_S + 0.5)


def test_over_mpi_a_small_message_does_not_wait() -> None:
    sender, receiver = builders(2, "mpi")
    sender.send(1, 500, index=0)
    receiver.work(3.0).add(Kind.RECEIVE, 500, 0)
    assert ends(replayed([sender, receiver])) == pytest.approx([0.5, 3.0])


def test_messages_of_one_sender_share_its_port() -> None:
    ranks = builders(3, "mpi")
    ranks[0].add(Kind.SEND, 500, 1).add(Kind.SEND, 500, 2)
    ranks[1].add(Kind.RECEIVE, 500, 0)
    ranks[2].add(Kind.RECEIVE, 500, 0)
    assert ends(replayed(ranks))[1:] == pytest.approx([LATENCY_S + 0.5, LATENCY_S + 1.0])


def test_messages_to_one_receiver_share_its_port_in_order_of_time() -> None:
    ranks = builders(3, "mpi")
    ranks[0].add(Kind.RECEIVE, 500, 1).add(Kind.RECEIVE, 500, 2)
    ranks[1].work(0.25).add(Kind.SEND, 500, 0)
    ranks[2].add(Kind.SEND, 500, 0)
    replay = replayed(ranks)
    assert replay.ranks[0].end_s == pytest.approx(LATENCY_S + 1.0)


def test_a_message_on_its_way_does_not_delay_a_collective() -> None:
    ranks = [TraceBuilder(rank, 3, "mpi", groups=[[0, 1]] if rank < 2 else []) for rank in range(3)]
    ranks[2].add(Kind.SEND, 500, 0)
    for rank in ranks[:2]:
        rank.add(Kind.BARRIER, group=1)
    ranks[0].add(Kind.RECEIVE, 500, 2)
    replay = replayed(ranks)
    assert ends(replay) == pytest.approx([LATENCY_S + 0.5, LATENCY_S, 0.0])


def gpipe(stages: int, micro_batches: int) -> list[TraceBuilder]:
    """One step of GPipe with forward and backward passes of 1 s."""
    ranks = builders(stages)
    for rank, trace in enumerate(ranks):
        for _ in range(micro_batches):
            if rank > 0:
                trace.add(Kind.RECEIVE, 4, rank - 1)
            trace.work(1.0)
            if rank < stages - 1:
                trace.add(Kind.SEND, 4, rank + 1)
        for _ in range(micro_batches):
            if rank < stages - 1:
                trace.add(Kind.RECEIVE, 4, rank + 1)
            trace.work(1.0)
            if rank > 0:
                trace.add(Kind.SEND, 4, rank - 1)
        for each in range(micro_batches):
            if rank < stages - 1:
                trace.add(Kind.SEND_WAIT, each, rank + 1)
            if rank > 0:
                trace.add(Kind.SEND_WAIT, each, rank - 1)
    return ranks


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 4), (3, 4), (4, 8)])
def test_gpipe_has_the_bubble_of_its_formula(stages: int, micro_batches: int) -> None:
    replay = replayed(gpipe(stages, micro_batches), FREE)
    steps = micro_batches + stages - 1
    assert replay.cluster_s == pytest.approx(2 * steps)
    work = sum(sum(rank.work_s) for rank in replay.ranks)
    assert 1 - work / (stages * replay.cluster_s) == pytest.approx((stages - 1) / steps)


def test_a_request_follows_what_its_rank_sends_to_the_sender() -> None:
    first, second = builders(2)
    first.work(1.0).add(Kind.SEND, 500, 1).add(Kind.RECEIVE, 1000, 1).add(Kind.SEND_WAIT, 0, 1)
    second.add(Kind.SEND, 1000, 0).add(Kind.RECEIVE, 500, 0).add(Kind.SEND_WAIT, 0, 0)
    # Rank 1 asks at once. Rank 0 sends for 0.5 s, and its request for the other message comes behind.
    assert replayed([first, second]).cluster_s == pytest.approx(1.5 + LATENCY_S + LATENCY_S + 1.0)


# Beside the computation


def test_a_started_all_reduce_runs_beside_the_computation() -> None:
    ranks = builders(2)
    for rank in ranks:
        rank.work(1.0).add(Kind.START_ALL_REDUCE, 1000).work(1.0).add(Kind.WAIT_STARTED)
    replay = replayed(ranks)
    ring = 2 * (ASKED_S + 0.5)
    assert ends(replay) == pytest.approx([1 + ring] * 2)
    assert [rank.communicate_s for rank in replay.ranks] == pytest.approx([ring - 1] * 2)
    assert [rank.overlapped_s for rank in replay.ranks] == pytest.approx([1.0] * 2)


def test_a_hidden_all_reduce_costs_nothing() -> None:
    ranks = builders(2)
    for rank in ranks:
        rank.add(Kind.START_ALL_REDUCE, 1000).work(5.0).add(Kind.WAIT_STARTED)
    replay = replayed(ranks)
    assert ends(replay) == [5.0, 5.0]
    assert replay.ranks[0].overlapped_s == pytest.approx(2 * (ASKED_S + 0.5))


def test_started_all_reduces_run_one_after_the_other() -> None:
    ranks = builders(2)
    for rank in ranks:
        rank.add(Kind.START_ALL_REDUCE, 1000).add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED)
    assert replayed(ranks).cluster_s == pytest.approx(4 * (ASKED_S + 0.5))


def test_a_started_all_reduce_waits_for_the_last_rank_to_hand_it_over() -> None:
    ranks = builders(2)
    ranks[0].add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED)
    ranks[1].work(4.0).add(Kind.START_ALL_REDUCE, 1000).add(Kind.WAIT_STARTED)
    replay = replayed(ranks)
    assert replay.cluster_s == pytest.approx(4 + 2 * (ASKED_S + 0.5))
    assert replay.ranks[0].wait_s == {1: pytest.approx(4.0)}


# A server


def served(worker_s: Sequence[float], steps: int, service_s: float = 0.5) -> list[TraceBuilder]:
    """Workers that pull, compute and push; a server that was recorded serving them in turns."""
    size = len(worker_s) + 1
    ranks = builders(size, "rpc")
    for _ in range(steps):
        for worker in range(1, size):
            ranks[0].add(Kind.TAKE, 0, worker).add(Kind.RESPOND, 100, worker)
            ranks[0].add(Kind.TAKE, 100, worker).work(service_s).add(Kind.RESPOND, 0, worker)
            ranks[worker].add(Kind.REQUEST, 0, 0).work(worker_s[worker - 1])
            ranks[worker].add(Kind.REQUEST, 100, 0).add(Kind.STEP)
        ranks[0].add(Kind.STEP)
    for rank in ranks:
        rank.add(Kind.BARRIER)
    return ranks


def test_one_worker_alternates_with_its_server() -> None:
    replay = replayed(served([2.0], steps=3), FREE)
    assert replay.cluster_s == pytest.approx(3 * 2.5)
    assert replay.ranks[0].wait_s[1] == pytest.approx(3 * 2.0)
    assert replay.ranks[1].wait_s[0] == pytest.approx(3 * 0.5)


def test_each_message_of_a_request_takes_its_time() -> None:
    replay = replayed(served([2.0], steps=1))
    # Pull: request, response of 100 bytes. Push: request of 100 bytes, response. Then the barrier.
    assert replay.cluster_s == pytest.approx(2.5 + 4 * LATENCY_S + 2 * 0.1 + barrier_s())


def barrier_s() -> float:
    return 2 * LATENCY_S  # over rpc, the way and the answer


def test_requests_are_taken_in_replayed_order_of_arrival() -> None:
    replay = replayed(served([1.0, 8.0], steps=2), FREE, intervals=True)
    # Worker 1 takes its two steps while worker 2 computes its first, though the recorded server took turns.
    assert push_ends(replay, 1) == pytest.approx([1.5, 3.0])
    assert push_ends(replay, 2) == pytest.approx([8.5, 17.0])


def push_ends(replay: Replay, worker: int) -> list[float]:
    intervals = replay.ranks[worker].intervals
    return [each.end for each in intervals if each.name == "request" and each.bytes]


def test_a_busy_server_delays_the_second_worker() -> None:
    replay = replayed(served([1.0, 1.0], steps=1, service_s=0.5), FREE)
    assert replay.cluster_s == pytest.approx(2.0)
    assert [rank.wait_s[0] for rank in replay.ranks[1:]] == pytest.approx([0.5 + 0.5, 1.0])


@pytest.mark.parametrize(
    ("max_staleness", "expected", "waited_s"),
    [
        (None, [1.5, 3.0, 4.5], 0.0),
        (1, [1.5, 3.0, 8.5 + 1.5], 8.5 - 3),  # a third step only after the first push of the slow worker
        (0, [1.5, 8.5 + 1.5, 17 + 1.5], 8.5 - 1.5 + 17 - 10),  # in lock step
    ],
)
def test_bounded_staleness_is_applied_again(
    max_staleness: int | None, expected: list[float], waited_s: float
) -> None:
    """One worker computes for 1 s a step, one for 8 s; each push takes 0.5 s."""
    replay = replayed(served([1.0, 8.0], steps=3), FREE, max_staleness=max_staleness, intervals=True)
    assert push_ends(replay, 1) == pytest.approx(expected)
    # The slow worker is charged with the pulls that it delays.
    pulls = [each for each in replay.ranks[1].intervals if each.name == "request" and each.cause == 2]
    assert sum(pull.wait_s for pull in pulls) == pytest.approx(waited_s)


# Traces that do not fit together


def test_a_missing_collective_names_the_rank_whose_trace_has_ended() -> None:
    ranks = builders(2)
    ranks[0].add(Kind.BARRIER).add(Kind.ALL_REDUCE, 400)
    ranks[1].add(Kind.BARRIER)
    with pytest.raises(ReplayError, match=r"rank 0, record 1 .*all_reduce.*rank 1 has ended"):
        simulate(traces(ranks), cluster_of(2))


def test_different_collectives_name_both_records() -> None:
    ranks = builders(2)
    ranks[0].add(Kind.ALL_REDUCE, 400)
    ranks[1].work(1.0).add(Kind.ALL_REDUCE, 800)
    with pytest.raises(ReplayError, match=r"rank 1, record 1 .*800.*rank 0, record 0 .*400"):
        simulate(traces(ranks), cluster_of(2))


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: a.add(Kind.RECEIVE, 4, 1),
        lambda a, b: a.send(1, 4, index=0),
        lambda a, b: a.add(Kind.START_ALL_REDUCE, 4).add(Kind.WAIT_STARTED),
        lambda a, b: a.add(Kind.REQUEST, 4, 1),
        lambda a, b: a.add(Kind.TAKE, 4, 1).add(Kind.RESPOND, 0, 1),
    ],
)
def test_an_exchange_without_its_counterpart_names_the_record(build) -> None:  # type: ignore[no-untyped-def]
    ranks = builders(2)
    build(*ranks)
    with pytest.raises(ReplayError, match=r"rank 0, record \d.*never ends: the trace of rank 1 has ended"):
        simulate(traces(ranks), cluster_of(2))


def test_a_deadlock_ends_in_an_error() -> None:
    ranks = builders(2)
    ranks[0].add(Kind.RECEIVE, 4, 1).add(Kind.SEND, 4, 1)
    ranks[1].add(Kind.RECEIVE, 4, 0).add(Kind.SEND, 4, 0)
    with pytest.raises(ReplayError, match=r"rank 0, record 0 .*rank 1, record 0"):
        simulate(traces(ranks), cluster_of(2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a: a.add(Kind.RESPOND, 0, 1), "rank 0, record 0 .*not taken"),
        (lambda a: a.add(Kind.SEND, 4, 7), "rank 0, record 0 .*no peer 7 of 2"),
        (lambda a: a.add(Kind.SEND_WAIT, 0, 1), "rank 0, record 0 .*has not started"),
        (lambda a: a.add(Kind.WORK, peer=9), "rank 0, record 0 .*no phase 9 of 3"),
        (lambda a: a.add(Kind.TAKE, 4, 1), "the request of rank 1 is not answered"),
    ],
)
def test_an_impossible_record_is_named(build, message: str) -> None:  # type: ignore[no-untyped-def]
    ranks = builders(2)
    build(ranks[0])
    with pytest.raises(ReplayError, match=message):
        simulate(traces(ranks), cluster_of(2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a: a.add(Kind.SEND, 4, 1), r"rank 0, record 0 \(send.*never received"),
        (lambda a: a.add(Kind.START_ALL_REDUCE, 4), "rank 0: 4 bytes .*rank 1 never starts"),
    ],
)
def test_what_no_rank_takes_is_an_error(build, message: str) -> None:  # type: ignore[no-untyped-def]
    ranks = builders(2, "mpi")
    build(ranks[0])
    with pytest.raises(ReplayError, match=message):
        simulate(traces(ranks), cluster_of(2))


def test_the_cluster_must_have_as_many_ranks_as_the_run() -> None:
    with pytest.raises(ReplayError, match="the cluster has 3 ranks, the run 2"):
        simulate(traces(builders(2)), cluster_of(3))


# Laws

# Each example takes milliseconds, and longer where other processes use the cores.
LAWS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = st.floats(0.0, 2.0)
KINDS = st.sampled_from(
    [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.BROADCAST, Kind.BARRIER, Kind.GATHER, Kind.SHIFT]
)


@st.composite
def synchronous_programs(draw: st.DrawFn) -> list[TraceBuilder]:
    """Ranks that compute for different times and call the same collectives."""
    ranks = builders(draw(st.integers(1, 4)), draw(st.sampled_from(["gloo", "mpi", "rpc"])))
    for kind in draw(st.lists(KINDS, max_size=6)):
        nbytes = draw(st.integers(1, 10_000))
        peer = 0 if kind in (Kind.GATHER, Kind.BROADCAST) else 1
        for rank in ranks:
            rank.work(draw(SECONDS)).add(kind, nbytes, peer)
    for rank in ranks:
        rank.work(draw(SECONDS))
    return ranks


@LAWS
@given(synchronous_programs())
def test_phases_add_up_and_the_replay_is_deterministic(ranks: list[TraceBuilder]) -> None:
    first = replayed(ranks, intervals=True)
    assert first == replayed(ranks, intervals=True)


@st.composite
def exchanges(draw: st.DrawFn) -> list[TraceBuilder]:
    """Ranks that exchange messages, collectives of a group and requests, in one order that all follow."""
    transport = draw(st.sampled_from(["gloo", "mpi", "rpc"]))
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
        else:
            for rank in ranks[:3] if kind == "group" else ranks:
                if kind == "group":
                    rank.add(Kind.ALL_REDUCE, nbytes, group=1)
                else:
                    rank.add(Kind.START_ALL_REDUCE, nbytes).work(0.25).add(Kind.WAIT_STARTED)
    for (first, second), count in sends.items():
        ranks[first].add(Kind.SEND_WAIT, count - 1, second)
    return ranks


@LAWS
@given(exchanges())
def test_programs_that_follow_one_order_always_end(ranks: list[TraceBuilder]) -> None:
    first = replayed(ranks, intervals=True)
    assert first == replayed(ranks, intervals=True)
    work = [
        sum(record[4] for record in trace.records.tolist() if record[0] == 1) for trace in traces(ranks)
    ]
    assert [sum(rank.work_s) for rank in first.ranks] == pytest.approx(work)


@LAWS
@given(synchronous_programs(), st.floats(1.0, 10.0), st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_a_faster_cluster_is_never_slower(
    ranks: list[TraceBuilder], nodes: float, bandwidth: float, latency: float
) -> None:
    faster = Link(latency_s=LATENCY_S / latency, bytes_per_s=BYTES_PER_S * bandwidth)
    base = replayed(ranks).cluster_s
    assert replayed(ranks, faster, node_speed=[nodes] * len(ranks)).cluster_s <= base * (1 + 1e-12)


@LAWS
@given(synchronous_programs(), st.floats(0.1, 10.0))
def test_computing_scales_with_the_speed_of_nodes(ranks: list[TraceBuilder], speed: float) -> None:
    none = Link(latency_s=0.0, bytes_per_s=1e15)
    base = replayed(ranks, none)
    scaled = replayed(ranks, none, node_speed=[speed] * len(ranks))
    for rank, other in zip(base.ranks, scaled.ranks, strict=True):
        assert sum(other.work_s) == pytest.approx(sum(rank.work_s) / speed)
    assert scaled.cluster_s == pytest.approx(base.cluster_s / speed, abs=1e-9)
