"""What a container of a run can do: checked from inside while the run is in progress."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.containers import docker

NODE_USER = "10001"
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue", "core", "fd"}
DEVICES |= {"stdin", "stdout", "stderr"}
READ_ONLY = ("/", "/bin", "/etc", "/home", "/opt/shardyard", "/opt/venv", "/root", "/usr", "/var/tmp")
READ_ONLY += ("/proc/sys/kernel", "/sys")
IN_MEMORY = ("/tmp", "/run/shardyard", "/dev/shm")
# Runs in the container, as its user.
PROBE = r"""
import json, os, socket, sys
from pathlib import Path

def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return {"command": command, **dict(line.split(":\t", 1) for line in lines if ":\t" in line)}

def statuses():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            try:
                found = status(pid)
            except OSError:  # it has ended
                continue
            # The engine's own process drops its privileges just before it becomes that of a health check.
            if not found["Name"].startswith("runc"):
                yield found

def works(action, *arguments):
    try:
        action(*arguments)
        return True
    except OSError:
        return False

def write(path):
    (Path(path) / "probe").touch()
    (Path(path) / "probe").unlink()

mounts = {}
for line in Path("/proc/self/mounts").read_text().splitlines():
    _, where, kind, options, *_ = line.split()
    mounts[where] = [kind, *options.split(",")]
