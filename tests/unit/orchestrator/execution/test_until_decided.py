"""Mistakes in a sweep that adds seeds in stages: what gets more seeds, its budget, what it records."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import InputError
from orchestrator.execution.order import execution_order
from orchestrator.execution.until_decided import results_until_decided
from orchestrator.report.findings.decide import Claims
from orchestrator.report.verdict import verdicts
from orchestrator.report.verdict.evidence import evidence
from orchestrator.report.verdict.standing import standing
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import Sweep, load_sweep
from orchestrator.sweeps.stages import DECIDED, Stages, Standing
from tests.unit.conftest import run_result
from tests.unit.report_support import a_comparison, around, repeated
from trainer.spec.run_spec import RunSpec

NAMES = ("serial", "all_reduce", "ddp")
OPEN = Standing(False, {}, ("open",))


class Runner:
    """Executes nothing: a run of a strategy takes so many seconds, one if not given.

    finished: keys of runs that an earlier sweep finished. records: how many runs were recorded, and how.
    """

    def __init__(self, finished: Sequence[str] = (), **seconds: float) -> None:
        self.records: list[tuple[int, Stages]] = []
        self.executed: list[tuple[str, int]] = []
        self._done, self._seconds = set(finished), seconds
        self._elapsed_s, self.display = 0.0, Mock()

    def record(self, sweep: Sweep, stages: Stages) -> None:
        self.records.append((len(sweep.runs), stages))

    def is_done(self, run: RunSpec) -> bool:
        return run.key in self._done

    def results(
        self, sweep: Sweep, earlier: int, may_start: Callable[[RunSpec], bool]
    ) -> Iterator[RunResult]:
        for run in execution_order(sweep.spec.name, [sweep.runs]):
            name = run.name_of("strategy")
            took = self._seconds.get(name, 1.0)
            if not self.is_done(run) and not may_start(run):
                continue
            if not self.is_done(run):
                self._elapsed_s += took
                self.executed.append((name, run.seed))
                self._done.add(run.key)
            yield run_result(key=run.key, wall_s=took)

    def start(self, sweep: Sweep, *standings: Standing) -> Generator[RunResult, None, None]:
        judged, end_s = iter(standings), self._elapsed_s + (sweep.budget_s or inf)
        left = lambda: end_s - self._elapsed_s  # noqa: E731
        return results_until_decided(self, sweep, self.display, lambda: next(judged), left)  # type: ignore[arg-type]

    def execute(self, sweep: Sweep, *standings: Standing) -> Runner:
        list(self.start(sweep, *standings))
        return self

    @property
    def seeds(self) -> list[int]:
        """How many seeds of each strategy were executed."""
        return [sum(name == executed for executed, _ in self.executed) for name in NAMES]


def a_sweep(tmp_path: Path, *options: Any, **fields: Any) -> Sweep:
    blocks = [{"base": {"strategy": name, "nodes": 1 if name == "serial" else 2}} for name in NAMES]
    content = {"name": "trial", "base": {"dataset": "digits", "epochs": 1}, "blocks": blocks, **fields}
    (tmp_path / "trial.yml").write_text(json.dumps(content))
    return load_sweep(tmp_path / "trial.yml", **{"until_decided": True, **dict(options)})


def without(sweep: Sweep, *names: str) -> Standing:
    keys = [run.key for run in sweep.runs if run.name_of("strategy") in names]
    return Standing(False, dict.fromkeys(keys, "hopeless"), ("open",), dict.fromkeys(keys, "its name"))


def test_seeds_are_added_in_stages_until_it_is_decided(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path)
    assert len(sweep.runs) == 3 * 20
    runner = Runner().execute(sweep, OPEN, without(sweep, "ddp"), Standing(True, {}, ()))
    assert runner.seeds == [12, 12, 8]
    notes = [call.args[0] for call in runner.display.note.call_args_list]
    dropped = "after 8 seeds: open\n  no more seeds for its name: hopeless"
    assert notes == ["after 5 seeds: open", dropped, f"after 12 seeds: {DECIDED}"]
    assert [seed for name, seed in runner.executed if name == "serial"] == [*range(12)]
    assert [count for count, _ in runner.records] == [15, 24, 32, 32]
    assert runner.records[-1][1].ended == DECIDED


def test_what_was_left_out_and_may_be_the_choice_gets_the_seeds_that_it_lacks(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, ("repeat", 9))
    runner = Runner().execute(sweep, without(sweep, "ddp"), OPEN, without(sweep, "all_reduce"))
    assert runner.seeds == [9, 9, 9]
    last = runner.records[-1][1]
    assert last.ended == "every configuration left has 9 seeds"
    assert list(last.dropped.values()) == ["hopeless"]


def test_a_sweep_ends_within_its_budget_but_for_one_seed_of_each(tmp_path: Path) -> None:
    """No other run starts after one that does not fit: what fits would favour fast configurations."""
    slow = {"ddp": 20.0, "serial": 9.0}
    for budget, seconds, executed in (("16s", {}, 16), ("1s", {}, 3), ("30s", slow, 3), ("31s", slow, 4)):
        runner = Runner(**seconds).execute(a_sweep(tmp_path, ("budget", budget)), OPEN, OPEN)
        assert min(runner.seeds) >= 1
        count, stages = runner.records[-1]
        assert (len(runner.executed), count, stages.out_of_budget) == (executed, executed, True)
        assert budget.replace("s", " s") in stages.ended


def test_configurations_whose_first_seeds_differ_have_one_seed_each(tmp_path: Path) -> None:
    blocks = [
        {"base": {"strategy": "serial"}, "axes": {"seed": [0, 1, 2]}},
        {"base": {"strategy": "ddp", "nodes": 2}, "axes": {"seed": [3, 4, 5]}},
    ]
    runner = Runner().execute(a_sweep(tmp_path, ("budget", "1s"), blocks=blocks))
    assert sorted(runner.executed) == [("ddp", 3), ("serial", 0)]


def test_a_budget_is_that_of_one_command_and_keeps_what_others_finished(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, ("budget", "4s"))
    finished = [run.key for run in sweep.runs if run.seed == 19]
    runner = Runner(finished)
    for command in (1, 2):
        runner.execute(sweep)
        assert (len(runner.executed), runner.records[-1][0]) == (4 * command, 4 * command + len(finished))


def test_an_interrupted_sweep_records_what_was_executed(tmp_path: Path) -> None:
    runner = Runner()
    results = runner.start(a_sweep(tmp_path), OPEN)
    next(results)
    results.close()
    count, stages = runner.records[-1]
    assert (count, stages.ended, stages.out_of_budget) == (1, "it was interrupted", False)


def test_a_budget_is_a_time_and_what_cannot_be_decided_is_refused(tmp_path: Path) -> None:
    budgets = [a_sweep(tmp_path, ("budget", budget)).budget_s for budget in ("90s", "10m", "2h")]
    assert budgets == [90, 600, 7200]
    for fields, options, message in (
        ({"budget": "10m"}, {}, "needs `until_decided: true`"),
        ({"until_decided": True, "budget": "10 minutes"}, {}, "budget: '10 minutes' is not a time such as"),
        ({}, {"budget": "0s"}, "--budget: '0s' is not a time"),
        ({}, {"budget": "10m", "until_decided": False}, "--budget 10m: needs --until-decided"),
        ({}, {"repeat": 4}, "needs at least 5 seeds"),
        ({"until_decided": True, "repeat": 4}, {"until_decided": None}, "until_decided: needs at least 5"),
        ({"base": {"target_accuracy": 0.9}}, {}, "has target_accuracy"),
        ({"lab": {"title": "x", "source": "y"}}, {}, "a lab cannot be run until it is decided"),
    ):
        with pytest.raises(InputError, match=message):
            a_sweep(tmp_path, *options.items(), **fields)


def a_race(seeds: int, **stages: Any) -> Any:
    """All-reduce is the fastest. Gossip, which is slower, has at most 3 seeds."""
    runs = [
        *repeated("serial", around(8, 0.05, seeds=seeds)),
        *repeated("all_reduce", around(4, 0.05, seeds=seeds), nodes=2),
        *repeated("gossip", around(6, 0.05, seeds=min(seeds, 3)), nodes=2),
    ]
    return a_comparison(*runs, stages=Stages(**{"ended": DECIDED, **stages}))


def test_what_has_no_chance_gets_no_more_seeds_but_serial_does_until_it_is_decided() -> None:
    comparison = a_race(3)
    found = standing(comparison)
    hopeless = {row.run.name_of("strategy") for row in comparison.rows if row.run.key in found.hopeless}
    assert (found.decided, hopeless, len(found.lines)) == (False, {"gossip"}, 1)
    assert {found.names[key] for key in found.hopeless} == {"gossip over mpi on 2 nodes"}
    assert [standing(a_race(seeds)).decided for seeds in (5, 8)] == [False, True]


def test_the_report_says_whether_the_budget_left_the_choice_undecided() -> None:
    ended = "its budget of 1 min left no time for another run"
    for seeds, undecided in ((1, True), (5, True), (8, False)):
        comparison = a_race(seeds, ended=ended, out_of_budget=True)
        (verdict,) = verdicts(comparison, Claims())
        assert ("stopped for its budget" in verdict.certainty) is undecided
        (line,) = [line for line in evidence(comparison, []) if line.topic == "Seeds"]
        assert (ended in line.text, line.ok) == (True, False)
