"""Mistakes in the looks of strategies: two with one look, and looks that differ from report to report."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.report.figures.style import Look, Style
from orchestrator.report.figures.theme import MARKS, SERIES_COLOURS, TOKENS
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


def test_the_page_draws_every_mark() -> None:
    text = CSS.read_text()
    assert all(f".swatch.{mark} {{" in text for mark in MARKS)


# test_report_palette.py


Array = NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION: dict[str, list[list[float]]] = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])
# Ottosson 2020, Oklab: linear RGB to cones, and their cube roots to lightness and two opponent axes.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OPPONENT = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
PAGES = {"light": 0, "dark": 1}
SERIES = ["serial", *(f"s{number}" for number in range(SERIES_COLOURS))]
PHASES = ["data", "compute", "communicate", "wait", "cpu_contention", "checkpoint", "other"]


def linear(colour: str) -> Array:
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def seen(token: str, vision: str, page: str) -> Array:
    """The place of a colour in Oklab, in which distances are those that are seen."""
    rgb = np.clip(np.array(VISION[vision]) @ linear(TOKENS[token][PAGES[page]]), 0, 1)
    place: Array = OPPONENT @ np.cbrt(CONES @ rgb)
    return place


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_a_figure_can_be_distinguished(vision: str, page: str) -> None:
    """All pairs, since a run without a phase brings others next to each other."""
    for names, least in ((SERIES, 0.075), (PHASES, 0.034)):
        apart = {
            pair: float(np.linalg.norm(np.subtract(*(seen(name, vision, page) for name in pair))))
            for pair in combinations(names, 2)
        }
        assert {pair: found for pair, found in apart.items() if found < least} == {}


@pytest.mark.parametrize("page", PAGES)
def test_strategies_stand_out_from_the_page(page: str) -> None:
    light = {name: float(LUMINANCE @ linear(TOKENS[name][PAGES[page]])) + 0.05 for name in TOKENS}
    contrast = {name: max(light[name] / light["paper"], light["paper"] / light[name]) for name in SERIES}
    assert {name: found for name, found in contrast.items() if found < 3} == {}
