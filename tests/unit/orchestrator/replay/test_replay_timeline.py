"""Mistakes in timelines: units, clocks, straggler attribution, which steps are shown, files out of date."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

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
from trainer.time_model.outcome import Interval, Replay
from trainer.time_model.program import Entry
from trainer.time_model.simulate import simulate

LINK = Link(latency_s=0.001, bytes_per_s=1e6)


def a_cluster(ranks: int, **fields: Any) -> Cluster:
    return Cluster(node_speed=[1.0] * ranks, link=LINK, **fields)


def in_steps(ranks: list[TraceBuilder], epochs: int = 2, steps: int = 10, every: int = 1) -> None:
    """Rank r computes for (r + 1) / 1000 s per step; an all-reduce at the end of each step `every`."""
    for epoch in range(1, epochs + 1):
        for rank in ranks:
            rank.add(Kind.EPOCH, peer=epoch)
        for step in range(1, steps + 1):
            for number, rank in enumerate(ranks):
                rank.work(0.0001, "data").work((number + 1) / 1000)
                if step % every == 0:
                    rank.add(Kind.ALL_REDUCE, 1000, cpu_s=0.0002)
                rank.add(Kind.STEP)


def collectives() -> list[TraceBuilder]:
    ranks = builders(3)
    in_steps(ranks)
    return ranks


def beside_the_computation() -> list[TraceBuilder]:
    ranks = builders(2)
    for number, rank in enumerate(ranks):
        for _ in range(5):
            rank.work(0.01 * (number + 1)).add(Kind.START_ALL_REDUCE, 1000).work(0.0003)
            rank.add(Kind.WAIT_STARTED).add(Kind.STEP)
    return ranks


def a_pipeline_of_two() -> list[TraceBuilder]:
    first, second = builders(2)
    for step in range(5):
        first.work(0.01).send(1, 100_000, step).add(Kind.RECEIVE, 100, 1).add(Kind.STEP)
        second.add(Kind.RECEIVE, 100_000, 0).work(0.02).send(0, 100, step).add(Kind.STEP)
    return [first, second]


def a_server() -> list[TraceBuilder]:
    ranks = builders(3, "rpc")
    for _ in range(5):
        for worker in (1, 2):
            ranks[0].add(Kind.TAKE, 100, worker).work(0.002).add(Kind.RESPOND, 100, worker)
            ranks[worker].work(0.01).add(Kind.REQUEST, 100, 0).add(Kind.STEP)
        ranks[0].add(Kind.STEP)
    for rank in ranks:
        rank.add(Kind.BARRIER)
    return ranks


PROGRAMS = [collectives, beside_the_computation, a_pipeline_of_two, a_server]


def replayed(found: list[Trace], **fields: Any) -> Replay:
    return simulate(found, a_cluster(len(found), **fields), intervals=True)


def timeline_of(ranks: list[TraceBuilder], **fields: Any) -> tuple[dict[str, Any], Replay]:
    """The timeline as a reader of the file gets it. fields: of the cluster."""
    found = traces(ranks)
    replay, wall = replayed(found, **fields), recorded(found, one_clock=True)
    tracks = [rank.track for rank in replay.ranks]
    rank, steps = steps_of(found)
    windows = Windows(
        run="run",
        cluster=a_cluster(len(found)),
        steps=steps,
        wall=window_of(wall, rank, steps),
        replayed=window_of(tracks, rank, steps),
    )
    shown: dict[str, Any] = json.loads(json.dumps(timeline(wall, tracks, windows)))
    return shown, replay


# The format


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_timeline_has_the_trace_event_format(program: Callable[[], list[TraceBuilder]]) -> None:
    ranks = program()
    shown, _ = timeline_of(ranks)
    assert_trace_event_format(shown)
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in shown["traceEvents"]
        if each["name"] == "thread_name"
    }
    every = {
        (clock, FIRST_THREAD + number): f"rank {number}"
        for clock in (WALL, CLUSTER)
        for number in range(len(ranks))
    }
    assert names == every
    assert set(tracks_of(shown)) == set(every)
    clocks = [each["args"]["name"] for each in shown["traceEvents"] if each["name"] == "process_name"]
    assert clocks == ["wall time", "cluster time"]
    assert 0 not in {tid for _, tid in every}  # Perfetto takes it for an idle core


@pytest.mark.parametrize("kinds", [(), ("collective", "receive", "request")])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_cluster_time_of_a_timeline_adds_up_to_the_replay(
    program: Callable[[], list[TraceBuilder]], kinds: tuple[str, ...]
) -> None:
    software = {kind: [SoftwareCost(bytes=0, seconds=0.003)] for kind in kinds}
    shown, replay = timeline_of(program(), software=software)
    tracks = tracks_of(shown)
    for number, rank in enumerate(replay.ranks):
        events = tracks[CLUSTER, FIRST_THREAD + number]
        seconds = dict.fromkeys(("work", "communicate", "wait"), 0.0)
        for event in events:
            seconds[event["cat"]] += event["dur"] / 1e6
        rounding = 2e-9 * len(events)
        assert seconds["work"] == pytest.approx(sum(rank.work_s), abs=rounding)
        assert seconds["wait"] == pytest.approx(sum(rank.wait_s.values()), abs=rounding)
        assert seconds["communicate"] == pytest.approx(rank.communicate_s, abs=rounding)
        for cause, waited in rank.wait_s.items():
            named = [event["dur"] for event in events if event["name"] == f"wait for rank {cause}"]
            assert sum(named) / 1e6 == pytest.approx(waited, abs=rounding)
        assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(1e6 * rank.end_s, abs=0.01)


def test_times_that_binary_numbers_cannot_hold_do_not_overlap() -> None:
    rank = TraceBuilder(0, 1, "memory")
    for at in range(300):
        rank.work(1e-6 + 1e-9 * at).add(Kind.STEP)
    shown, _ = timeline_of([rank])
    assert_trace_event_format(shown)


def test_a_long_timeline_shows_its_start_its_window_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is in the middle epoch, which is late here: the first one has long steps."""
    monkeypatch.setattr(module, "MOST_INTERVALS", 100)
    rank = TraceBuilder(0, 1, "memory")
    for step_s, steps in ((0.1, 200), (0.001, 100), (0.001, 100)):
        rank.add(Kind.EPOCH, peer=1)
        for _ in range(steps):
            rank.work(step_s).add(Kind.STEP)
    shown, _ = timeline_of([rank])
    assert steps_of([rank.trace()])[1] == Steps(first=97, last=104, of=400, exchange=False)
    for events in tracks_of(shown).values():
        assert len(events) == 100
        assert events[0]["ts"] == 0
        assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(20.2e6, rel=1e-6)
        assert sum(9.5e6 < event["ts"] < 10.5e6 for event in events) >= MOST_STEPS
    assert shown["otherData"]["intervals_left_out"] == 2 * (400 - 100)


