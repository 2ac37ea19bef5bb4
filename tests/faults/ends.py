"""Forced ends of the orchestrator at random moments: nothing is left, and no row is lost or changed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
BASE: dict[str, Any] = {**SMALL, "epochs": 20, "nodes": 2}
# Every way to start ranks: warm and cold, mpirun, remote calls, shared memory and torchrun.
LOCAL: list[dict[str, Any]] = [
    {"strategy": "all_reduce", "transport": "gloo"},
    {"strategy": "all_reduce", "transport": "gloo", "checkpoint_epochs": 2, "epochs": 60},
    {"strategy": "all_reduce", "transport": "mpi"},
    {"strategy": "all_reduce", "transport": "rpc"},
    {"strategy": "one_shot", "transport": "memory"},
    {"strategy": "ddp", "transport": "gloo", "restarts": 1},
]
# Each topology starts containers of its own, which takes longer than the runs.
DOCKER: list[dict[str, Any]] = [
    {"strategy": "all_reduce", "transport": "gloo"},
    {"strategy": "all_reduce", "transport": "mpi"},
    {"strategy": "all_reduce", "transport": "gloo", "checkpoint_epochs": 2, "epochs": 60},
]
RUNS = {"local": LOCAL, "docker": DOCKER}
SEEDS = 4  # of each run in a sweep that is killed again and again


@dataclass(frozen=True)
class Ended:
    """A command that was ended. after_s: the signal, from its start. left_s: until nothing was left."""

    after_s: float
    left_s: float
    code: int
    wrong: list[str]


def end_orchestrators(times: int, seed: int, runtime: str) -> int:
    """End the orchestrator `times` times, each in a new results directory; returns the exit code."""
    draws, bad = random.Random(seed), 0
    with _sweep(runtime) as (file, directory):
        duration, _ = _undisturbed(file, directory, runtime)
        for number in range(times):
            out, sent = directory / str(number), SIGNALS[number % len(SIGNALS)]
            ended = _end(file, out, runtime, sent, draws.uniform(0, duration))
            bad += bool(ended.wrong)
            _say(f"{number + 1}/{times} {sent.name}", ended)
    print(f"{times - bad} of {times} ends left nothing ({runtime})")
    return 1 if bad else 0


def end_sweep(times: int, seed: int, runtime: str) -> int:
    """Kill a sweep `times` times, or until it is finished; returns the exit code."""
    draws, wrong, kills = random.Random(seed), [], 0
    with _sweep(runtime, SEEDS) as (file, directory):
        _, first_row = _undisturbed(file, directory, runtime)
        expected, out = weights_in(directory / "undisturbed"), directory / "killed"
        while kills < times and weights_in(out) != expected:
            # Most commands end during start, some after a run or two.
            ended = _end(file, out, runtime, signal.SIGKILL, draws.uniform(0, 1.2 * first_row))
            kills += ended.code == -signal.SIGKILL
            wrong += ended.wrong
            _say(f"{kills}/{times} {len(weights_in(out))} of {len(expected)} runs done", ended)
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
        file = Path(name) / "ends.yml"
        axes = {"seed": list(range(1, seeds + 1))}
        blocks = [{"base": fields, "axes": axes} for fields in RUNS[runtime]]
        file.write_text(json.dumps({"name": "ends", "base": BASE, "blocks": blocks}))
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


def _end(file: Path, out: Path, runtime: str, sent: signal.Signals, after_s: float) -> Ended:
    """Start the sweep, send the signal, and wait until nothing is left."""
    process = start_sweep(file, out, "--runtime", runtime)
    place = PLACES[runtime](psutil.Process(process.pid), identity(process.pid), out)
    try:
        time.sleep(after_s)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=EXIT_S)
        hangs = []
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        hangs = [f"no end {EXIT_S:.0f} s after the signal: {output[-1500:]}"]
    finally:
        process.kill()
    wrong = [*hangs, *([f"there is a traceback: {output[-1500:]}"] if "Traceback" in output else [])]
    # Before its packages are imported, Python itself ends by the signal; a sweep may also be finished.
    if process.returncode not in (0, -sent, 130 if sent is not signal.SIGKILL else -sent):
        wrong.append(f"exit code {process.returncode}")
    began = time.monotonic()
    while (left := place.left()) and time.monotonic() - began < LEFT_S:
        time.sleep(0.1)
    wrong += [f"{each} is left" for each in left]
    # A run that was killed keeps its live directory until the same command repeats it.
    if sent is not signal.SIGKILL:
        wrong += [f"directory {path} is left" for path in (*out.glob("*/live"), *out.glob(".warm"))]
    return Ended(after_s, time.monotonic() - began, process.returncode, wrong)


def _say(head: str, ended: Ended) -> None:
    found = "; ".join(ended.wrong) or "ok"
    print(
        f"{head} after {ended.after_s:.1f} s, code {ended.code}, {ended.left_s:.1f} s: {found}", flush=True
    )
