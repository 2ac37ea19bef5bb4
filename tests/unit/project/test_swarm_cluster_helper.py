"""swarm/cluster starts what is missing, repairs what ended, and removes all of it. Commands are stubs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.unit.stub_machine import StubMachine

SWARM = Path(__file__).resolve().parents[3] / "swarm"
IMAGE_ID = "sha256:0123456789abcdef"
# An engine is a process here, and its socket is a file with its PID.
DOCKERD = """
while (($#)); do case $1 in --host) socket=${2#unix://} ;; esac; shift; done
echo $$ >"$socket"
trap 'exit' TERM
sleep 60 &
wait
"""
DOCKER = """
engine=$STATE
if [[ $1 == --host ]]; then
    engine=$(dirname "${2#unix://}")
    kill -0 "$(cat "$engine/docker.sock")" 2>/dev/null || exit 1
    shift 2
elif [[ -n ${DOCKER_HOST:-} ]]; then
    echo "another engine: $DOCKER_HOST" >&2
    exit 1
fi
case "$*" in
    "context inspect"*) echo unix:///run/other.sock ;;
    info*) cat "$engine/swarm" 2>/dev/null || echo inactive ;;
    "swarm join-token"*) echo SWMTKN ;;
    "swarm "*) echo active >"$engine/swarm" ;;
    "node ls"*) test -e "$engine/swarm" && echo "machine1 Ready
machine2 Ready
machine3 Ready" ;;
    "image inspect"*) cat "$engine/image" ;;
    save*) cat "$STATE/saved" ;;
    load*) cat >"$engine/image" ;;
esac
"""
UNSHARE = """
while [[ $1 == --* ]]; do test "$1" != --propagation || shift; shift; done
exec "$@"
"""
NSENTER = 'case "$*" in *" show "*) echo bridge ;; esac'
# The machines' own mounts are in /run.
MKDIR = 'case "$*" in "-p /run/"*) ;; *) exec /bin/mkdir "$@" ;; esac'
CHANGES = ("dockerd", "apt-get", "unshare", "ip ", "mount", "sudo")
STUBS = {
    "docker": DOCKER,
    "dockerd": DOCKERD,
    "unshare": UNSHARE,
    "nsenter": NSENTER,
    "mkdir": MKDIR,
    "id": "echo 0",
    "hostname": "echo desktop",
}
COMMANDS = (
    *("awk", "cat", "cut", "dirname", "env", "find", "flock", "grep", "head", "ls", "mkfifo", "mktemp"),
    *("rm", "rmdir", "sed", "setsid", "sleep", "tail", "tee", "timeout", "wc", "xargs"),
)


class Computer(StubMachine):
    """A computer with an engine that has the image."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("bash", *COMMANDS))
        for name in {*STUBS, "ip", "iptables", "mount", "umount", "apt-get", "sudo"}:
            self.write(name, STUBS.get(name, ""))
        for name in ("image", "saved"):
            (self.state / name).write_text(f"{IMAGE_ID}\n")
        self.environment["SHARDYARD_SWARM_DIR"] = str(self.home)

    def run(self, *arguments: str, script: str = "cluster") -> tuple[int, str]:
        return self.execute(SWARM / script, *arguments)

    def host(self, number: int) -> str:
        return f"unix://{self.home}/{number}/docker.sock"

    def start(self, number: int) -> None:
        """An engine that answers as long as this test runs."""
        (self.home / str(number)).mkdir(parents=True)
        (self.home / str(number) / "docker.sock").write_text(f"{os.getpid()}\n")

    def kill(self, number: int) -> None:
        os.kill(int((self.home / str(number) / "docker.sock").read_text()), signal.SIGKILL)


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_start_is_idempotent_and_stop_leaves_nothing(computer: Computer) -> None:
    try:
        code, shown = computer.run()
        assert code == 0, shown
        assert f"export DOCKER_HOST={computer.host(1)}" in shown
        started = computer.called("dockerd ")
        assert len(started) == 3
        for number in (1, 2, 3):
            (engine,) = (call for call in started if f"--host {computer.host(number)} " in call)
            assert "--label shardyard.host=desktop " in engine
            assert f"--data-root {computer.home}/{number}/data " in engine
            assert computer.called(f"hostname machine{number}")
        assert len(computer.called(f"docker --host {computer.host(1)} swarm init")) == 1
        assert sum(" swarm join " in call for call in computer.called("docker ")) == 2
        assert len(computer.called("docker save")) == 1
        assert computer.run("status")[0] == 0
        computer.environment["DOCKER_HOST"] = computer.host(1)  # as the first start asked for
        assert computer.run()[0] == 0
        assert computer.called("dockerd ") == started
        assert len(computer.called("docker save")) == 1
    finally:
        code, shown = computer.run("stop")
    assert (code, "Stopped." in shown) == (0, True)
    assert not computer.home.exists()
    label = f"SHARDYARD_SWARM_CLUSTER={computer.home}\0".encode()
    assert not [each for each in Path("/proc").glob("[0-9]*/environ") if label in _read(each)]
    assert "No cluster is running" in computer.run("stop")[1]


