"""A trial Ray cluster of raylets on this machine, in a directory of its own: its raylets may be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.support.processes import wait_until
from tests.support.trial import Trial
from trainer.launch.launchers import free_port

LOOPBACK = "127.0.0.1"
RAYLETS, CPUS = 2, 4
START_S = 120.0
# Whoever reaches a cluster without a token runs code as its user. Ray reads the token of a process once.
ACCESS = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}


def ray_missing() -> str | None:
    """Why there can be no trial cluster here, or None."""
    return RayRuntime().unavailable_reason()


class TrialRay(Trial):
    """The cluster whose directory SHARDYARD_RAY_DIR names, and whose head is at RAY_ADDRESS.

    Its raylets stand for machines. Unlike local raylets, which a sweep starts, they have Ray's defaults.
    """

    variable, mark = "SHARDYARD_RAY_DIR", "SHARDYARD_RAY_CLUSTER"

    def up(self) -> None:
        port = os.environ["RAY_ADDRESS"].rpartition(":")[2]
        self.home.mkdir()
        self._sessions.touch()
        head = ("--head", "--port", port, "--include-dashboard", "false", "--temp-dir", str(self.home))
        self._start(CPUS, *head, "--ray-client-server-port", str(free_port()))
        for _ in range(RAYLETS - 1):
            self.add(CPUS)

    def add(self, cpus: int) -> None:
        """Start another raylet."""
        self._start(cpus, "--address", os.environ["RAY_ADDRESS"])

    def _start(self, cpus: int, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--num-cpus", str(cpus)]
        command += ["--object-store-memory", "80000000", "--node-ip-address", LOOPBACK]
        done = subprocess.run(
            command,
            env={**os.environ, self.mark: str(self.home), "RAY_USAGE_STATS_ENABLED": "0"},
            timeout=START_S,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # a signal to the tests' process group does not reach the cluster
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with self._sessions.open("a") as file:
            file.writelines(f"{os.getsid(each.pid)}\n" for each in self.daemons())

    @property
    def _sessions(self) -> Path:
        """A file of the Unix sessions of its raylets."""
        return self.home.with_suffix(".sessions")

    def processes(self) -> Iterator[psutil.Process]:
        """Also Ray's agents, which hide their environment and outlive their raylet for a minute."""
        marked = {*super().processes()}
        sessions = {*map(int, self._sessions.read_text().split())} if self._sessions.exists() else set()
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if process in marked or os.getsid(process.pid) in sessions:
                    yield process

    def stop(self) -> None:
        while found := [*self.processes()]:
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)
        shutil.rmtree(self.home, ignore_errors=True)

    def raylets(self) -> list[psutil.Process]:
        """Those of all machines; the head's is the first."""
        found = [each for each in self.daemons() if each.name() == "raylet"]
        return sorted(found, key=lambda each: "--head" not in each.cmdline())

    def daemons(self) -> list[psutil.Process]:
        """The raylets, and the head's store."""
        return [each for each in self.processes() if each.name() in ("raylet", "gcs_server")]

    def groups(self) -> dict[str, str]:
        """The state of each placement group, such as PENDING, that is not removed."""
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions

        head = GlobalState()
        head._initialize_global_state(
            GcsClientOptions.create(
                os.environ["RAY_ADDRESS"], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
        )
        try:
            table: dict[str, Any] = head.placement_group_table()
        finally:
            head.disconnect()
        return {name: group["state"] for name, group in table.items() if group["state"] != "REMOVED"}

    def preempt(self, raylet: psutil.Process, seconds: int) -> None:
        """Announce the end of a machine, as a cloud does for a preemptible one, and end it."""
        (name,) = [each.partition("=")[2] for each in raylet.cmdline() if each.startswith("--node_id=")]
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "trial")
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--node-id", name, *reason]
        subprocess.run(
            [*command, "--deadline-remaining-seconds", str(seconds)], check=True, capture_output=True
        )
        with suppress(psutil.TimeoutExpired):
            raylet.wait(seconds)
        with suppress(psutil.NoSuchProcess):
            raylet.kill()


@contextmanager
def trial_ray() -> Iterator[TrialRay]:
    """A running cluster, which sweeps of this process use."""
    with TrialRay.running(RAY_ADDRESS=f"{LOOPBACK}:{free_port()}", **ACCESS) as cluster:
        wait_until(lambda: len(cluster.raylets()) == RAYLETS)
        yield cluster
