"""Repeat `docker compose up --scale node=4` of topologies, cold and warm.

Cold rounds start without containers and remove them afterwards. Warm rounds start on the stopped containers
of the round before, as a second `up` does. A round passes when the exit code is 0, the world size is right,
every rank started once, no connection was refused, and no container, network or volume is left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from orchestrator.shipped import COMPOSE
from tests.support.containers import leftovers, spec_of_up

TIMES = {"ddp": 50, "mpi": 20, "rpc": 20, "single": 10}
NODES, CPUS = 4, "0.4"
LIMIT_S = 300


def main(topologies: Sequence[str], times: int | None) -> int:
    """Returns the exit code."""
    with tempfile.TemporaryDirectory() as results:
        return max(soak(each, times or TIMES[each], Path(results)) for each in topologies)


def soak(topology: str, times: int, results: Path) -> int:
    """Execute `times` rounds; every second one is warm. Returns the exit code."""
    project = f"soak-{topology}-{os.getpid()}"
    compose = ["docker", "compose", "-f", str(COMPOSE / f"{topology}.yml"), "-p", project]
    variables = {"SPEC": str(spec_of_up(topology, results)), "CPUS": CPUS, "RESULTS": str(results)}
    environment = {**os.environ, **{f"SHARDYARD_{name}": value for name, value in variables.items()}}
    seconds, bad = defaultdict[str, list[float]](list), 0
    try:
        for number in range(times):
            word = "warm" if number % 2 else "cold"
            began = time.monotonic()
            code, output = run([*compose, "up", "--scale", f"node={NODES}"], environment)
            seconds[word].append(time.monotonic() - began)
            wrong = judge(code, output, NODES + (topology == "rpc"))  # its master is a rank, too
            if word == "warm" or number == times - 1:
                run([*compose, "down", "--timeout", "1"], environment)
                left = leftovers(f"com.docker.compose.project={project}")
                wrong += [f"left behind: {each}" for each in left]
            if wrong:
                bad += 1
                print(output, file=sys.stderr)
            took = f"{word} {seconds[word][-1]:5.1f} s"
            print(f"{topology} {number + 1}/{times} {took} {'; '.join(wrong) or 'ok'}", flush=True)
    finally:
        run([*compose, "down", "--timeout", "1"], environment)
    spans = [
        f"{word} median {median(each):.1f} s, longest {max(each):.1f} s" for word, each in seconds.items()
    ]
    print(f"{topology}: {times - bad} of {times} good, {NODES} nodes at {CPUS} cpu; {'; '.join(spans)}")
    return 1 if bad else 0


def run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """The exit code and the output of a command; a timeout counts as a failure."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=LIMIT_S)
            code, note = done.returncode, ""
        except subprocess.TimeoutExpired:
            code, note = -1, f"\ndid not end within {LIMIT_S} s"
        output.seek(0)
        return code, output.read() + note


def judge(code: int, output: str, size: int) -> list[str]:
    """The failures of one `up`."""
    wrong = [f"exit code {code}"] if code else []
    if not re.search(rf"(?m)^\S*coordinator-1\s+\| ok: .*\bworld size {size}\b", output):
        wrong.append(f"no summary of world size {size}")
    if (ups := len(re.findall(r"\| up, process", output))) != size:
        wrong.append(f"{ups} ranks started, not {size}")
    if refused := output.count("Connection refused"):
        wrong.append(f"{refused} × Connection refused")
    return wrong
