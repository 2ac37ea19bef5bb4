"""The faults: what is killed, suspended, cut off, filled, removed or damaged."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.faults.case import Fault, Moment, Strike
from tests.faults.scene import Scene
from tests.support.command_line import PROJECT
from tests.support.datasets import shared_data_dir
from tests.support.places import docker, inside
from tests.support.runs import event_files
from trainer.cluster.commands import OUT
from trainer.data.datasets.mnist import Mnist

DISK_MB = 48  # of a small file system: enough for a sweep
RESTART_S = 3.0  # within which a second rank is lost after the first


# Ranks


def signal_ranks(number: signal.Signals, words: str) -> Fault:
    """Send a signal to the victims, one right after the other."""

    def strike(scene: Scene, _: random.Random) -> None:
        late = scene.case.moment is Moment.TEARDOWN  # then the rank may have ended
        find = scene.position if late else scene.rank
        for process in [find(rank) for rank in scene.victims]:
            if process:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    return Fault(words, strike)


def kill_starting_rank(scene: Scene, _: random.Random) -> None:
    """Kill what becomes a rank, before it has reported its start."""
    for rank in scene.victims:
        scene.until(lambda rank=rank: scene.place.starting(scene.run, rank), "it has not started").kill()


def suspend_for(seconds: float) -> Strike:
    """Suspend the victims' processes and continue them."""

    def strike(scene: Scene, _: random.Random) -> None:
        processes = [scene.rank(rank) for rank in scene.victims]
        for process in processes:
            process.suspend()
        time.sleep(seconds)
        for process in processes:
            process.resume()

    return strike


def kill_again(scene: Scene, draws: random.Random) -> None:
    """Kill a rank, and another one while torchrun restarts the ranks."""
    first, second = scene.victims if len(scene.victims) > 1 else scene.victims * 2
    killed = scene.rank(first)
    killed.kill()
    time.sleep(draws.uniform(0.1, RESTART_S))

    def restarted() -> psutil.Process | None:
        found = scene.position(second)
        return found if found and found.pid != killed.pid else None

    scene.until(restarted, "the ranks were not restarted").kill()


# Other processes


def kill_process(words: str, *commands: str, number: signal.Signals = signal.SIGKILL) -> Fault:
    """Send a signal to a process of the nodes whose command line contains one of these."""

    def strike(scene: Scene, _: random.Random) -> None:
        found = scene.until(lambda: next(scene.place.processes(*commands), None), f"no {commands[0]}")
        found.send_signal(number)

    return Fault(words, strike)


def suspend_process(words: str, *commands: str) -> Fault:
    """Suspend all processes of the nodes whose command line contains one of these."""

    def strike(scene: Scene, _: random.Random) -> None:
        for process in scene.until(lambda: [*scene.place.processes(*commands)], f"no {commands[0]}"):
            process.suspend()

    return Fault(words, strike)


def kill_command(words: str, *commands: str) -> Fault:
    """Kill a descendant of the orchestrator on this machine."""

    def strike(scene: Scene, _: random.Random) -> None:
        scene.until(lambda: next(scene.place.commands(*commands), None), f"no {commands[0]}").kill()

    return Fault(words, strike)


def kill_with_orchestrator(scene: Scene, _: random.Random) -> None:
    """Kill the victims' ranks and the orchestrator at once."""
    for process in [*(scene.rank(rank) for rank in scene.victims), scene.orchestrator]:
        process.kill()


def signal_orchestrator(number: signal.Signals, words: str) -> Fault:
    return Fault(words, lambda scene, _: scene.orchestrator.send_signal(number))


def kill_orchestrator_and_reaper(scene: Scene, _: random.Random) -> None:
    """Kill the orchestrator and the process that would clean up after it."""
    for reaper in [*scene.place.commands("runtimes.docker.reaper")]:
        reaper.kill()
    scene.orchestrator.kill()


def kill_parent_of_ranks(scene: Scene, _: random.Random) -> None:
    """Kill the process that has forked the ranks of a hogwild run."""
    rank = scene.rank(scene.victims[0])
    parent = rank.parent()
    assert parent
    parent.kill()


def stop_engine(scene: Scene, _: random.Random) -> None:
    for process in psutil.process_iter():
        if process.name() == "dockerd":
            process.kill()


def start_engine(scene: Scene) -> None:
    subprocess.run(["make", "engine"], cwd=PROJECT, check=True, capture_output=True, timeout=300)


# Containers


def kill_containers(*roles: str) -> Strike:
    """Kill containers of these services at once; of `node`, the victims'."""

    def strike(scene: Scene, _: random.Random) -> None:
        def found() -> list[str]:
            return [each["Id"] for role in roles for each in scene.running_containers(role)]

        docker("kill", *scene.until(found, f"no container of {' or '.join(roles)}"))

    return strike


def pause(seconds: float | None) -> Strike:
    """Pause the victims' containers, and unpause them."""

    def strike(scene: Scene, _: random.Random) -> None:
        names = [each["Id"] for each in scene.running_containers("node")]
        for name in names:
            docker("pause", name)
        if seconds is not None:
            time.sleep(seconds)
            for name in names:
                docker("unpause", name)

    return strike


def terminate_containers(scene: Scene, _: random.Random) -> None:
    """Send SIGTERM to init of the victims' containers."""
    for rank in scene.victims:
        psutil.Process(_init(scene, rank)).terminate()


def suspend_container(scene: Scene, _: random.Random) -> None:
    """Suspend all processes of the victims' nodes, but init."""
    for container in scene.running_containers("node"):
        docker("exec", container["Id"], "sh", "-c", "kill -STOP -1")


