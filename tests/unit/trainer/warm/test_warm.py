"""Mistakes in the warm parent and its clients: what a fork takes over, ends and kills, and what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.support.processes import ended, wait_until
from tests.unit.conftest import PROJECT
from trainer.warm import client
from trainer.warm import process as module
from trainer.warm.process import ParentProcess

# A parent whose ranks execute the code in their variable DO. With a second argument, it has a thread.
PARENT = """
import os, signal, socket, sys, threading, time
from trainer.warm.parent import WarmParent

def run(datasets):
    scope = {"os": os, "signal": signal, "sys": sys, "time": time}
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
WAITS = "print(os.getpid(), flush=True); time.sleep(60)"


class Parent(ParentProcess):
    """A parent whose clients execute code in its ranks."""

    def __init__(self, *arguments: str) -> None:
        variables = {"PYTHONPATH": str(PROJECT), "OF_THE_PARENT": "1"}
        super().__init__(f"shardyard-test-{uuid4().hex}", variables)
        self.argv = [sys.executable, "-c", PARENT, self.name, *arguments]
        self._clients: list[subprocess.Popen[str]] = []
        self.ensure()

    def client(self, code: str, directory: Path = PROJECT) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        variables = {**os.environ, "DO": code}
        process = subprocess.Popen(self.command, env=variables, cwd=directory, text=True, **pipes)
        self._clients.append(process)
        return process

    def started(self, code: str = WAITS) -> tuple[subprocess.Popen[str], int]:
        """A client, and the rank that has printed its number."""
        process = self.client(code)
        return process, int(process.stdout.readline())

    def close(self) -> None:
        super().close()
        for process in self._clients:
            process.kill()
            with process:  # closes its streams
                pass


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with closing(Parent()) as started:
        yield started


def alive(pid: int) -> bool:
    try:
        return not ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def test_rank_stands_for_its_client(parent: Parent, tmp_path: Path) -> None:
    code = """
import ctypes
print(sys.stdin.readline().strip(), os.getcwd(), "OF_THE_PARENT" in os.environ)
print(ctypes.CDLL(None).getenv(b"DO") != 0, file=sys.stderr)  # C libraries see the environment, too
code = 3
"""
    process = parent.client(code, tmp_path)
    assert process.communicate("read\n", timeout=20) == (f"read {tmp_path} False\n", "True\n")
    assert process.returncode == 3
    process = parent.client("1 / 0")
    assert "ZeroDivisionError" in process.communicate(timeout=20)[1]
    assert process.returncode == 1


def test_client_ends_with_the_signal_that_killed_the_rank(parent: Parent) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
        process = parent.client(f"print(os.getpid(), flush=True); os.kill(os.getpid(), {number:d})")
        rank = int(process.communicate(timeout=20)[0])
        assert process.returncode == -number
        assert parent.killed() == [(rank, number)]  # of the last run only


def test_signal_to_the_client_reaches_the_rank(parent: Parent) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('terminated', flush=True)))"
    process, _ = parent.started(f"{handler}; {WAITS}")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "terminated\n"


def test_killing_the_client_kills_the_rank_and_what_it_has_forked(parent: Parent) -> None:
    # One write per line: with PYTHONUNBUFFERED, print writes the number and the newline separately.
    process, first = parent.started("os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)")
    second = int(process.stdout.readline())
    process.kill()
    wait_until(lambda: not alive(first) and not alive(second), timeout_s=20)  # it would end by itself
    assert (parent._status()["ranks"], parent.killed()) == (0, [])


@pytest.mark.parametrize("client_first", [True, False])
def test_client_and_rank_may_end_at_once(parent: Parent, client_first: bool) -> None:
    process, rank = parent.started()
    os.kill(parent.pid or 0, signal.SIGSTOP)  # so that it sees both at once
    wait_until(lambda: psutil.Process(parent.pid).status() == psutil.STATUS_STOPPED)
    for pid in (process.pid, rank) if client_first else (rank, process.pid):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid))
    os.kill(parent.pid or 0, signal.SIGCONT)
    wait_until(lambda: parent._status()["ranks"] == 0)


def test_ranks_run_at_once_and_leave_no_descriptor_and_no_work(parent: Parent, tmp_path: Path) -> None:
    before, go = parent._status(), tmp_path / "go"
    code = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    ranks = [parent.client(code) for _ in range(4)]
    wait_until(lambda: parent._status()["ranks"] == 4)
    go.touch()
    assert [rank.wait(20) for rank in ranks] == [0] * 4
    after = parent._status()
    assert (after["ranks"], after["threads"], after["descriptors"]) == (0, 1, before["descriptors"])
    time.sleep(0.1)  # until it waits again
    process = psutil.Process(parent.pid)
    switches = process.num_ctx_switches().voluntary
    time.sleep(0.1)
    assert process.num_ctx_switches().voluntary == switches


def test_bad_request_harms_no_other_client(parent: Parent) -> None:
    for request in (b"", b"{", b"[]\n", b"{}\n", b'{"environment": {}}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            client.connect(connection, parent.name)
            connection.sendall(request)
    assert parent.client("pass").wait(20) == 0


def test_parent_with_threads_refuses_to_fork_and_ends_with_its_owner() -> None:
    with closing(Parent("thread")) as parent:
        process = parent.client("pass")
        assert "2 threads" in process.communicate(timeout=20)[1]
        assert process.returncode == client.UNAVAILABLE
        assert parent.unhealthy_reason() == "their process had 2 threads"
        for each in (parent._answers, parent._status_socket):
            each.close()  # as the kernel does when this process ends
        assert parent.failure(20) == "ended with exit code 0"
        assert parent.unhealthy_reason() is None  # as after an idle time


def test_a_parent_that_does_not_answer_in_time_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    silent = ParentProcess("silent", {})
    ours, theirs = socket.socketpair()
    silent._status_socket, silent._answers = ours, ours.makefile()
    with ours, theirs, silent._answers:
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"^nothing came within 0\.05 s$"):
                silent._status()
