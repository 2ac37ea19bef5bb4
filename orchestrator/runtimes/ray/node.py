"""A node: an actor that starts the ranks of one run after the other, and a warm parent that forks them.

Ray sends this file to the machines by value, so that they need no orchestrator. What its methods return is
JSON, which `driver_client` checks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainer.core.sources import own_digest
from trainer.launch.launchers import free_port
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import EXIT_S, ParentError, ParentProcess

POLL_S = 0.02
POLITE_S = 1.5  # between SIGTERM and SIGKILL
DOWNLOAD = (
    "import sys, pathlib; from trainer.spec.run_spec import RunSpec; "
    "RunSpec.model_validate_json(pathlib.Path(sys.argv[1]).read_text()).dataset.prepare(pathlib.Path(sys.argv[2]))"
)


class Node:
    """The processes of one node. All methods are called one after the other, in the actor's main thread."""

    def __init__(self, token: str) -> None:
        """token: a part of the name of the warm parent, unique on the machine."""
        os.chdir("/")  # `python -m` would import a trainer of the current directory
        os.environ.pop("RAY_AUTH_TOKEN", None)  # ranks run users' code
        self._parent = ParentProcess(f"shardyard-ray-{token}", {})
        self._ranks: dict[str, subprocess.Popen[bytes]] = {}
        self._told = 0  # exits that `wait` has returned

    def describe(self) -> str:
        """Machine and address of the node, and the digest of its trainer's sources."""
        import ray

        return json.dumps(
            {
                "machine": socket.gethostname(),
                "address": ray.util.get_node_ip_address(),
                "sources": own_digest(),
            }
        )

    def port(self) -> int:
        """A free port for rank 0, if this is the first node."""
        return free_port()

    def start(self, run: dict[str, Any], processes: Sequence[dict[str, Any]], warm: bool) -> str:
        """Start the node's ranks of a run. Returns why a warm parent was replaced, or why it refuses.

        Args:
            run: `spec`, the path of the file; `digest`, that of its content; `files` of the dataset;
                `data`, their directory; `downloads`, that of this machine if it may download them.
            processes: name, environment and log of each rank.
            warm: whether the warm parent forks them.
        """
        self._ranks, self._told = {}, 0
        with suppress(OSError):
            run["seen"] = sha256(Path(run["spec"]).read_bytes()).hexdigest()
        if run.get("seen") != run["digest"]:
            return self._refuse(f"does not see {Path(run['spec']).parent}, which all nodes share")
        data = run["data"]
        if not all((Path(data) / name).exists() for name in run["files"]):
            if run["downloads"] is None:
                return self._refuse(f"does not see the dataset in {data}; ray.data_dir lets it download")
            data = run["downloads"]
            loading = subprocess.run(
                [sys.executable, "-c", DOWNLOAD, run["spec"], data], capture_output=True, text=True
            )
            if loading.returncode:
                return self._refuse(f"has no data: {loading.stderr.strip()[-300:]}")
        replaced = None
        if warm:
            try:
                replaced = self._parent.ensure()
            except ParentError as error:
                return self._refuse(str(error))
        command = self._parent.command if warm else [sys.executable, "-m", "trainer"]
        for process in processes:
            with open(process["log"], "ab") as log:
                self._ranks[process["name"]] = subprocess.Popen(
                    command,
                    env={**os.environ, **process["environment"], "SHARDYARD_DATA": data},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        return json.dumps({"replaced": replaced})

    def _refuse(self, reason: str) -> str:
        return json.dumps({"refusal": f"{socket.gethostname()} {reason}"})

    def wait(self, timeout_s: float) -> str:
        """The exit codes once another rank has ended, or after a time, and a failure of the parent."""
        deadline = time.monotonic() + timeout_s
        while len(exits := self._exits()) == self._told and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._told, lost = len(exits), None
        if UNAVAILABLE in exits.values():
            lost = self._parent.failure(EXIT_S) or "did not fork a rank, whose log says why"
        elif len(exits) < len(self._ranks):
            lost = self._parent.failure()
        return json.dumps({"exits": exits, "running": len(self._ranks) - len(exits), "lost": lost})

    def _exits(self) -> dict[str, int]:
        codes = {name: process.poll() for name, process in self._ranks.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self) -> str:
        """End the ranks."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [process for process in self._ranks.values() if process.poll() is None]
            for process in alive:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + POLITE_S
            while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        self._parent.wait_until_idle()
        return "{}"
