"""The protocol of elastic runs in larger settings than the unit test searches."""

from __future__ import annotations

from tests.unit.view_model import Setting, search

MOST = 2_000_000  # states of one setting
SETTINGS = [
    Setting(3, losses=2, returns=2),
    Setting(3, losses=2, returns=1, shifts=True),
    Setting(3, losses=1, returns=1, delayed=True),
    Setting(4, losses=2, epochs=1),
    Setting(4, losses=2, epochs=1, shifts=True),
    Setting(4, losses=2, returns=2),
]


def main() -> int:
    """Search every setting; returns the exit code."""
    bad = 0
    for setting in SETTINGS:
        found = search(setting, MOST)
        cut = " (not all)" if found.states >= MOST else ""
        print(f"{setting}: {found.states} states{cut}: {found.wrong or 'ok'}", flush=True)
        bad += found.wrong is not None
    return 1 if bad else 0
