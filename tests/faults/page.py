"""Write the tables of docs/faults.md from the matrix."""

from __future__ import annotations

import re

from orchestrator.results.store import write_atomic
from tests.faults.case import DOCKER, LOCAL, RAY, SLURM, SWARM, Case, Then
from tests.faults.table import SECTIONS
from tools.docs import PROJECT, markdown_table

PAGE = PROJECT / "docs" / "faults.md"
RUNTIMES: dict[tuple[str, ...], str] = {
    (LOCAL,): "local",
    (DOCKER,): "containers",
    (SLURM,): "Slurm",
    (SWARM,): "Swarm",
    (RAY,): "Ray",
}
HEADER = ("case", "fault", "when", "run", "runtime", "row", "who is named, and why", "within", "the sweep")
_BLOCK = re.compile(r"(?ms)^(<!-- faults -->\n).*?^(<!-- end of faults -->)$")


def with_cases(text: str) -> str:
    """The text of the page with a heading and a current table for each section."""
    parts = [
        f"\n## {title}\n\n{markdown_table(HEADER, map(row, cases))}" for title, cases in SECTIONS.items()
    ]
    return _BLOCK.sub(lambda match: f"{match[1]}{''.join(parts)}{match[2]}", text)


def row(case: Case) -> tuple[str, ...]:
    """A case as a row."""
    verdict, strategy = case.verdict, case.run["strategy"]
    name = strategy["name"] if isinstance(strategy, dict) else strategy
    resumes = case.again and verdict.then is not Then.STOPS
    return (
        f"`{case.name}`",
        case.fault.words,
        case.moment.value,
        f"`{name}`, `{case.run['transport']}`",
        "".join([RUNTIMES.get(case.runtimes, "both"), *(f", `{option}`" for option in case.options)]),
        " or ".join(verdict.status) or "none",
        ": ".join(fact.words for fact in (verdict.named, verdict.cause) if fact) or "–",
        f"{verdict.within_s:g} s",
        verdict.then.value + "; the same command resumes" * resumes,
    )


def write_page() -> int:
    """Update the page; returns the exit code."""
    old = PAGE.read_text(encoding="utf-8")
    if (new := with_cases(old)) != old:
        write_atomic(PAGE, new)
        print(f"wrote {PAGE}")
    return 0
