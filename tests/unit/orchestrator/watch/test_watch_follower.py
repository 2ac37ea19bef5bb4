"""Mistakes in what the page shows: states, positions, which runs count, what is from before, and lines of
logs that come twice or never, control characters and links."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.results.store import SweepPaths, claimed, is_claimed
from orchestrator.watch.files import FIRST_BYTES, LINE_CHARACTERS, MOST_BYTES, LogPart, LogTail, log_names
from orchestrator.watch.follower import Follower
from tests.unit.watch_support import SweepInProgress, epoch, serial
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def sweep(tmp_path: Path) -> SweepInProgress:
    made = SweepInProgress(tmp_path, serial(3))
    made.begin()
    return made


def states(sweep: SweepInProgress) -> list[str]:
    return [run.state for run in sweep.poll().runs.values()]


def points(sweep: SweepInProgress, run: RunSpec) -> list[tuple[int, float | None, float]]:
    sweep.poll()
    return [(at.epoch, at.loss, round(at.accuracy, 3)) for at in sweep.follower.points(run.key)]


def test_runs_of_a_sweep_from_start_to_end(sweep: SweepInProgress) -> None:
    first, second, third = sweep.runs
    assert (sweep.poll().doing, states(sweep)) == ("preparing the first run", ["waiting"] * 3)
    sweep.start(first)
    assert (sweep.poll().left, states(sweep)) == ("", ["running", "waiting", "waiting"])
    sweep.end(first)
    assert (sweep.poll().doing, states(sweep)) == ("between two runs", ["ok", "waiting", "waiting"])
    assert (sweep.poll().left, sweep.poll().done) == ("about 2 min left", pytest.approx(1 / 3))
    sweep.start(second)
    sweep.report(second, "epoch", **epoch(1, 0.5))
    assert sweep.poll().left == "about 1 min 40 s left"
    sweep.end(second, status="failed", cause="node 0: it broke", log="node-0.log", wall_s=30.0)
    failed = sweep.poll().runs[second.key]
    assert (failed.state, failed.cause, failed.log) == ("failed", "node 0: it broke", "node-0")
    sweep.start(third)
    sweep.end(third)
    assert (sweep.poll().state, sweep.poll().doing) == ("running", "writing the report")
    sweep.active = False
    view = sweep.poll()
    assert (view.state, view.done, view.elapsed_s) == ("ended", 1.0, 150.0)


def test_position_and_curves_of_the_run_in_progress(tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 3})
    sweep = SweepInProgress(tmp_path, [run])
    sweep.begin()
    paths = sweep.start(run)
    assert sweep.poll().runs[run.key].epoch == "starting"
    sweep.report(run, "epoch", **epoch(1, 0.5, 1.0))
    assert points(sweep, run) == [(1, 1.0, 0.5)]
    sweep.report(run, "epoch", 1, **epoch(1, 0.7, 3.0))
    sweep.report(run, "epoch", 1, **epoch(2, 0.8, None))
    assert points(sweep, run) == [(1, 2.0, 0.6), (2, None, 0.8)]
    view = sweep.poll()
    shown = view.runs[run.key]
    assert (shown.epoch, shown.loss, shown.accuracy) == ("1/3 done", "1.000", "50.0%")  # the slowest rank
    assert view.done == pytest.approx((1 / 3 + 2 / 3) / 2)
    sweep.report(run, "start", 0, pid=7, attempt=0)  # it starts again, and repeats its epochs
    assert points(sweep, run) == [(1, 3.0, 0.7), (2, None, 0.8)]
    sweep.report(run, "epoch", **epoch(1, 0.5, 1.0))
    sweep.report(run, "start", 1, pid=8, attempt=0)
    assert points(sweep, run) == [(1, 1.0, 0.5)]
    shutil.rmtree(paths.live)  # the run has ended, and its result is not written yet
    assert len(points(sweep, run)) == 1


def test_events_are_read_when_they_are_whole_and_where_warm_containers_write_them(
    sweep: SweepInProgress,
) -> None:
    run = sweep.runs[0]
    paths = sweep.start(run)
    paths.live.rmdir()
    assert sweep.poll().runs[run.key].epoch == "starting"
    live = paths.warm / "0123456789ab" / run.key
    live.mkdir(parents=True)
    sweep.report(run, "epoch", directory=live, **epoch(1, 0.5))
    file = live / "rank-0.jsonl"
    later = file.read_bytes().replace(b'"epoch": 1', b'"epoch": 2')
    append(file, later[:40])
    assert len(points(sweep, run)) == 1
    append(file, later[40:])
    assert len(points(sweep, run)) == 2


def test_a_result_is_read_once(sweep: SweepInProgress) -> None:
    sweep.end(sweep.runs[0])
    assert states(sweep)[0] == "ok"
    result = sweep.paths.run(sweep.runs[0].key).result
    before = result.stat().st_mtime_ns
    result.write_text("no longer a result")
    os.utime(result, ns=(before, before))
    assert states(sweep)[0] == "ok"
    os.utime(result)
    assert states(sweep)[0] == "unusable"


def test_a_resumed_sweep_repeats_what_is_not_ok(sweep: SweepInProgress) -> None:
    first, second, third = sweep.runs
    sweep.end(first)
    sweep.end(second, status="timeout", cause="stopped after 9 s")
    sweep.start(third)
    sweep.active = False
    assert (sweep.poll().state, states(sweep)) == ("stopped", ["ok", "timeout", "interrupted"])
    sweep.active = True
    sweep.begin()  # the command is given again
    # Runs of the earlier command do not say how long one takes now.
    assert (states(sweep), sweep.poll().left) == (["ok", "waiting", "waiting"], "")
    sweep.start(second)
    assert states(sweep) == ["ok", "running", "waiting"]


def test_what_an_earlier_sweep_left_is_not_shown_before_this_one_begins(sweep: SweepInProgress) -> None:
    sweep.start(sweep.runs[0])
    now = sweep.paths.record.stat().st_mtime_ns + 10**9
    follower = Follower(sweep.paths, lambda: sweep.active, since_ns=now)
    assert (follower.poll().state, follower.poll().runs) == ("starting", {})
    sweep.active = False  # it failed before it began
    assert follower.poll().state == "stopped"


def test_runs_are_in_the_order_of_their_execution_and_below_the_directory(tmp_path: Path) -> None:
    first, second = (run.key for run in serial(2))
    for number, (record, shown) in enumerate(
        (
            ({"order": [second, first]}, [second, first]),
            ({"order": []}, [first, second]),  # of an older version
            ({"order": [], "keys": ["..", "../other", "/etc", ".", "a\x1bb", "", "fine"]}, ["fine"]),
        )
    ):
        sweep = SweepInProgress(tmp_path / str(number), serial(2), **record)
        sweep.begin()
        assert [*sweep.poll().runs] == shown


def test_a_claimed_directory_is_in_use(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "out")
    assert not is_claimed(paths)
    with claimed(paths):
        assert is_claimed(paths)
        assert is_claimed(paths)
    paths.directory.mkdir()
    paths.lock.touch()
    assert not is_claimed(paths)


# Logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "node-0.log"


def append(log: Path, data: bytes) -> None:
    with open(log, "ab") as file:
        file.write(data)


def test_lines_come_once_and_whole(log: Path) -> None:
    append(log, b"one\ntw")
    tail = LogTail(log.parent, log.name)
    assert tail.new() == LogPart(["one"], restarted=True)
    assert tail.new() == LogPart([], restarted=False)
    append(log, b"o\n\xff\xfe three\r\nfo")
    assert tail.new().lines == ["two", "\ufffd\ufffd three"]
    assert tail.new(complete=True) == LogPart(["fo"], restarted=False)
    assert tail.new(complete=True) == LogPart([], restarted=False)
    with open(log, "r+b") as file:
        file.write(b"ONE")  # what was read is not read again
    append(log, "\x1b[31mred\x07 \u202ebackwards\x00\t<b>\n".encode())
    assert tail.new().lines == ["\\x1b[31mred\\x07 \\u202ebackwards\\x00\t<b>"]
    append(log, b"x" * (LINE_CHARACTERS + 1))
    assert tail.new().lines == ["x" * LINE_CHARACTERS + " … 1 more characters"]
    append(log, b"rest\n")
    assert tail.new().lines == ["rest"]


def test_a_log_that_is_replaced_or_truncated_starts_again(log: Path) -> None:
    tail = LogTail(log.parent, log.name)
    (missing,) = tail.new().lines
    assert "node-0.log cannot be read" in missing
    assert tail.new() == LogPart([], restarted=False)  # said once
    log.write_bytes(b"one\ntwo\n")
    assert tail.new() == LogPart(["one", "two"], restarted=True)
    other = log.with_name("other")
    other.write_bytes(b"a new file\nof the same run\n")
    other.replace(log)
    assert tail.new() == LogPart(["a new file", "of the same run"], restarted=True)
    log.write_bytes(b"short\n")
    assert tail.new() == LogPart(["short"], restarted=True)


def test_of_a_long_log_the_end_is_shown(log: Path) -> None:
    append(log, b"".join(b"line %06d\n" % number for number in range(10_000)))
    tail = LogTail(log.parent, log.name)
    begin, whole, *others = tail.new().lines
    assert (begin[0], whole[:5], others[-1]) == ("…", "line ", "line 009999")
    assert FIRST_BYTES / 12 - 4 <= len(others) <= FIRST_BYTES / 12
    append(log, b"flood\n" * MOST_BYTES + b"last\n")
    more = tail.new()
    assert (more.restarted, more.lines[0][0], more.lines[-1]) == (False, "…", "last")
    assert len(more.lines) < MOST_BYTES / 6


def test_names_of_logs(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for name in ("node-10.log", "node-2.log", "launcher.log", "compose.log", "a\x1bb.log", "result.json"):
        (directory / name).touch()
    assert log_names(directory) == ["compose", "launcher", "node-2", "node-10"]
    (tmp_path / "link").symlink_to(directory)
    assert log_names(tmp_path / "link") == log_names(tmp_path / "absent") == []
