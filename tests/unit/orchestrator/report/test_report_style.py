"""Mistakes in the looks of strategies: two with one look, and looks that differ from report to report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.figures.style import Look, Style
from orchestrator.report.figures.theme import MARKS, SERIES_COLOURS
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run
from trainer.spec.registries import STRATEGIES

CSS = Path(__file__).parents[4] / "orchestrator/report/render/report.css"
FEWEST = {"rpc_split": 3, "hybrid": 4, "parameter_server": 3, "async_parameter_server": 3, "serial": 1}
SPLIT = {"context_parallel": "gpt", "expert_parallel": {"name": "gpt", "experts": 2}}


def run(strategy: str | dict[str, Any], **fields: Any) -> RunResult:
    name = strategy if isinstance(strategy, str) else strategy["name"]
    more: dict[str, Any] = {}
    if name in SPLIT:
        more = {"dataset": "tiny_shakespeare", "model": SPLIT[name], "loss": "cross_entropy"}
    return a_run(strategy, **{"nodes": FEWEST.get(name, 2), **more, **fields})


def looks(*runs: RunResult) -> list[Look]:
    """The look of each run's configuration."""
    groups = a_comparison(*runs).groups
    style = Style(groups)
    by_key = {row.key: style.look(group) for group in groups for row in group.rows}
    return [by_key[each.key] for each in runs]


def distinct(found: list[Look]) -> int:
    return len({(look.token, look.shape) for look in found})


def test_every_strategy_has_a_look_of_its_own_in_every_report() -> None:
    names = [*STRATEGIES.entries]
    registered = [run(name) for name in names]
    together = looks(*registered)
    assert distinct(together) == len(names)
    assert looks(*reversed(registered)) == together[::-1]
    assert [looks(each)[0] for each in registered] == together
    distributed = [look for name, look in zip(names, together, strict=True) if name != "serial"]
    marks = [MARKS[place // SERIES_COLOURS] for place in range(len(distributed))]
    assert [look.shape for look in distributed] == marks  # all colours before the next mark


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_strategy_without_parameters_keeps_its_look_beside_variants(at: int) -> None:
    variants = [run({"name": "local_sgd", "local_steps": steps}) for steps in (20, 30)]
    plain, others = run("local_sgd"), [run("ddp"), run("gossip")]
    runs = [*variants[:at], plain, *variants[at:], *others]
    found = dict(zip((each.key for each in runs), looks(*runs), strict=True))
    assert len({look.token for look in found.values()}) == len(runs)
    for each in (plain, *others):
        assert found[each.key] == looks(each)[0]


def test_transports_of_a_strategy_share_its_colour_and_differ_in_their_marks() -> None:
    found = looks(*(run("all_reduce", transport=each) for each in ("mpi", "gloo", "memory")), run("ddp"))
    assert len({look.token for look in found[:3]}) == 1
    assert len({look.shape for look in found[:3]}) == 3
    assert (found[0], found[3]) == (looks(run("all_reduce"))[0], looks(run("ddp"))[0])


def test_many_variants_have_looks_of_their_own_as_long_as_there_are_any() -> None:
    runs = [run({"name": "local_sgd", "local_steps": steps}) for steps in range(2, 34)]
    assert distinct(looks(*runs)) == len(runs)
    assert len({look.token for look in looks(*runs[:SERIES_COLOURS])}) == SERIES_COLOURS


def test_the_page_draws_every_mark() -> None:
    text = CSS.read_text()
    assert all(f".swatch.{mark} {{" in text for mark in MARKS)
