"""Mistakes of slurm/cluster, swarm/cluster and swarm/load-image in what they refuse, install or copy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.conftest import PROJECT
from tests.unit.stub_machine import StubMachine

IMAGE_ID = "sha256:0123456789abcdef"
# The socket of an engine is a directory here, which has its image.
DOCKER = """
engine=$STATE
if [[ $1 == --host ]]; then
    engine=${2#unix://}
    test -d "$engine" || exit 1
    shift 2
fi
case "$*" in
    "context inspect"*) echo unix:///run/other.sock ;;
    "image inspect"*) cat "$engine/image" ;;
    save*) cat "$STATE/saved" ;;
    load*) cat >"$engine/image" ;;
esac
"""
CHANGES = (
    "apt-get",
    "dockerd",
    "ip ",
    "mount",
    "munged",
    "sinfo",
    "slurmctld",
    "slurmd",
    "sudo",
    "unshare",
)


class Machine(StubMachine):
    """A machine with Slurm, and with an engine that has the image. Daemons only exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("getent", "hostname", "mkfifo", "mktemp", "nproc", "tee"))
        stubs = {"docker": DOCKER, "id": "echo 0", "iptables": ""}
        for name in {*stubs, *map(str.strip, CHANGES)}:
            self.write(name, stubs.get(name, ""))
        for name in ("image", "saved"):
            (self.state / name).write_text(f"{IMAGE_ID}\n")
        self.environment |= {f"SHARDYARD_{name}_DIR": str(self.home) for name in ("SLURM", "SWARM")}

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        return self.execute(PROJECT / script, *arguments)

    def engine(self, name: str) -> str:
        """The address of an engine that answers."""
        (self.state.parent / name).mkdir()
        return f"unix://{self.state.parent / name}"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("of", ["slurm", "swarm"])
def test_directory_with_other_files_is_kept(machine: Machine, of: str) -> None:
    code, shown = machine.run(f"{of}/cluster", "status")
    assert (code, f"make {of}-cluster" in shown) == (1, True)
    assert (machine.run(f"{of}/cluster", "stop")[0], machine.home.exists()) == (0, False)
    machine.home.mkdir()
    (machine.home / "thesis").touch()
    for command in ("up", "stop"):
        code, shown = machine.run(f"{of}/cluster", command)
        assert (code, f"SHARDYARD_{of.upper()}_DIR" in shown) == (1, True)
    assert (machine.home / "thesis").exists()
    assert not machine.called(*CHANGES)


@pytest.mark.parametrize(
    ("of", "setting", "value"),
    [
        ("slurm", "DIR", "relative"),
        ("swarm", "DIR", f"/tmp/{'long' * 25}"),
        ("slurm", "PORT", "70000"),
        ("slurm", "PORT", "ssh"),
        ("swarm", "MACHINES", "0"),
        ("swarm", "MACHINES", "17"),
    ],
)
def test_bad_settings_are_named(machine: Machine, of: str, setting: str, value: str) -> None:
    variable = f"SHARDYARD_{of.upper()}_{setting}"
    machine.environment[variable] = value
    code, shown = machine.run(f"{of}/cluster")
    assert (code, variable in shown, value in shown, machine.called(*CHANGES)) == (1, True, True, [])


def test_port_of_another_cluster_is_named(machine: Machine) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]  # that of a node
        machine.environment["SHARDYARD_SLURM_PORT"] = str(port - 1)
        code, shown = machine.run("slurm/cluster")
    assert (code, str(port) in shown, machine.called(*CHANGES)) == (1, True, [])


def test_root_is_needed(machine: Machine) -> None:
    machine.write("id", "echo 1000")
    assert machine.run("swarm/cluster")[0] == 0
    (again,) = machine.called("sudo ")
    assert again.endswith("swarm/cluster up")
    assert f"SHARDYARD_SWARM_DIR={machine.home}" in again
    assert "DOCKER_HOST=unix:///run/other.sock" in again
    (machine.bin / "sudo").unlink()
    assert machine.run("swarm/cluster")[0] == 1
    assert not machine.called("dockerd", "unshare")


def test_load_image_copies_the_right_image_where_it_is_lacking(machine: Machine) -> None:
    first, second = machine.engine("a"), machine.engine("b")
    code, shown = machine.run("swarm/load-image", first, "unix:///absent")
    assert (code, "unix:///absent" in shown, machine.called("docker save")) == (1, True, [])
    for hosts in ([first], [first, second], [first, second]):
        assert machine.run("swarm/load-image", *hosts)[0] == 0
    assert [len(machine.called(f"docker --host {host} load")) for host in (first, second)] == [1, 1]
    (machine.state / "saved").write_text("sha256:fedcba9876543210\n")
    assert machine.run("swarm/load-image", machine.engine("c"))[0] == 1
