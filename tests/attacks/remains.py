"""A strategy that leaves things in its container, and looks for what another run has left there."""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import psutil

from trainer.core.strategy import Strategy
from trainer.training.bare_session import BareSession

MIB = 2**20
HOME = Path("/run/shardyard")
LIBC = ctypes.CDLL(None, use_errno=True)
NEW = 0o1600  # IPC_CREAT, for this user


def parent() -> int:
    return os.getppid()


def agent() -> int:
    return psutil.Process(parent()).ppid()


def escape(work, *arguments) -> None:
    """Run this in a process that is no descendant of this one, in a session of its own."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    work(*arguments)
    os._exit(0)


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "the attack failed")
    return result


def client(spec: str) -> socket.socket:
    """A client of the warm parent. spec: file of the run that it requests; empty: it sends no request."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect("\0shardyard")
    if spec:
        request = {"environment": {**os.environ, "SHARDYARD_SPEC": spec}, "directory": "/"}
        socket.send_fds(connected, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
    return connected


def rows(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:]


def strangers() -> list[psutil.Process]:
    """Processes that neither this run nor the engine has started."""
    own = {1, agent(), parent(), os.getpid()}
    for process in psutil.Process(agent()).children():
        own |= {process.pid} if "client.py" in " ".join(process.cmdline()) else set()
    return [each for each in psutil.Process(1).children(recursive=True) if each.pid not in own]


class Attacks:
    """By name, what a run leaves."""

    def objects(self) -> None:
        """Shared memory, semaphores and message queues of System V, and message queues of POSIX."""
        segment = checked(LIBC.shmget(0, 100 * MIB, NEW))
        LIBC.shmat.restype = ctypes.c_void_p
        ctypes.memset(LIBC.shmat(segment, None, 0), 1, 100 * MIB)
        for number in range(50):
            checked(LIBC.semget(0, 100, NEW))
            if number < 16:
                checked(LIBC.msgget(0, NEW))
            if number < 3:
                queue = checked(LIBC.mq_open(f"/q{number}".encode(), os.O_CREAT | os.O_RDWR, 0, None))
                checked(LIBC.mq_send(queue, b"x" * 8192, 8192, 0))

    def files(self) -> None:
        for directory in (HOME, Path("/tmp"), Path("/dev/shm")):
            nested = directory / "of a run" / "\udcff\n" / "nested"
            nested.mkdir(parents=True)
            os.mkfifo(nested / "pipe")
            (nested / "link").symlink_to("/")
            (directory / ".hidden").write_bytes(bytes(30 * MIB))

    def escaped(self) -> None:
        """With a port and a name that the next run needs, and files that it has locked."""

        def serve() -> None:
            ports = [socket.create_server(("", port)) for port in (2222, 29500)]
            name = socket.socket(socket.AF_UNIX)
            name.bind("\0of-a-run")
            lock = open("/tmp/lock", "w")  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
            time.sleep(300)
            print(ports, name, lock)

        escape(serve)

    def stopped(self) -> None:
        escape(signal.raise_signal, signal.SIGSTOP)

    def headless(self) -> None:
        """A process whose first thread has ended looks like a zombie."""

        def end_thread() -> None:
            threading.Thread(target=time.sleep, args=(300,)).start()
            LIBC.pthread_exit(None)

        escape(end_thread)

    def clients(self) -> None:
        """Clients that the warm parent has yet to serve when the run ends: one sends no request."""
        for number in range(40):
            client("/none" if number else "").detach()

    def data(self) -> None:
        """The warm parent loads a large dataset for a client."""
        spec = json.loads(Path(os.environ["SHARDYARD_SPEC"]).read_text())
        spec |= {"dataset": {"name": "synthetic", "samples": 100_000}, "strategy": "all_reduce"}
        (HOME / "large.json").write_text(json.dumps(spec))
        client(str(HOME / "large.json")).recv(1000)

    def connections(self) -> None:
        """Connections to the coordinator, with a line that is no message."""
        address = socket.gethostbyname("coordinator"), 29400
        for _ in range(40):
            socket.create_connection(address).detach()

    def forks(self) -> None:
        """A process that is never the same when it is killed. If it escapes, containers are replaced."""

        def run_away() -> None:
            while not os.fork():
                pass

        escape(run_away)

    def deep_directory(self) -> None:
        os.chdir("/tmp")
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")

    def unreadable_directory(self) -> None:
        Path("/tmp/unreadable/inner").mkdir(parents=True)
        Path("/tmp/unreadable").chmod(0)


def look() -> None:
    """Raises RuntimeError for whatever is not this run's."""
    found = [f"{each} {row}" for each in ("shm", "sem", "msg") for row in rows(Path("/proc/sysvipc", each))]
    for directory in (Path("/tmp"), Path("/dev/shm"), Path("/dev/mqueue")):
        found += [str(path) for path in directory.iterdir() if not path.name.startswith("torchinductor_")]
    found += [str(path) for path in HOME.glob("*") if path.name in ("of a run", ".hidden", "large.json")]
    found += [f"process {each.pid} {each.cmdline()}" for each in strangers()]
    found += [f"name {line}" for line in Path("/proc/net/unix").read_text().split() if "of-a-run" in line]
    if os.nice(0) or len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
        found.append("priority")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 64:
        found.append("limits")
    if fcntl.fcntl(1, fcntl.F_GETFL) & os.O_NONBLOCK:
        found.append("streams")
    if (used := psutil.Process(parent()).memory_info().rss) > 600 * MIB:
        found.append(f"{used / MIB:.0f} MiB of the warm parent")
    if found:
        raise RuntimeError(f"found {', '.join(found)}"[:1000])


# One process changes another one.
CHANGES = {
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, parent(), 5),
    "cores": lambda: os.sched_setaffinity(parent(), {0}),
    "limits": lambda: resource.prlimit(parent(), resource.RLIMIT_NOFILE, (64, 64)),
    "oom_score": lambda: Path(f"/proc/{agent()}/oom_score_adj").write_text("999"),
    "streams": lambda: fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_NONBLOCK),
}


class Remains(Strategy):
    """Leave something behind on node 1, or look for it on all nodes."""

    transports = ("gloo",)
    uses_partition = False
    trains = False
    untraced = "it does not train"

    kind: str = "look"

    def train(self, session: BareSession) -> None:
        session.start()
        if self.kind == "look":
            look()
        elif session.rank == 1:
            (CHANGES.get(self.kind) or getattr(Attacks(), self.kind))()
