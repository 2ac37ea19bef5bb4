"""What holds for all tests: in CI, a whole class of tests must not be skipped without anybody noticing.

Tests marked `gpu` are the one exception, by design: CI has no GPU. They run wherever there is one.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.commands.doctor import gpu
from orchestrator.results.environment import gpus


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more GPUs than there are, and say it in doctor's words."""
    if marker := item.get_closest_marker("gpu"):
        wanted, found = (marker.args or (1,))[0], gpu()
        if found.verdict != "ok" or gpus() < wanted:
            pytest.skip(f"needs {wanted} GPU{'' if wanted == 1 else 's'}: {found.detail}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say, class by class, what was skipped; `pytest_sessionfinish` decides what follows from it."""
    for folder in _all_skipped(terminalreporter):
        terminalreporter.write_line(f"every test in {folder} was skipped", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and isinstance(reporter, pytest.TerminalReporter) and _all_skipped(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _all_skipped(reporter: pytest.TerminalReporter) -> list[str]:
    """Folders of tests/ of which no test ran, those that need a GPU apart."""

    def folders(outcome: str) -> Counter[str]:
        return Counter(
            Path(report.nodeid).parent.as_posix()
            for report in reporter.getreports(outcome)
            if not (isinstance(report, pytest.TestReport) and "gpu" in report.keywords)
        )

    ran = folders("passed") + folders("failed") + folders("error") + folders("xfailed")
    return sorted(set(folders("skipped")) - set(ran))
