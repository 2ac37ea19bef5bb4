"""swarm/cluster refuses what it cannot do; swarm/load-image copies what is lacking. Commands are stubs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.stub_machine import StubMachine

SWARM = Path(__file__).resolve().parents[3] / "swarm"
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
CHANGES = ("dockerd", "apt-get", "unshare", "ip ", "mount", "sudo")


class Computer(StubMachine):
    """A computer with an engine that has the image."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("mkfifo", "mktemp", "tee"))
        stubs = {"docker": DOCKER, "id": "echo 0"}
        for name in {*stubs, *map(str.strip, CHANGES), "iptables"}:
            self.write(name, stubs.get(name, ""))
        for name in ("image", "saved"):
            (self.state / name).write_text(f"{IMAGE_ID}\n")
        self.environment["SHARDYARD_SWARM_DIR"] = str(self.home)

    def run(self, *arguments: str, script: str = "cluster") -> tuple[int, str]:
        return self.execute(SWARM / script, *arguments)

    def engine(self, name: str, *, has_image: bool = False) -> str:
        """The address of an engine that answers."""
        directory = self.state.parent / name
        directory.mkdir()
        if has_image:
            (directory / "image").write_text(f"{IMAGE_ID}\n")
        return f"unix://{directory}"


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_load_image_copies_it_where_it_is_lacking(computer: Computer) -> None:
    hosts = [computer.engine("a"), computer.engine("b", has_image=True), computer.engine("c")]
    assert computer.run(*hosts, script="load-image")[0] == 0
    assert [host for host in hosts if computer.called(f"docker --host {host} load")] == [hosts[0], hosts[2]]
    assert computer.run(*hosts, script="load-image")[0] == 0
    assert len(computer.called("docker save")) == 1


def test_load_image_checks_the_id(computer: Computer) -> None:
    host = computer.engine("a")
    (computer.state / "saved").write_text("sha256:fedcba9876543210\n")
    code, shown = computer.run(host, script="load-image")
    assert (code, host in shown) == (1, True)


def test_load_image_needs_every_engine(computer: Computer) -> None:
    code, shown = computer.run(computer.engine("a"), "unix:///absent", script="load-image")
    assert (code, "unix:///absent" in shown) == (1, True)
    assert not computer.called("docker save")


def test_nothing_to_show_or_stop(computer: Computer) -> None:
    code, shown = computer.run("status")
    assert (code, "make swarm-cluster" in shown) == (1, True)
    assert computer.run("stop")[0] == 0
    assert not computer.home.exists()
    assert not computer.called(*CHANGES)


def test_root_is_needed(computer: Computer) -> None:
    computer.write("id", "echo 1000")
    assert computer.run()[0] == 0
    (again,) = computer.called("sudo ")
    assert again.endswith("swarm/cluster up")
    assert f"SHARDYARD_SWARM_DIR={computer.home}" in again
    assert "DOCKER_HOST=unix:///run/other.sock" in again
    (computer.bin / "sudo").unlink()
    assert computer.run()[0] == 1
    assert not computer.called("dockerd", "unshare")


def test_directory_with_other_files_is_kept(computer: Computer) -> None:
    computer.home.mkdir()
    (computer.home / "thesis").touch()
    for command in ("up", "stop"):
        code, shown = computer.run(command)
        assert (code, "SHARDYARD_SWARM_DIR" in shown) == (1, True)
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
    assert (code, variable in shown, value in shown) == (1, True, True)
    assert not computer.called(*CHANGES)
