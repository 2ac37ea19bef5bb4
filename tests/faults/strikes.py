"""The faults: what is killed, suspended, cut off, filled, removed or damaged."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, Signals

import psutil

from tests.faults.case import Fault, Moment, Strike, fault
from tests.faults.scene import Scene
from tests.support.command_line import PROJECT
from tests.support.datasets import shared_data_dir
from tests.support.places import MPIRUN, docker, inside
from tests.support.runs import event_files
from trainer.cluster.commands import OUT
from trainer.data.datasets.mnist import Mnist

DISK_MB = 48  # of a small file system: enough for a sweep
RESTART_S = 3.0  # within which a second rank is lost after the first
Find = Callable[[Scene], Sequence[psutil.Process]]

# Signals to processes


def send(number: Signals, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def signalled(number: Signals, find: Find, words: str) -> Fault:
    return Fault(words, lambda scene: send(number, find(scene)))


def suspend(find: Find, seconds: float | None = None) -> Strike:
    """Suspend processes, and continue them."""

    def strike(scene: Scene) -> None:
        found = find(scene)
        send(SIGSTOP, found)
        if seconds is not None:
            time.sleep(seconds)
            send(SIGCONT, found)

    return strike


def ranks(scene: Scene) -> list[psutil.Process]:
    """The victims' processes; those that have ended are left out at teardown only."""
    find = scene.position if scene.case.moment is Moment.TEARDOWN else scene.rank
    return [process for process in map(find, scene.victims) if process]


def starting(scene: Scene) -> list[psutil.Process]:
    """What becomes the rank, before it has reported its start."""
    (rank,) = scene.victims
    return [scene.until(lambda: scene.place.starting(scene.run, rank), "it has not started")]


def parent_of_ranks(scene: Scene) -> list[psutil.Process]:
    """The process that has forked the ranks of a hogwild run."""
    parent = scene.rank(scene.victims[0]).parent()
    assert parent
    return [parent]


def with_command(*words: str) -> Find:
    """Processes of the nodes whose command line contains one of the words."""
    return lambda scene: scene.until(lambda: [*scene.place.processes(*words)], f"no {words[0]}")


def first(*words: str) -> Find:
    """One of them."""
    return lambda scene: with_command(*words)(scene)[:1]


def started(*words: str) -> Find:
    """A descendant of the orchestrator on this machine whose command line contains one of the words."""
    return lambda scene: scene.until(lambda: [*scene.place.commands(*words)][:1], f"no {words[0]}")


def reapers(scene: Scene) -> list[psutil.Process]:
    """The process that would clean up after the orchestrator."""
    return [*scene.place.commands("runtimes.docker.reaper")]


def orchestrator(scene: Scene) -> list[psutil.Process]:
    return [scene.orchestrator]


def engine(_: Scene) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.name() == "dockerd"]


def init(scene: Scene) -> list[psutil.Process]:
    """Process 1 of the victims' containers."""
    found = [scene.containers.node(scene.run, rank) for rank in scene.victims]
    return [inside(container)[0] for container in found if container]


def start_engine(_: Scene) -> None:
    subprocess.run(["make", "engine"], cwd=PROJECT, check=True, capture_output=True, timeout=300)


def killed(what: str, find: Find = ranks) -> Fault:
    return signalled(SIGKILL, find, f"{what} gets SIGKILL")


