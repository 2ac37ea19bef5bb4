"""Colours, marks and text of figures.

Figures name their colours as CSS variables with the light colour as a fallback. The page sets the
variables, so that a figure follows the reader's light or dark mode. Files get the light colours.
"""

from __future__ import annotations

import re
from typing import Any

# name -> (on a light page, on a dark page)
TOKENS = {
    "ink": ("#24292F", "#E6EDF3"),
    "soft": ("#57606A", "#9DA7B3"),
    "grid": ("#E3E6EA", "#30363D"),
    "axis": ("#8A919A", "#6E7681"),
    "shade": ("#F1F3F5", "#1C2128"),
    "paper": ("#FFFFFF", "#0D1117"),
    "serial": ("#4A4A4A", "#B8BEC6"),
    "map": ("#08519C", "#6CB6FF"),
    "loss": ("#C2410C", "#F0883E"),
    "data": ("#B8C4CE", "#5B6873"),
    "compute": ("#5E7C99", "#7FA3C7"),
    "communicate": ("#E08A2E", "#E9A04E"),
    "wait": ("#F6CF8B", "#8A6A2B"),
    "cpu_contention": ("#A9A2C4", "#6F6793"),
    "checkpoint": ("#7FA38A", "#93C7A2"),
    "other": ("#E8EBEE", "#3D444D"),
    "s0": ("#1D92FF", "#68B1EC"),
    "s1": ("#A84920", "#F69173"),
    "s2": ("#10876A", "#B3E6C1"),
    "s3": ("#7536D8", "#8C5FEF"),
    "s4": ("#023B63", "#168881"),
    "s5": ("#C56EA4", "#F42A8D"),
    "s6": ("#A19409", "#FCDA2B"),
    "s7": ("#6C1716", "#A17021"),
    "weights": ("#34495E", "#C3D0DD"),
    "gradient": ("#5E7C99", "#7FA3C7"),
    "optimizer": ("#B8C4CE", "#5B6873"),
    "activations": ("#E08A2E", "#E9A04E"),
    "wait_map": ("#D9730D", "#F0A050"),
}
SERIES_COLOURS = 8  # s0, s1, …; further strategies repeat them with another mark
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_VARIABLE = re.compile(r"var\(--[\w-]+, (#[0-9A-Fa-f]{6})\)")


def colour(token: str) -> str:
    """The CSS value of a colour: its variable, with the light colour where there is none."""
    return f"var(--{token.replace('_', '-')}, {TOKENS[token][0]})"


def css_variables() -> tuple[str, str]:
    """The declarations of all variables, for a light and for a dark page."""
    light, dark = (
        " ".join(f"--{token.replace('_', '-')}: {pair[mode]};" for token, pair in TOKENS.items())
        for mode in (0, 1)
    )
    return light, dark


def with_light_colours(svg: str) -> str:
    """An SVG without variables, for a place without style sheets."""
    return _VARIABLE.sub(r"\1", svg).replace("currentColor", TOKENS["ink"][0])


def config() -> dict[str, Any]:
    """Vega-Lite's configuration for all figures."""
    return {
        "aria": False,  # a label for every mark; the page labels the whole figure
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": colour("ink"),
            "titleColor": colour("ink"),
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "titleFontSize": 12,
            "gridColor": colour("grid"),
            "domain": False,
            "tickColor": colour("axis"),
            "labelLimit": 320,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": colour("axis")},
        "header": {"labelColor": colour("ink"), "titleColor": colour("ink"), "labelFontSize": 12},
        "title": {
            "color": colour("ink"),
            "subtitleColor": colour("soft"),
            "anchor": "start",
            "fontSize": 12,
        },
        "text": {"color": colour("ink"), "fontSize": 12},
        "rule": {"color": colour("axis")},
        "legend": {"labelColor": colour("ink"), "titleColor": colour("ink"), "labelFontSize": 12},
    }
