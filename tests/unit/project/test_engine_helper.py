"""docker/engine keeps a working engine unchanged and installs the right packages. Commands are stubs."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[3] / "docker" / "engine"
CHANGES = ("apt-get", "dockerd", "systemctl", "debootstrap", "sudo", "unshare")
DEBIAN_12 = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
UBUNTU_24 = 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n'
RUNNING = "Docker engine 26.1.5, Compose 2.26.1, buildx 0.13.1: ready."

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
DOCKERD = """
test "$1" != --version || { echo "Docker version 20.10.24, build 0123"; exit; }
trap 'rm "$STATE/engine"; kill %1; exit' TERM
sleep 30 &
echo 26.1.5 >"$STATE/engine"
wait
"""


class Machine:
    """A machine whose commands are stubs; files in `state` hold their output."""

    def __init__(self, folder: Path, release: str) -> None:
        self.state, self.home, self.etc = folder / "state", folder / "home", folder / "etc"
        for made in (
            self.state,
            self.etc / "apt/sources.list.d",
            self.etc / "apt/preferences.d",
            folder / "bin",
        ):
            made.mkdir(parents=True)
        (self.etc / "os-release").write_text(release)
        self.set(endpoint="unix:///var/run/docker.sock", plan="")
        stubs = {
            "docker": DOCKER,
            "apt-get": APT_GET,
            "dockerd": DOCKERD,
            "dpkg": "exit 1",
            "id": "echo 0",
            "unshare": 'shift; exec "$@"',
        }
        for name in {*stubs, *CHANGES}:
            stub = folder / "bin" / name
            stub.write_text(f'#!/bin/bash\necho "{name} $*" >>"$STATE/calls"\n{stubs.get(name, "")}')
            stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "STATE": str(self.state),
            "ETC": str(self.etc),
            "SHARDYARD_ETC": str(self.etc),
            "SHARDYARD_ENGINE_DIR": str(self.home),
        }

    def set(self, **answers: str) -> None:
        for name, answer in answers.items():
            (self.state / name).write_text(f"{answer}\n")

    def run(self, *arguments: str) -> tuple[int, str]:
        # Returns only if the daemon closes the pipe.
        done = subprocess.run(
            [ENGINE, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
        )
        return done.returncode, done.stdout

    def called(self, *names: str) -> list[str]:
        calls = (self.state / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith(names)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, DEBIAN_12)


def running(machine: Machine) -> Machine:
    machine.set(engine="26.1.5", compose="2.26.1", buildx="v0.13.1", image="")
    return machine


@pytest.mark.parametrize("command", ["up", "stop", "status"])
def test_working_engine_is_not_changed(machine: Machine, command: str) -> None:
    code, shown = running(machine).run(command)
    assert code == 0
    assert {"up": "ready.", "stop": "left alone", "status": "compose  2.26.1"}[command] in shown
    assert not machine.called(*CHANGES)
    assert not machine.home.exists()


def test_status_of_a_bare_machine(machine: Machine) -> None:
    code, shown = machine.run("status")
    assert code == 1
    assert shown.count("not ready") == 5
    assert "make engine" in shown
    assert not machine.called(*CHANGES)


def test_missing_base_image_is_pulled(machine: Machine) -> None:
    (running(machine).state / "image").unlink()
    assert machine.run("--no-base")[0] == 0
    assert not machine.called("docker pull")
    assert machine.run()[0] == 0
    assert machine.called("docker pull") == ["docker pull --quiet debian:bookworm-slim"]
    assert not machine.called(*CHANGES)


@pytest.mark.parametrize("old", ["2.19.1", "v2.3.3"])
def test_old_compose_is_replaced_beside_the_engine(machine: Machine, old: str) -> None:
    running(machine).set(compose=old)
    code, shown = machine.run()
    assert code == 0
    assert "is not changed" in shown
    assert RUNNING in shown
    (installed,) = (
        call for call in machine.called("apt-get") if " install " in call and "--no-remove" in call
    )
    assert installed.endswith("--no-remove docker-compose/trixie")
    assert not machine.called("dockerd", "systemctl")


def test_plugins_that_would_change_a_running_engine_are_refused(machine: Machine) -> None:
    running(machine).set(compose="1.29.2", plan="Inst docker.io [20.10.24] (26.1.5 Debian)")
    code, shown = machine.run()
    assert code == 1
    assert "would change the running engine" in shown
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
    code, shown = machine.run()
    try:
        assert code == 0, shown
        assert RUNNING in shown
        assert any(
            call.endswith(f"{packages} iptables ca-certificates") for call in machine.called("apt-get")
        )
        source = machine.etc / "apt/sources.list.d/shardyard-trixie.sources"
        assert source.exists() == (release == DEBIAN_12)
        if source.exists():
            assert "URIs: http://mirror.example/debian\n" in source.read_text()
            assert "Pin-Priority: 100" in (machine.etc / "apt/preferences.d/shardyard-trixie").read_text()
        assert "This script started the engine." in machine.run("status")[1]
        assert machine.run()[0] == 0
        assert len([call for call in machine.called("dockerd") if "--data-root" in call]) == 1
    finally:
        code, shown = machine.run("stop")
    assert (code, "Stopped." in shown) == (0, True)
    assert "No engine of this script" in machine.run("stop")[1]


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
    assert code == 1
    assert complaint in shown
    assert "https://docs.docker.com" in shown
    assert not machine.called("apt-get")


def test_remote_engine_is_not_replaced(machine: Machine) -> None:
    machine.set(endpoint="ssh://other")
    del machine.environment["SHARDYARD_ENGINE_DIR"]
    code, shown = machine.run()
    assert code == 1
    assert "ssh://other" in shown
    assert not machine.called(*CHANGES)


def test_help_fits_a_terminal(machine: Machine) -> None:
    code, shown = machine.run("--help")
    assert code == 0
    assert max(map(len, shown.replace(str(machine.home), "").splitlines())) <= 80
    assert machine.run("nonsense")[0] == 1
