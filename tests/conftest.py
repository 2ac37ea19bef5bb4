"""Rules for all tests: skips, shared runs and markers.

In CI, a folder of which every test is skipped is a failure. Tests marked `gpu` are exempt: CI has no GPU.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.commands.doctor import gpu
from orchestrator.results.environment import gpus
from tests.support.runs import RunCache


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per session, for all workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def run_cache(shared_folder: Path) -> RunCache:
    """`run_cache.get(strategy="one_shot", nodes=2, …)`: one run per spec and session, for all workers."""
    return RunCache(shared_folder / "runs")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need more GPUs than there are, with the reason that `doctor` prints."""
    if marker := item.get_closest_marker("gpu"):
        wanted, found = (marker.args or (1,))[0], gpu()
        if found.status != "ok" or gpus() < wanted:
            pytest.skip(f"needs {wanted} GPU{'' if wanted == 1 else 's'}: {found.detail}")


# Run before pytest's own implementation of this hook, in which `-m` selects by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in tests/smoke, which all start containers."""
    for item in items:
        if "smoke" in item.path.parts:
            item.add_marker("containers")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the folders that were skipped as a whole; `pytest_sessionfinish` sets the exit status."""
    for folder in _all_skipped(terminalreporter):
        terminalreporter.write_line(f"every test in {folder} was skipped", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and isinstance(reporter, pytest.TerminalReporter) and _all_skipped(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _all_skipped(reporter: pytest.TerminalReporter) -> list[str]:
    """Folders of tests/ of which no test ran, not counting tests marked `gpu`."""

    def folders(outcome: str) -> Counter[str]:
        return Counter(
            Path(report.nodeid).parent.as_posix()
            for report in reporter.getreports(outcome)
            if not (isinstance(report, pytest.TestReport) and "gpu" in report.keywords)
        )

    ran = folders("passed") + folders("failed") + folders("error") + folders("xfailed")
    return sorted(set(folders("skipped")) - set(ran))
