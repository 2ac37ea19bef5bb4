"""The report's first lines: the number of runs, their dates and nodes, and what their seeds vary."""

from __future__ import annotations

from datetime import UTC, datetime

from orchestrator.report.formats import count, listed
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.locations import describe_nodes
from orchestrator.report.statistics.contrasts import MIN_SEEDS

STATES = {
    "ok": "ok",
    "failed": "failed",
    "timeout": "timed out",
    "unusable": "without a usable result",
    "pending": "pending",
}

HOW_TO_OPEN = (
    "The whole timelines, in wall and in cluster time, are the files linked here. To see one, choose "
    "“Open trace file” at ui.perfetto.dev; the file stays in the browser:"
)

VARIED = {
    "init": "initial weights",
    "split": "the partition",
    "order": "the order of samples with dropout and augmentation",
}


def one_line(comparison: Comparison) -> str:
    """`67 runs: 66 ok, 1 failed. 2026-05-20 14:02 to 14:09 UTC. Nodes: local processes.`"""
    rows = comparison.rows
    states = [row.status for row in rows]
    states += ["unusable" if key in comparison.unusable else "pending" for key in comparison.pending]
    if not states:
        return "No runs."
    counts = [f"{states.count(state)} {name}" for state, name in STATES.items() if state in states]
    parts = [f"{count(len(states), 'run')}: {', '.join(counts)}"]
    if rows:
        began = min(row.result.started_at for row in rows)
        ended = max(row.result.started_at + row.result.wall_s for row in rows)
        parts += [_when(began, ended), f"Nodes: {describe_nodes(rows)}"]
    return ". ".join(parts) + "."


def seeds_line(comparison: Comparison) -> str:
    """`Seeds vary initial weights, partition and order of samples.`; empty without training runs.

    It says so if no configuration has enough seeds for a claim.
    """
    varied = {workload.vary for workload in comparison.workloads}
    parts = [
        f"Seeds vary {listed([VARIED[source] for source in vary]) if vary else 'nothing'}."
        for vary in varied
    ]
    if len(varied) > 1:
        parts = ["What seeds vary depends on the workload; its heading says what."]
    seeds = [len(group.ok_rows) for group in comparison.groups if group.first.trains]
    if seeds and max(seeds) < MIN_SEEDS:
        parts.append(f"No configuration has {MIN_SEEDS} seeds, so this report claims no differences.")
    return " ".join(parts)


def _when(began: float, ended: float) -> str:
    """A span of time to the minute, given in seconds since 1970."""
    start, end = (datetime.fromtimestamp(at, UTC) for at in (began, ended))
    to = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    return f"{start:%Y-%m-%d %H:%M} to {to} UTC"
