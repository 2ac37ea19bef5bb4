"""Repeat the tests of tests/contract on the same warm nodes of a runtime, which may not grow.

Among their runs are some with injected faults. In the end, no shared-memory segment may be left, and the
nodes may have grown by less than 5 %.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from orchestrator.identity import identity
from orchestrator.runtimes.docker.engine import reach
from orchestrator.runtimes.docker.reaper import LABEL

GROWTH = 1.05
SHARED_MEMORY = Path("/dev/shm")


def main(times: int, runtime: str) -> int:
    """Returns the exit code."""
    failed, sizes, segments = 0, list[tuple[float, int]](), {*SHARED_MEMORY.iterdir()}
    for number in range(times):
        # Warm nodes, whose sockets are open, outlive a session.
        quiet = ["-q", "-p", "no:unraisableexception", "-p", "no:cacheprovider"]
        code = pytest.main([*quiet, "tests/contract", "-k", f"{runtime} and not cold"])
        failed += code != pytest.ExitCode.OK
        sizes.append(footprint(runtime))
        print(f"{number + 1}/{times}: nodes have {sizes[-1][0]:.1f} MiB and {sizes[-1][1]} descriptors")
    wrong = [f"{path} is left" for path in {*SHARED_MEMORY.iterdir()} - segments]
    # The first round starts the nodes, and fills their caches.
    (first_mb, first_fds), (last_mb, last_fds) = sizes[min(1, times - 1)], sizes[-1]
    if last_mb > GROWTH * first_mb or last_fds > first_fds:
        wrong.append("the nodes have grown")
    print(f"{times - failed} of {times} rounds good; {'; '.join(wrong) or 'no growth, nothing is left'}")
    return 1 if failed or wrong else 0


def footprint(runtime: str) -> tuple[float, int]:
    """Resident memory in MiB and descriptors of all warm nodes."""
    if runtime == "docker":
        api = reach().client.api
        found = api.containers(filters={"label": f"{LABEL}={identity()}"})
        rows = [row for each in found for row in api.top(each["Id"], ps_args="-o pid,args")["Processes"]]
        processes = [psutil.Process(int(pid)) for pid, command in rows if "python" in command]
    else:
        children = psutil.Process().children(recursive=True)
        processes = [each for each in children if "trainer.warm" in each.cmdline()]
    memory = sum(each.memory_info().rss for each in processes) / 2**20
    return memory, sum(each.num_fds() for each in processes)
