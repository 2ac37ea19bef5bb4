"""The warm parent and its client: a fork behaves as a start does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import psutil
import pytest

from tests.support.processes import wait_until
from tests.unit.conftest import PROJECT
from tests.unit.dataset_support import NOWHERE
from trainer.data.base import Data
from trainer.data.cache import DatasetCache
from trainer.data.datasets.synthetic import Synthetic
from trainer.spec.run_spec import THREAD_VARIABLES
from trainer.warm import client
from trainer.warm import process as module
from trainer.warm.process import ParentProcess

# A parent whose ranks execute the code in their variable DO. With a second argument, it has a thread.
PARENT = """
import os, socket, sys, threading, time
from trainer.warm.parent import WarmParent

def run(datasets):
    scope = {"datasets": datasets, "os": os, "sys": sys, "time": time}
    exec(os.environ["DO"], scope)
    return scope.get("code", 0)

listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
if sys.argv[2:]:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
WarmParent(listener, sys.stdin.fileno(), run).serve()
"""


class Parent:
    """A parent in a process of its own, and clients that execute code in its ranks."""

    def __init__(self, *arguments: str) -> None:
        self._clients: list[subprocess.Popen[str]] = []
        self.name = f"shardyard-test-{uuid4().hex}"
        command = [sys.executable, "-c", PARENT, self.name, *arguments]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        self.owner, theirs = socket.socketpair()
        self._answers = self.owner.makefile()
        with theirs:
            self.process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def start(self, code: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", "-E", client.__file__, self.name]
        environment = {**os.environ, "DO": code, **options.pop("environment", {})}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=environment, text=True, **pipes, **options)
        self._clients.append(process)
        return process

    def status(self) -> dict[str, Any]:
        self.owner.sendall(b"?")
        status: dict[str, Any] = json.loads(self._answers.readline())
        return status

    def disconnect(self) -> None:
        """As the kernel does when the process that started the parent ends."""
        self._answers.close()
        self.owner.close()

    def close(self) -> None:
        self.disconnect()
        for process in (self.process, *self._clients):
            process.kill()
            with process:  # closes its streams
                pass


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with closing(Parent()) as started:
        yield started


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_rank_takes_over_environment_directory_and_streams(parent: Parent, tmp_path: Path) -> None:
    code = """
import ctypes
print(sys.stdin.readline().strip(), os.getcwd(), os.environ["ONE"], "TWO" in os.environ)
print(ctypes.CDLL(None).getenv(b"ONE") != 0, file=sys.stderr)
code = 3
"""
    process = parent.start(code, cwd=tmp_path, environment={"ONE": "1"})
    output, errors = process.communicate("read\n", timeout=20)
    assert output.split() == ["read", str(tmp_path), "1", "False"]
    assert errors.split() == ["True"]  # C libraries see the environment, too
    assert process.returncode == 3


def test_exception_in_a_rank_is_on_its_stderr(parent: Parent) -> None:
    process = parent.start("1 / 0")
    assert "ZeroDivisionError" in process.communicate(timeout=20)[1]
    assert process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_client_ends_with_the_signal_that_killed_the_rank(parent: Parent, number: signal.Signals) -> None:
    process = parent.start(f"print(os.getpid(), flush=True); os.kill(os.getpid(), {number:d})")
    rank = int(process.communicate(timeout=20)[0])
    assert process.returncode == -number
    assert parent.status()["killed"] == [[rank, number]]


def test_killed_ranks_are_forgotten_with_the_next_run(parent: Parent) -> None:
    parent.start("os.kill(os.getpid(), 9)").communicate(timeout=20)
    parent.start("pass").communicate(timeout=20)
    assert parent.status()["killed"] == []


def test_signal_to_the_client_reaches_the_rank(parent: Parent) -> None:
    code = """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("terminated", flush=True)))
