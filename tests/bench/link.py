"""The nodes of a run from outside, as root on the engine's machine: their link, and their quota's period.

The containers are given no capability for it: `tc` runs in their network, not in them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.identity import identity

RATE_MBIT = 100
# The burst is 1.3 ms of the rate; a larger one would let a pipeline's small messages pass as if unshaped.
SHAPE = ("tbf", "rate", f"{RATE_MBIT}mbit", "burst", "16kb", "latency", "50ms")
PERIOD_US = 10_000
TRAINERS = ("node", "master")  # services whose containers have ranks
GROUPS = Path("/sys/fs/cgroup")


class LinkError(Exception):
    """tc has refused, or the container is gone; the message says what was tried."""


def missing() -> str | None:
    """Why no link can be shaped on this machine."""
    if sys.platform != "linux":
        return "links are shaped with Linux' tc, on the machine of the engine"
    if os.geteuid() != 0:
        return "shaping a container's link from outside takes root"
    for command, package in (("nsenter", "util-linux"), ("tc", "iproute2")):
        if shutil.which(command) is None:
            return f"there is no {command}: apt-get install {package}"
    return None


def processes(engine: Engine) -> list[int]:
    """The main processes of the containers with ranks that this benchmark has started."""
    mine = engine.client.containers.list(filters={"label": f"{LABEL}={identity()}"})
    return [
        int(each.attrs["State"]["Pid"])
        for each in mine
        if each.labels["com.docker.compose.service"] in TRAINERS
    ]


def shape(process: int) -> None:
    """Let this container send no faster than RATE_MBIT. Raises LinkError, as all that follow."""
    _tc(process, "qdisc", "replace", "dev", "eth0", "root", *SHAPE)


def unshape(process: int) -> None:
    _tc(process, "qdisc", "del", "dev", "eth0", "root")


def shaped_bytes(process: int) -> int:
    """What has gone through the shaper since it is there."""
    found = json.loads(_tc(process, "-s", "-j", "qdisc", "show", "dev", "eth0"))
    return sum(int(each["bytes"]) for each in found if each["kind"] == "tbf")


def shorten_period(process: int, cpus: float) -> str | None:
    """Give out a container's quota every 10 ms, not every 100; returns why not, if that cannot be.

    Within a period a node runs as fast as its core. One that has waited for others can make up for it
    until the quota is used up, so waiting costs too little where a step's parts are as short as a period.
    """
    quota = round(cpus * PERIOD_US)
    try:
        lines = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
        paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
        if "cpu" in paths:  # version 1; version 2 has one hierarchy without a name
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
