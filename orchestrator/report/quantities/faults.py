"""What faults cost a run. Its time with them is `elapsed_s`."""

from __future__ import annotations

from orchestrator.report.formats import short
from orchestrator.report.quantities.quantity import Quantity


class FaultCosts:
    """Faults, and what they cost beside time."""

    faults_injected = Quantity(short, lambda row: len(row.result.faults), of_failed=True)
    restarted = Quantity(short, lambda row: row.result.restarted, of_failed=True)
    repeated_steps = Quantity(short, lambda row: row.result.repeated_steps, "Steps repeated")
    samples_lost = Quantity(short, lambda row: row.result.samples_lost, "Samples lost")
