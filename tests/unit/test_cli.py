"""The command line, as far as it goes without starting anything."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from orchestrator import cli, doctor
from orchestrator.doctor import Finding
from orchestrator.errors import InputError
from orchestrator.store import SweepPaths

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_once_and_cleaning_up_is_left_alone(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    cleaned = False
    with pytest.raises(KeyboardInterrupt), cli.interruptible():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
            pytest.fail("was not interrupted")
        finally:
            for each in SIGNALS:
                os.kill(os.getpid(), each)
            cleaned = True
    assert cleaned
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_what_a_user_can_mend_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["orchestrator", "sweep", str(tmp_path / "absent.yml")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"error: {tmp_path}/absent.yml: no such file\n")


def test_an_unknown_runtime_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="--runtime slurm: unknown runtime; known: local"):
        cli._runtime("slurm")


@pytest.mark.parametrize(
    "name",
    ["plain", "long" * 40, "a[b]", "a[/b]", "a:b:c:ok:"],
)
def test_where_the_report_lies_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("orchestrator.report.write_report", lambda paths: None)
    file = io.StringIO()
    cli._report(SweepPaths(Path(name)), cli.plain_console(file))
    assert file.getvalue() == f"report: {name}/report.html\n"


@pytest.mark.parametrize("path", ["/data", "/[b]/data"])
def test_what_the_doctor_finds_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter([Finding("mnist", "note", path)]))
    cli.doctor(Path(path))
    assert path in capsys.readouterr().out


def test_the_doctor_is_not_content_without_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    findings = [Finding("torch", "missing", "make venv", required=True), Finding("mpi", "missing", "no")]
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter(findings))
    with pytest.raises(typer.Exit) as caught:
        cli.doctor(Path())
    assert caught.value.exit_code == 1
    del findings[0]
    cli.doctor(Path())
