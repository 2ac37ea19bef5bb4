"""Check whether containers can be started here, and find leftovers of a project."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from functools import cache

from orchestrator.runtimes.docker.engine import EngineError, reach
from orchestrator.runtimes.docker.image import image_name, image_trouble
from orchestrator.runtimes.swarm.machines import manager_trouble
from orchestrator.shipped import ROOT


@cache
def containers_missing() -> str | None:
    """Why containers cannot be started here, as `doctor` prints it, or None."""
    try:
        engine = reach()
    except EngineError as error:
        return str(error)
    with closing(engine.client):
        return image_trouble(engine)


def swarm_host() -> str:
    """The engine of a swarm's manager: DOCKER_HOST of the tests of runtime `swarm`."""
    return os.environ.get("SHARDYARD_TEST_SWARM") or f"unix://{ROOT}/.swarm/1/docker.sock"


# Takes the network interface of a container down for some seconds. Needs no tool of the image.
CUT = """
import fcntl, socket, struct, sys, time
def switch(up):
    request = struct.pack("16sH14x", b"eth0", 0)
    (flags,) = struct.unpack_from("H", fcntl.ioctl(link, 0x8913, request), 16)  # SIOCGIFFLAGS
    fcntl.ioctl(link, 0x8914, struct.pack("16sH14x", b"eth0", flags & ~1 | up))  # SIOCSIFFLAGS
link = socket.socket()
switch(0)
time.sleep(float(sys.argv[1]))
switch(1)
"""


def cut_off(container: str, seconds: float) -> None:
    """Cut a running container off its network for this long."""
    namespace = ["--network", f"container:{container}", "--cap-add", "NET_ADMIN", "--user", "0"]
    python = ["--entrypoint", "python", image_name(), "-c", CUT, str(seconds)]
    subprocess.run(["docker", "run", "--rm", *namespace, *python], check=True, capture_output=True)


def leftovers(label: str) -> list[str]:
    """Containers, networks, volumes, services and configs that carry a label: kind and name of each."""
    found = []
    kinds = [("container", "Names"), ("network", "Name"), ("volume", "Name")]
    if manager_trouble(reach()) is None:
        kinds += [("service", "Name"), ("config", "Name")]
    for kind, name in kinds:
        every = ["--all"] if kind == "container" else []
        show = ["--format", f"{{{{.{name}}}}}", "--filter", f"label={label}"]
        listed = subprocess.run(
            ["docker", kind, "ls", *every, *show], capture_output=True, text=True, check=True
        )
        found += [f"{kind} {line}" for line in listed.stdout.split()]
    return found
