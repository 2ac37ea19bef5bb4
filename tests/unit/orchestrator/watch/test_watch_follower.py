"""What the page shows of a sweep, from files that the sweep is writing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths, claimed, is_claimed
from orchestrator.watch.follower import Follower
from orchestrator.watch.live_run import Point
from tests.unit.watch_support import SweepInProgress, epoch, serial
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def sweep(tmp_path: Path) -> SweepInProgress:
    made = SweepInProgress(tmp_path, serial(3))
    made.begin()
    return made


def states(sweep: SweepInProgress) -> list[str]:
    return [run.state for run in sweep.poll().runs.values()]


def test_runs_of_a_sweep_from_start_to_end(sweep: SweepInProgress) -> None:
    first, second, third = sweep.runs
    assert (sweep.poll().doing, states(sweep)) == ("preparing the first run", ["waiting"] * 3)
    sweep.start(first)
    assert states(sweep) == ["running", "waiting", "waiting"]
    sweep.end(first)
    assert (sweep.poll().doing, states(sweep)) == ("between two runs", ["ok", "waiting", "waiting"])
    sweep.start(second)
    sweep.end(second, status="failed", cause="node 0: it broke", log="node-0.log")
    view = sweep.poll()
    failed = view.runs[second.key]
    assert (failed.state, failed.cause, failed.log) == ("failed", "node 0: it broke", "node-0")
    sweep.start(third)
    sweep.end(third)
    assert (sweep.poll().state, sweep.poll().doing) == ("running", "writing the report")
    sweep.active = False
    view = sweep.poll()
    assert (view.state, view.done, view.elapsed_s) == ("ended", 1.0, 180.0)


def test_position_and_curves_of_the_run_in_progress(tmp_path: Path) -> None:
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 3})
    sweep = SweepInProgress(tmp_path, [run])
    sweep.begin()
    paths = sweep.start(run)
    assert sweep.poll().runs[run.key].epoch == "starting"
    sweep.report(run, "epoch", **epoch(1, 0.5, 1.0))
    assert [(at.epoch, at.accuracy) for at in points(sweep, run)] == [(1, 0.5)]
    sweep.report(run, "epoch", 1, **epoch(1, 0.7, 3.0))
    sweep.report(run, "epoch", 1, **epoch(2, 0.8, None))
    assert [(at.epoch, at.loss, round(at.accuracy, 3)) for at in points(sweep, run)] == [
        (1, 2.0, 0.6),
        (2, None, 0.8),
    ]
    view = sweep.poll()
    shown = view.runs[run.key]
    assert (shown.epoch, shown.loss, shown.accuracy) == ("1/3 done", "1.000", "50.0%")  # the slowest rank
    assert view.done == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert sweep.follower.epochs(run.key) == 3
    # A rank that is started again repeats its epochs.
    sweep.report(run, "start", 1, pid=7, attempt=0)
    assert [(at.epoch, at.loss) for at in points(sweep, run)] == [(1, 1.0)]
    shutil.rmtree(paths.live)  # the run has ended, and its result is not written yet
    assert [(at.epoch, at.loss) for at in points(sweep, run)] == [(1, 1.0)]


def points(sweep: SweepInProgress, run: RunSpec) -> list[Point]:
    sweep.poll()
    return [*sweep.follower.points(run.key)]


def test_a_half_written_event_is_read_when_it_is_whole(sweep: SweepInProgress) -> None:
    run = sweep.runs[0]
    sweep.start(run)
    sweep.report(run, "epoch", **epoch(1, 0.5))
    file = sweep.paths.run(run.key).live / "rank-0.jsonl"
    line = file.read_text()
    later = line.replace('"epoch": 1', '"epoch": 2')
    with open(file, "a") as half:
        half.write(later[:40])
        half.flush()
        assert len(points(sweep, run)) == 1
        half.write(later[40:])
    assert len(points(sweep, run)) == 2


def test_events_of_warm_containers_are_found(sweep: SweepInProgress) -> None:
    run = sweep.runs[0]
    paths = sweep.start(run)
    paths.live.rmdir()
    assert sweep.poll().runs[run.key].epoch == "starting"
    live = paths.warm / "0123456789ab" / run.key
    live.mkdir(parents=True)
    sweep.report(run, "epoch", directory=live, **epoch(1, 0.5))
    assert len(points(sweep, run)) == 1


def test_a_result_is_read_once(sweep: SweepInProgress) -> None:
    run = sweep.runs[0]
    sweep.end(run)
    assert states(sweep)[0] == "ok"
    result = sweep.paths.run(run.key).result
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
    view = sweep.poll()
    assert [run.state for run in view.runs.values()] == ["ok", "waiting", "waiting"]
    assert view.left == ""  # runs of the earlier command do not say how long one takes now
    sweep.start(second)
    assert states(sweep) == ["ok", "running", "waiting"]


def test_what_an_earlier_sweep_left_is_not_shown_before_this_one_begins(sweep: SweepInProgress) -> None:
    sweep.start(sweep.runs[0])
    now = sweep.paths.record.stat().st_mtime_ns + 10**9
    follower = Follower(sweep.paths, lambda: sweep.active, since_ns=now)
    assert (follower.poll().state, follower.poll().runs) == ("starting", {})
    sweep.active = False  # it failed before it began
    assert follower.poll().state == "stopped"


def test_time_left_counts_the_runs_that_wait(sweep: SweepInProgress) -> None:
    sweep.start(sweep.runs[0])
    assert sweep.poll().left == ""
    sweep.end(sweep.runs[0])
    assert sweep.poll().left == "about 2 min left"
    sweep.start(sweep.runs[1])
    sweep.report(sweep.runs[1], "epoch", **epoch(1, 0.5))
    assert sweep.poll().left == "about 1 min 40 s left"


def test_runs_are_in_the_order_of_their_execution(tmp_path: Path) -> None:
    runs = serial(3)
    order = [runs[2].key, runs[0].key, runs[1].key]
    sweep = SweepInProgress(tmp_path, runs, order=order)
    sweep.begin()
    assert [*sweep.poll().runs] == order
    older = SweepInProgress(tmp_path / "older", runs, order=[])
    older.begin()
    assert [*older.poll().runs] == [run.key for run in runs]


def test_keys_that_lead_out_of_the_directory_are_ignored(tmp_path: Path) -> None:
    keys = ["..", "../other", "/etc", ".", "a\x1bb", ""]
    sweep = SweepInProgress(tmp_path, serial(1), keys=[*keys, "fine"], order=[])
    sweep.begin()
    assert [*sweep.poll().runs] == ["fine"]


def test_a_directory_without_a_record(tmp_path: Path) -> None:
    active = SweepInProgress(tmp_path, serial(1))
    assert active.poll().state == "starting"
    active.paths.record.write_text("{")  # the sweep will replace it
    assert active.poll().state == "starting"
    active.active = False
    with pytest.raises(InputError, match=r"sweep\.json"):
        active.poll()


def test_a_claimed_directory_is_in_use(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "out")
    assert not is_claimed(paths)
    with claimed(paths):
        assert is_claimed(paths)
        assert is_claimed(paths)
    paths.directory.mkdir()
    paths.lock.touch()
    assert not is_claimed(paths)
    with claimed(paths):
        assert is_claimed(paths)
