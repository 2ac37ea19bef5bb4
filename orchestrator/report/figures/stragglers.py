"""Straggler attribution: a map rank × rank for each of the runs with most waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import wrap
from typing import Any

import altair as alt
import numpy as np

from orchestrator.report.figures.chart import FULL_WIDTH, WIDTH, Chart, chart_of, in_lines, layered
from orchestrator.report.figures.style import series_name
from orchestrator.report.figures.theme import colour
from orchestrator.report.formats import percent
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.quantities.stragglers import mean_wait_shares, straggler_of

MAX_PANELS = 6
MAX_COLUMNS = 3
MOST_ROWS = 16  # of a map; with more ranks, a row and a column are several
MAX_NUMBERED_RANKS = 8  # ranks; smaller cells have no room for numbers
NUMBERED_OPACITY = 0.55  # of the largest share, so that text over it stays readable
ROW = 26  # pixels of a numbered row
GAP = 50  # pixels between panels
MIN_SHARE_SHOWN = 0.005  # of the wall time; less counts as no waiting


def straggler_attribution(view: WorkloadView) -> Chart | None:
    """Heat maps rank × rank at the view's shape; None if no rank waited, or waiting was not recorded."""
    known = [
        (series_name(group), shares)
        for group in view.reference_candidates
        if (shares := mean_wait_shares(group)) is not None
    ]
    shown = [item for item in known if item[1].max() >= MIN_SHARE_SHOWN]
    shown = sorted(shown, key=lambda item: -item[1].sum())[:MAX_PANELS]
    if not shown:
        return None
    across = ceil(len(shown) / ceil(len(shown) / MAX_COLUMNS))
    ranks, noun = len(shown[0][1]), view.shape.rank_noun
    together = ceil(ranks / MOST_ROWS)
    width = WIDTH if across == 1 else (FULL_WIDTH + GAP) // across - GAP
    records = [record for item in shown for record in _records(*item, together)]
    panel = _panel(records, ranks, noun, together).properties(
        width=width, height=ROW * ranks if ranks <= MAX_NUMBERED_RANKS else min(width, 16 * ranks)
    )
    titles = {series: _title(series, shares, noun, width) for series, shares in shown}
    drawn = (
        panel.facet(
            facet=alt.Facet("series:N", sort=[*titles], title=None, header=panel_header(titles)),
            columns=across,
        )
        .resolve_axis(x="independent", y="independent")
        .properties(
            title=alt.TitleParams(
                f"Straggler attribution, {view.shape.label}",
                subtitle=f"Share of {view.clock} time that {_waits(noun, together)}",
            )
        )
    )
    return Chart.of(drawn, wide=across > 1)


def panel_header(titles: Mapping[str, Sequence[str]]) -> alt.Header:
    """Headings of a facet by series: these lines, at the left edge of each panel."""
    return alt.Header(
        labelExpr=in_lines(titles),
        labelAnchor="start",
        labelLineHeight=14,
        labelPadding=4,
        labelFontSize=11,
    )


def _title(series: str, shares: np.ndarray, noun: str, width: int) -> list[str]:
    most = straggler_of(shares)
    note = [f"{noun} {most.rank}: {percent(most.share_of_waiting)} of all waiting"] if most else []
    return [*wrap(series, width // 7), *note]


def _waits(noun: str, together: int) -> str:
    if together == 1:
        return f"a {noun} (row) waits for another (column)"
    return f"one of {together} {noun}s (row) waits for {together} {noun}s (column), mean over the row"


def _records(series: str, shares: np.ndarray, together: int) -> list[dict[str, Any]]:
    """A record per cell: the mean over the waiting ranks, summed over those that they wait for."""
    firsts = range(0, len(shares), together)
    names = {first: _named(first, min(first + together, len(shares)) - 1) for first in firsts}
    return [
        {
            "series": series,
            "waiting": rank,
            "for": other,
            "waiting_ranks": names[rank],
            "for_ranks": names[other],
            "share": None
            if rank == other and together == 1
            else round(
                float(shares[rank : rank + together, other : other + together].sum(axis=1).mean()), 5
            ),
        }
        for rank in firsts
        for other in firsts
    ]


def _named(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _panel(records: Sequence[dict[str, Any]], ranks: int, noun: str, together: int) -> alt.LayerChart:
    """One map of all panels; they have one colour scale."""
    numbered = ranks <= MAX_NUMBERED_RANKS
    most = max(record["share"] or 0.0 for record in records)
    ticks = list(range(0, ranks, together))
    axis: dict[str, Any] = {"values": ticks, "ticks": False, "domain": False, "labelAngle": 0}
    base = chart_of(records).encode(
        x=alt.X("for:O", axis=alt.Axis(title=f"{noun} waited for", **axis)),
        y=alt.Y("waiting:O", axis=alt.Axis(title=f"waiting {noun}", **axis)),
    )
    own = base.transform_filter("datum.share === null").mark_rect(color=colour("shade"), aria=False)
    legend = alt.Legend(
        title="share of time", format=".0%", orient="top", symbolFillColor=colour("wait_map")
    )
    cells = (
        base.transform_filter("datum.share !== null")
        .mark_rect(
            color=colour("wait_map"), stroke=colour("paper"), strokeWidth=1 if numbered else 0, aria=False
        )
        .encode(
            opacity=alt.Opacity(
                "share:Q",
                scale=alt.Scale(domain=[0, most], range=[0, NUMBERED_OPACITY if numbered else 1.0]),
                legend=None if numbered else legend,
            ),
            tooltip=[
                alt.Tooltip("series:N", title="strategy"),
                alt.Tooltip("waiting_ranks:N", title=f"waiting {noun}"),
                alt.Tooltip("for_ranks:N", title=f"{noun} waited for"),
                alt.Tooltip("share:Q", title="share of its time", format=".1%"),
            ],
        )
    )
    if not numbered:
        return layered(own, cells)
    numbers = (
        base.transform_filter("datum.share !== null")
        .mark_text(fontSize=11)
        .encode(text=alt.Text("share:Q", format=".0%"))
    )
    return layered(own, cells, numbers)
