"""Change the nodes of a run from outside, as root on the engine's machine: their link and quota period.

Containers need no capability for this: `tc` runs in their network namespace, not in the container.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.identity import identity
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.reaper import LABEL

RATE_MBIT = 100
# The burst is 1.3 ms at this rate; with a larger one, a pipeline's small messages would pass unshaped.
SHAPE = ("tbf", "rate", f"{RATE_MBIT}mbit", "burst", "16kb", "latency", "50ms")
PERIOD_US = 10_000
TRAINERS = ("node", "master")  # services whose containers have ranks
GROUPS = Path("/sys/fs/cgroup")


class LinkError(Exception):
    """tc failed, or the container is gone. The message contains the command."""


def missing() -> str | None:
    """Why links cannot be shaped on this machine, or None."""
    if sys.platform != "linux":
        return "shaping links needs Linux and tc, on the engine's machine"
    if os.geteuid() != 0:
        return "shaping a container's link needs root"
    for command, package in (("nsenter", "util-linux"), ("tc", "iproute2")):
        if shutil.which(command) is None:
            return f"there is no {command}: apt-get install {package}"
    return None


def processes(engine: Engine) -> list[int]:
    """The main processes of this benchmark's containers that have ranks."""
    mine = engine.client.containers.list(filters={"label": f"{LABEL}={identity()}"})
    return [
        int(each.attrs["State"]["Pid"])
        for each in mine
        if each.labels["com.docker.compose.service"] in TRAINERS
    ]


def shape(process: int) -> None:
    """Limit a container's sending rate to RATE_MBIT. Raises LinkError, as do the two functions below."""
    _tc(process, "qdisc", "replace", "dev", "eth0", "root", *SHAPE)


def unshape(process: int) -> None:
    _tc(process, "qdisc", "del", "dev", "eth0", "root")


def shaped_bytes(process: int) -> int:
    """Bytes that have passed the shaper since it was set up."""
    found = json.loads(_tc(process, "-s", "-j", "qdisc", "show", "dev", "eth0"))
    return sum(int(each["bytes"]) for each in found if each["kind"] == "tbf")


def shorten_period(process: int, cpus: float) -> str | None:
    """Shorten a container's quota period from 100 ms to 10 ms. Returns the reason if that fails, or None.

    Within a period a node runs at the full speed of its core. After a wait it catches up until its quota
    is used up, so waiting appears too cheap where the phases of a step are as short as a period.
    """
    quota = round(cpus * PERIOD_US)
    try:
        lines = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
        paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
        if "cpu" in paths:  # cgroup version 1; version 2 has one unnamed hierarchy
            group = GROUPS / "cpu" / paths["cpu"]
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        else:
            (GROUPS / paths[""] / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    except (OSError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _tc(process: int, *arguments: str) -> str:
    command = ["nsenter", "--target", str(process), "--net", "tc", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LinkError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
