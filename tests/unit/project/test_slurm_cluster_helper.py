"""slurm/cluster installs only what is missing and says what is wrong. Commands are stubs."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from tests.unit.stub_machine import StubMachine

CLUSTER = Path(__file__).resolve().parents[3] / "slurm" / "cluster"
DAEMONS = ("munged", "slurmctld", "slurmd")
SINFO = """
case "$*" in
    --version) echo "slurm-wlm 22.05.8" ;;
    *) cat "$STATE/nodes" ;;
esac
"""
# The daemons of the real cluster are those of an integration test; these only exist.
MUNGED = """
for argument; do case $argument in --socket=*) socket=${argument#*=} ;; esac; done
"$PYTHON" -c "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])" "$socket"
exec sleep 60
"""
SLURMD = 'printf "idle\\nidle\\nidle\\nidle\\n" >"$STATE/nodes"\nexec sleep 60'


def free_ports(count: int) -> int:
    """The first of so many ports on which nothing listens."""
    for first in range(15000, 16000, count):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no ports are free")


COMMANDS = (
    *("awk", "cat", "cut", "dirname", "env", "grep", "head", "hostname", "id", "mkdir", "mktemp", "nproc"),
    *("rm", "sed", "setsid", "sleep", "tail", "timeout", "xargs", "chmod", "cp"),
)


class Machine(StubMachine):
    """A machine with or without the packages of Slurm."""

    def __init__(self, folder: Path, *, installed: bool) -> None:
        super().__init__(folder, ("bash", "sh", *COMMANDS))
        (self.state / "nodes").touch()
        self.stubs = {
            "sinfo": SINFO,
            "squeue": "",
            "scancel": "",
            "munged": MUNGED,
            "slurmctld": "exec sleep 60",
            "slurmd": SLURMD,
        }
        self.write("apt-get", 'case "$*" in *install*) cp "$STATE/packages/"* "$BIN" ;; esac')
        self.write("sudo", 'exec "$@"')
        target = self.bin if installed else self.state / "packages"
        target.mkdir(exist_ok=True)
        for name, text in self.stubs.items():
            self.write(name, text, target)
        self.environment |= {
            "PYTHON": sys.executable,
            "SHARDYARD_SLURM_DIR": str(self.home),
            "SHARDYARD_SLURM_PORT": str(free_ports(5)),
        }

    def run(self, *arguments: str) -> tuple[int, str]:
        return self.execute(CLUSTER, *arguments)


def test_start_is_idempotent_and_stop_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=True)
    try:
        code, shown = machine.run()
        assert code == 0, shown
        assert f"export SLURM_CONF={machine.home}/slurm.conf" in shown
        assert not machine.called("apt-get")
        configured = (machine.home / "slurm.conf").read_text()
        assert configured.count("NodeName=yard") == 4
        assert {line for line in configured.split() if line.startswith("NodeAddr=")} == {
            "NodeAddr=127.0.0.1"
        }
        assert machine.run("status")[0] == 0
        started = machine.called(*DAEMONS)
        assert len([call for call in started if call.startswith("slurmd ")]) == 4
        assert machine.run()[0] == 0
        assert machine.called(*DAEMONS) == started
    finally:
        code, shown = machine.run("stop")
    assert (code, "Stopped." in shown) == (0, True)
    assert machine.called("scancel")
    assert not machine.home.exists()
    label = f"SHARDYARD_SLURM_CLUSTER={machine.home}\0".encode()
    assert not [each for each in Path("/proc").glob("[0-9]*/environ") if label in _read(each)]
    assert "No cluster is running" in machine.run("stop")[1]


def _read(environ: Path) -> bytes:
    try:
        return environ.read_bytes()
    except OSError:  # ended, or another user's
        return b""


def test_missing_packages_are_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=False)
    try:
        code, shown = machine.run()
        assert code == 0, shown
        (installed,) = (call for call in machine.called("apt-get") if " install " in call)
        assert "--no-remove" in installed
        assert set(installed.rpartition(" install ")[2].split()) >= {"slurmctld", "slurmd", "munge"}
    finally:
        machine.run("stop")


def test_status_without_a_cluster(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=True)
    code, shown = machine.run("status")
    assert (code, "make slurm-cluster" in shown) == (1, True)
    assert not machine.called(*DAEMONS)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHARDYARD_SLURM_DIR", "relative"),
        ("SHARDYARD_SLURM_DIR", f"/tmp/{'long' * 20}"),
        ("SHARDYARD_SLURM_PORT", "70000"),
        ("SHARDYARD_SLURM_PORT", "ssh"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, variable: str, value: str) -> None:
    machine = Machine(tmp_path, installed=True)
    machine.environment[variable] = value
    code, shown = machine.run()
    assert code == 1
    assert variable in shown
    assert value in shown or value == "relative"
    assert not machine.called(*DAEMONS)


def test_port_of_another_cluster_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        machine.environment["SHARDYARD_SLURM_PORT"] = str(port - 1)  # it is that of a node
        code, shown = machine.run()
    assert code == 1
    assert (str(port) in shown, "SHARDYARD_SLURM_PORT" in shown) == (True, True)
    assert not machine.called(*DAEMONS)


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=True)
    machine.home.write_text("a file")
    code, shown = machine.run()
    assert code == 1
    assert (str(machine.home) in shown, "SHARDYARD_SLURM_DIR" in shown) == (True, True)
    assert not machine.called("apt-get", *DAEMONS)


def test_help_fits_a_terminal(tmp_path: Path) -> None:
    machine = Machine(tmp_path, installed=True)
    code, shown = machine.run("--help")
    assert code == 0
    assert max(map(len, shown.replace(str(machine.home), "").splitlines())) <= 80
    assert machine.run("nonsense")[0] == 1
