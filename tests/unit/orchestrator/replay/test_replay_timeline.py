"""Mistakes in timelines: units, clocks, straggler attribution, which steps are shown, files out of date."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, starmap
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator.replay import timeline as module
from orchestrator.replay import timeline_files
from orchestrator.replay.recorded import recorded
from orchestrator.replay.run import NoClusterTime
from orchestrator.replay.timeline import CLUSTER, FIRST_THREAD, WALL, timeline
from orchestrator.replay.timeline_files import windows_of
from orchestrator.replay.windows import MOST_STEPS, Steps, Windows, pieces, steps_of, window_of
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths
from tests.support.timelines import assert_trace_event_format, tracks_of
from tests.support.traces import TraceBuilder, builders, traces
from tests.unit.report_support import a_run
from trainer.core.trace import WORK_PHASES, Kind, Trace, encode_trace, trace_path
from trainer.time_model.cluster import Cluster, Link, SoftwareCost
from trainer.time_model.outcome import Replay
from trainer.time_model.simulate import simulate


def a_cluster(ranks: int, **fields: Any) -> Cluster:
    return Cluster(node_speed=[1.0] * ranks, link=Link(latency_s=0.001, bytes_per_s=1e6), **fields)


def in_steps(epochs: int = 2, steps: int = 10, every: int = 1, run: str = "run") -> list[TraceBuilder]:
    """Rank r of two computes for (r + 1) / 1000 s per step; an all-reduce in each step `every`, or last."""
    ranks = builders(2, run=run)
    for number, rank in enumerate(ranks):
        for epoch in range(1, epochs + 1):
            rank.add(Kind.EPOCH, peer=epoch)
            for step in range(1, steps + 1):
                rank.work(0.0001, "data").work((number + 1) / 1000)
                if step % every == 0:
                    rank.add(Kind.ALL_REDUCE, 1000, cpu_s=0.0002)
                rank.add(Kind.STEP)
        if every > steps:
            rank.add(Kind.ALL_REDUCE, 100_000)
    return ranks


def replayed(found: Sequence[Trace], **fields: Any) -> Replay:
    return simulate(found, a_cluster(len(found), **fields), intervals=True)


def timeline_of(found: Sequence[Trace], **fields: Any) -> tuple[dict[str, Any], Replay]:
    """The timeline as a reader of the file gets it. fields: of the cluster."""
    replay, wall = replayed(found, **fields), recorded(found, one_clock=True)
    tracks = [rank.track for rank in replay.ranks]
    windows = [window_of(each, *steps_of(found)) for each in (wall, tracks)]
    fields = {"run": "run", "cluster": a_cluster(len(found)), "steps": steps_of(found)[1]}
    both = Windows(wall=windows[0], replayed=windows[1], **fields)
    return json.loads(json.dumps(timeline(wall, tracks, both))), replay


@st.composite
def exchanges(draw: st.DrawFn) -> list[TraceBuilder]:
    """Ranks that exchange messages, collectives of a group and requests, in one order that all follow."""
    transport = draw(st.sampled_from(["gloo", "mpi", "rpc"]))
    ranks = [TraceBuilder(rank, 4, transport, groups=[[0, 1, 2]] if rank < 3 else []) for rank in range(4)]
    sends: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(0, 12))):
        for rank in ranks:
            rank.work(draw(st.floats(0.0, 2.0)))
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


@settings(max_examples=20, deadline=None)
@given(exchanges(), st.sampled_from([0.0, 0.003]))
def test_a_timeline_has_the_tracks_of_all_ranks_and_adds_up_to_the_replay(
    ranks: list[TraceBuilder], software_s: float
) -> None:
    cost = [SoftwareCost(bytes=0, seconds=software_s)]
    software = dict.fromkeys(("collective", "receive", "request"), cost)
    shown, replay = timeline_of(traces(ranks), software=software)
    assert_trace_event_format(shown)
    assert FIRST_THREAD > 0  # Perfetto takes thread 0 for an idle core
    names = [(each["pid"], each["tid"], each["args"]["name"]) for each in shown["traceEvents"][:10]]
    threads = [(FIRST_THREAD + number, f"rank {number}") for number in range(4)]
    clocks = ((WALL, "wall time"), (CLUSTER, "cluster time"))
    assert names == [(clock, *each) for clock, name in clocks for each in [(FIRST_THREAD, name), *threads]]
    for number, rank in enumerate(replay.ranks):
        events = tracks_of(shown).get((CLUSTER, FIRST_THREAD + number), [])
        expected = {"work": sum(rank.work_s), "communicate": rank.communicate_s}
        expected |= {f"wait for rank {cause}": waited for cause, waited in rank.wait_s.items()}
        seconds = dict.fromkeys(expected, 0.0)
        for event in events:
            seconds[event["name"] if event["cat"] == "wait" else event["cat"]] += event["dur"] / 1e6
        assert seconds == pytest.approx(expected, abs=2e-9 * (len(events) + 1))
        if events:
            assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(1e6 * rank.end_s, abs=0.01)


def test_a_long_timeline_shows_its_start_its_window_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is in the middle epoch, which is late here: the first one has long steps."""
    monkeypatch.setattr(module, "MOST_INTERVALS", 100)
    rank = TraceBuilder(0, 1, "memory")
    for step_s, steps in ((0.1, 200), (0.001, 100), (0.001, 100)):
        rank.add(Kind.EPOCH, peer=1)
        for _ in range(steps):
            rank.work(step_s).add(Kind.STEP)
    shown, _ = timeline_of([rank.trace()])
    for events in tracks_of(shown).values():
        assert len(events) == 100
        assert events[0]["ts"] == 0
        assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(20.2e6, rel=1e-6)
        assert sum(9.5e6 < event["ts"] < 10.5e6 for event in events) >= MOST_STEPS
    assert shown["otherData"]["intervals_left_out"] == 2 * (400 - 100)


