"""`make soak ARGS=kill-sweep`: a sweep on local nodes, of which one process is killed at a random moment.

The processes are killed in turn: a rank, its client, mpirun, the warm parent, the orchestrator. After a
killed orchestrator, and after a run that failed, the same command runs again. A round passes when all rows
are ok with the weights of an undisturbed sweep, the command ran no more often than that, and no process is
left.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from orchestrator.results.store import read_result
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.command_line import start_sweep
from tests.support.processes import node_processes

TIMES = 20
SWEEP = {
    "name": "killed",
    "base": {"dataset": "digits", "model": "mlp", "epochs": 6, "nodes": 2, "timeout_s": 60},
    "blocks": [
        {"base": {"strategy": "serial", "nodes": 1}},
        {"base": {"strategy": "all_reduce"}, "axes": {"transport": ["gloo", "mpi", "rpc"]}},
        {"base": {"strategy": "one_shot"}, "axes": {"transport": ["mpi", "memory"]}},
        {"base": {"strategy": "ddp"}},
    ],
}
# Commands that a killed process may take: only these kills fail a run or the sweep.
COMMANDS = {"rank": 2, "client": 2, "mpirun": 2, "warm parent": 1, "orchestrator": 2}


def main(times: int, seed: int) -> int:
    """Execute the rounds; returns the exit code."""
    draws, bad = random.Random(seed), 0
    with TemporaryDirectory() as directory:
        file = Path(directory) / "killed.yml"
        file.write_text(json.dumps(SWEEP))
        began = time.monotonic()
        start_sweep(file, Path(directory) / "undisturbed").communicate()
        duration = time.monotonic() - began
        expected = weights(Path(directory) / "undisturbed")
        for number in range(times):
            target = [*COMMANDS][number % len(COMMANDS)]
            out = Path(directory) / str(number)
            after_s, commands = disturbed(file, out, target, draws, duration)
            wrong = [] if weights(out) == expected else [f"rows differ: {weights(out)}"]
            if commands > COMMANDS[target]:
                wrong.append(f"took {commands} commands")
            wrong += [f"process {process.pid} is left" for process in node_processes(out)]
            if orphans := LocalRuntime().clean():
                wrong.append(f"{orphans} processes without an orchestrator are left")
            bad += bool(wrong)
            text = "; ".join(wrong) or "ok"
            print(f"{number + 1}/{times} {target} killed after {after_s:.1f} s: {text}", flush=True)
    print(f"{times - bad} of {times} rounds good")
    return 1 if bad else 0


def disturbed(
    file: Path, out: Path, target: str, draws: random.Random, duration: float
) -> tuple[float, int]:
    """Run the sweep to its end with one kill. Returns its moment in seconds, and the number of commands."""
    process = start_sweep(file, out)
    began = time.monotonic()
    time.sleep(draws.uniform(0, duration))
    while process.poll() is None:
        if victim := next(TARGETS[target](psutil.Process(process.pid), out), None):
            victim.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    after_s, commands = time.monotonic() - began, 1
    process.communicate()
    while process.returncode and commands < 5:
        process = start_sweep(file, out)
        process.communicate()
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
