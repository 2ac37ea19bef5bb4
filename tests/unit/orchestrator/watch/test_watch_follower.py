"""Mistakes in what the page says: states, positions, which runs count, what is from before, time left, and
lines of logs that are incomplete, too many, too long or control a terminal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.results.store import SweepPaths, claimed, is_claimed
from orchestrator.sweeps.stages import Stages
from orchestrator.watch.live_run import BYTES, LINE_CHARACTERS, LINES
from tests.unit.watch_support import SweepInProgress, epoch, serial
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def sweep(tmp_path: Path) -> SweepInProgress:
    made = SweepInProgress(tmp_path, serial(3))
    made.begin()
    return made


def said(sweep: SweepInProgress) -> list[str]:
    """What the line of progress says beside the state."""
    return sweep.poll().progress.split(" · ")[1:]


def now(sweep: SweepInProgress) -> list[str]:
    """What the line on the run in progress says, without the time since its start."""
    return sweep.poll().now.split(" · ")[:-1]


def test_runs_of_a_sweep_from_start_to_end(sweep: SweepInProgress) -> None:
    first, second, third = sweep.runs
    before = sweep.poll()
    assert (before.state, before.log_of, said(sweep)) == ("running", "", ["0 of 3 runs ended"])
    sweep.start(first)
    assert (now(sweep), said(sweep)) == ([first.key, "starting"], ["0 of 3 runs ended"])
    sweep.end(first)
    assert sweep.poll().now == before.now  # no run is in progress
    assert said(sweep) == ["1 of 3 runs ended", "about 2 min left"]
    assert sweep.poll().done == pytest.approx(1 / 3)
    sweep.start(second)
    sweep.report(second, "epoch", **epoch(1, 0.5))
    assert said(sweep)[-1] == "about 1 min 40 s left"
    assert sweep.poll().done == pytest.approx(4 / 9)
    sweep.end(second, status="failed", cause="node 0: it broke", wall_s=30.0)
    sweep.start(third)
    sweep.end(third)
    ended = sweep.poll()
    assert (ended.state, said(sweep)) == ("running", ["3 of 3 runs ended", "1 not ok"])
    assert ended.now not in ("", before.now)
    sweep.active = False
    view = sweep.poll()
    assert (view.state, view.done, view.now) == ("ended", 1.0, "")


def test_time_left_of_a_sweep_in_stages_is_that_of_the_stage(tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(2), stages=Stages())
    sweep.begin()
    sweep.end(sweep.runs[0])
    assert said(sweep)[-1] == "at most about 1 min left of this stage"


def test_position_of_the_run_in_progress_is_that_of_its_slowest_rank(tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 3})
    sweep = SweepInProgress(tmp_path, [run])
    sweep.begin()
    paths = sweep.start(run)
    sweep.report(run, "epoch", **epoch(1, 0.5, 1.0))
    sweep.report(run, "epoch", 1, **epoch(2, 0.8, None))
    assert now(sweep) == [run.key, "epoch 1/3 done", "accuracy 50.0%"]
    assert sweep.poll().done == pytest.approx((1 / 3 + 2 / 3) / 2)
    sweep.report(run, "start", 1, pid=7, attempt=0)  # it starts again, and repeats its epochs
    assert now(sweep) == [run.key, "starting"]
    sweep.report(run, "epoch", 1, **{**epoch(9, 0.8), "epochs": 3})
    sweep.report(run, "epoch", 0, **{**epoch(9, 0.8), "epochs": 3})
    assert sweep.poll().done == 1.0  # events are not trusted
    shutil.rmtree(paths.live)  # the run has ended, and its result is not written yet
    assert sweep.poll().done == 1.0


def test_events_are_read_when_they_are_whole_and_where_warm_containers_write_them(
    sweep: SweepInProgress,
) -> None:
    run = sweep.runs[0]
    paths = sweep.start(run)
    paths.live.rmdir()
    assert now(sweep)[1] == "starting"
    live = paths.warm / "0123456789ab" / run.key
    live.mkdir(parents=True)
    sweep.report(run, "epoch", directory=live, **epoch(1, 0.5))
    file = live / "rank-0.jsonl"
    later = file.read_bytes().replace(b'"epoch": 1', b'"epoch": 2')
    append(file, later[:40])
    assert now(sweep)[1] == "epoch 1/3 done"
    append(file, later[40:])
    assert now(sweep)[1] == "epoch 2/3 done"


def test_a_result_is_read_once(sweep: SweepInProgress) -> None:
    sweep.end(sweep.runs[0])
    assert "1 not ok" not in said(sweep)
    result = sweep.paths.run(sweep.runs[0].key).result
    before = result.stat().st_mtime_ns
    result.write_text("no longer a result")
    os.utime(result, ns=(before, before))
    assert "1 not ok" not in said(sweep)
    os.utime(result)
    assert "1 not ok" in said(sweep)


def test_a_resumed_sweep_repeats_what_is_not_ok(sweep: SweepInProgress) -> None:
    first, second, third = sweep.runs
    sweep.end(first)
    sweep.end(second, status="timeout", cause="stopped after 9 s")
    sweep.start(third)
    sweep.active = False
    assert (sweep.poll().state, said(sweep)) == ("stopped", ["2 of 3 runs ended", "1 not ok"])
    sweep.active = True
    sweep.write(sweep.paths.lock, "")  # the command is given again
    assert sweep.poll().state == "starting"
    sweep.begin()
    # Runs of the earlier command do not say how long one takes now.
    assert said(sweep) == ["1 of 3 runs ended"]
    sweep.start(second)
    assert now(sweep)[0] == second.key
    sweep.end(second, status="failed", cause="it broke")
    sweep.write(sweep.paths.record, sweep.record.model_dump_json())  # the next stage begins
    assert said(sweep)[:2] == ["2 of 3 runs ended", "1 not ok"]


def test_the_report_is_dated_and_may_lack_runs(sweep: SweepInProgress) -> None:
    assert sweep.poll().report == ""
    sweep.end(sweep.runs[0])
    sweep.write(sweep.paths.html, "one run")
    first = sweep.poll()
    sweep.end(sweep.runs[1])
    lacking = sweep.poll()
    assert (lacking.report, lacking.written) == (first.report, f"{first.written}; 1 run ended since")
    sweep.write(sweep.paths.html, "two runs")
    assert sweep.poll().report not in ("", first.report)
    assert len(sweep.poll().written) == len(first.written)


def test_runs_that_are_not_below_the_directory_are_left_out(tmp_path: Path) -> None:
    keys = ["..", "../other", "/etc", ".", "a\x1bb", "", "fine"]
    sweep = SweepInProgress(tmp_path, serial(2), keys=keys)
    sweep.begin()
    assert said(sweep) == ["0 of 1 run ended"]
    assert sweep.follower.keys == ["fine"]


def test_a_claimed_directory_is_in_use_since_its_lock_was_taken(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "out")
    assert not is_claimed(paths)
    paths.directory.mkdir()
    paths.lock.touch()
    os.utime(paths.lock, (1, 1))
    assert not is_claimed(paths)
    with claimed(paths):
        assert is_claimed(paths)
        assert is_claimed(paths)
        assert paths.lock.stat().st_mtime > 1


# Logs


def append(log: Path, data: bytes) -> None:
    with open(log, "ab") as file:
        file.write(data)


@pytest.fixture
def log(sweep: SweepInProgress) -> Path:
    return sweep.start(sweep.runs[0]).log("node-0")


def test_lines_of_a_log_are_shown_as_text_in_one_line_each(sweep: SweepInProgress, log: Path) -> None:
    append(log, b"one\n\n\xff\xfe three\r\nfo")
    assert (sweep.poll().log_of, sweep.poll().log) == (
        f"{sweep.runs[0].key}/node-0.log",
        ["one", "", "\ufffd\ufffd three", "fo"],
    )
    append(log, "ur\n\x1b[31mred\x07 \u202ebackwards\x00\u2028\t<b>\n".encode())
    assert sweep.poll().log[-2:] == ["four", "\\x1b[31mred\\x07 \\u202ebackwards\\x00\\u2028\t<b>"]
    append(log, b"x" * (LINE_CHARACTERS + 1))
    assert LINE_CHARACTERS - 2 < len(sweep.poll().log[-1]) <= LINE_CHARACTERS


def test_of_a_long_log_the_end_is_shown(sweep: SweepInProgress, log: Path) -> None:
    append(log, b"".join(b"line %06d\n" % number for number in range(10_000)))
    assert sweep.poll().log == [f"line {number:06d}" for number in range(10_000 - LINES, 10_000)]
    wide = b"x" * (BYTES // 10)
    append(log, b"\n".join(20 * [wide]) + b"\nlast\n")
    *lines, last = sweep.poll().log
    assert (len(lines), len({*lines}), last) == (9, 1, "last")  # none begins within a line
    append(log, wide * 20)
    assert len(sweep.poll().log) == 1


def test_events_stand_in_for_the_log_of_containers(sweep: SweepInProgress, log: Path) -> None:
    run = sweep.runs[0]
    assert (sweep.poll().log_of.startswith(f"{run.key}, "), sweep.poll().log) == (True, [])
    sweep.report(run, "epoch", **epoch(1, 0.5))
    sweep.report(run, "failed", cause="broke", traceback="\n".join(["line\x1b"] * LINES))
    lines = sweep.poll().log
    assert (len(lines), lines[-1]) == (LINES, "rank 0 | line\\x1b")
    log.write_text("the log\n")
    assert sweep.poll().log == ["the log"]