Timed = tuple[Any, ...]  # kind, entry, exit, peer, number
Waits = list[list[tuple[int, float]]]


def waits_of(*ranks: list[Timed], started_s: Sequence[float] = (0, 0, 0), one_clock: bool = True) -> Waits:
    """(cause, seconds) of each exchange in which a rank waited, by rank."""
    found = []
    for builder, start, records in zip(builders(len(ranks)), started_s, ranks, strict=False):
        for kind, entered, left, peer, *number in records:
            builder.timed(kind, entered, left, *(number or [0]), peer)
        found.append(builder.trace(started_s=start))
    tracks = recorded(found, one_clock)
    return [[(each.cause, each.wait_s) for each in track.intervals if each.wait_s] for track in tracks]


def test_ranks_wait_for_their_counterparts_in_wall_time() -> None:
    early, late = [(Kind.ALL_REDUCE, 1.0, 4.0, -1)], [(Kind.ALL_REDUCE, 3.0, 4.0, -1)]
    assert waits_of(early, late) == [[(1, 2.0)], []]
    assert waits_of(early, late, one_clock=False) == [[], []]
    assert waits_of(early, late, started_s=(5.0, 5.5)) == [[(1, 2.5)], []]
    root, member = [(Kind.BROADCAST, 1.0, 2.0, 0)], [(Kind.BROADCAST, 5.0, 5.5, 0)]
    assert waits_of(root, member) == [[(1, 1.0)], []]  # a wait ends with its exchange
    shifts = [[(Kind.SHIFT, start, 9.0, 1)] for start in (1.0, 2.0, 4.0)]
    assert waits_of(*shifts) == [[(2, 3.0)], [], []]
    sends = [(Kind.SEND, 1.0, 1.0, 1), (Kind.SEND, 1.0, 1.0, 1), (Kind.SEND_WAIT, 1.0, 3.0, 1, 1)]
    receives = [(Kind.RECEIVE, 0.5, 1.0, 0), (Kind.RECEIVE, 2.5, 3.0, 0), (Kind.SEND, 5.0, 5.5, 0)]
    assert waits_of([*sends, (Kind.RECEIVE, 3.0, 6.0, 1)], receives) == [[(1, 1.5), (1, 2.0)], [(0, 0.5)]]
    server = [(Kind.TAKE, 0.0, 2.0, 1), (Kind.RESPOND, 5.0, 5.5, 1)]
    assert waits_of(server, [(Kind.REQUEST, 1.5, 6.0, 0)]) == [[(1, 1.5)], [(0, 3.5)]]
    started = [
        [(Kind.START_ALL_REDUCE, start, start, -1), (Kind.WAIT_STARTED, wait, 6.0, -1)]
        for start, wait in ((1.0, 2.0), (5.0, 5.5))
    ]
    assert waits_of(*started) == [[(1, 3.0)], []]


def test_tracks_begin_with_the_first_rank_and_records_that_overlap_follow_each_other() -> None:
    first, second = (builder.work(1.0).work(1.0) for builder in builders(2))
    pair = [first.trace(started_s=5.0), second.trace(started_s=7.0)]
    pair[0].records["entered_s"][1] = 0.5
    for one_clock, start in ((True, 2.0), (False, 0.0)):
        tracks = recorded(pair, one_clock)
        assert [each[1:3] for each in tracks[0].intervals] == [(0.0, 1.0), (1.0, 2.0)]
        assert tracks[1].intervals[0].start == start


