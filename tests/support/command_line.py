"""Run the command line in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import private_network_missing

PROJECT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]
Running = subprocess.Popen[str]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with runtime local as the default.

    Of Shardyard's variables, only the name of the image is inherited.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key == "SHARDYARD_IMAGE" or not key.startswith("SHARDYARD_")
    }
    return {**inherited, "SHARDYARD_RUNTIME": "local", **variables}


def orchestrator(*arguments: str | Path) -> list[str]:
    options = ["--shared-network"] if arguments[0] in ("sweep", "lab") and private_network_missing() else []
    return [sys.executable, "-m", "orchestrator", *map(str, arguments), *options]


def run(command: list[str | Path] | str, directory: Path, timeout_s: float = 120, **variables: str) -> Done:
    """Run a command, of a shell if it is text, in a directory and wait for it to end."""
    return subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=directory,
        env=environment(**{"PYTHONPATH": str(PROJECT), **variables}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_cli(
    *arguments: str | Path, timeout_s: float = 120, directory: Path = PROJECT, **variables: str
) -> Done:
    """Run a command of ours in a directory and wait for it to end."""
    return run([*orchestrator(*arguments)], directory, timeout_s, **variables)


def run_ok(*arguments: str | Path, code: int = 0, timeout_s: float = 280, **options: Path) -> Done:
    """As `run_cli`; the exit code must be this one."""
    done = run_cli(*arguments, timeout_s=timeout_s, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def refused(*arguments: str | Path, **options: Path) -> str:
    """What a command says that must be refused."""
    done = run_ok(*arguments, code=2, **options)
    assert "Traceback" not in done.stderr
    return done.stderr


def heed_signals() -> None:
    """In a child: heed the signals that tests in the background ignore, and their children with them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(command: list[str], directory: Path = PROJECT, **variables: str) -> Running:
    """Start a command in the background; its output can be read."""
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environment(**{"PYTHONPATH": str(PROJECT), **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_signals,
    )


def start_sweep(file: Path, out: Path, *options: str) -> Running:
    """Start a sweep and return while it runs."""
    return start(orchestrator("sweep", file, "--out", out, *options))


def end(process: Running, number: signal.Signals = signal.SIGINT, within_s: float = 60) -> str:
    """Interrupt, terminate or kill a command, which must end by that. Returns its output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=within_s)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), output
    return output
