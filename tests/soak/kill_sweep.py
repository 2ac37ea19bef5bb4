"""`make soak ARGS=kill-sweep`: a sweep on warm nodes, of which one process is killed at a random moment.

The processes are killed in turn: a rank, its client, mpirun, the warm parent, the orchestrator; with
containers also an agent, the coordinator and the engine, which is then started again. After a killed
orchestrator or engine, and after a run that failed, the same command runs again. A round passes when all
rows are ok with the weights of an undisturbed sweep, the command ran no more often than that, and nothing
is left.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from orchestrator.identity import identity
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.command_line import PROJECT, start_sweep
from tests.support.containers import leftovers
from tests.support.places import MPIRUN, PLACES, Place
from tests.support.processes import node_processes
from tests.support.runs import weights_in

TIMES = 20
Find = Callable[[Place], Iterator[psutil.Process]]
BASE = {"dataset": "digits", "model": "mlp", "epochs": 6, "nodes": 2, "timeout_s": 60}
BLOCKS: dict[str, list[dict[str, Any]]] = {
    "local": [
        {"base": {"strategy": "serial", "nodes": 1}},
        {"base": {"strategy": "all_reduce"}, "axes": {"transport": ["gloo", "mpi", "rpc"]}},
        {"base": {"strategy": "one_shot"}, "axes": {"transport": ["mpi", "memory"]}},
        {"base": {"strategy": "ddp"}},
    ],
    # Each topology starts containers of its own, which takes longer than the runs.
    "docker": [
        {"base": {"strategy": "all_reduce"}, "axes": {"transport": ["gloo", "mpi"], "seed": [1, 2, 3]}}
    ],
}
# Commands that a killed process may take: only kills with 2 may fail a run or the sweep.
COMMANDS = {
    "local": {"rank": 2, "client": 2, "mpirun": 2, "warm parent": 1, "orchestrator": 2},
    "docker": {
        "rank": 2,
        "mpirun": 2,
        "warm parent": 1,
        "agent": 1,
        "coordinator": 1,
        "orchestrator": 2,
        "engine": 2,
    },
}
LIMIT_S = 300  # of a command


def main(times: int, seed: int, runtime: str) -> int:
    """Execute the rounds on a runtime; returns the exit code."""
    draws, bad, targets = random.Random(seed), 0, COMMANDS[runtime]
    with TemporaryDirectory() as directory:
        file = Path(directory) / "killed.yml"
        file.write_text(json.dumps({"name": "killed", "base": BASE, "blocks": BLOCKS[runtime]}))
        began = time.monotonic()
        start_sweep(file, Path(directory) / "undisturbed", "--runtime", runtime).communicate()
        duration = time.monotonic() - began
        expected = weights_in(Path(directory) / "undisturbed")
        for number in range(times):
            target = [*targets][number % len(targets)]
            out = Path(directory) / str(number)
            after_s, commands = disturbed(file, out, runtime, target, draws.uniform(0, duration))
            wrong = [] if weights_in(out) == expected else [f"rows differ: {weights_in(out)}"]
            if commands > targets[target]:
                wrong.append(f"took {commands} commands")
            wrong += [f"process {process.pid} is left" for process in node_processes(out)]
            if runtime == "docker":
                wrong += [f"{each} is left" for each in leftovers(LABEL)]
            if orphans := LocalRuntime().clean():
                wrong.append(f"{orphans} processes without an orchestrator are left")
            bad += bool(wrong)
            text = "; ".join(wrong) or "ok"
            print(f"{number + 1}/{times} {target} killed after {after_s:.1f} s: {text}", flush=True)
    print(f"{times - bad} of {times} rounds good")
    return 1 if bad else 0


def disturbed(file: Path, out: Path, runtime: str, target: str, after_s: float) -> tuple[float, int]:
    """Run the sweep to its end with one kill. Returns its moment in seconds, and the number of commands.

    after_s: earliest moment of the kill, from the start of the command.
    """
    process = start_sweep(file, out, "--runtime", runtime)
    place = PLACES[runtime](psutil.Process(process.pid), identity(process.pid), out)
    began = time.monotonic()
    time.sleep(after_s)
    while process.poll() is None:
        if victim := next(TARGETS[target](place), None):
            victim.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    after_s, commands = time.monotonic() - began, 1
    process.communicate(timeout=LIMIT_S)
    if target == "engine":
        subprocess.run(["make", "engine"], cwd=PROJECT, check=True, capture_output=True, timeout=LIMIT_S)
    while process.returncode and commands < 5:
        process = start_sweep(file, out, "--runtime", runtime)
        process.communicate(timeout=LIMIT_S)
        commands += 1
    return after_s, commands


def forked(place: Place) -> Iterator[psutil.Process]:
    """The ranks that warm parents have forked."""
    for parent in place.processes("trainer.warm"):
        with suppress(psutil.NoSuchProcess):
            yield from parent.children()


def with_command(*words: str) -> Find:
    return lambda place: place.processes(*words)


def engine(_: Place) -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.name() == "dockerd")


TARGETS: dict[str, Find] = {
    "rank": forked,
    "client": with_command("warm/client.py"),
    "mpirun": with_command(*MPIRUN),
    "warm parent": with_command("trainer.warm"),
    "agent": with_command("trainer.cluster node"),
    "coordinator": with_command("trainer.cluster coordinator"),
    "orchestrator": lambda place: iter([place.orchestrator]),
    "engine": engine,
}
