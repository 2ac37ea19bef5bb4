"""Attacks by a component on the command `check`: control characters, output and time without limit."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.commands import check as command
from orchestrator.commands.check import Report
from orchestrator.errors import InputError
from orchestrator.sandbox.local import SHOWN_BYTES
from orchestrator.sweeps import trials
from orchestrator.sweeps.trials import local_sandbox

HONEST = "def mine(labels, parts, rng): return [[0]]\n"
# Writes to all descriptors, and so to that of the answers.
FORGES = """
import contextlib, os
for number in range(3, 64):
    with contextlib.suppress(OSError):
        os.write(number, SENT)
"""
FLOODS = "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n"
Checked = Callable[..., tuple[list[Report], str, str]]


@pytest.fixture
def checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Checked:
    def check(code: str, limit_s: float = 30.0) -> tuple[list[Report], str, str]:
        """The reports on a component with this code, or the error; and what the terminal gets."""
        (tmp_path / "mine.py").write_text(code)
        asked = command.request_of(str(tmp_path / "mine.py"), (), None, None, None, tmp_path, limit_s)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: list[Report] = []
        error = ""
        try:
            with command.checking(asked, local_sandbox) as checking:
                found.extend(checking.reports(asked))
        except InputError as refused:
            error = str(refused)
        shown = "\n".join(line.plain for report in found for line in command.lines(report, 80))
        printed = "".join(capfd.readouterr())
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
        assert "\x1b" not in error + shown + printed
        return found, error, printed

    return check


def test_escape_sequences_are_shown_as_text(checked: Checked) -> None:
    prints = "print('\\x1b]0;title\\x07', flush=True)\n"
    raises = "def mine(labels, parts, rng): raise ValueError('\\x1b[2J of the user')\n"
    (report,), error, printed = checked(prints + raises)
    assert not error
    assert r"\x1b]0;title\x07" in printed
    assert any(r"\x1b[2J of the user" in finding.got for finding in report.findings)


def test_what_is_no_report_is_one_line(checked: Checked) -> None:
    for sent in (b"x" * 65536, b"\xff\xff\xff\xff", b'\0\0\0\x0c{"found": {}}', b'\0\0\0\x0b{"error": 3}'):
        found, error, _ = checked(FORGES.replace("SENT", repr(sent)) + HONEST)
        assert found == []
        assert error
        assert "\n" not in error
        assert len(error) < 1000


KILLS = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [(KILLS, "SIGKILL"), (KILLS.replace("SIGKILL", "SIGSTOP"), "3 s"), (FLOODS, "1 s")],
    ids=["kills", "stops", "floods"],
)
def test_what_ends_or_holds_the_process_that_checks_it_is_named(
    code: str, says: str, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "MORE_S", 2.0)
    found, error, printed = checked(code, limit_s=1.0)
    assert found == []
    assert says in error
    assert len(printed) <= SHOWN_BYTES
    assert bool(printed) == (code == FLOODS)
