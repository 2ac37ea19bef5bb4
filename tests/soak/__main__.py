"""`make soak`: repeat `docker compose up --scale node=4` of every topology, cold and warm.

Cold rounds start without containers and remove them afterwards. Warm rounds start on the stopped containers
of the round before, as a second `up` does. A round passes when the exit code is 0, the world size is right,
every rank started once, no connection was refused, and no container, network or volume is left.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtimes import RUNTIMES
from tests.soak import fuzz, kill, kill_sweep, losses, views, warm_nodes
from tests.support.containers import leftovers, spec_of_up

PROJECT = Path(__file__).resolve().parents[2]
TIMES = {"ddp": 50, "mpi": 20, "rpc": 20, "single": 10}
LIMIT_S = 300


@dataclass(frozen=True)
class Round:
    """One `up`. wrong: its failures."""

    warm: bool
    seconds: float
    wrong: list[str]


def soak(topology: str, times: int, nodes: int, cpus: str, results: Path) -> list[Round]:
    """Execute `times` rounds; every second one is warm."""
    project = f"soak-{topology}-{os.getpid()}"
    compose = ["docker", "compose", "-f", f"{PROJECT}/compose/{topology}.yml", "-p", project]
    environment = {
        **os.environ,
        "SHARDYARD_SPEC": str(spec_of_up(topology, results)),
        "SHARDYARD_CPUS": cpus,
        "SHARDYARD_RESULTS": str(results),
    }
    size = nodes + (topology == "rpc")  # the master is a rank, too
    rounds: list[Round] = []
    try:
        for number in range(times):
            warm = number % 2 == 1
            began = time.monotonic()
            up = [*compose, "up", "--scale", f"node={nodes}"]
            done = run(up, environment)
            seconds = time.monotonic() - began
            wrong = judge(done, size)
            last = number == times - 1
            if warm or last:
                run([*compose, "down", "--timeout", "1"], environment)
                wrong += [
                    f"left behind: {left}" for left in leftovers(f"com.docker.compose.project={project}")
                ]
            rounds.append(Round(warm, seconds, wrong))
            if wrong:
                print(f"{topology} {number + 1}: {'; '.join(wrong)}\n{done.stdout}", file=sys.stderr)
            word = "warm" if warm else "cold"
            print(f"{topology} {number + 1}/{times} {word} {seconds:5.1f} s {'; '.join(wrong) or 'ok'}")
    finally:
        run([*compose, "down", "--timeout", "1"], environment)
    return rounds


def run(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with stdout and stderr in one stream; a timeout counts as a failure."""
    try:
        return subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return subprocess.CompletedProcess(command, -1, f"{text}\ndid not end within {LIMIT_S} s")


def judge(done: subprocess.CompletedProcess[str], size: int) -> list[str]:
    """The failures of one `up`."""
    wrong = []
    if done.returncode:
        wrong.append(f"exit code {done.returncode}")
    if not re.search(rf"(?m)^\S*coordinator-1\s+\| ok: .*\bworld size {size}\b", done.stdout):
        wrong.append(f"no summary of world size {size}")
    if (ups := len(re.findall(r"\| up, process", done.stdout))) != size:
        wrong.append(f"{ups} ranks started, not {size}")
    if refused := done.stdout.count("Connection refused"):
        wrong.append(f"{refused} × Connection refused")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "topologies",
        nargs="*",
        default=list(TIMES),
        help="default: all; fuzz, kill, kill-sweep, losses, views, warm: see tests/soak",
    )
    parser.add_argument("--times", type=int, help="rounds each, instead of the usual number")
    parser.add_argument("--nodes", type=int, help="default: 4; of kill: 3")
    parser.add_argument("--cpus", default="0.4", help="quota of a node")
    parser.add_argument(
        "--runtime", default="local", choices=list(RUNTIMES.entries), help="of kill, kill-sweep, warm"
    )
    parser.add_argument("--strategies", nargs="*", default=["all_reduce", "ddp"], help="of kill")
    parser.add_argument("--checkpoint-epochs", type=int, help="of kill; default: no checkpoints")
    parser.add_argument("--spec", type=Path, help="of kill: another run, a YAML file of its fields")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments of kill; of losses: number of the first run"
    )
    options = parser.parse_args()
    if options.topologies == ["kill"]:
        times, nodes = options.times or kill.TIMES, options.nodes or 3
        runs = (
            [kill.run_in(options.spec)]
            if options.spec
            else [
                kill.run_of(strategy, nodes, float(options.cpus), options.checkpoint_epochs)
                for strategy in options.strategies
            ]
        )
        return kill.main(runs, options.runtime, times, options.seed)
    if options.topologies == ["kill-sweep"]:
        return kill_sweep.main(options.times or kill_sweep.TIMES, options.seed, options.runtime)
    if options.topologies == ["warm"]:
        return warm_nodes.main(options.times or warm_nodes.TIMES, options.seed, options.runtime)
    if options.topologies == ["losses"]:
        return losses.main(options.times or losses.TIMES, options.seed)
    if options.topologies == ["views"]:
        return views.main()
    if options.topologies == ["fuzz"]:
        return fuzz.main(options.times)
    options.nodes = options.nodes or 4
    lines, bad = [], 0
    with tempfile.TemporaryDirectory() as results:
        for topology in options.topologies:
            times = options.times or TIMES[topology]
            rounds = soak(topology, times, options.nodes, options.cpus, Path(results))
            good = sum(not each.wrong for each in rounds)
            bad += len(rounds) - good
            lines.append(
                f"{topology}: {good} of {len(rounds)} good, {options.nodes} nodes at {options.cpus} cpu"
            )
            for warm in (False, True):
                seconds = [each.seconds for each in rounds if each.warm is warm]
                if seconds:
                    middle, most = statistics.median(seconds), max(seconds)
                    lines[-1] += (
                        f"; {'warm' if warm else 'cold'} median {middle:.1f} s, longest {most:.1f} s"
                    )
    print("\n".join(lines))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
