"""`make faults`: play the cases of the fault matrix, and judge them.

python -m tests.faults [WORD...]            cases whose names contain one of the words
python -m tests.faults orchestrator         force the end of the orchestrator at random moments
python -m tests.faults sweep                kill a sweep again and again until it is finished
python -m tests.faults docs                 write docs/faults.md
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.faults.case import DOCKER, LOCAL, RAY, SLURM, SWARM
from tests.faults.ends import end_orchestrators, end_sweep
from tests.faults.page import write_page
from tests.faults.runner import Played, References, missing, play
from tests.faults.table import CASES
from tests.support.ray_cluster import trial_ray
from tests.support.slurm_cluster import trial_cluster
from tests.support.swarm_cluster import trial_swarm

RUNTIMES = (LOCAL, DOCKER, SLURM, SWARM, RAY)  # in the order in which they are played
CLUSTERS = {SLURM: trial_cluster, SWARM: trial_swarm, RAY: trial_ray}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", help="of the names of cases; default: all cases")
    parser.add_argument("--runtime", choices=RUNTIMES, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="how often each case is played")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="also stop the Docker engine of this machine")
    parser.add_argument("--keep", type=Path, help="a directory for the files of cases that fail")
    parser.add_argument("--times", type=int, help="of orchestrator and sweep, on each runtime")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # end what the case in progress has started
    runtimes = [each for each in RUNTIMES if each in (options.runtime or RUNTIMES)]
    if options.words == ["docs"]:
        return write_page()
    if options.words in (["orchestrator"], ["sweep"]):
        end = end_sweep if options.words == ["sweep"] else end_orchestrators
        return max(
            end(options.times, options.first_seed, each) for each in runtimes if each not in CLUSTERS
        )
    with ExitStack() as stack:
        return _play(options, runtimes, stack)


def _play(options: argparse.Namespace, runtimes: list[str], stack: ExitStack) -> int:
    """Play the cases; returns the exit code. stack: ends what several cases share."""
    chosen = [
        (case, runtime)
        for runtime in runtimes
        for case in CASES
        if runtime in case.runtimes
        and (not options.words or any(each in case.name for each in options.words))
    ]
    references, started = References(), set[str]()
    played: list[Played] = []
    skipped: Counter[str] = Counter()
    for number, (case, runtime) in enumerate(chosen, start=1):
        head = f"{number}/{len(chosen)} {case.name} {runtime}"
        reason = missing(case, runtime)
        if case.fault.alone and not options.alone:
            reason = "stops the engine: --alone"
        if reason:
            skipped[runtime] += 1
            print(f"{head}: skipped, {reason}", flush=True)
            continue
        if runtime in CLUSTERS and runtime not in started:
            started.add(runtime)
            stack.enter_context(CLUSTERS[runtime]())
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            began = time.monotonic()
            done = play(case, runtime, seed, references, options.keep)
            played.append(done)
            took = f"{time.monotonic() - began:.0f} s"
            took += "" if done.seconds is None else f", {done.seconds:.1f} s after the fault"
            print(f"{head} seed {seed} ({took}): {'; '.join(done.wrong) or 'ok'}", flush=True)
            if done.wrong:
                print(f"    said: {done.said[-600:]}", flush=True)
    for runtime in runtimes:
        of = [each for each in played if each.runtime == runtime]
        good = sum(not each.wrong for each in of)
        print(f"{runtime}: {good} of {len(of)} hold, {skipped[runtime]} cases skipped")
        for name, count in Counter(each.case for each in of if each.wrong).items():
            print(f"  {name}: {count} failed")
    return 1 if any(each.wrong for each in played) else 0


if __name__ == "__main__":
    sys.exit(main())
