"""`make soak`: repeat what usually works until it fails.

python -m tests.soak [ddp mpi rpc single]  `docker compose up` of topologies, cold and warm
python -m tests.soak contract              the contract of a runtime, on the same warm nodes
python -m tests.soak kill                  runs of which one rank is killed at a random moment
python -m tests.soak losses                runs that continue without nodes, which are lost and return
python -m tests.soak views                 the protocol of these runs, in larger settings than unit tests
python -m tests.soak fuzz                  changed files and messages, by tests/unit/project/test_fuzz.py
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from orchestrator.runtimes import RUNTIMES
from tests.soak import contract, kill, losses, topologies, views


def fuzz(times: int) -> int:
    os.environ["FUZZ_TIMES"] = str(times)
    return pytest.main(["-v", "--timeout=0", "tests/unit/project/test_fuzz.py"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="*", default=[*topologies.TIMES], help="default: all topologies")
    parser.add_argument("--times", type=int, help="instead of the usual number")
    parser.add_argument("--seed", type=int, default=0, help="of kill; of losses: number of the first run")
    parser.add_argument(
        "--runtime", default="local", choices=list(RUNTIMES.entries), help="of contract and kill"
    )
    parser.add_argument("--spec", type=Path, help="of kill: another run, a YAML file of its fields")
    options = parser.parse_args()
    times = options.times
    match options.what:
        case ["contract"]:
            return contract.main(times or 20, options.runtime)
        case ["kill"]:
            return kill.main(options.spec, options.runtime, times or 20, options.seed)
        case ["losses"]:
            return losses.main(times or 500, options.seed)
        case ["views"]:
            return views.main()
        case ["fuzz"]:
            return fuzz(times or 10_000)
    if unknown := {*options.what} - {*topologies.TIMES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return topologies.main(options.what, times)


if __name__ == "__main__":
    sys.exit(main())