# Wall time


def at(*records: tuple[Kind, float, float, int, int]) -> list[Entry]:
    """Records from (kind, entered_s, left_s, peer, bytes)."""
    return [(kind, 0, peer, nbytes, 0.0, entered, left) for kind, entered, left, peer, nbytes in records]


def waits_of(
    *ranks: list[Entry], started_s: tuple[float, ...] = (), one_clock: bool = True
) -> list[list[tuple[int, float]]]:
    """(cause, seconds) of each exchange in which a rank waited, by rank."""
    found = []
    for number, (builder, records) in enumerate(zip(builders(len(ranks)), ranks, strict=True)):
        empty = builder.trace()
        array = empty.records.copy()
        array.resize(len(records))
        array[:] = records
        header = empty.header.model_copy(
            update={"count": len(records), "started_s": started_s[number] if started_s else 0.0}
        )
        found.append(Trace(header, array))
    tracks = recorded(found, one_clock)
    return [
        [(each.cause, round(each.wait_s, 6)) for each in track.intervals if each.wait_s] for track in tracks
    ]


SHIFTS = [at((Kind.SHIFT, start, 9.0, 1, 8)) for start in (1.0, 2.0, 4.0)]
WAITS: dict[str, tuple[list[list[Entry]], list[list[tuple[int, float]]]]] = {
    "a shift waits for its source": (SHIFTS, [[(2, 3.0)], [], []]),
    "messages wait for their peers": (
        [
            at(
                (Kind.SEND, 1.0, 1.0, 1, 8),
                (Kind.SEND_WAIT, 1.0, 3.0, 1, 0),
                (Kind.RECEIVE, 3.0, 6.0, 1, 8),
            ),
            at((Kind.RECEIVE, 2.5, 3.0, 0, 8), (Kind.SEND, 5.0, 5.5, 0, 8)),
        ],
        [[(1, 1.5), (1, 2.0)], []],
    ),
    "a request waits until the server answers": (
        [
            at((Kind.TAKE, 0.0, 2.0, 1, 8), (Kind.RESPOND, 5.0, 5.5, 1, 8)),
            at((Kind.REQUEST, 1.5, 6.0, 0, 8)),
        ],
        [[(1, 1.5)], [(0, 3.5)]],
    ),
    "what runs beside the computation waits for the last to hand it over": (
        [
            at((Kind.START_ALL_REDUCE, 1.0, 1.0, -1, 8), (Kind.WAIT_STARTED, 2.0, 6.0, -1, 0)),
            at((Kind.START_ALL_REDUCE, 5.0, 5.0, -1, 8), (Kind.WAIT_STARTED, 5.5, 6.0, -1, 0)),
        ],
        [[(1, 3.0)], []],
    ),
    "a wait ends with its exchange": (
        [at((Kind.BROADCAST, 1.0, 2.0, 0, 8)), at((Kind.BROADCAST, 5.0, 5.5, 0, 8))],
        [[(1, 1.0)], []],
    ),
}


