"""A node: an actor that passes bytes between the driver and an agent (trainer/node), its child.

Ray sends this file to the machines by value, so that they need no orchestrator.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

READ_BYTES = 2**18


class Node:
    """One agent. `read` and `write` are called at the same time, each once."""

    def __init__(self) -> None:
        import ray

        os.chdir("/")  # `python -m` would import a trainer of the current directory
        os.environ.pop("RAY_AUTH_TOKEN", None)  # ranks run users' code
        address = ray.util.get_node_ip_address()
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "trainer.node", "agent", "node", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def read(self, timeout_s: float) -> bytes | None:
        """What the agent has written, within a time. None: it has ended."""
        pipe = self._agent.stdout
        if pipe is None or not select.select([pipe], [], [], timeout_s)[0]:
            return b""
        return os.read(pipe.fileno(), READ_BYTES) or None

    def write(self, data: bytes) -> None:
        """Let the agent read this."""
        if pipe := self._agent.stdin:
            pipe.write(data)
            pipe.flush()
