"""The report of a sweep in progress, written again between two runs."""

from __future__ import annotations

import time
from contextlib import suppress

from orchestrator.errors import InputError
from orchestrator.report import write_report
from orchestrator.results.store import SweepPaths

SHARE = 0.05  # of the sweep's time that reports may take before its end
FIRST_S = 1.0  # what the first report is expected to take; it is of few runs


class GrowingReport:
    """Writes the report as often as its cost allows.

    A report takes seconds of two cores. After every short run, that would double the time of a sweep;
    beside a run, it would slow down what is measured. So it is written between two runs, and only once the
    time since the last one makes it cheap.
    """

    def __init__(self, paths: SweepPaths) -> None:
        self._paths = paths
        self._cost_s, self._written_at = FIRST_S, time.monotonic()

    def after_run(self) -> None:
        """Write the report if it is cheap by now."""
        began = time.monotonic()
        if self._cost_s > SHARE * (began - self._written_at):
            return
        with suppress(OSError, InputError):  # the report at the end says what is wrong
            write_report(self._paths)
        self._written_at = time.monotonic()
        self._cost_s = self._written_at - began
