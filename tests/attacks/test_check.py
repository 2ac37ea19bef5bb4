"""Attacks by a component on the command `check`: what it prints, reports and leaves.

The promise: nothing that a component prints or reports makes the command print a control character, or use
memory or time without limit, and no process of it is left.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from orchestrator.commands import check as command
from orchestrator.errors import InputError
from orchestrator.sandbox.local import SHOWN_BYTES
from trainer.conformance.report import Report

HONEST = "def mine(labels, parts, rng): return [[0]]\n"
# Finds the descriptor of the answers among those that the process has.
TO_ANSWERS = """
import os, socket, stat
def answers():
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                yield number
        except OSError:
            pass
"""


@pytest.fixture
def checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Checked:
    return Checked(tmp_path, capfd)


class Checked:
    """The reports on a component with this code, or the error; and what the terminal gets."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._directory, self._capfd = directory, capfd

    def __call__(self, code: str, limit_s: float = 30.0) -> tuple[list[Report], str, str]:
        file = self._directory / "mine.py"
        file.write_text(code)
        request = command.request_of(str(file), (), None, None, None, self._directory, limit_s)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: list[Report] = []
        error = ""
        try:
            found.extend(command.reports(request))
        except InputError as refused:
            error = str(refused)
        shown = "\n".join(line.plain for report in found for line in command.lines(report, 80))
        printed = "".join(self._capfd.readouterr())
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
        for text in (error, shown, printed):
            assert "\x1b" not in text
        return found, error, printed


def test_output_without_end_is_cut_and_the_time_limit_holds(checked: Checked) -> None:
    floods = "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n"
    found, error, printed = checked(floods, limit_s=5.0)
    assert "5 s" in error
    assert found == []
    assert 0 < len(printed) <= SHOWN_BYTES


def test_escape_sequences_are_shown_as_text(checked: Checked) -> None:
    prints = "print('\\x1b]0;title\\x07', flush=True)\n"
    raises = "def mine(labels, parts, rng): raise ValueError('\\x1b[2J of the user')\n"
    (report,), error, printed = checked(prints + raises)
    assert not error
    assert r"\x1b]0;title\x07" in printed
    assert any(r"\x1b[2J of the user" in finding.got for finding in report.findings)


@pytest.mark.parametrize(
    "sent",
    [
        "b'x' * 65536",
        "b'\\xff\\xff\\xff\\xff'",
        "b'\\0\\0\\0\\x02[]'",
        "b'\\0\\0\\0\\x0d{\"report\": {}}'",
        "b'\\0\\0\\0\\x0c{\"report\":3}'",
        "b'\\0\\0\\0\\x02{}'",
    ],
    ids=["flood", "long", "list", "empty", "number", "other"],
)
def test_what_is_no_report_is_one_line(sent: str, checked: Checked) -> None:
    forges = f"{TO_ANSWERS}\nfor number in answers(): os.write(number, {sent})\n"
    found, error, _ = checked(forges + HONEST)
    assert found == []
    assert len(error) < 1000
    assert "\n" not in error
    assert error


def test_a_component_that_kills_the_process_that_checks_it_is_one_line(checked: Checked) -> None:
    found, error, _ = checked("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + HONEST)
    assert found == []
    assert "SIGKILL" in error


def test_a_component_that_stops_the_process_that_checks_it_is_ended(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MORE_S", 2.0)
    stops = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)\n"
    found, error, _ = checked(stops, limit_s=3.0)
    assert found == []
    assert "8 s" in error
