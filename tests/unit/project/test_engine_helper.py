"""docker/engine keeps a working engine unchanged and installs the right packages. Commands are stubs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ended
from tests.unit.stub_machine import StubMachine

PROJECT = Path(__file__).resolve().parents[3]
CHANGES = ("apt-get", "dockerd", "systemctl", "debootstrap", "sudo")
DEBIAN_12 = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
UBUNTU_24 = 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n'

DOCKER = """
case "$*" in
    version*) cat "$STATE/engine" ;;
    "compose version"*) cat "$STATE/compose" ;;
    "buildx version"*) echo "github.com/docker/buildx $(cat "$STATE/buildx") 0123" ;;
    "context inspect"*) cat "$STATE/endpoint" ;;
    "image inspect"*) test -e "$STATE/image" ;;
    pull*) touch "$STATE/image" ;;
esac
"""
# After an installation the state lists the packages; a daemon responds while it runs.
APT_GET = """
case "$*" in
    *--simulate*) cat "$STATE/plan" ;;
    *indextargets*) echo "Debian bookworm http://mirror.example/debian/"
        test ! -e "$ETC/apt/sources.list.d/shardyard-trixie.sources" ||
            echo "Debian trixie http://mirror.example/debian/" ;;
    *install*) echo 2.26.1 >"$STATE/compose"; echo 0.13.1 >"$STATE/buildx" ;;
esac
"""
# The process that it starts stands for what a killed engine leaves.
DOCKERD = """
test "$1" != --version || { echo "Docker version 20.10.24, build 0123"; exit; }
trap 'rm "$STATE/engine"; kill %1; exit' TERM
sleep 30 &
echo 26.1.5 >"$STATE/engine"
wait
"""
SYSTEMCTL = 'case "$*" in enable*) echo 26.1.5 >"$STATE/engine" ;; stop*) rm "$STATE/engine" ;; esac'


class Machine(StubMachine):
    """A machine with a file system of its own; files in `state` hold the output of its commands."""

    def __init__(self, folder: Path, release: str = DEBIAN_12) -> None:
        super().__init__(folder)
        self.etc, self.home = folder / "etc", folder / "var/lib/shardyard-engine"
        for made in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "run"):
            (folder / made).mkdir(parents=True)
        (self.etc / "os-release").write_text(release)
        self.set(endpoint="unix:///var/run/docker.sock", plan="")
        stubs = {
            "docker": DOCKER,
            "apt-get": APT_GET,
            "dockerd": DOCKERD,
            "systemctl": SYSTEMCTL,
            "dpkg": "exit 1",
            "id": 'case "$*" in -u) echo 0 ;; *) echo root ;; esac',
        }
        for name in {*stubs, *CHANGES, "service"}:
            self.write(name, stubs.get(name, ""))
        self.environment |= {"ETC": str(self.etc), "SHARDYARD_ROOT": str(folder)}

    def set(self, **answers: str) -> None:
        for name, answer in answers.items():
            (self.state / name).write_text(f"{answer}\n")

    def run(self, *arguments: str) -> tuple[int, str]:
        return self.execute(PROJECT / "docker" / "engine", *arguments)

    def processes(self) -> list[psutil.Process]:
        """The daemon, and what it has started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SHARDYARD_ENGINE") == str(self.home):
                    found.append(process)
        return found

    def starts(self) -> int:
        return len([call for call in self.called("dockerd") if "--version" not in call])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def running(machine: Machine) -> Machine:
    machine.set(engine="26.1.5", compose="2.26.1", buildx="v0.13.1", image="")
    return machine


@pytest.mark.parametrize("command", ["up", "stop", "status"])
def test_working_engine_is_not_changed(machine: Machine, command: str) -> None:
    (machine.state.parent / "run/systemd/system").mkdir(parents=True)
    code, shown = running(machine).run(command)
    assert code == 0, shown
    assert ("26.1.5" in shown) == (command != "stop")
    assert not machine.called(*CHANGES)
    assert not machine.home.exists()


def test_missing_base_image_is_pulled(machine: Machine) -> None:
    (running(machine).state / "image").unlink()
    assert machine.run()[0] == 0
    assert machine.called("docker pull") == ["docker pull --quiet debian:bookworm-slim"]
    assert not machine.called(*CHANGES)


