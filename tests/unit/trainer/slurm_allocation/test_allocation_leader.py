"""The leader of an allocation, without Slurm: warm nodes are a stub, runs are scripts of bash."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.slurm_allocation import leader as module
from trainer.slurm_allocation.leader import Leader, LostError, WarmNodes, free_port
from trainer.slurm_allocation.messages import (
    ANSWERS,
    REQUESTS,
    LeaderAnswer,
    LeaderRequest,
    LineReader,
    append,
)

NODE = """
import sys
for line in sys.stdin:
    for node in ("a", "b"):
        reason = {reasons}.get((node, line.strip()), "null")
        print('{{"node": "%s", "reason": %s, "usable": {usable}}}' % (node, reason), flush=True)
        {then}
"""


class Orchestrator:
    """The other end of the leader, which serves in a thread. lost: why the leader has ended."""

    def __init__(self, directory: Path, nodes: WarmNodes | None) -> None:
        self.directory, self.lost = directory, ""
        for name in (REQUESTS, ANSWERS):
            (directory / name).touch()
        self._reader = LineReader(directory / ANSWERS, LeaderAnswer)
        self._answers: deque[LeaderAnswer] = deque()
        self.leader = Leader(directory, nodes)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.leader.serve()
        except LostError as error:
            self.lost = str(error)
        finally:
            self.leader.close()

    def send(self, request: LeaderRequest) -> None:
        append(self.directory / REQUESTS, request)

    def run(self, number: int, script: str, warm: bool = False) -> None:
        path = self.directory / f"{number}.sh"
        path.write_text(script)
        log = str(self.directory / "log")
        self.send(LeaderRequest(kind="run", run=number, script=str(path), log=log, warm=warm))

    def answer(self) -> LeaderAnswer:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self._answers += self._reader.new()
            if self._answers:
                return self._answers.popleft()
            time.sleep(0.005)
        raise AssertionError("no answer")


@contextmanager
def serving(directory: Path, nodes: WarmNodes | None = None) -> Iterator[Orchestrator]:
    orchestrator = Orchestrator(directory, nodes)
    try:
        yield orchestrator
    finally:
        orchestrator.send(LeaderRequest(kind="end"))
        orchestrator.thread.join(timeout=20)
        assert not orchestrator.thread.is_alive()


def warm_nodes(
    directory: Path, reasons: object = None, usable: bool = True, then: str = "pass"
) -> WarmNodes:
    """Two nodes. reasons: of their replies, as JSON. then: what each does after a reply."""
    source = NODE.format(reasons=reasons or {}, usable=json.dumps(usable), then=then)
    return WarmNodes([sys.executable, "-c", source], 2, directory / "warm.log")


def test_runs_one_script_after_the_other(tmp_path: Path) -> None:
    with serving(tmp_path) as orchestrator:
        for number, code in ((1, 0), (2, 3)):
            orchestrator.run(number, f"echo $MASTER_PORT; sleep 0.1; exit {code}")
            assert orchestrator.answer() == LeaderAnswer(kind="started", run=number)
            assert orchestrator.answer() == LeaderAnswer(kind="ended", run=number, code=code)
    ports = (tmp_path / "log").read_text().split()
    assert len({int(port) for port in ports}) == 2


def test_cancelled_run_ends_and_the_next_one_starts(tmp_path: Path) -> None:
    with serving(tmp_path) as orchestrator:
        orchestrator.run(1, "sleep 60 & wait")
        assert orchestrator.answer().kind == "started"
        orchestrator.send(LeaderRequest(kind="cancel", run=1))
        ended = orchestrator.answer()
        assert (ended.kind, ended.run, ended.code) == ("ended", 1, -15)
        orchestrator.send(LeaderRequest(kind="cancel", run=1))  # too late: it must not end the next one
        orchestrator.run(2, "sleep 0.1")
        assert orchestrator.answer().kind == "started"
        assert orchestrator.answer() == LeaderAnswer(kind="ended", run=2)


def test_run_that_ignores_its_cancellation_ends_the_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_S", 0.1)
    with serving(tmp_path) as orchestrator:
        orchestrator.run(1, "trap '' TERM; for i in $(seq 10); do sleep 0.1; done")
        assert orchestrator.answer().kind == "started"
        time.sleep(0.2)
        orchestrator.send(LeaderRequest(kind="cancel", run=1))
        orchestrator.thread.join(timeout=10)
        assert "did not end" in orchestrator.lost


def test_silence_ends_the_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.1)
    with serving(tmp_path) as orchestrator:
        orchestrator.thread.join(timeout=10)
        assert "no heartbeat" in orchestrator.lost


def test_replaced_and_lost_warm_nodes_are_named(tmp_path: Path) -> None:
    reasons = {("b", "ensure"): '"their process grew"', ("a", "explain"): '"was killed by SIGKILL"'}
    with serving(tmp_path, warm_nodes(tmp_path, reasons)) as orchestrator:
        orchestrator.run(1, "true", warm=True)
        assert orchestrator.answer() == LeaderAnswer(kind="started", run=1, reason="their process grew (b)")
        assert orchestrator.answer() == LeaderAnswer(kind="ended", run=1)
        orchestrator.run(2, "exit 69", warm=True)
        assert orchestrator.answer().kind == "started"
        ended = orchestrator.answer()
        assert (ended.code, ended.reason) == (69, "the process of warm nodes was killed by SIGKILL (a)")


def test_node_that_cannot_become_warm_ends_the_allocation(tmp_path: Path) -> None:
    reasons = {("a", "ensure"): '"no memory"'}
    with serving(tmp_path, warm_nodes(tmp_path, reasons, usable=False)) as orchestrator:
        orchestrator.run(1, "true", warm=True)
        orchestrator.thread.join(timeout=10)
        assert orchestrator.lost == "a: no memory"


def test_end_of_a_warm_node_ends_the_allocation(tmp_path: Path) -> None:
    errors = ["note", "error: yard2: task 1: Killed", "error: yard1: task 0: Terminated"]
    text = "".join(f"srun: {each}\n" for each in errors)
    then = f"sys.stderr.write({text!r}); sys.exit(1)"
    with serving(tmp_path, warm_nodes(tmp_path, then=then)) as orchestrator:
        orchestrator.run(1, "sleep 20", warm=True)
        orchestrator.thread.join(timeout=10)
        assert orchestrator.lost == "a warm node was lost (yard2: task 1: Killed)"


def test_port_in_use_is_left_out() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(0, range(port, port + 2)) == port + 1
        with pytest.raises(LostError):
            free_port(0, range(port, port + 1))