KILL = killed("a rank")
KILL_STARTING = killed("a rank", starting)
KILL_TWO = signalled(SIGKILL, ranks, "two ranks get SIGKILL at once")
KILL_ALL = signalled(SIGKILL, ranks, "all ranks get SIGKILL at once")
TERMINATE = signalled(SIGTERM, ranks, "a rank gets SIGTERM from another program")
SUSPEND = Fault("a rank is suspended (SIGSTOP)", suspend(ranks))
SUSPEND_SHORT = Fault("a rank is suspended for 3 s", suspend(ranks, 3.0))
WARM_PARENT = killed("a warm parent", first("trainer.warm"))
WARM_CLIENT = killed("the client of a warm parent", first("warm/client.py"))
MPIRUN_KILLED = killed("mpirun", first(*MPIRUN))
MPIRUN_AT_START = killed("mpirun", started(*MPIRUN))
MPIRUN_TERMINATED = signalled(SIGTERM, first(*MPIRUN), "mpirun gets SIGTERM")
MPIRUN_SUSPENDED = Fault("mpirun is suspended", suspend(with_command(*MPIRUN)))
COORDINATOR_SUSPENDED = Fault(
    "the coordinator is suspended", suspend(with_command("trainer.cluster coordinator"))
)
AGENT = killed("a node's agent", first("trainer.cluster node"))
TORCHRUN = killed("a torchrun agent", first("trainer.torchrun_restarts"))
THROTTLE = killed("the throttle of a slower node", started("local.throttle"))
COMPOSE = killed("docker compose", started("compose"))
PARENT = killed("the parent of hogwild's ranks", parent_of_ranks)
TERMINATED = signalled(SIGTERM, init, "init of a node's container gets SIGTERM")
ENGINE = Fault(
    "the Docker engine gets SIGKILL",
    lambda scene: send(SIGKILL, engine(scene)),
    repair=start_engine,
    needs_root=True,
    alone=True,
    leaves=True,
)
END = {
    number: signalled(number, orchestrator, f"the orchestrator gets {number.name}")
    for number in (SIGINT, SIGTERM, SIGKILL)
}
END_WITH_RANK = signalled(
    SIGKILL,
    lambda scene: [*ranks(scene), scene.orchestrator],
    "a rank and the orchestrator get SIGKILL at once",
)
END_WITH_REAPER = Fault(
    "the orchestrator and its reaper get SIGKILL",
    lambda scene: send(SIGKILL, [*reapers(scene), scene.orchestrator]),
    leaves=True,
)


@fault("a rank gets SIGKILL, and another one during the restart")
def kill_again(scene: Scene) -> None:
    first, second = scene.victims if len(scene.victims) > 1 else scene.victims * 2
    killed = scene.rank(first)
    killed.kill()
    time.sleep(scene.draws.uniform(0.1, RESTART_S))

    def restarted() -> psutil.Process | None:
        found = scene.position(second)
        return found if found and found.pid != killed.pid else None

    scene.until(restarted, "the ranks were not restarted").kill()


# Containers


def kill_containers(*roles: str) -> Strike:
    """Kill containers of these services at once; of `node`, the victims'."""

    def strike(scene: Scene) -> None:
        def found() -> list[str]:
            return [each["Id"] for role in roles for each in scene.running_containers(role)]

        docker("kill", *scene.until(found, f"no container of {' or '.join(roles)}"))

    return strike


def pause(seconds: float | None) -> Strike:
    """Pause the victims' containers, and unpause them."""

    def strike(scene: Scene) -> None:
        names = [each["Id"] for each in scene.running_containers("node")]
        for name in names:
            docker("pause", name)
        if seconds is not None:
            time.sleep(seconds)
            for name in names:
                docker("unpause", name)

    return strike


def execute_in_nodes(script: str) -> Strike:
    """Execute a command in the victims' containers."""

    def strike(scene: Scene) -> None:
        for container in scene.running_containers("node"):
            docker("exec", container["Id"], "sh", "-c", script)

    return strike


def cut(seconds: float | None, words: str) -> Fault:
    """Cut the victims' nodes off from the network, and connect them again."""

    def switch(pids: Iterable[int], state: str) -> None:
        for pid in pids:
            command = ["nsenter", "-t", str(pid), "-n", "ip", "link", "set", "eth0", state]
            subprocess.run(command, check=True, capture_output=True)

    def strike(scene: Scene) -> None:
        pids = [process.pid for process in init(scene)]
        switch(pids, "down")
        if seconds is not None:
            time.sleep(seconds)
            switch(pids, "up")

    return Fault(words, strike, needs_root=True)


SUSPEND_NODE = Fault("all processes of a node are suspended", execute_in_nodes("kill -STOP -1"))
PAUSE = Fault("a container is paused", pause(None))
PAUSE_SHORT = Fault("a container is paused for 5 s", pause(5.0))
CUT = cut(None, "a node is cut off from the network")
CUT_IDLE = cut(None, "a warm node without a rank is cut off")
CUT_SHORT = cut(3.0, "a node is cut off for 3 s")
LAUNCHER = Fault("the launcher's container is killed", kill_containers("launcher"))
COORDINATOR = Fault("the coordinator's container is killed", kill_containers("coordinator"))
CONTAINER = Fault("a node's container is killed", kill_containers("node"))
COORDINATOR_AND_NODE = Fault(
    "the coordinator's and a node's container are killed at once", kill_containers("coordinator", "node")
)
FULL_TMP = Fault("a node's /tmp is full", execute_in_nodes("cat /dev/zero >/tmp/full"))
FULL_EVENTS = Fault(
    "a node's directory for events is full", execute_in_nodes("cat /dev/zero >/run/shardyard/full")
)


