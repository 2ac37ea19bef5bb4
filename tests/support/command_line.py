"""Run the command line in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import private_network_missing

PROJECT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """This process's environment with runtime local as the default.

    Of Shardyard's variables, only the name of the image is inherited.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key == "SHARDYARD_IMAGE" or not key.startswith("SHARDYARD_")
    }
    return {**inherited, "SHARDYARD_RUNTIME": "local"}


def orchestrator(*arguments: str | Path) -> list[str]:
    options = ["--shared-network"] if arguments[0] in ("sweep", "lab") and private_network_missing() else []
    return [sys.executable, "-m", "orchestrator", *map(str, arguments), *options]


def run_cli(
    *arguments: str | Path, timeout_s: float = 120, directory: Path = PROJECT
) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory and wait for it to end."""
    return subprocess.run(
        orchestrator(*arguments),
        cwd=directory,
        env={**environment(), "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def heed_signals() -> None:
    """In a child: heed the signals that tests in the background ignore, and their children with them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start_sweep(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """Start a sweep and return while it runs."""
    return subprocess.Popen(
        orchestrator("sweep", file, "--out", out, *options),
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_signals,
    )