@pytest.mark.parametrize("rule", WAITS)
def test_ranks_wait_for_their_counterparts_in_wall_time(rule: str) -> None:
    ranks, waits = WAITS[rule]
    assert waits_of(*ranks) == waits


def test_a_collective_waits_for_the_last_rank_where_clocks_agree() -> None:
    early, late = at((Kind.ALL_REDUCE, 1.0, 4.0, -1, 8)), at((Kind.ALL_REDUCE, 3.0, 4.0, -1, 8))
    assert waits_of(early, late) == [[(1, 2.0)], []]
    assert waits_of(early, late, one_clock=False) == [[], []]
    # The second rank started later, so that it entered when the first one left.
    assert waits_of(early, late, started_s=(5.0, 5.5)) == [[(1, 2.5)], []]
    traces_of_two = [
        builder.work(1.0).trace(started_s=start)
        for builder, start in zip(builders(2), (5.0, 7.0), strict=True)
    ]
    for one_clock, starts in ((True, [0.0, 2.0]), (False, [0.0, 0.0])):
        tracks = recorded(traces_of_two, one_clock)
        assert [track.intervals[0].start for track in tracks] == starts


def test_records_that_overlap_do_not_in_a_timeline() -> None:
    trace = TraceBuilder(0, 1, "memory").work(1.0).work(1.0).trace()
    trace.records["entered_s"][1] = 0.5
    [track] = recorded([trace], one_clock=True)
    assert track.intervals == [Interval("compute", 0.0, 1.0), Interval("compute", 1.0, 2.0)]


# Windows


def steps_shown(every: int = 1, **fields: Any) -> Steps | None:
    ranks = builders(2)
    in_steps(ranks, every=every, **fields)
    return steps_of(traces(ranks))[1]


def test_a_window_shows_steps_within_the_middle_epoch() -> None:
    shown = steps_shown(epochs=3, steps=20)
    assert shown == Steps(first=27, last=34, of=60, exchange=False)
    # Not across the end of an epoch, where ranks evaluate.
    assert steps_shown(epochs=2, steps=20) == Steps(first=7, last=14, of=40, exchange=False)
    assert steps_shown(epochs=5, steps=2) == Steps(first=5, last=6, of=10, exchange=False)
    assert steps_shown(epochs=1, steps=2) == Steps(first=1, last=2, of=2, exchange=False)
    assert steps_shown(epochs=1, steps=1) is None  # all of it is shown


def test_a_window_shows_an_exchange_where_most_steps_have_none() -> None:
    shown = steps_shown(epochs=1, steps=40, every=10)
    assert shown is not None
    assert (shown.last, shown.exchange) == (19, True)  # within the 20th step
    ranks = builders(2)
    in_steps(ranks, epochs=1, steps=40, every=10)
    track = recorded(traces(ranks[:1]), one_clock=False)[0]
    window = window_of([track], 0, shown)
    [exchange] = [part for part in window.ranks[0] if part.exchange]
    before, after = exchange.start_s - window.start_s, window.end_s - exchange.end_s
    assert before == pytest.approx(after)
    assert before > 0.002  # some steps on both sides


def test_the_steps_are_those_of_workers_and_not_of_a_server() -> None:
    rank, steps = steps_of(traces(a_server()))
    assert rank > 0
    assert steps is not None
    assert steps.of == 5


