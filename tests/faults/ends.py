"""Forced ends of the orchestrator at random moments: nothing is left, and no row is lost or changed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from orchestrator.identity import identity
from tests.support.command_line import start_sweep
from tests.support.places import PLACES
from tests.support.runs import SMALL, weights_in

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LIMIT_S = 300.0  # of a command
EXIT_S = 40.0  # from the signal to the end of the command
LEFT_S = 30.0  # from the end of the command until nothing is left
SEEDS = 4  # of each run in a sweep that is killed again and again
RESUMABLE = {"strategy": "all_reduce", "transport": "gloo", "checkpoint_epochs": 2, "epochs": 60}
RUNS: dict[str, list[dict[str, Any]]] = {
    # Every way to start ranks: warm and cold, mpirun, remote calls, shared memory and torchrun.
    "local": [
        *({"strategy": "all_reduce", "transport": transport} for transport in ("gloo", "mpi", "rpc")),
        RESUMABLE,
        {"strategy": "one_shot", "transport": "memory"},
        {"strategy": "ddp", "transport": "gloo", "restarts": 1},
    ],
    # Each topology starts containers of its own, which takes longer than the runs.
    "docker": [
        *({"strategy": "all_reduce", "transport": transport} for transport in ("gloo", "mpi")),
        RESUMABLE,
    ],
}


def end_orchestrators(times: int | None, seed: int, runtime: str) -> int:
    """End the orchestrator `times` times, each in a new results directory; returns the exit code."""
    draws, bad, times = random.Random(seed), 0, times or 200
    with _sweep(runtime) as (file, directory):
        duration, _ = _undisturbed(file, directory, runtime)
        for number in range(times):
            sent = SIGNALS[number % len(SIGNALS)]
            head = f"{number + 1}/{times} {sent.name}"
            _, wrong = _end(head, file, directory / str(number), runtime, sent, draws.uniform(0, duration))
            bad += bool(wrong)
    print(f"{times - bad} of {times} ends left nothing ({runtime})")
    return 1 if bad else 0


def end_sweep(times: int | None, seed: int, runtime: str) -> int:
    """Kill a sweep `times` times, or until it is finished; returns the exit code."""
    draws, wrong, kills, times = random.Random(seed), list[str](), 0, times or 50
    with _sweep(runtime, SEEDS) as (file, directory):
        _, first_row = _undisturbed(file, directory, runtime)
        expected, out = weights_in(directory / "undisturbed"), directory / "killed"
        while kills < times and weights_in(out) != expected:
            head = f"{kills}/{times} {len(weights_in(out))} of {len(expected)} runs done"
            # Most commands end during start, some after a run or two.
            after_s = draws.uniform(0, 1.2 * first_row)
            code, problems = _end(head, file, out, runtime, signal.SIGKILL, after_s)
            kills += code == -signal.SIGKILL
            wrong += problems
        last = start_sweep(file, out, "--runtime", runtime)
        output, _ = last.communicate(timeout=LIMIT_S)
        if last.returncode or "Traceback" in output:
            wrong.append(f"the last command ended with exit code {last.returncode}: {output[-400:]}")
        if (found := weights_in(out)) != expected:
            wrong.append(f"weights differ: {found}, not {expected}")
    print(
        "; ".join(wrong) or f"the sweep was killed {kills} times and equals an undisturbed one ({runtime})"
    )
    return 1 if wrong else 0


@contextmanager
def _sweep(runtime: str, seeds: int = 1) -> Iterator[tuple[Path, Path]]:
    """The sweep file, and a directory for results."""
    with TemporaryDirectory(prefix="shardyard-ends-") as name:
        file, base = Path(name) / "ends.yml", {**SMALL, "epochs": 20, "nodes": 2}
        blocks = [{"base": fields, "axes": {"seed": [*range(1, seeds + 1)]}} for fields in RUNS[runtime]]
        file.write_text(json.dumps({"name": "ends", "base": base, "blocks": blocks}))
        yield file, Path(name)


def _undisturbed(file: Path, directory: Path, runtime: str) -> tuple[float, float]:
    """Seconds of an undisturbed sweep, and until its first row."""
    began, out = time.monotonic(), directory / "undisturbed"
    process = start_sweep(file, out, "--runtime", runtime)
    while process.poll() is None and not list(out.glob("*/result.json")):
        time.sleep(0.1)
    first_row = time.monotonic() - began
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    return time.monotonic() - began, first_row


def _end(
    head: str, file: Path, out: Path, runtime: str, sent: signal.Signals, after_s: float
) -> tuple[int, list[str]]:
    """Start the sweep, send the signal, and wait until nothing is left.

    Prints a line, and returns the exit code and what is wrong.
    """
    process = start_sweep(file, out, "--runtime", runtime)
    place = PLACES[runtime](psutil.Process(process.pid), identity(process.pid), out)
    wrong: list[str] = []
    try:
        time.sleep(after_s)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        wrong.append(f"no end {EXIT_S:.0f} s after the signal: {output[-1500:]}")
    finally:
        process.kill()
    code = process.returncode
    if "Traceback" in output:
        wrong.append(f"there is a traceback: {output[-1500:]}")
    # Before its packages are imported, Python itself ends by the signal; a sweep may also be finished.
    if code not in (0, -sent, 130 if sent is not signal.SIGKILL else -sent):
        wrong.append(f"exit code {code}")
    began = time.monotonic()
    while (left := place.left()) and time.monotonic() - began < LEFT_S:
        time.sleep(0.1)
    # A run that was killed keeps its live directory until the same command repeats it.
    live = [] if sent is signal.SIGKILL else [*out.glob("*/live"), *out.glob(".warm")]
    wrong += [f"{each} is left" for each in (*left, *(f"directory {path}" for path in live))]
    left_s = time.monotonic() - began
    print(
        f"{head} after {after_s:.1f} s, code {code}, {left_s:.1f} s: {'; '.join(wrong) or 'ok'}", flush=True
    )
    return code, wrong