paths = sys.argv[1:]
print(json.dumps({
    "processes": [*statuses()],
    "mounts": mounts,
    "routes": [line.split()[1] for line in Path("/proc/net/route").read_text().splitlines()[1:]],
    "links": [line.split()[0] for line in Path("/proc/net/route").read_text().splitlines()[1:]
              if line.split()[7] == "FFFFFFFF"],
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "writable": {path: works(write, path) for path in paths},
    "modes": {path: os.stat(path).st_mode & 0o7777 for path in paths if os.path.exists(path)},
    "environment": [*os.environ],
    "devices": os.listdir("/dev"),
    "engine": any(map(os.path.exists, ("/run/docker.sock", "/var/run/docker.sock"))),
    "outside": works(socket.create_connection, ("192.0.2.1", 80), 1),
    "resolved": works(socket.gethostbyname, "example.com"),
}))
"""
Checks = Iterator[tuple[str, bool]]


def assert_node_confined(container: str) -> int:
    """Check a running node, master or launcher. Returns the number of checks."""
    return _assert_all(container, _node_checks)


def assert_coordinator_confined(container: str) -> int:
    """Check a running coordinator. Returns the number of checks."""
    return _assert_all(container, _common_checks)


def assert_switch_confined(container: str) -> int:
    """Check the running switch of a run with links. Returns the number of checks."""
    return _assert_all(container, _switch_checks)


def assert_linked_node_confined(container: str) -> int:
    """Check a running node of a run with links. Returns the number of checks."""
    return _assert_all(container, _linked_node_checks)


def _assert_all(container: str, checks: Callable[[dict[str, Any], dict[str, Any]], Checks]) -> int:
    probe = ["exec", "-i", container, "python", "-", *READ_ONLY, *IN_MEMORY]
    probe += ["/data", "/checkpoints", "/results"]
    found, (shown,) = json.loads(docker(*probe, input=PROBE)), json.loads(docker("inspect", container))
    results = dict(checks(found, shown))
    failed = [statement for statement, holds in results.items() if not holds]
    assert not failed, f"{container}: {failed}"
    return len(results)


def _common_checks(
    found: dict[str, Any], shown: dict[str, Any], interfaces: tuple[str, ...] = ("eth0", "lo")
) -> Checks:
    """Statements about any container of a run, and whether they hold. interfaces: that it has."""
    host, processes = shown["HostConfig"], found["processes"]
    # The engine's init process of a coordinator keeps what its container was given.
    ours = [each for each in processes if "docker-init" not in each["command"]]
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        yield f"{name} of every process is empty", all(int(each[name], 16) == 0 for each in ours)
    yield "no process can get new privileges", all(each["NoNewPrivs"] == "1" for each in processes)
    yield "every process has a seccomp filter", all(each["Seccomp"] == "2" for each in processes)
    yield "the container is not privileged", host["Privileged"] is False
    yield "the engine drops all capabilities", host["CapDrop"] == ["ALL"]
    yield "the engine permits no new privileges", "no-new-privileges:true" in host["SecurityOpt"]
    yield "the seccomp profile is the default", not any("seccomp" in each for each in host["SecurityOpt"])
    yield "processes of the host are hidden", host["PidMode"] == ""
    yield "shared memory of the host is hidden", host["IpcMode"] == "private"
    yield "the host name is its own", host["UTSMode"] == ""
    yield "/dev/net/tun is not there", "net" not in found["devices"]
    yield "the network is that of the run", [*shown["NetworkSettings"]["Networks"]] == [host["NetworkMode"]]
    yield "no port is published", not host["PortBindings"] and not host["PublishAllPorts"]
    yield "no device of the host is given", not host["Devices"] and not host["DeviceRequests"]
    yield "all devices are virtual", {*found["devices"]} <= DEVICES
    yield "there is no default route", "00000000" not in found["routes"]
    yield f"the network interfaces are {interfaces}", found["interfaces"] == [*interfaces]
    yield "nothing outside is reached", found["outside"] is False
    yield "no name outside is resolved", found["resolved"] is False
    yield "the engine's socket is not mounted", found["engine"] is False
    yield "the root file system is read-only", "ro" in found["mounts"]["/"] and host["ReadonlyRootfs"]
    for path in READ_ONLY:
        yield f"{path} is not writable", found["writable"][path] is False
    secret = re.compile("KEY|TOKEN|SECRET|PASSWORD")
    yield "the environment has no secret", not any(map(secret.search, found["environment"]))


def _switch_checks(found: dict[str, Any], shown: dict[str, Any]) -> Checks:
    """Statements about the switch, which has no network of its own and nothing of the host."""
    yield from _common_checks(found, shown, ("lo",))
    host, processes = shown["HostConfig"], found["processes"]
    yield "it has no network", host["NetworkMode"] == "none" and not found["routes"]
    yield "the bounding set is empty", all(int(each["CapBnd"], 16) == 0 for each in processes)
    for name in ("Uid", "Gid"):
        yield f"{name} is the nodes'", all({*each[name].split()} == {NODE_USER} for each in processes)
    yield "no directory of the host is mounted", all(each["Type"] == "volume" for each in shown["Mounts"])
    yield "memory has a limit", host["Memory"] > 0
    yield "the number of processes has a limit", host["PidsLimit"] > 0


def _linked_node_checks(found: dict[str, Any], shown: dict[str, Any]) -> Checks:
    """Statements about a node that is connected to a switch, and whether they hold."""
    yield from _node_checks(found, shown, ("eth0", "link0", "lo"))
    yield "the other nodes are routed", found["links"] == ["link0"]


def _node_checks(
    found: dict[str, Any], shown: dict[str, Any], interfaces: tuple[str, ...] = ("eth0", "lo")
) -> Checks:
    """Statements about a container that runs students' code, and whether they hold."""
    yield from _common_checks(found, shown, interfaces)
    host, mounts, processes = shown["HostConfig"], found["mounts"], found["processes"]
    for name in ("Uid", "Gid"):
        yield (
            f"{name} of every process is the node's",
            all({*each[name].split()} == {NODE_USER} for each in processes),
        )
    yield "no process has other groups", all({*each["Groups"].split()} <= {NODE_USER} for each in processes)
    yield "the bounding set is empty", all(int(each["CapBnd"], 16) == 0 for each in processes)
    yield "the data is mounted read-only", "ro" in mounts["/data"] and not found["writable"]["/data"]
    for path in ("/checkpoints", "/results"):
        yield f"{path} of the host is not writable", found["writable"][path] is False
    for path in IN_MEMORY:
        options = {*mounts[path]}
        yield f"{path} is writable", found["writable"][path] is True
        yield f"{path} is in memory", mounts[path][0] == "tmpfs"
        yield f"{path} has a limit", any(each.startswith("size=") for each in options)
        yield f"{path} runs no program", {"nosuid", "nodev", "noexec"} <= options
        yield f"{path} is sticky", found["modes"][path] == 0o1777
    yield "memory has a limit", host["Memory"] > 0
    yield "memory is not extended by swap", host["MemorySwap"] == host["Memory"]
    yield "shared memory has a limit", host["ShmSize"] > 0
    yield "the number of processes has a limit", host["PidsLimit"] > 0
