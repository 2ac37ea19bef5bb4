"""Mistakes in what commands print of what they have found: tests/golden/commands.yml, and commands.txt.

`make golden` renews the text. Review its diff: it shows the change that users see.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from orchestrator import cli
from orchestrator.commands import check, doctor, model, partitions, plan, predict, replay
from orchestrator.commands.sweep import text_console
from orchestrator.layouts.formula import Block, Sizes
from orchestrator.layouts.hardware import link_of, machine_of
from orchestrator.layouts.trials import Failed, Network, Trial
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.results.predictions import Predictions
from orchestrator.runtimes.finding import Finding
from tests.unit.conftest import PROJECT
from tests.unit.golden import GOLDEN, assert_reviewed
from tests.unit.orchestrator.commands.test_model_command import FOUR, NO_IMPORTS
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import PartitionSummary

GPT = RunSpec.model_validate(
    {
        "strategy": "serial",
        "model": {"name": "gpt", "layers": 2, "width": 16, "heads": 4},
        "dataset": {"name": "induction", "length": 15},
        "batch_size": 64,
        "batch_per": "run",
    }
)
FOUND = yaml.safe_load((GOLDEN / "commands.yml").read_text())


def shown(*lines: Any) -> str:
    console = text_console(file := io.StringIO())
    console.width = 80
    for line in lines:
        console.print(line, soft_wrap=False)
    return file.getvalue()


def planner_of_gpt() -> plan.Planner:
    sizes = Sizes([Block(*each) for each in FOUND["blocks"]], GPT.model.tensor_parallel_pairs, optimizer=2)
    asked = plan.Asked(
        GPT, 4, "gloo", link_of("1gbit"), Network(None, None), price_per_h=2.0, samples=10**6
    )
    return plan.Planner(asked, sizes, PROJECT, print)


def plans() -> Iterator[str]:
    """By formula; executed in part; run for real; with nothing that fits."""

    def tried(run: RunSpec) -> Trial | Failed:
        found = FOUND["trials"].get(run.name_of("strategy"))
        return Trial(run, *found) if found else Failed(run, "it is refused")

    planner = planner_of_gpt()
    yield shown(*plan.formula_lines(planner, 80))
    yield shown(*plan.executed_lines(planner, 80))
    planner.plan = planner.plan.executed(tried, lambda option, done: done < 6)
    yield shown(*plan.executed_lines(planner, 80))
    for times in ((1.0, 2.0), (3.0, 2.0)):
        real = [Trial(GPT, step_s, 0.0, 0.0, 0) for step_s in times]
        planner.plan = planner.plan.for_real(Mock(side_effect=[*real, Failed(GPT, "it broke")]), 3)
        yield shown(*plan.executed_lines(planner, 80))
    yield plan.record(planner).model_dump_json(indent=1)[:900]
    small = replace(planner.asked, memory_bytes=1e5, machine=machine_of("h100"))
    yield shown(*plan.formula_lines(plan.Planner(small, planner.sizes, PROJECT, print), 80))


def texts(patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    skewed = {"name": "dirichlet", "alpha": 0.123456789, "min_samples": 2}
    base = {"strategy": "one_shot", "nodes": 3, "partitioner": skewed}
    few, many = (
        RunSpec.model_validate(base | more) for more in ({}, {"nodes": 18, "partitioner": "shards"})
    )
    counts = np.array([[0, 1000, 7], [250, 0, 0], [1, 2, 3]])
    summary = PartitionSummary(counts, 0.75, 0.125, (0.5, 0.25, 0.0), (1.5, 0.5, 1.25))
    wide = PartitionSummary(np.arange(18 * 30).reshape(18, 30), 1.0, 0.0, (0.1,) * 18, (0.2,) * 18)
    previews = [partitions.PartitionPreview(*each) for each in ((few, summary), (many, wide))]
    previews.append(partitions.PartitionPreview(few, None, "there are " + "very " * 20 + "few samples"))
    yield from (partitions.tables(previews, width) for width in (80, 140))
    yield from (partitions.summary_csv(previews), partitions.labels_csv(previews[:1]))
    run = model.run_of("lenet", "digits", 10, NO_IMPORTS)
    flops = zip(FOUR, (999, 1000, 1e6, 12e9), strict=True)
    blocks = [replace(each, flops=number, saved_bytes=number + 5) for each, number in flops]
    yield "\n".join([model.heading(run), *model.block_lines(blocks)])
    yield "\n".join(model.split_lines(blocks, run, model.stage_counts(None, run), 60))
    yield from model.sections("lenet", "digits", 8, None, 60, NO_IMPORTS, mesh="data=2,tensor=3")
    yield from plans()
    predictions = Predictions.model_validate(FOUND["predictions"])
    yield shown(*predict.lines(predictions), *predict.refusals(predictions))
    times = [ClusterTime.model_validate(each) for each in FOUND["replayed"]]
    rows = [replay.Row(time.run, seconds, time) for time, seconds in zip(times, (12.5, None), strict=True)]
    rows.append(replay.Row("serial", 9.0, NoClusterTime("it has no trace")))
    yield from (shown(replay.table(rows), *replay.reasons(rows)), replay.as_json(rows))
    reports = [check.Report.model_validate(each) for each in FOUND["reports"]]
    yield shown(*(line for report in reports for line in check.lines(report, 80)))
    findings = [
        Finding("torch", "ok", "2.13"),
        Finding("GPU", "note", "none"),
        Finding("x", "missing", "y"),
    ]
    patch.setattr(doctor, "examine", lambda data_dir: iter(findings))
    cli.doctor(PROJECT)
    yield capsys.readouterr().out


def test_what_commands_print_is_as_it_was_reviewed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = f"\n\n{'=' * 80}\n".join(texts(monkeypatch, capsys)).replace("\N{NO-BREAK SPACE}", "~")
    assert_reviewed("commands.txt", "\n".join([*map(str.rstrip, text.splitlines()), ""]))
