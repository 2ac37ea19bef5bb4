"""What mpirun starts on a node: replaces itself with a rank, whose command the node's agent has written.

    python -S -E mpi_rank.py FILE

FILE has {"argv": [...], "environment": {...}}. mpirun waits for this process, so it imports little. It does
not inherit the environment of the agent.
"""

import json
import os
import sys
import time
from pathlib import Path

ASSIGNMENT_S = 120.0


def main(file: Path) -> None:
    """Wait for the node's rank assignment, then become the rank."""
    deadline = time.monotonic() + ASSIGNMENT_S
    while not file.exists():  # the launcher may receive the assignment before this node
        if time.monotonic() > deadline:
            sys.exit(f"this node received no rank assignment within {ASSIGNMENT_S:.0f} s")
        time.sleep(0.02)
    command = json.loads(file.read_text())
    os.execve(command["argv"][0], command["argv"], {**os.environ, **command["environment"]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
