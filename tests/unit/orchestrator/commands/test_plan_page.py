"""Mistakes in the page of a plan: layouts, parts of a step and reasons that it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands import plan, plan_page
from orchestrator.errors import InputError
from orchestrator.layouts.trials import Failed, Trial
from orchestrator.report.render.tree import Drawing, Items, Table
from tests.unit.orchestrator.commands.test_command_texts import FOUND, planner_of_gpt
from trainer.spec.run_spec import RunSpec


def tried(run: RunSpec) -> Trial | Failed:
    found = FOUND["trials"].get(run.name_of("strategy"))
    return Trial(run, *found) if found else Failed(run, "<b>it is refused")


def test_the_page_has_each_layout_what_its_step_consists_of_and_why_others_are_not_there(
    tmp_path: Path,
) -> None:
    planner = planner_of_gpt()
    planner.plan = planner.plan.executed(tried, lambda option, done: done < 6)
    plan_page.write_page(planner, tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert "&lt;b&gt;it is refused" in text
    assert "<b>it" not in text
    (plot,) = plan_page.plots_of(planner)
    blocks = [block for section in plan_page.page_of(planner, [plot]).sections for block in section.blocks]
    layouts, best = (block for block in blocks if isinstance(block, Table))
    names = [line.cells[0].text for line in layouts.lines]
    assert names[:2] == ["zero2 *", "all_reduce *"]
    assert len(names) == len(planner.plan.fitting)
    assert {cell.text for line in best.lines for cell in line.cells[1:]} <= {
        name.removesuffix(" *") for name in names
    }
    assert [type(block) for block in blocks if isinstance(block, Drawing | Items)] == [Drawing, Items]
    (records,) = [each for each in plot.chart.spec["datasets"].values() if "part" in each[0]]
    of_first = {each["part"]: each["amount"] for each in records if each["name"] == "1: zero2"}
    assert of_first == {"work": 0.375, "communication": 0.125}


def test_a_plan_without_a_layout_that_fits_has_a_page(tmp_path: Path) -> None:
    asked = replace(planner_of_gpt().asked, memory_bytes=1.0)
    planner = plan.Planner(asked, planner_of_gpt().sizes, tmp_path, print)
    plan_page.write_page(planner, tmp_path / "plan.html")
    assert "No layout fits" in (tmp_path / "plan.html").read_text()
    with pytest.raises(InputError, match="--page"):
        plan_page.write_page(planner, tmp_path / "plan.html" / "plan.html")
    assert json.loads(plan.record(planner).model_dump_json())["layouts"]
