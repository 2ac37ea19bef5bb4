"""slurm/cluster installs what is missing and refuses what it cannot do. Commands are stubs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.stub_machine import StubMachine

CLUSTER = Path(__file__).resolve().parents[3] / "slurm" / "cluster"
STUBS = ("slurmctld", "slurmd", "sinfo", "munged", "apt-get", "sudo")


class Machine(StubMachine):
    """A machine with Slurm, whose daemons only exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("getent", "hostname", "id", "nproc"))
        for name in STUBS:
            self.write(name, 'exec "$@"' if name == "sudo" else "")
        self.environment["SHARDYARD_SLURM_DIR"] = str(self.home)

    def run(self, *arguments: str) -> tuple[int, str]:
        return self.execute(CLUSTER, *arguments)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_packages_are_installed(machine: Machine) -> None:
    (machine.bin / "sinfo").unlink()
    machine.write("apt-get", 'case "$*" in *install*) echo "E: no network"; exit 100 ;; esac')
    code, shown = machine.run()
    assert (code, "E: no network" in shown) == (1, True)
    (installed,) = (call for call in machine.called("apt-get") if " install " in call)
    assert set(installed.rpartition(" --no-remove ")[2].split()) >= {"slurmctld", "slurmd", "munge"}
    assert not machine.called("slurm", "munged")


def test_nothing_to_show_or_stop(machine: Machine) -> None:
    code, shown = machine.run("status")
    assert (code, "make slurm-cluster" in shown) == (1, True)
    assert machine.run("stop")[0] == 0
    assert not machine.home.exists()
    assert not machine.called("slurm", "munged", "apt-get")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHARDYARD_SLURM_DIR", "relative"),
        ("SHARDYARD_SLURM_DIR", f"/tmp/{'long' * 20}"),
        ("SHARDYARD_SLURM_PORT", "70000"),
        ("SHARDYARD_SLURM_PORT", "ssh"),
    ],
)
def test_bad_settings_are_named(machine: Machine, variable: str, value: str) -> None:
    machine.environment[variable] = value
    code, shown = machine.run()
    assert (code, variable in shown, value in shown) == (1, True, True)
    assert not machine.called(*STUBS)


def test_port_of_another_cluster_is_named(machine: Machine) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        machine.environment["SHARDYARD_SLURM_PORT"] = str(port - 1)  # it is that of a node
        code, shown = machine.run()
    assert (code, str(port) in shown, "SHARDYARD_SLURM_PORT" in shown) == (1, True, True)
    assert not machine.called(*STUBS)


def test_directory_with_other_files_is_kept(machine: Machine) -> None:
    machine.home.mkdir()
    (machine.home / "thesis").touch()
    for command in ("up", "stop"):
        code, shown = machine.run(command)
        assert (code, "SHARDYARD_SLURM_DIR" in shown) == (1, True)
    assert (machine.home / "thesis").exists()
    assert not machine.called(*STUBS)
