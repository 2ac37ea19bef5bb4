"""Mistakes of docker/engine: a working engine that it changes, wrong packages, what stop leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support.processes import ended
from tests.unit.conftest import PROJECT
from tests.unit.stub_machine import StubMachine

CHANGES = ("apt-get", "systemctl", "debootstrap", "sudo")
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
LOCAL = "unix:///var/run/docker.sock"
RUNNING = {"engine": "26.1.5", "compose": "2.26.1", "buildx": "v0.13.1"}
SYSTEMCTL = 'case "$*" in enable*) echo 26.1.5 >"$STATE/engine" ;; stop*) rm "$STATE/engine" ;; esac'


class Machine(StubMachine):
    """A machine with a file system of its own; files in `state` hold the output of its commands."""

    def __init__(self, folder: Path, release: str = DEBIAN_12, **answers: str) -> None:
        super().__init__(folder)
        self.etc, self.home = folder / "etc", folder / "var/lib/shardyard-engine"
        for made in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "run"):
            (folder / made).mkdir(parents=True)
        (self.etc / "os-release").write_text(release)
        for name, answer in {"endpoint": LOCAL, "plan": "", **answers}.items():
            (self.state / name).write_text(f"{answer}\n")
        stubs = {"docker": DOCKER, "apt-get": APT_GET, "dockerd": DOCKERD, "systemctl": SYSTEMCTL}
        stubs |= {"dpkg": "exit 1", "id": 'case "$*" in -u) echo 0 ;; *) echo root ;; esac'}
        for name in {*stubs, *CHANGES, "service"}:
            self.write(name, stubs.get(name, ""))
        self.environment |= {"ETC": str(self.etc), "SHARDYARD_ROOT": str(folder)}

    def run(self, *arguments: str) -> tuple[int, str]:
        return self.execute(PROJECT / "docker" / "engine", *arguments)

    def installed(self) -> list[str]:
        """The packages of each installation beside an engine."""
        calls = self.called("apt-get")
        return [call.rpartition(" --no-remove ")[2] for call in calls if "--no-remove" in call]

    def processes(self) -> list[psutil.Process]:
        """The daemon, and what it has started."""
        marked = [(each, each.info["environ"] or {}) for each in psutil.process_iter(["environ"])]
        found = [each for each, of in marked if of.get("SHARDYARD_ENGINE") == str(self.home)]
        return [process for process in found if not ended(process)]

    def starts(self) -> int:
        return len([call for call in self.called("dockerd") if "--version" not in call])


@pytest.mark.parametrize("command", ["up", "stop", "status"])
def test_working_engine_is_not_changed(tmp_path: Path, command: str) -> None:
    machine = Machine(tmp_path, **RUNNING, image="")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    code, shown = machine.run(command)
    assert (code, "26.1.5" in shown) == (0, command != "stop")
    assert (machine.called(*CHANGES), machine.starts(), machine.home.exists()) == ([], 0, False)


def test_a_working_engine_gets_the_base_image_and_compose_that_it_lacks(tmp_path: Path) -> None:
    machine = Machine(tmp_path, **{**RUNNING, "compose": "v2.3.3"})
    assert machine.run()[0] == 0
    assert machine.called("docker pull") == ["docker pull --quiet debian:bookworm-slim"]
    assert (machine.installed(), machine.starts()) == (["docker-compose/trixie"], 0)


def test_plugins_that_would_change_a_running_engine_are_refused(tmp_path: Path) -> None:
    plan = "Inst docker.io [20.10.24] (26.1.5 Debian)"
    machine = Machine(tmp_path, **{**RUNNING, "compose": "1.29.2", "plan": plan})
    assert machine.run()[0] == 1
    assert machine.installed() == []


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
    assert (code, "make engine" in shown, machine.called(*CHANGES)) == (1, True, [])
    try:
        assert [machine.run()[0], machine.run()[0]] == [0, 0]
        installed = f"{packages} iptables ca-certificates"
        assert any(call.endswith(installed) for call in machine.called("apt-get"))
        source = machine.etc / "apt/sources.list.d/shardyard-trixie.sources"
        assert source.exists() == (release == DEBIAN_12)
        if release == DEBIAN_12:
            assert "URIs: http://mirror.example/debian\n" in source.read_text()
            assert "Pin-Priority: 100" in (machine.etc / "apt/preferences.d/shardyard-trixie").read_text()
    finally:
        code, shown = machine.run("stop")
    assert (code, machine.processes(), machine.starts()) == (0, [], 1), shown


def test_root_is_needed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("id", "echo 1000")
    machine.environment["SHARDYARD_BASE"] = "debian:trixie-slim"
    assert machine.run()[0] == 0
    (again,) = machine.called("sudo ")
    assert again.endswith("docker/engine up")
    assert "SHARDYARD_BASE=debian:trixie-slim" in again
    assert f"DOCKER_HOST={LOCAL}" in again
    (machine.bin / "sudo").unlink()
    assert machine.run()[0] == 1
    assert (machine.called("apt-get"), machine.starts()) == ([], 0)


def test_stop_starts_a_killed_engine_to_remove_its_containers(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.run()[0] == 0
    daemon, _ = machine.processes()
    daemon.kill()
    (machine.state / "engine").unlink()  # a killed engine does not answer
    assert machine.run("stop")[0] == 0
    assert (machine.starts(), machine.processes()) == (2, [])


def test_systemd_starts_and_stops_the_engine(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert [machine.run(command)[0] for command in ("up", "stop", "stop")][:2] == [0, 0]
    calls = [call for call in machine.called("systemctl") if "is-failed" not in call]
    assert calls == ["systemctl enable --now docker", "systemctl stop docker.socket docker.service"]
    assert machine.starts() == 0


@pytest.mark.parametrize(
    ("release", "endpoint", "complaint"),
    [
        ("ID=fedora\nVERSION_ID=42\n", LOCAL, "not Fedora 42"),
        (DEBIAN_12.replace("12", "11"), LOCAL, "Debian 11 is too old"),
        (UBUNTU_24.replace("24", "20"), LOCAL, "Ubuntu 20.04 is too old"),
        (DEBIAN_12, "ssh://other", "ssh://other"),
    ],
)
def test_old_systems_and_remote_engines(
    tmp_path: Path, release: str, endpoint: str, complaint: str
) -> None:
    machine = Machine(tmp_path, release, endpoint=endpoint)
    code, shown = machine.run()
    assert (code, complaint in shown, machine.called(*CHANGES), machine.starts()) == (1, True, [], 0)
