"""Faults of every runtime: what is killed, suspended, cut off, filled, removed or damaged."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from typing import Any

import psutil

from tests.faults.scene import Fault, Moment, Scene, Strike
from tests.support.command_line import PROJECT
from tests.support.datasets import shared_data_dir
from tests.support.places import docker, inside
from tests.support.runs import event_files
from trainer.data.datasets.mnist import Mnist

DISK_MB = 48  # of a small file system: enough for a sweep
RESTART_S = 3.0  # within which a second rank is lost after the first
Find, Act = Callable[[Scene], Sequence[psutil.Process]], Callable[..., object]


def send(number: Signals, *processes: psutil.Process) -> None:
    """Send a signal to processes, of which some may have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def signalled(*finds: Find, number: Signals = SIGKILL, **options: Any) -> Fault:
    """Processes get a signal at once."""

    def strike(scene: Scene) -> None:
        send(number, *(process for find in finds for process in find(scene)))

    return Fault(strike, **options)


def for_a_while(find: Callable[[Scene], Any], do: Act, undo: Act, seconds: float | None) -> Strike:
    """Do something to what is found, and undo it after some seconds, or never."""

    def strike(scene: Scene) -> None:
        found = find(scene)
        do(*found)
        if seconds is not None:
            time.sleep(seconds)
            undo(*found)

    return strike


def suspended(find: Find, seconds: float | None = None, **options: Any) -> Fault:
    return Fault(for_a_while(find, partial(send, SIGSTOP), partial(send, SIGCONT), seconds), **options)


def rank(scene: Scene, number: int) -> psutil.Process:
    return scene.until(lambda: scene.position(number), f"process of rank {number}")


def ranks(scene: Scene) -> list[psutil.Process]:
    """The victims' processes; those that have ended are left out at teardown only."""
    if scene.case.moment is Moment.TEARDOWN:
        return [process for process in map(scene.position, scene.victims) if process]
    return [rank(scene, victim) for victim in scene.victims]


def starting(scene: Scene) -> list[psutil.Process]:
    """What becomes the rank, before it has reported its start."""
    return [scene.until(lambda: scene.place.starting(scene.run, *scene.victims), "process of the rank")]


def with_command(*words: str) -> Find:
    """Processes of the nodes whose command line contains one of the words."""
    return lambda scene: scene.until(lambda: [*scene.place.processes(*words)], words[0])


def first(*words: str) -> Find:
    """One of them."""
    return lambda scene: with_command(*words)(scene)[:1]


def started(*words: str) -> Find:
    """A descendant of the orchestrator on this machine whose command line contains one of the words."""
    return lambda scene: scene.until(lambda: [*scene.place.commands(*words)][:1], words[0])


def orchestrator(scene: Scene) -> list[psutil.Process]:
    return [scene.place.orchestrator]


def engines(_: Scene) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.name() == "dockerd"]


def start_engine(_: Scene) -> None:
    subprocess.run(["make", "engine"], cwd=PROJECT, check=True, capture_output=True, timeout=300)


def kill_again(scene: Scene) -> None:
    """Kill a rank, and another one during the restart."""
    first, second = scene.victims
    killed = rank(scene, first)
    killed.kill()
    time.sleep(scene.draws.uniform(0.1, RESTART_S))

    def restarted() -> psutil.Process | None:
        found = scene.position(second)
        return found if found and found.pid != killed.pid else None

    scene.until(restarted, "restarted rank").kill()


KILL = signalled(ranks)
ENGINE = signalled(engines, repair=start_engine, needs_root=True, alone=True, leaves=True)
END_WITH_REAPER = signalled(  # which would clean up after the orchestrator
    lambda scene: [*scene.place.commands("runtimes.docker.reaper")], orchestrator, leaves=True
)

# Containers


def ids(scene: Scene, *roles: str) -> list[str]:
    """The containers of these services; of `node`, the default, the victims'."""
    roles = roles or ("node",)
    return scene.until(lambda: [each["Id"] for role in roles for each in scene.containers(role)], roles[0])


def init(scene: Scene) -> list[psutil.Process]:
    """Process 1 of the victims' containers."""
    found: list[psutil.Process] = scene.until(
        lambda: [inside(each)[0] for each in scene.containers("node")], "node"
    )
    return found


def kill_containers(*roles: str) -> Fault:
    return Fault(lambda scene: docker("kill", *ids(scene, *roles)))


def pause(seconds: float | None) -> Fault:
    """Pause the victims' containers, and unpause them."""
    return Fault(for_a_while(ids, partial(docker, "pause"), partial(docker, "unpause"), seconds))


def execute_in_nodes(script: str) -> Fault:
    """Execute a command in the victims' containers."""
    return Fault(lambda scene: [docker("exec", each, "sh", "-c", script) for each in ids(scene)])


def cut(seconds: float | None) -> Fault:
    """Cut the victims' nodes off from the network, and connect them again."""

    def switch(state: str, *found: psutil.Process) -> None:
        for process in found:
            command = ["nsenter", "-t", str(process.pid), "-n", "ip", "link", "set", "eth0", state]
            subprocess.run(command, check=True, capture_output=True)

    strike = for_a_while(init, partial(switch, "down"), partial(switch, "up"), seconds)
    return Fault(strike, needs_root=True)


# Disks and files


def full_disk(directory: Callable[[Scene], Path]) -> Fault:
    """A small file system at the directory, which is filled at the moment of the fault."""

    def arrange(scene: Scene) -> None:
        path = directory(scene)
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={DISK_MB}m,mode=1777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "faults", str(path)], check=True)

    def strike(scene: Scene) -> None:
        with suppress(OSError), open(directory(scene) / "full", "wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))

    def repair(scene: Scene) -> None:
        """Move the files to a larger disk."""
        path, kept = directory(scene), scene.directory / "kept"
        (path / "full").unlink(missing_ok=True)
        for command in (["cp", "-a", path, kept], ["umount", path], ["cp", "-aT", kept, path]):
            subprocess.run(list(map(str, command)), check=True)

    return Fault(strike, arrange, repair, needs_root=True)


REMOVE_RESULTS = Fault(lambda scene: shutil.rmtree(scene.files.directory, ignore_errors=True))


def events_of_victim(scene: Scene) -> Path:
    name = f"rank-{scene.victims[0]}.jsonl"
    return next(path for path in event_files(scene.out) if path.name == name)


def damage_events(scene: Scene) -> None:
    with open(events_of_victim(scene), "a") as file:
        file.write('{"version": 1, "ti\n')


def damaged_data(damage: Callable[[Path], object]) -> Fault:
    """Damage a file of MNIST in the data directory before the sweep."""

    def copy(scene: Scene) -> None:
        for archive in Mnist.archives:
            copied = scene.data / archive.path
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.unlink(missing_ok=True)
            shutil.copyfile(shared_data_dir() / archive.path, copied)

    return Fault(lambda scene: damage(scene.data / Mnist.archives[0].path), copy, copy, needs_data=True)


def newest_checkpoint(scene: Scene) -> Path:
    return sorted(scene.files.checkpoints.rglob(f"rank-{scene.victims[0]}.pt"))[-1]


def damaged(find: Callable[[Scene], Path], damage: Callable[[Path], object]) -> Fault:
    return Fault(lambda scene: damage(find(scene)))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:99])


def flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def of_another_run(path: Path) -> None:
    """Make a checkpoint that of another run."""
    path.write_bytes(path.read_bytes().replace(b'"run": "', b'"run": "other-', 1))


def link(path: Path) -> None:
    """Replace a file by a link to a file elsewhere."""
    path.unlink()
    path.symlink_to("/etc/hostname")
