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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from orchestrator.results.store import read_result
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.command_line import PROJECT, start_sweep
from tests.support.containers import leftovers
from tests.support.processes import node_processes

TIMES = 20
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
        expected = weights(Path(directory) / "undisturbed")
        for number in range(times):
            target = [*targets][number % len(targets)]
            out = Path(directory) / str(number)
            after_s, commands = disturbed(file, out, runtime, target, draws.uniform(0, duration))
            wrong = [] if weights(out) == expected else [f"rows differ: {weights(out)}"]
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
    find = (TARGETS if runtime == "local" else IN_CONTAINERS)[target]
    began = time.monotonic()
    time.sleep(after_s)
    while process.poll() is None:
        if victim := next(find(psutil.Process(process.pid), out), None):
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


def weights(out: Path) -> dict[str, list[str | None]]:
    """The weights of all runs that are ok, by key."""
    results = [read_result(path) for path in out.glob("*/result.json")]
    return {
        each.key: [rank.weights_digest for rank in each.ranks]
        for each in results
        if each and each.status == "ok"
    }


def ranks(_: psutil.Process, out: Path) -> Iterator[psutil.Process]:
    """The ranks of the current run, from their start events."""
    for path in out.glob("*/live/rank-*.jsonl"):
        try:
            first = json.loads(path.read_text().splitlines()[0])
            yield psutil.Process(first["pid"])
        except (OSError, IndexError, ValueError, KeyError, psutil.NoSuchProcess):
            continue


def with_command(word: str) -> Callable[[psutil.Process, Path], Iterator[psutil.Process]]:
    """Descendants of the orchestrator whose command contains a word."""

    def find(orchestrator: psutil.Process, _: Path) -> Iterator[psutil.Process]:
        try:
            for child in orchestrator.children(recursive=True):
                if any(word in part for part in child.cmdline()):
                    yield child
        except psutil.NoSuchProcess:
            return

    return find


TARGETS: dict[str, Callable[[psutil.Process, Path], Iterator[psutil.Process]]] = {
    "rank": ranks,
    "client": with_command("warm/client.py"),
    "mpirun": with_command("mpirun"),
    "warm parent": with_command("trainer.warm"),
    "orchestrator": lambda orchestrator, _: iter([orchestrator]),
}


def in_warm_container(word: str) -> Callable[[psutil.Process, Path], Iterator[psutil.Process]]:
    """Processes in warm containers whose command contains a word."""

    def find(_: psutil.Process, __: Path) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                warm = process.environ().get("SHARDYARD_WARM") == "1"
                if warm and word in " ".join(process.cmdline()):
                    yield process
            except psutil.Error:
                continue

    return find


def forked_ranks(orchestrator: psutil.Process, out: Path) -> Iterator[psutil.Process]:
    """The children of warm parents in containers."""
    for parent in in_warm_container("trainer.warm")(orchestrator, out):
        yield from parent.children()


def engine(_: psutil.Process, __: Path) -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.name() == "dockerd")


IN_CONTAINERS: dict[str, Callable[[psutil.Process, Path], Iterator[psutil.Process]]] = {
    "rank": forked_ranks,
    "mpirun": in_warm_container("bin/mpirun"),
    "warm parent": in_warm_container("trainer.warm"),
    "agent": in_warm_container("trainer.cluster node"),
    "coordinator": in_warm_container("trainer.cluster coordinator"),
    "orchestrator": lambda orchestrator, _: iter([orchestrator]),
    "engine": engine,
}
