"""Mistakes of slurm/cluster in what it refuses and removes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.conftest import PROJECT
from tests.unit.stub_machine import StubMachine

CHANGES = ("apt-get", "munged", "sinfo", "slurmctld", "slurmd", "sudo")


class Machine(StubMachine):
    """A machine with Slurm, whose daemons only exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("getent", "hostname", "nproc"))
        for name in ("id", *CHANGES):
            self.write(name, "echo 0" if name == "id" else "")
        self.environment["SHARDYARD_SLURM_DIR"] = str(self.home)

    def run(self, *arguments: str) -> tuple[int, str]:
        return self.execute(PROJECT / "slurm" / "cluster", *arguments)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_directory_with_other_files_is_kept(machine: Machine) -> None:
    code, shown = machine.run("status")
    assert (code, "make slurm-cluster" in shown) == (1, True)
    assert (machine.run("stop")[0], machine.home.exists()) == (0, False)
    machine.home.mkdir()
    (machine.home / "thesis").touch()
    for command in ("up", "stop"):
        code, shown = machine.run(command)
        assert (code, "SHARDYARD_SLURM_DIR" in shown) == (1, True)
    assert (machine.home / "thesis").exists()
    assert not machine.called(*CHANGES)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("DIR", "relative"), ("DIR", f"/tmp/{'long' * 25}"), ("PORT", "70000"), ("PORT", "ssh")],
)
def test_bad_settings_are_named(machine: Machine, setting: str, value: str) -> None:
    variable = f"SHARDYARD_SLURM_{setting}"
    machine.environment[variable] = value
    code, shown = machine.run()
    assert (code, variable in shown, value in shown, machine.called(*CHANGES)) == (1, True, True, [])


def test_port_of_another_cluster_is_named(machine: Machine) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]  # that of a node
        machine.environment["SHARDYARD_SLURM_PORT"] = str(port - 1)
        code, shown = machine.run()
    assert (code, str(port) in shown, machine.called(*CHANGES)) == (1, True, [])