def cut(seconds: float | None) -> Strike:
    """Cut the victims' nodes off from the network, and connect them again."""

    def strike(scene: Scene, _: random.Random) -> None:
        pids = [_init(scene, rank) for rank in scene.victims]
        for pid in pids:
            _link(pid, "down")
        if seconds is not None:
            time.sleep(seconds)
            for pid in pids:
                _link(pid, "up")

    return strike


def _link(pid: int, state: str) -> None:
    command = ["nsenter", "-t", str(pid), "-n", "ip", "link", "set", "eth0", state]
    subprocess.run(command, check=True, capture_output=True)


def fill_directory(directory: str) -> Strike:
    """Fill a temporary file system of the victims' containers."""

    def strike(scene: Scene, _: random.Random) -> None:
        for container in scene.running_containers("node"):
            docker("exec", container["Id"], "sh", "-c", f"cat /dev/zero >{directory}/full")

    return strike


def _init(scene: Scene, rank: int) -> int:
    container = scene.containers.node(scene.run, rank)
    assert container
    return inside(container)[0].pid


# Disks and files


def nothing(scene: Scene, _: random.Random) -> None:
    """For faults that are in the run itself."""


def full_disk(directory: Callable[[Scene], Path], words: str) -> Fault:
    """A small file system at the directory, which is filled at the moment of the fault."""

    def arrange(scene: Scene) -> None:
        path = directory(scene)
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={DISK_MB}m,mode=1777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "faults", str(path)], check=True)

    def strike(scene: Scene, _: random.Random) -> None:
        with suppress(OSError), open(directory(scene) / "full", "wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))

    def repair(scene: Scene) -> None:
        """Move the files to a larger disk."""
        path, kept = directory(scene), scene.directory / "kept"
        (path / "full").unlink(missing_ok=True)
        for command in (["cp", "-a", path, kept], ["umount", path], ["cp", "-aT", kept, path]):
            subprocess.run(list(map(str, command)), check=True)

    return Fault(words, strike, arrange, repair, needs_root=True)


def results_of(scene: Scene) -> Path:
    return scene.out


def checkpoints_of(scene: Scene) -> Path:
    return scene.checkpoints


def remove_results(scene: Scene, _: random.Random) -> None:
    shutil.rmtree(scene.paths.run(scene.run.key).directory, ignore_errors=True)


def damage_events(scene: Scene, _: random.Random) -> None:
    """Append half a line to the events of a victim."""
    name = f"rank-{scene.victims[0]}.jsonl"
    with open(next(path for path in event_files(scene.out) if path.name == name), "a") as file:
        file.write('{"version": 1, "ti\n')


def remove_events(scene: Scene, _: random.Random) -> None:
    """Remove the file of a victim's events where it is written."""
    rank = scene.victims[0]
    if scene.in_containers:
        docker("exec", scene.containers.node(scene.run, rank)["Id"], "rm", f"{OUT}/rank-{rank}.jsonl")
    else:
        next(path for path in event_files(scene.out) if path.name == f"rank-{rank}.jsonl").unlink()


def damaged_data(words: str, damage: Callable[[Path], None]) -> Fault:
    """Damage a file of MNIST in the data directory before the sweep."""

    def arrange(scene: Scene) -> None:
        for archive in Mnist.archives:
            copied = scene.data / archive.path
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shared_data_dir() / archive.path, copied)

    def strike(scene: Scene, _: random.Random) -> None:
        damage(scene.data / Mnist.archives[0].path)

    def repair(scene: Scene) -> None:
        path = scene.data / Mnist.archives[0].path
        path.unlink(missing_ok=True)
        shutil.copyfile(shared_data_dir() / Mnist.archives[0].path, path)

    return Fault(words, strike, arrange, repair, needs_data=True)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def damaged_checkpoint(words: str, damage: Callable[[Path], None]) -> Fault:
    """Damage the newest checkpoint of a victim."""

    def strike(scene: Scene, _: random.Random) -> None:
        (rank,) = scene.victims
        damage(sorted(scene.checkpoints.rglob(f"rank-{rank}.pt"))[-1])

    return Fault(words, strike)


def flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def forbid_others(path: Path) -> None:
    """Take away the permission of other users to read a file."""
    path.chmod(0o600)


def of_another_run(path: Path) -> None:
    """Make a checkpoint that of another run."""
    head, newline, state = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b'"run": "', b'"run": "other-') + newline + state)


def forbid(path: Path) -> None:
    """Take away the permission to read a file."""
    path.chmod(0)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link(path: Path) -> None:
    """Replace a file by a link to a file elsewhere."""
    path.unlink()
    path.symlink_to("/etc/hostname")


# A checkpoint that is skipped: the name of its case, what is wrong with it, and what its row says.
DAMAGED = (
    ("damaged", "the last checkpoint of a rank is damaged", flip, "damaged"),
    ("foreign", "the last checkpoint is of another run", of_another_run, "run is other-"),
    ("empty", "the last checkpoint of a rank is empty", empty, "damaged"),
    ("linked", "the last checkpoint of a rank is a link to another file", link, "damaged|cannot be read"),
    ("unreadable", "the last checkpoint of a rank cannot be read", forbid, "cannot be read"),
)


def damaged_result(scene: Scene, draws: random.Random) -> None:
    """Cut off the result of the disturbed run."""
    path = scene.paths.run(scene.run.key).result
    data = path.read_bytes()
    path.write_bytes(data[: draws.randrange(1, len(data) - 1)])


def damaged_record(scene: Scene, draws: random.Random) -> None:
    """Cut off the record of the sweep, sweep.json."""
    data = scene.paths.record.read_bytes()
    scene.paths.record.write_bytes(data[: draws.randrange(1, len(data) - 1)])