@pytest.mark.parametrize("old", ["2.19.1", "v2.3.3"])
def test_old_compose_is_replaced_beside_the_engine(machine: Machine, old: str) -> None:
    running(machine).set(compose=old)
    assert machine.run()[0] == 0
    (installed,) = (call for call in machine.called("apt-get") if "--no-remove" in call)
    assert installed.endswith("--no-remove docker-compose/trixie")
    assert not machine.called("dockerd", "systemctl")


def test_plugins_that_would_change_a_running_engine_are_refused(machine: Machine) -> None:
    running(machine).set(compose="1.29.2", plan="Inst docker.io [20.10.24] (26.1.5 Debian)")
    assert machine.run()[0] == 1
    assert not [call for call in machine.called("apt-get") if "--no-remove" in call]


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        (DEBIAN_12, "docker.io/trixie docker-cli/trixie docker-buildx/trixie docker-compose/trixie"),
        (DEBIAN_12.replace("12", "13"), "docker.io docker-cli docker-buildx docker-compose"),
        (UBUNTU_24, "docker.io docker-buildx docker-compose-v2"),
    ],
    ids=["debian 12", "debian 13", "ubuntu 24.04"],
)
def test_engine_on_a_bare_machine(tmp_path: Path, release: str, packages: str) -> None:
    machine = Machine(tmp_path, release)
    code, shown = machine.run("status")
    assert (code, "make engine" in shown) == (1, True)
    assert not machine.called(*CHANGES)
    code, shown = machine.run()
    try:
        assert code == 0, shown
        installed = f"{packages} iptables ca-certificates"
        assert any(call.endswith(installed) for call in machine.called("apt-get"))
        source = machine.etc / "apt/sources.list.d/shardyard-trixie.sources"
        assert source.exists() == (release == DEBIAN_12)
        if source.exists():
            assert "URIs: http://mirror.example/debian\n" in source.read_text()
            assert "Pin-Priority: 100" in (machine.etc / "apt/preferences.d/shardyard-trixie").read_text()
        assert machine.run()[0] == 0
        assert machine.starts() == 1
    finally:
        code, shown = machine.run("stop")
    assert (code, machine.processes(), machine.starts()) == (0, [], 1), shown


def test_stop_starts_a_killed_engine_to_remove_its_containers(machine: Machine) -> None:
    assert machine.run()[0] == 0
    daemon, left = machine.processes()
    daemon.kill()
    assert machine.run("stop")[0] == 0
    assert machine.starts() == 2
    assert (ended(left), machine.processes()) == (True, [])


def test_systemd_starts_and_stops_the_engine(machine: Machine) -> None:
    (machine.state.parent / "run/systemd/system").mkdir(parents=True)
    assert machine.run()[0] == 0
    assert machine.run("stop")[0] == 0
    machine.run("stop")
    calls = [call for call in machine.called("systemctl") if "is-failed" not in call]
    assert calls == ["systemctl enable --now docker", "systemctl stop docker.socket docker.service"]
    assert machine.starts() == 0


@pytest.mark.parametrize(
    ("release", "complaint"),
    [
        ("ID=fedora\nVERSION_ID=42\n", "not Fedora 42"),
        (DEBIAN_12.replace("12", "11"), "Debian 11 is too old"),
        (UBUNTU_24.replace("24", "20"), "Ubuntu 20.04 is too old"),
    ],
)
def test_unsupported_system(tmp_path: Path, release: str, complaint: str) -> None:
    machine = Machine(tmp_path, release)
    code, shown = machine.run()
    assert (code, complaint in shown) == (1, True)
    assert not machine.called("apt-get")


def test_remote_engine_is_not_replaced(machine: Machine) -> None:
    machine.set(endpoint="ssh://other")
    code, shown = machine.run()
    assert (code, "ssh://other" in shown) == (1, True)
    assert not machine.called(*CHANGES)


@pytest.mark.parametrize("script", ["docker/engine", "slurm/cluster", "swarm/cluster", "swarm/load-image"])
def test_help_fits_a_terminal(machine: Machine, script: str) -> None:
    code, shown = machine.execute(PROJECT / script, "--help")
    assert (code, shown.startswith(f"Usage: {script}")) == (0, True)
    assert max(map(len, shown.splitlines())) <= 80
    assert machine.execute(PROJECT / script, "--nonsense")[0] == 1
