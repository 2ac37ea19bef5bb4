"""What faults cost a run. Its time with them is `elapsed_s`."""

from __future__ import annotations

from orchestrator.report import formats
from orchestrator.report.quantities.quantity import NUMBER, Quantity, Unit, named

FAULTS = named(
    faults_injected=Quantity(
        NUMBER, lambda row: len(row.result.faults), meaning="how many faults fired", of_failed=True
    ),
    restarted=Quantity(
        NUMBER,
        lambda row: row.result.restarted,
        meaning="how often the ranks were restarted",
        of_failed=True,
    ),
    repeated_steps=Quantity(
        Unit("steps", formats.short),
        lambda row: row.result.repeated_steps,
        "Steps repeated",
        "steps trained again after restarts",
    ),
    samples_lost=Quantity(
        Unit("samples", formats.short),
        lambda row: row.result.samples_lost,
        "Samples lost",
        "samples of lost nodes on which no node trained",
    ),
)