# Disks and files


def in_the_run(words: str) -> Fault:
    """A fault that is in the run itself."""
    return Fault(words, lambda scene: None)


def full_disk(directory: Callable[[Scene], Path], words: str) -> Fault:
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

    return Fault(words, strike, arrange, repair, needs_root=True)


FULL_RESULTS = full_disk(lambda scene: scene.out, "the disk of the results is full")
FULL_CHECKPOINTS = full_disk(lambda scene: scene.checkpoints, "the disk of the checkpoints is full")


@fault("the results directory of a run is removed")
def remove_results(scene: Scene) -> None:
    shutil.rmtree(scene.paths.run(scene.run.key).directory, ignore_errors=True)


def events_of_victim(scene: Scene) -> Path:
    name = f"rank-{scene.victims[0]}.jsonl"
    return next(path for path in event_files(scene.out) if path.name == name)


@fault("a rank writes something else than an event")
def damage_events(scene: Scene) -> None:
    with open(events_of_victim(scene), "a") as file:
        file.write('{"version": 1, "ti\n')


@fault("the file of a rank's events is removed")
def remove_events(scene: Scene) -> None:
    if scene.in_containers:
        (rank,) = scene.victims
        docker("exec", scene.containers.node(scene.run, rank)["Id"], "rm", f"{OUT}/rank-{rank}.jsonl")
    else:
        events_of_victim(scene).unlink()


def damaged_data(words: str, damage: Callable[[Path], object]) -> Fault:
    """Damage a file of MNIST in the data directory before the sweep."""

    def copy(scene: Scene) -> None:
        for archive in Mnist.archives:
            copied = scene.data / archive.path
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.unlink(missing_ok=True)
            shutil.copyfile(shared_data_dir() / archive.path, copied)

    def strike(scene: Scene) -> None:
        damage(scene.data / Mnist.archives[0].path)

    return Fault(words, strike, copy, copy, needs_data=True)


def damaged_checkpoint(words: str, damage: Callable[[Path], object]) -> Fault:
    """Damage the newest checkpoint of a victim."""

    def strike(scene: Scene) -> None:
        (rank,) = scene.victims
        damage(sorted(scene.checkpoints.rglob(f"rank-{rank}.pt"))[-1])

    return Fault(words, strike)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def of_another_run(path: Path) -> None:
    """Make a checkpoint that of another run."""
    head, newline, state = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b'"run": "', b'"run": "other-') + newline + state)


def link(path: Path) -> None:
    """Replace a file by a link to a file elsewhere."""
    path.unlink()
    path.symlink_to("/etc/hostname")


DATA_REMOVED = damaged_data("a file of the dataset is missing and cannot be downloaded", Path.unlink)
DATA_DAMAGED = damaged_data("a file of the dataset is damaged", truncate)
DATA_UNREADABLE = damaged_data(
    "a file of the dataset cannot be read by the containers' user", lambda path: path.chmod(0o600)
)
CHECKPOINT_DAMAGED = damaged_checkpoint("the last checkpoint of a rank is damaged", flip)
CHECKPOINT_FOREIGN = damaged_checkpoint("the last checkpoint is of another run", of_another_run)
CHECKPOINT_EMPTY = damaged_checkpoint(
    "the last checkpoint of a rank is empty", lambda path: path.write_bytes(b"")
)
CHECKPOINT_LINKED = damaged_checkpoint("the last checkpoint of a rank is a link to another file", link)
CHECKPOINT_UNREADABLE = damaged_checkpoint(
    "the last checkpoint of a rank cannot be read", lambda path: path.chmod(0)
)


def cut_off(scene: Scene, path: Path) -> None:
    """Keep the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: scene.draws.randrange(1, len(data) - 1)])


@fault("the result of a finished run is damaged")
def damaged_result(scene: Scene) -> None:
    cut_off(scene, scene.paths.run(scene.run.key).result)


@fault("the record of the sweep is damaged")
def damaged_record(scene: Scene) -> None:
    cut_off(scene, scene.paths.record)
