"""The colours of figures: every pair can be distinguished, also by colour-blind readers, on both pages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.report.figures.theme import SERIES_COLOURS, TOKENS

Array = NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION: dict[str, Array] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
PAGES = {"light": 0, "dark": 1}
SERIES = ["serial", *(f"s{number}" for number in range(SERIES_COLOURS))]
PHASES = ["data", "compute", "communicate", "wait", "cpu_contention", "checkpoint", "other"]


def linear(colour: str) -> Array:
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> Array:
    seen = np.clip(VISION[vision] @ linear(colour), 0, 1)
    ratio = XYZ @ seen / WHITE
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def delta_e(one: Array, other: Array) -> float:
    """CIEDE2000 (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(chroma**7 / (chroma**7 + 25.0**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    hm = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    cos = [np.cos(np.radians(times * hm + shift)) for times, shift in ((1, -30), (2, 0), (3, 6), (4, -63))]
    t = 1 - 0.17 * cos[0] + 0.24 * cos[1] + 0.32 * cos[2] - 0.20 * cos[3]
    sl = 1 + 0.015 * (lm - 50) ** 2 / np.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rotation = 60 * np.exp(-(((hm - 275) / 25) ** 2))
    rt = -np.sin(np.radians(rotation)) * 2 * np.sqrt(cm**7 / (cm**7 + 25.0**7))
    return float(np.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * dc / sc * dh / sh))


def distance(one: str, other: str, vision: str, page: str) -> float:
    return delta_e(*(lab(TOKENS[name][PAGES[page]], vision) for name in (one, other)))


def contrast(one: str, other: str) -> float:
    first, second = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (second + 0.05) / (first + 0.05)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [  # of the test data of Sharma, Wu and Dalal
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.4900, -0.0010), (50.0, -2.4900, 0.0009), 7.1792),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_distance_is_ciede2000(
    one: tuple[float, ...], other: tuple[float, ...], expected: float
) -> None:
    assert delta_e(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("vision", VISION)
def test_strategies_can_be_distinguished(vision: str, page: str) -> None:
    close = {
        pair: found for pair in combinations(SERIES, 2) if (found := distance(*pair, vision, page)) < 15
    }
    assert close == {}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("vision", VISION)
def test_phases_of_a_bar_can_be_distinguished(vision: str, page: str) -> None:
    """All pairs, since a run without a phase brings others next to each other."""
    close = {
        pair: found for pair in combinations(PHASES, 2) if (found := distance(*pair, vision, page)) < 8.5
    }
    assert close == {}


@pytest.mark.parametrize("page", PAGES)
def test_strategies_stand_out_from_the_page(page: str) -> None:
    paper = TOKENS["paper"][PAGES[page]]
    faint = {name for name in SERIES if contrast(TOKENS[name][PAGES[page]], paper) < 3}
    assert faint == set()
