"""Mistakes in colours: pairs that readers confuse, also colour-blind ones, and what the page swallows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.report.figures.theme import SERIES_COLOURS, TOKENS

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