def _read(environ: Path) -> bytes:
    try:
        return environ.read_bytes()
    except OSError:  # ended, or another user's
        return b""


def test_killed_engine_starts_again_with_its_data(computer: Computer) -> None:
    try:
        assert computer.run()[0] == 0
        before = computer.called("dockerd ")
        computer.kill(2)
        code, shown = computer.run("status")
        assert (code, "machine2  not ready" in shown, "machine3  ready" in shown) == (1, True, True)
        assert computer.run()[0] == 0
        (again,) = computer.called("dockerd ")[len(before) :]
        assert again in before
        assert sum(" swarm join " in call for call in computer.called("docker ")) == 2
        assert computer.run("status")[0] == 0
    finally:
        computer.run("stop")


def test_image_is_built_later(computer: Computer) -> None:
    (computer.state / "image").unlink()
    try:
        code, shown = computer.run()
        assert (code, "make image" in shown, "DOCKER_HOST=" in shown) == (0, True, False)
        assert computer.run("status")[0] == 1
        assert not computer.called("docker save")
        (computer.state / "image").write_text(f"{IMAGE_ID}\n")
        assert computer.run()[0] == 0
        assert computer.run("status")[0] == 0
    finally:
        computer.run("stop")


def test_load_image_copies_it_where_it_is_lacking(computer: Computer) -> None:
    for number in (1, 2, 3):
        computer.start(number)
    (computer.home / "2" / "image").write_text(f"{IMAGE_ID}\n")
    hosts = [computer.host(number) for number in (1, 2, 3)]
    assert computer.run(*hosts, script="load-image")[0] == 0
    assert [host for host in hosts if computer.called(f"docker --host {host} load")] == [hosts[0], hosts[2]]
    assert len(computer.called("docker save")) == 1
    assert computer.run(*hosts, script="load-image")[0] == 0
    assert len(computer.called("docker save")) == 1


def test_load_image_checks_the_id(computer: Computer) -> None:
    computer.start(1)
    (computer.state / "saved").write_text("sha256:fedcba9876543210\n")
    code, shown = computer.run(computer.host(1), script="load-image")
    assert (code, computer.host(1) in shown, "another ID" in shown) == (1, True, True)


def test_load_image_needs_every_engine(computer: Computer) -> None:
    computer.start(1)
    code, shown = computer.run(computer.host(1), computer.host(2), script="load-image")
    assert (code, computer.host(2) in shown) == (1, True)
    assert not computer.called("docker save")


def test_status_without_a_cluster(computer: Computer) -> None:
    code, shown = computer.run("status")
    assert (code, "make swarm-cluster" in shown) == (1, True)
    assert not computer.called(*CHANGES)


def test_root_is_needed(computer: Computer) -> None:
    computer.write("id", "echo 1000")
    assert computer.run()[0] == 0
    (again,) = computer.called("sudo ")
    assert again.endswith("swarm/cluster up")
    assert f"SHARDYARD_SWARM_DIR={computer.home}" in again
    assert "DOCKER_HOST=unix:///run/other.sock" in again
    (computer.bin / "sudo").unlink()
    code, shown = computer.run()
    assert (code, "sudo is not installed" in shown) == (1, True)
    assert not computer.called("dockerd", "unshare")


def test_directory_with_other_files_is_kept(computer: Computer) -> None:
    computer.home.mkdir()
    (computer.home / "thesis").touch()
    for command in ("up", "stop"):
        code, shown = computer.run(command)
        assert (code, str(computer.home) in shown) == (1, True)
    assert (computer.home / "thesis").exists()
    assert not computer.called(*CHANGES)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHARDYARD_SWARM_DIR", "relative"),
        ("SHARDYARD_SWARM_DIR", f"/tmp/{'long' * 25}"),
        ("SHARDYARD_SWARM_MACHINES", "0"),
        ("SHARDYARD_SWARM_MACHINES", "17"),
        ("SHARDYARD_SWARM_MACHINES", "many"),
    ],
)
def test_bad_settings_are_named(computer: Computer, variable: str, value: str) -> None:
    computer.environment[variable] = value
    code, shown = computer.run()
    assert code == 1
    assert variable in shown
    assert value in shown or value == "relative"
    assert not computer.called(*CHANGES)


@pytest.mark.parametrize("script", ["cluster", "load-image"])
def test_help_fits_a_terminal(computer: Computer, script: str) -> None:
    code, shown = computer.run("--help", script=script)
    assert code == 0
    assert max(map(len, shown.replace(str(computer.home), "").splitlines())) <= 80
    assert computer.run("--nonsense", script=script)[0] == 1
