"""A sweep that adds seeds in stages: what it executes, when it stops, and what it records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.execution.order import execution_order
from orchestrator.execution.until_decided import results_until_decided
from orchestrator.report.findings.claims import Claims
from orchestrator.report.formats import JOIN
from orchestrator.report.verdict import verdicts
from orchestrator.report.verdict.evidence import evidence
from orchestrator.report.verdict.standing import standing
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import Sweep, load_sweep
from orchestrator.sweeps.stages import DECIDED, Stages, Standing
from tests.unit.report_support import a_comparison, a_run, around, repeated
from trainer.spec.run_spec import RunSpec

NAMES = ("serial", "all_reduce", "ddp")
OPEN = Standing(False, {}, ("open",))


class Runner:
    """Executes nothing: a run of a strategy takes so many seconds, one if not given.

    done: keys of runs that an earlier sweep finished.
    """

    def __init__(self, done: Sequence[str] = (), **seconds: float) -> None:
        self.records: list[tuple[int, Stages]] = []
        self.executed: list[tuple[str, int]] = []
        self._done, self._seconds = set(done), seconds
        self.elapsed_s = 0.0

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
            if not self.is_done(run):
                if not may_start(run):
                    continue
                self.elapsed_s += took
                self.executed.append((name, run.seed))
                self._done.add(run.key)
            yield a_run(name, nodes=run.nodes, seed=run.seed).model_copy(
                update={"wall_s": took, "key": run.key}
            )

    def seeds(self, name: str) -> int:
        return len([seed for strategy, seed in self.executed if strategy == name])


class Progress:
    def note(self, text: str) -> None:
        assert text


def a_sweep(tmp_path: Path, *options: Any, **fields: Any) -> Sweep:
    file = tmp_path / "trial.yml"
    blocks = [{"base": {"strategy": name, **({} if name == "serial" else {"nodes": 2})}} for name in NAMES]
    content = {"name": "trial", "base": {"dataset": "digits", "epochs": 1}, "blocks": blocks, **fields}
    file.write_text(json.dumps(content))
    return load_sweep(file, until_decided=True, **dict(options))


def executed(sweep: Sweep, *standings: Standing) -> Runner:
    return executed_by(Runner(), sweep, *standings)


def executed_by(runner: Runner, sweep: Sweep, *standings: Standing) -> Runner:
    judged = iter(standings)
    started_s = runner.elapsed_s
    left = lambda: (sweep.budget_s or inf) - (runner.elapsed_s - started_s)  # noqa: E731
    list(results_until_decided(runner, sweep, Progress(), lambda: next(judged), left))  # type: ignore[arg-type]
    return runner


def without(sweep: Sweep, *names: str) -> Standing:
    keys = [run.key for run in sweep.runs if run.name_of("strategy") in names]
    return Standing(False, dict.fromkeys(keys, "hopeless"), ("open",))


def test_seeds_are_added_in_stages_until_it_is_decided(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path)
    assert len(sweep.runs) == 3 * 20
    runner = executed(sweep, OPEN, without(sweep, "ddp"), Standing(True, {}, ()))
    assert [runner.seeds(name) for name in NAMES] == [8, 8, 5]
    assert [seed for name, seed in runner.executed if name == "serial"] == [*range(8)]
    assert [count for count, _ in runner.records] == [9, 15, 21, 21]
    assert runner.records[-1][1].ended == DECIDED


def test_what_was_left_out_and_may_be_the_choice_gets_the_seeds_that_it_lacks(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, ("repeat", 8))
    runner = executed(sweep, without(sweep, "ddp"), OPEN, without(sweep, "all_reduce"))
    assert [runner.seeds(name) for name in NAMES] == [8, 8, 8]
    last = runner.records[-1][1]
    assert last.ended == "every configuration left has 8 seeds"
    assert list(last.dropped.values()) == ["hopeless"]


def test_no_run_starts_that_the_budget_has_no_time_for(tmp_path: Path) -> None:
    runner = executed(a_sweep(tmp_path, ("budget", "16s")), OPEN, OPEN)
    assert len(runner.executed) == 16
    count, stages = runner.records[-1]
    assert (count, stages.out_of_budget) == (16, True)
    assert "16 s" in stages.ended


@pytest.mark.parametrize("budget", ["1s", "30s", "31s", "53s"])
def test_a_sweep_ends_within_its_budget_but_for_one_seed_of_each(tmp_path: Path, budget: str) -> None:
    runner = Runner(ddp=20.0, serial=9.0)
    sweep = a_sweep(tmp_path, ("budget", budget))
    executed_by(runner, sweep, OPEN)
    assert runner.elapsed_s <= max(30.0, float(budget[:-1]))
    assert min(map(runner.seeds, NAMES)) == 1
    assert runner.records[-1][1].out_of_budget


def test_configurations_whose_first_seeds_differ_have_one_seed_each(tmp_path: Path) -> None:
    blocks = [
        {"base": {"strategy": "serial"}, "axes": {"seed": [0, 1, 2]}},
        {"base": {"strategy": "ddp", "nodes": 2}, "axes": {"seed": [3, 4, 5]}},
    ]
    runner = executed(a_sweep(tmp_path, ("budget", "1s"), blocks=blocks))
    assert sorted(runner.executed) == [("ddp", 3), ("serial", 0)]


def test_a_budget_is_that_of_one_command_and_keeps_what_others_finished(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, ("budget", "4s"))
    finished = [run.key for run in sweep.runs if run.seed == 19]
    runner = executed_by(Runner(finished), sweep)
    assert (len(runner.executed), runner.records[-1][0]) == (4, 4 + len(finished))
    executed_by(runner, sweep)
    assert (len(runner.executed), runner.records[-1][0]) == (8, 8 + len(finished))


def test_an_interrupted_sweep_records_what_was_executed(tmp_path: Path) -> None:
    runner = Runner()
    results = results_until_decided(runner, a_sweep(tmp_path), Progress(), lambda: OPEN)  # type: ignore[arg-type]
    next(results)
    results.close()
    assert not runner.records[-1][1].out_of_budget
    assert [(count, stages.ended) for count, stages in runner.records][-1] == (1, "it was interrupted")


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"budget": "10m"}, {}, "needs `until_decided: true`"),
        ({"until_decided": True, "budget": "10 minutes"}, {}, "budget: '10 minutes' is not a time such as"),
        ({}, {"budget": "0s"}, "--budget: '0s' is not a time"),
        ({}, {"repeat": 2}, "needs at least 3 seeds"),
        ({"base": {"target_accuracy": 0.9}}, {}, "has target_accuracy"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        a_sweep(tmp_path, *options.items(), **fields)


def test_a_budget_needs_stages(tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text("{name: one, blocks: [{base: {strategy: serial}}]}")
    with pytest.raises(InputError, match="needs --until-decided"):
        load_sweep(tmp_path / "one.yml", budget="10m")


def staged(*runs: RunResult) -> Any:
    return a_comparison(*runs, stages=Stages(ended=DECIDED))


def a_race(seeds: int, slow_seeds: int) -> Sequence[RunResult]:
    return [
        *repeated("serial", around(8, 0.05, seeds=seeds)),
        *repeated("all_reduce", around(4, 0.05, seeds=seeds), nodes=2),
        *repeated("gossip", around(6, 0.05, seeds=slow_seeds), nodes=2),
    ]


def test_what_has_no_chance_gets_no_more_seeds_but_serial_does() -> None:
    runs = a_race(3, 3)
    found = standing(staged(*runs))
    assert not found.decided
    names = {run.run.name_of("strategy") for run in runs if run.key in found.hopeless}
    assert names == {"gossip"}
    assert len(found.lines) == 1


def test_it_is_decided_from_eight_seeds_on() -> None:
    assert standing(staged(*a_race(8, 3))).decided
    assert not standing(staged(*a_race(5, 3))).decided


def test_the_report_says_why_no_more_seeds_were_added_and_keeps_what_was_left_out() -> None:
    comparison = staged(*a_race(8, 3))
    (verdict,) = verdicts(comparison, Claims())
    assert [option.chance for option in verdict.options] == ["over 99%", "under 1%", "under 1%"]
    (line,) = [line for line in evidence(comparison, [], Claims()) if line.topic == "Seeds"]
    assert line.text.replace(JOIN, " ").startswith(
        "3 to 8 seeds per configuration, added until the choice was decided"
    )


def test_the_report_says_that_the_budget_left_the_choice_undecided() -> None:
    stages = Stages(ended="its budget of 1 min left no time for another run", out_of_budget=True)
    texts = {}
    for seeds in (1, 5, 8):
        comparison = a_comparison(*a_race(seeds, min(seeds, 3)), stages=stages)
        (verdict,) = verdicts(comparison, Claims())
        texts[seeds] = verdict.certainty
        (line,) = [line for line in evidence(comparison, [], Claims()) if line.topic == "Seeds"]
        assert stages.ended in line.text
        assert line.ok is False
    assert ["stopped for its budget" in texts[seeds] for seeds in (1, 5, 8)] == [True, True, False]
    assert "--budget" in texts[1]