print("waiting", flush=True)
time.sleep(60)
"""
    process = parent.start(code)
    assert process.stdout
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "terminated\n"


def test_killing_the_client_kills_the_rank_and_what_it_has_forked(parent: Parent) -> None:
    # One write per line: with PYTHONUNBUFFERED, print writes the number and the newline separately.
    process = parent.start("os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)")
    assert process.stdout
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.kill()
    process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids))
    assert parent.status()["ranks"] == 0
    assert parent.status()["killed"] == []


@pytest.mark.parametrize("first", ["client", "rank"])
def test_client_and_rank_may_end_at_once(parent: Parent, first: str) -> None:
    process = parent.start("print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout
    rank = int(process.stdout.readline())
    parent.process.send_signal(signal.SIGSTOP)  # so that it sees both at once
    wait_until(lambda: psutil.Process(parent.process.pid).status() == psutil.STATUS_STOPPED)
    for pid in (process.pid, rank) if first == "client" else (rank, process.pid):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid))
    process.wait(20)
    parent.process.send_signal(signal.SIGCONT)
    wait_until(lambda: parent.status()["ranks"] == 0)


def test_ranks_run_at_once_and_leave_no_descriptor(parent: Parent, tmp_path: Path) -> None:
    before, go = parent.status(), tmp_path / "go"
    code = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    ranks = [parent.start(code) for _ in range(8)]
    wait_until(lambda: parent.status()["ranks"] == 8)
    go.touch()
    assert [rank.wait(20) for rank in ranks] == [0] * 8
    after = parent.status()
    assert (after["ranks"], after["threads"], after["descriptors"]) == (0, 1, before["descriptors"])


def test_idle_parent_uses_no_cpu(parent: Parent) -> None:
    process = psutil.Process(parent.process.pid)
    wait_until(lambda: parent.status()["ranks"] == 0)
    time.sleep(0.2)  # until it waits again
    before = (sum(process.cpu_times()[:2]), process.num_ctx_switches().voluntary)
    with pytest.raises(subprocess.TimeoutExpired):
        parent.process.wait(0.5)
    assert (sum(process.cpu_times()[:2]), process.num_ctx_switches().voluntary) == before


@pytest.mark.parametrize("request_bytes", [b"", b"{", b"[]\n", b"{}\n", b'{"environment": {}}\n'])
def test_bad_request_harms_no_other_client(parent: Parent, request_bytes: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        client.connect(connection, parent.name)
        connection.sendall(request_bytes)
    assert parent.start("pass").wait(20) == 0


def test_parent_with_threads_refuses_to_fork() -> None:
    with closing(Parent("thread")) as parent:
        process = parent.start("pass")
        assert "2 threads" in process.communicate(timeout=20)[1]
        assert process.returncode == client.UNAVAILABLE


@pytest.mark.parametrize("ending", ["owner", "SIGKILL"])
def test_ranks_end_with_the_parent(ending: str) -> None:
    with closing(Parent()) as parent:
        process = parent.start("print(os.getpid(), flush=True); time.sleep(60)")
        assert process.stdout
        rank = int(process.stdout.readline())
        if ending == "SIGKILL":
            parent.process.kill()
        else:
            parent.disconnect()
        wait_until(lambda: not alive(rank))
        process.communicate(timeout=20)
        assert process.returncode == client.UNAVAILABLE
        assert parent.process.wait(20) == (-signal.SIGKILL if ending == "SIGKILL" else 0)


def test_client_without_a_parent_says_so() -> None:
    command = [sys.executable, "-S", "-E", client.__file__, f"shardyard-test-{uuid4().hex}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == client.UNAVAILABLE
    assert done.stderr.count("\n") == 1


class Counted(Synthetic):
    """Counts its loads in one of its files."""

    files: ClassVar = ("samples", "absent")

    def load(self, data_dir: Path) -> Data:
        with (data_dir / "loads").open("a") as file:
            file.write("x")
        return super().load(data_dir)


def test_dataset_is_loaded_again_only_if_it_or_its_files_have_changed(tmp_path: Path) -> None:
    def loads() -> int:
        return len((tmp_path / "loads").read_text())

    (tmp_path / "samples").write_text("1")
    cache, dataset = DatasetCache(), Counted(samples=200, test_samples=20)
    first = cache.load(dataset, tmp_path)
    assert cache.load(Counted(samples=200, test_samples=20), tmp_path) is first
    assert loads() == 1
    (tmp_path / "samples").write_text("12")
    assert cache.load(dataset, tmp_path) is not first
    assert loads() == 2
    assert len(cache.load(Counted(samples=201, test_samples=20), tmp_path).train.inputs) == 201
    cache.load(dataset, tmp_path)  # only one is held
    assert loads() == 4


def test_size_of_the_held_data() -> None:
    cache = DatasetCache()
    assert cache.mb == 0
    data = cache.load(Synthetic(samples=200, test_samples=20), NOWHERE)
    assert cache.mb * 2**20 == 220 * (data.train.inputs[0].nbytes + 8)


def test_a_parent_that_does_not_answer_in_time_is_named_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    silent = ParentProcess("silent", {})
    ours, theirs = socket.socketpair()
    silent._status_socket, silent._answers = ours, ours.makefile()
    with theirs:
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"^nothing came within 0\.1 s$"):
                silent._status()
    silent._answers.close()
    ours.close()
