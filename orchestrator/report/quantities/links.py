"""The links of a run: what was requested, and what the ranks measured before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from orchestrator.report.formats import ABSENT, mbit, seconds
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.spread import Spread
from trainer.spec.link import Path

OWN_LINKS = "this machine's own links"  # of a run that requests none


def _measured(
    write: Callable[[float], str],
    field: str,
    title: str,
    requested: Callable[[Path], float | None],
    absent: str = ABSENT,
) -> Quantity:
    """The median over the links. requested: of a path; absent: what is written if one requests none."""

    def read(row: Row) -> float | None:
        return median(getattr(link, field) for link in row.result.links) if row.result.links else None

    return Quantity(
        write,
        read,
        title,
        of_failed=True,
        detail=lambda group, span: _requested(group.ok_rows[0], requested, write, absent),
        shown_for=lambda rows: any(row.workload.link for row in rows),
    )


class Links:
    """Measured links, in tables beside what was requested: `1 ms requested`, `10 Mbit/s requested`."""

    link_latency_s = _measured(
        seconds, "latency_s", "Link latency, measured", lambda path: path.latency_ms / 1000
    )
    link_bytes_per_s = _measured(
        mbit,
        "bytes_per_s",
        "Link bandwidth, measured",
        lambda path: path.bandwidth_mbit and path.bandwidth_mbit * 1e6 / 8,
        "no limit",
    )


def measured(rows: Sequence[Row]) -> str:
    """`9.52 Mbit/s, 1.10 ms`: medians over runs; empty if none has measured."""
    latencies = [value for row in rows if (value := Links.link_latency_s.of(row)) is not None]
    rates = [value for row in rows if (value := Links.link_bytes_per_s.of(row)) is not None]
    return f"{mbit(median(rates))}, {seconds(median(latencies))}" if latencies and rates else ""


def _requested(
    row: Row, of: Callable[[Path], float | None], write: Callable[[float], str], absent: str
) -> str:
    """`10 Mbit/s requested`; empty without a request."""
    if row.run.link is None or not row.link_label:
        return ""
    node_of, enforced = row.run.node_of, "" if not row.link_not_enforced else ", not enforced"
    pairs = {(node_of(each.source), node_of(each.to)) for each in row.result.links}
    values = [of(row.run.link.path(*pair)) for pair in pairs if pair[0] != pair[1]]
    spread = Spread.of(values)
    wanted = spread.range(write) if spread and None not in values else absent
    return f"{wanted} requested{enforced}" if values else ""
