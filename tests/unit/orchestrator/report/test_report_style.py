"""The colour and mark of a strategy: the same in every report, and different from those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.figures.style import Look, Style
from orchestrator.report.figures.theme import MARKS
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run
from trainer.spec.registries import STRATEGIES
from trainer.user_components.strategy import DECLARED

CSS = Path(__file__).parents[4] / "orchestrator/report/render/report.css"
FEWEST = {"rpc_split": 3, "hybrid": 4, "parameter_server": 3, "async_parameter_server": 3}
SPLIT = {"context_parallel": "gpt", "expert_parallel": {"name": "gpt", "experts": 2}}


def own_strategy(name: str) -> dict[str, Any]:
    """A user's strategy, whose file is not needed."""
    return {
        "name": name,
        "imported": {
            "code": "0123456789abcdef",
            "folder": "0123456789abcdef",
            "module": name.partition(":")[0],
            "attribute": name.partition(":")[2],
            "declared": {field: getattr(STRATEGIES.load("ddp"), field) for field in DECLARED},
            "replicas": 2,
            "replica_of": [0, 1],
            "reports_samples": [True, True],
            "sees_inputs": [True, True],
            "updates_use_global_batch": True,
            "micro_batch_count": 1,
            "not_checkpointed": None,
            "bubble": None,
        },
    }


def run(strategy: str | dict[str, Any], **fields: Any) -> RunResult:
    name = strategy if isinstance(strategy, str) else strategy["name"]
    more: dict[str, Any] = {}
    if name in SPLIT:
        more = {"dataset": "tiny_shakespeare", "model": SPLIT[name], "loss": "cross_entropy"}
    nodes = 1 if name == "serial" else FEWEST.get(name, 2)
    return a_run(strategy, **{"nodes": nodes, **more, **fields})


def looks(*runs: RunResult) -> list[Look]:
    """The look of each run's configuration."""
    groups = a_comparison(*runs).groups
    style = Style(groups)
    by_key = {row.key: style.look(group) for group in groups for row in group.rows}
    return [by_key[each.key] for each in runs]


def test_every_strategy_has_a_colour_and_mark_of_its_own_in_every_report() -> None:
    runs = [run(name) for name in STRATEGIES.entries]
    together = looks(*runs)
    assert len({(look.token, look.shape) for look in together}) == len(STRATEGIES.entries)
    assert looks(*reversed(runs)) == together[::-1]
    assert [looks(each)[0] for each in runs] == together


def test_strategies_of_users_do_not_change_the_look_of_others() -> None:
    own = [run(own_strategy(name)) for name in ("mine.py:First", "mine.py:Second")]
    runs = [*own, *(run(name) for name in STRATEGIES.entries)]
    found = looks(*runs)
    assert len({(look.token, look.shape) for look in found}) == len(runs)
    assert found[2:] == looks(*runs[2:])
    assert looks(own[1]) == looks(own[0]) == found[:1]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_strategy_without_parameters_keeps_its_look_beside_variants(at: int) -> None:
    variants = [run({"name": "local_sgd", "local_steps": steps}) for steps in (20, 30)]
    runs = [*variants[:at], run("local_sgd"), *variants[at:], run("ddp"), run("gossip")]
    found = looks(*runs)
    assert len({look.token for look in found}) == len(runs)
    for name in ("local_sgd", "ddp", "gossip"):
        (place,) = [
            n
            for n, each in enumerate(runs)
            if each.run.strategy.model_dump() == run(name).run.strategy.model_dump()
        ]
        assert found[place] == looks(run(name))[0]


def test_transports_of_a_strategy_share_its_colour_and_differ_in_their_marks() -> None:
    found = looks(*(run("all_reduce", transport=each) for each in ("mpi", "gloo", "memory")), run("ddp"))
    assert len({look.token for look in found[:3]}) == 1
    assert len({look.shape for look in found[:3]}) == 3
    assert (found[0], found[3]) == (looks(run("all_reduce"))[0], looks(run("ddp"))[0])


def test_many_variants_have_looks_of_their_own_as_long_as_there_are_any() -> None:
    runs = [run({"name": "local_sgd", "local_steps": steps}) for steps in range(2, 34)]
    assert len({(look.token, look.shape) for look in looks(*runs)}) == len(runs)
    assert len({look.token for look in looks(*runs[:8])}) == 8


def test_the_page_draws_every_mark() -> None:
    text = CSS.read_text()
    assert all(f".swatch.{mark} {{" in text for mark in MARKS)
