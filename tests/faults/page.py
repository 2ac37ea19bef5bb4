"""Write the tables of docs/faults.md from the matrix."""

from __future__ import annotations

import re

from orchestrator.results.store import write_atomic
from tests.faults.case import DOCKER, LOCAL, RAY, SLURM, SWARM, Case, Then
from tests.faults.table import SECTIONS
from tools.docs import PROJECT, markdown_table

PAGE = PROJECT / "docs" / "faults.md"
RUNTIMES = {(LOCAL,): "local", (DOCKER,): "containers", (SLURM,): "Slurm", (SWARM,): "Swarm", (RAY,): "Ray"}
_BLOCK = re.compile(r"(?ms)^(<!-- faults -->\n).*?^(<!-- end of faults -->)$")


def with_cases(text: str) -> str:
    """The text of the page with current tables."""
    return _BLOCK.sub(lambda match: f"{match[1]}{tables()}{match[2]}", text)


def tables() -> str:
    """A heading and a table for each section."""
    header = (
        "case",
        "fault",
        "when",
        "run",
        "runtime",
        "row",
        "who is named, and why",
        "within",
        "the sweep",
    )
    parts = []
    for title, cases in SECTIONS.items():
        parts.append(f"\n## {title}\n\n{markdown_table(header, map(row, cases))}")
    return "".join(parts)


def row(case: Case) -> tuple[str, ...]:
    """A case as a row."""
    verdict = case.verdict
    named = ": ".join(fact.words for fact in (verdict.named, verdict.cause) if fact)
    then = verdict.then.value
    if case.again and verdict.then is not Then.STOPS:
        then += "; the same command resumes"
    where = RUNTIMES.get(case.runtimes, "both")
    options = "".join(f", `{option}`" for option in case.options)
    return (
        f"`{case.name}`",
        case.fault.words,
        case.moment.value,
        f"`{_strategy(case)}`, `{case.run['transport']}`",
        f"{where}{options}",
        " or ".join(verdict.status) or "none",
        named or "–",
        f"{verdict.within_s:g} s",
        then,
    )


def _strategy(case: Case) -> str:
    strategy = case.run["strategy"]
    return str(strategy["name"] if isinstance(strategy, dict) else strategy)


def write_page() -> int:
    """Update the page; returns the exit code."""
    old = PAGE.read_text(encoding="utf-8")
    if (new := with_cases(old)) != old:
        write_atomic(PAGE, new)
        print(f"wrote {PAGE}")
    return 0
