"""Mistakes in the leader of an allocation: which run ends, what is lost. Slurm and warm nodes are stubs."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
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
        self._answers: list[LeaderAnswer] = []
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

    def send(self, kind: Any, **fields: Any) -> None:
        append(self.directory / REQUESTS, LeaderRequest(kind=kind, **fields))

    def run(self, number: int, script: str, warm: bool = False) -> LeaderAnswer:
        """Start a run. Returns the answer."""
        path = self.directory / f"{number}.sh"
        path.write_text(script)
        self.send("run", run=number, script=str(path), log=str(self.directory / "log"), warm=warm)
        return self.answer()

    def answer(self) -> LeaderAnswer:
        def arrived() -> bool:
            self._answers += self._reader.new()
            return bool(self._answers)

        wait_until(arrived, timeout_s=20)
        return self._answers.pop(0)


Serve = Callable[..., Orchestrator]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a leader, with warm nodes if there is something to say about them."""
    started: list[Orchestrator] = []

    def serve(reasons: object = None, usable: str = "true", then: str = "pass") -> Orchestrator:
        """reasons: of the replies of the two nodes, as JSON. then: what each does after a reply."""
        source = NODE.format(reasons=reasons, usable=usable, then=then)
        nodes = WarmNodes([sys.executable, "-c", source], 2, tmp_path / "warm.log") if reasons else None
        started.append(Orchestrator(tmp_path, nodes))
        return started[0]

    yield serve
    started[0].send("end")
    started[0].thread.join(timeout=20)
    assert not started[0].thread.is_alive()


def test_runs_one_script_after_the_other(serve: Serve) -> None:
    orchestrator = serve()
    for number, code in ((1, 0), (2, 3)):
        started = orchestrator.run(number, f"echo $MASTER_PORT; exit {code}")
        assert started == LeaderAnswer(kind="started", run=number)
        assert orchestrator.answer() == LeaderAnswer(kind="ended", run=number, code=code)
    assert len({int(port) for port in (orchestrator.directory / "log").read_text().split()}) == 2


def test_cancelled_run_ends_and_the_next_one_starts(serve: Serve) -> None:
    orchestrator = serve()
    orchestrator.run(1, "sleep 60 & wait")
    orchestrator.send("cancel", run=1)
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=1, code=-15)
    orchestrator.send("cancel", run=1)  # too late: it must not end the next one
    assert orchestrator.run(2, "sleep 0.1") == LeaderAnswer(kind="started", run=2)
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=2)


def lost(orchestrator: Orchestrator) -> str:
    orchestrator.thread.join(timeout=10)
    return orchestrator.lost


def test_run_that_ignores_its_cancellation_ends_the_allocation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_S", 0.05)
    orchestrator = serve()
    orchestrator.run(1, f"trap '' TERM; touch {orchestrator.directory}/trapped; sleep 0.6; sleep 0.1")
    wait_until((orchestrator.directory / "trapped").exists)
    orchestrator.send("cancel", run=1)
    assert "did not end" in lost(orchestrator)


def test_silence_ends_the_allocation(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.1)
    assert "no heartbeat" in lost(serve())


def test_replaced_and_lost_warm_nodes_are_named(serve: Serve) -> None:
    orchestrator = serve({("b", "ensure"): '"they grew"', ("a", "explain"): '"was killed by SIGKILL"'})
    started = orchestrator.run(1, "true", warm=True)
    assert started == LeaderAnswer(kind="started", run=1, reason="they grew (b)")
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=1)
    orchestrator.run(2, "exit 69", warm=True)
    reason = "the process of warm nodes was killed by SIGKILL (a)"
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=2, code=69, reason=reason)


def test_node_that_cannot_become_warm_ends_the_allocation(serve: Serve) -> None:
    orchestrator = serve({("a", "ensure"): '"no memory"'}, usable="false")
    orchestrator.send("run", run=1, warm=True)
    assert lost(orchestrator) == "a: no memory"


def test_end_of_a_warm_node_ends_the_allocation(serve: Serve) -> None:
    errors = ["note", "error: yard2: task 1: Killed", "error: yard1: task 0: Terminated"]
    text = "".join(f"srun: {each}\n" for each in errors)
    orchestrator = serve({"none": ""}, then=f"sys.stderr.write({text!r}); sys.exit(1)")
    orchestrator.send("run", run=1, warm=True)
    assert lost(orchestrator) == "a warm node was lost (yard2: task 1: Killed)"


def test_port_in_use_is_left_out() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(0, range(port, port + 2)) == port + 1
        with pytest.raises(LostError):
            free_port(0, range(port, port + 1))
