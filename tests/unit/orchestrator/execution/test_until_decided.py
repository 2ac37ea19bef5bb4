"""A sweep that adds seeds in stages: what it executes, when it stops, and what it records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
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

NAMES = ("serial", "all_reduce", "ddp")
OPEN = Standing(False, {}, ("open",))


class Runner:
    """Executes nothing: every run takes a second."""

    def __init__(self) -> None:
        self.records: list[tuple[int, Stages]] = []
        self.executed: list[tuple[str, int]] = []

    def record(self, sweep: Sweep, stages: Stages) -> None:
        self.records.append((len(sweep.runs), stages))

    def results(self, sweep: Sweep, earlier: int) -> Iterator[RunResult]:
        for run in sweep.runs:
            name = run.name_of("strategy")
            self.executed.append((name, run.seed))
            yield a_run(name, nodes=run.nodes, seed=run.seed).model_copy(
                update={"wall_s": 1.0, "key": run.key}
            )

    def seeds(self, name: str) -> int:
        return len([seed for strategy, seed in self.executed if strategy == name])


class Progress:
    def note(self, text: str) -> None:
        assert text.startswith("after ")


def a_sweep(tmp_path: Path, *options: Any, **fields: Any) -> Sweep:
    file = tmp_path / "trial.yml"
    blocks = [{"base": {"strategy": name, **({} if name == "serial" else {"nodes": 2})}} for name in NAMES]
    content = {"name": "trial", "base": {"dataset": "digits", "epochs": 1}, "blocks": blocks, **fields}
    file.write_text(json.dumps(content))
    return load_sweep(file, until_decided=True, **dict(options))


def executed(sweep: Sweep, *standings: Standing) -> Runner:
    runner, judged = Runner(), iter(standings)
    list(results_until_decided(runner, sweep, Progress(), lambda: next(judged)))  # type: ignore[arg-type]
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


def test_a_budget_stops_it_once_it_has_five_seeds(tmp_path: Path) -> None:
    runner = executed(a_sweep(tmp_path, ("budget", "16s")), OPEN, OPEN)
    assert len(runner.executed) == 17  # the first over the budget
    count, stages = runner.records[-1]
    assert (count, stages.ended) == (17, "its budget was spent")
    assert len(executed(a_sweep(tmp_path, ("budget", "1s")), OPEN, OPEN).executed) == 16


def test_an_interrupted_sweep_records_what_was_executed(tmp_path: Path) -> None:
    runner = Runner()
    results = results_until_decided(runner, a_sweep(tmp_path), Progress(), lambda: OPEN)  # type: ignore[arg-type]
    next(results)
    results.close()
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
