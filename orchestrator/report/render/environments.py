"""What the report records of machines and software."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.report import formats
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.locations import node_limits
from orchestrator.report.model.rows import Row


def environments(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Machine, software and node limits of each location, with its name if there are several."""
    rows_at: dict[str, list[Row]] = {}
    for row in comparison.rows:
        rows_at.setdefault(row.location, []).append(row)
    if len(rows_at) < 2:  # then sweep.json describes all, also before the first result
        known = dict.fromkeys(rows_at or [""], comparison.record.environment)
    else:
        known = {location: rows[-1].result.environment for location, rows in rows_at.items()}
    found = []
    for location, environment in known.items():
        limits = node_limits(rows_at.get(location, []))
        enforced = [("node limits", ", ".join(limits))] if limits else []
        found.append((location, _facts(environment) + enforced))
    return [(location, facts) for location, facts in found if facts]


def _facts(environment: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values; nested mappings are flattened with dots."""
    facts: list[tuple[str, str]] = []
    for name, value in environment.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{prefix}{name}.")
        else:
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            facts.append((f"{prefix}{name}", formats.ABSENT if value is None else written))
    return facts