def test_a_window_holds_all_of_an_exchange_at_the_end_of_a_run() -> None:
    ranks = builders(2)
    in_steps(ranks, epochs=1, steps=20, every=99)
    for rank in ranks:
        rank.add(Kind.ALL_REDUCE, 100_000)
    found = traces(ranks)
    replay = replayed(found)
    tracks = [rank.track for rank in replay.ranks]
    rank, steps = steps_of(found)
    assert steps == Steps(first=18, last=20, of=20, exchange=True)
    window = window_of(tracks, rank, steps)
    assert window.end_s == pytest.approx(replay.cluster_s)
    [wait] = [part for part in window.ranks[0] if part.phase == "wait"]
    assert wait.end_s - wait.start_s == pytest.approx(replay.ranks[0].wait_s[1])
    assert window.start_s < wait.start_s
    assert window.ranks[0][0].phase in ("data", "compute")


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_parts_of_a_window_are_those_of_the_track(program: Callable[[], list[TraceBuilder]]) -> None:
    found = traces(program())
    tracks = [rank.track for rank in replayed(found).ranks]
    window = window_of(tracks, *steps_of(found))
    assert 0 <= window.start_s < window.end_s
    for track, parts in zip(tracks, window.ranks, strict=True):
        inside: dict[str, float] = {}
        for interval in track.intervals:
            for phase, start, end in pieces(interval):
                overlap = min(end, window.end_s) - max(start, window.start_s)
                inside[phase] = inside.get(phase, 0.0) + max(0.0, overlap)
        drawn = dict.fromkeys(inside, 0.0)
        for part in parts:
            drawn[part.phase] += part.end_s - part.start_s
        assert drawn == pytest.approx(inside)
        exchanged = [
            each
            for each in track.intervals
            if each.bytes and window.start_s <= each.end - 1e-9 and each.end <= window.end_s
        ]
        assert sum(part.bytes for part in parts) >= sum(each.bytes for each in exchanged)
        for one, other in pairwise(parts):
            assert one.end_s <= other.start_s
            alike = (one.phase, one.exchange, one.waits_for) == (
                other.phase,
                other.exchange,
                other.waits_for,
            )
            assert not alike or one.end_s < other.start_s
        assert {part.exchange for part in parts} <= {
            "" if interval.name in WORK_PHASES else interval.name for interval in track.intervals
        }


# Files


def a_recorded_run(directory: Path) -> tuple[RunPaths, RunResult, Cluster]:
    result = a_run("all_reduce", nodes=2, transport="gloo")
    ranks = builders(2, "gloo", run=result.key)
    in_steps(ranks)
    for rank, builder in enumerate(ranks):
        trace_path(directory, rank).write_bytes(encode_trace(builder.trace()))
    return RunPaths(directory), result, a_cluster(2)


def test_a_timeline_that_is_up_to_date_is_not_written_again(tmp_path: Path) -> None:
    paths, result, cluster = a_recorded_run(tmp_path)
    first = windows_of(paths, result, cluster)
    assert isinstance(first, Windows)
    assert_trace_event_format(json.loads(paths.timeline.read_text()))
    for rank in range(2):
        trace_path(tmp_path, rank).unlink()  # so that nothing can be replayed
    assert windows_of(paths, result, cluster) == first
    other = cluster.model_copy(update={"overhead_s": 0.1})
    assert isinstance(windows_of(paths, result, other), NoClusterTime)


@pytest.mark.parametrize(("limit", "value"), [("MAX_RECORDS", 3), ("MAX_RANKS", 1)])
def test_a_run_with_too_many_records_or_ranks_has_no_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    paths, result, cluster = a_recorded_run(tmp_path)
    monkeypatch.setattr(timeline_files, limit, value)
    assert isinstance(windows_of(paths, result, cluster), NoClusterTime)
    assert not paths.timeline.exists()


@pytest.mark.parametrize(
    "damage", ["timeline.json", "timeline.window.json", "content", "version", "model", "cluster"]
)
def test_a_timeline_that_is_not_up_to_date_is_written_again(tmp_path: Path, damage: str) -> None:
    paths, result, cluster = a_recorded_run(tmp_path)
    first = windows_of(paths, result, cluster)
    assert isinstance(first, Windows)
    good = paths.timeline.read_text()
    if damage == "content":
        paths.windows.write_text("{")
    elif damage in ("version", "model"):
        paths.windows.write_text(paths.windows.read_text().replace(f'"{damage}":1', f'"{damage}":0'))
    elif damage == "cluster":
        windows_of(paths, result, cluster.model_copy(update={"overhead_s": 0.1}))
        assert paths.timeline.read_text() != good
    else:
        (tmp_path / damage).unlink()
    assert windows_of(paths, result, cluster) == first
    assert paths.timeline.read_text() == good


def test_clocks_that_differ_are_not_compared(tmp_path: Path) -> None:
    paths, result, cluster = a_recorded_run(tmp_path)
    apart = replace(result.runtime_info, one_clock=False)
    windows_of(paths, result.model_copy(update={"runtime_info": apart}), cluster)
    events = json.loads(paths.timeline.read_text())["traceEvents"]
    waits = {event["pid"] for event in events if event.get("cat") == "wait"}
    assert waits == {CLUSTER}