@pytest.mark.parametrize(
    ("epochs", "steps", "every", "shown"),
    [
        (3, 20, 1, Steps(first=27, last=34, of=60, exchange=False)),  # of the middle epoch
        (2, 20, 1, Steps(first=7, last=14, of=40, exchange=False)),  # not across its end: ranks evaluate
        (5, 2, 1, Steps(first=5, last=6, of=10, exchange=False)),
        (1, 2, 1, Steps(first=1, last=2, of=2, exchange=False)),
        (1, 1, 1, None),  # all of it is shown
        (1, 40, 10, Steps(first=17, last=19, of=40, exchange=True)),  # within the 20th step
        (1, 20, 99, Steps(first=18, last=20, of=20, exchange=True)),  # at the end of the run
    ],
)
def test_a_window_shows_steps_of_the_middle_epoch_or_all_of_a_rare_exchange(
    epochs: int, steps: int, every: int, shown: Steps | None
) -> None:
    found = traces(in_steps(epochs, steps, every))
    rank, asked = steps_of(found)
    assert asked == shown
    if shown and shown.exchange:
        replay = replayed(found)
        window = window_of([each.track for each in replay.ranks], rank, shown)
        parts = [part for part in window.ranks[0] if part.exchange]
        [wait_s] = [part.end_s - part.start_s for part in parts if part.phase == "wait"]
        assert wait_s == pytest.approx(replay.ranks[0].wait_s[1] / max(1, steps // every), abs=0.001)
        before, after = parts[0].start_s - window.start_s, window.end_s - parts[-1].end_s
        assert before > 0.002  # some steps
        assert after == pytest.approx(min(before, replay.cluster_s - parts[-1].end_s), abs=0.002)


def test_the_steps_are_those_of_workers_and_not_of_a_server() -> None:
    server, worker = builders(2)
    for _ in range(5):
        server.add(Kind.TAKE, 100, 1).add(Kind.RESPOND, 100, 1).add(Kind.STEP).add(Kind.STEP)
        worker.add(Kind.REQUEST, 100, 0).add(Kind.STEP)
    assert steps_of(traces([server, worker])) == (1, Steps(first=1, last=5, of=5, exchange=False))


@settings(max_examples=25, deadline=None)
@given(exchanges(), st.data())
def test_the_parts_of_a_window_are_those_of_the_track(
    ranks: list[TraceBuilder], data: st.DataObject
) -> None:
    tracks = [rank.track for rank in replayed(traces(ranks)).ranks]
    ends = [each.end for each in tracks[0].intervals]
    assume(len(ends) > 1)
    tracks[0] = tracks[0]._replace(step_ends_s=ends)  # steps of one interval each
    first, last = sorted(data.draw(st.tuples(*[st.integers(1, len(ends))] * 2)))
    window = window_of(tracks, 0, Steps(first=first, last=last, of=len(ends), exchange=False))
    assert (window.start_s, window.end_s) == (tracks[0].intervals[first - 1].start, ends[last - 1])
    for track, parts in zip(tracks, window.ranks, strict=True):
        expected: Counter[object] = Counter()
        for each in track.intervals:
            name = "" if each.name in WORK_PHASES else each.name
            for phase, start, end in pieces(each):
                if (seconds := min(end, window.end_s) - max(start, window.start_s)) > 0:
                    cause = each.cause if phase == "wait" and each.cause >= 0 else None
                    expected[phase, name, cause] += seconds
                    expected["bytes"] += each.bytes if phase == "communicate" else 0
        drawn: Counter[object] = Counter()
        labels = [(part.phase, part.exchange, part.waits_for) for part in parts]
        for label, part in zip(labels, parts, strict=True):
            drawn[label] += part.end_s - part.start_s
            drawn["bytes"] += part.bytes
        assert drawn == pytest.approx(expected)
        for (one, other), same in zip(pairwise(parts), starmap(eq, pairwise(labels)), strict=True):
            assert one.end_s < other.start_s or (one.end_s == other.start_s and not same)


Run = tuple[RunPaths, RunResult, Cluster]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    result = a_run("all_reduce", nodes=2, transport="gloo")
    for rank, builder in enumerate(in_steps(run=result.key)):
        trace_path(tmp_path, rank).write_bytes(encode_trace(builder.trace()))
    return RunPaths(tmp_path), result, a_cluster(2)


def test_a_timeline_is_written_again_only_if_it_is_not_up_to_date(run: Run) -> None:
    paths, result, cluster = run
    first, good = windows_of(*run), paths.timeline.read_text()
    other = cluster.model_copy(update={"overhead_s": 0.1})

    def change(old: str, new: str) -> None:
        paths.windows.write_text(paths.windows.read_text().replace(old, new))

    damages: list[Callable[[], object]] = [
        paths.timeline.unlink,
        paths.windows.unlink,
        lambda: paths.windows.write_text("{"),
        lambda: change('"version":2', '"version":1'),
        lambda: change('"model":', '"model":9'),
        lambda: change(result.key, "other"),
        lambda: windows_of(paths, result, other),
    ]
    for damage in damages:
        damage()
        assert windows_of(*run) == first
        assert paths.timeline.read_text() == good
    for rank in range(2):
        trace_path(paths.directory, rank).unlink()  # so that nothing can be replayed
    assert windows_of(*run) == first
    assert isinstance(windows_of(paths, result, other), NoClusterTime)


def test_a_run_with_too_many_records_or_ranks_has_no_timeline(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in (("MAX_RECORDS", 3), ("MAX_RANKS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(timeline_files, limit, value)
            assert isinstance(windows_of(*run), NoClusterTime)
    assert not run[0].timeline.exists()


def test_clocks_that_differ_are_not_compared(run: Run) -> None:
    paths, result, cluster = run
    info = replace(result.runtime_info, one_clock=False)
    windows_of(paths, result.model_copy(update={"runtime_info": info}), cluster)
    events = json.loads(paths.timeline.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event.get("cat") == "wait"} == {CLUSTER}
