"""Mistakes in the leader of an allocation: lines of its files, whose run ends, what is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from trainer.slurm_allocation import leader as module
from trainer.slurm_allocation import messages
from trainer.slurm_allocation.leader import Leader, LostError, WarmNodes
from trainer.slurm_allocation.messages import LeaderAnswer, LeaderRequest, LineReader, append

NODES = """
import json, sys
for line in sys.stdin:
    for node in ("a", "b"):
        reason = {reasons}.get((node, line.strip()))
        print(json.dumps(dict(node=node, reason=reason, usable={usable})), flush=True)
"""


class Orchestrator:
    """The other end of a leader, which serves in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._lost = directory, ""
        for name in (messages.REQUESTS, messages.ANSWERS):
            (directory / name).touch()
        self._reader = LineReader(directory / messages.ANSWERS, LeaderAnswer)
        self._answers: list[LeaderAnswer] = []

    def lead(self, reasons: object = None, usable: bool = True) -> None:
        """reasons: why two warm nodes, if there are any, were replaced or lost."""
        source = NODES.format(reasons=reasons, usable=usable)
        log = self.directory / "warm.log"
        nodes = WarmNodes([sys.executable, "-c", source], 2, log) if reasons is not None else None
        self._thread = threading.Thread(target=self._serve, args=(Leader(self.directory, nodes),))
        self._thread.start()

    def _serve(self, leader: Leader) -> None:
        try:
            leader.serve()
        except LostError as error:
            self._lost = str(error)
        finally:
            leader.close()

    def send(self, kind: Any, **fields: Any) -> None:
        append(self.directory / messages.REQUESTS, LeaderRequest(kind=kind, **fields))

    def run(self, number: int, script: str, warm: bool = False) -> LeaderAnswer:
        """Start a run. Returns the answer."""
        path = self.directory / f"{number}.sh"
        path.write_text(script)
        self.send("run", run=number, script=str(path), log=str(self.directory / "log"), warm=warm)
        return self.answer()

    def answer(self) -> LeaderAnswer:
        wait_until(lambda: self._answers.extend(self._reader.new()) or self._answers, timeout_s=20)
        return self._answers.pop(0)

    def lost(self) -> str:
        """Why the leader has ended."""
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        return self._lost


@pytest.fixture
def orchestrator(tmp_path: Path) -> Iterator[Orchestrator]:
    made = Orchestrator(tmp_path)
    yield made
    made.send("end")
    made.lost()


def test_scripts_run_one_after_the_other_until_they_end(
    orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator.lead()
    for number, code in ((1, 0), (2, 3)):
        started = orchestrator.run(number, f"echo $MASTER_PORT; exit {code}")
        assert started == LeaderAnswer(kind="started", run=number)
        assert orchestrator.answer() == LeaderAnswer(kind="ended", run=number, code=code)
    assert len({int(port) for port in (orchestrator.directory / "log").read_text().split()}) == 2
    orchestrator.run(3, "sleep 60 & wait")
    orchestrator.send("cancel", run=3)
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=3, code=-15)
    monkeypatch.setattr(module, "CANCEL_S", 0.0)  # the next one has as long as it needs
    assert orchestrator.run(4, "sleep 0.3") == LeaderAnswer(kind="started", run=4)
    orchestrator.send("cancel", run=3)  # too late: it must not end the next one
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=4)


def test_stubborn_run_ends_the_job(orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_S", 0.05)
    orchestrator.lead()
    trapped = orchestrator.directory / "trapped"
    orchestrator.run(1, f"trap '' TERM; touch {trapped}; sleep 0.6; sleep 0.1")
    wait_until(trapped.exists)
    orchestrator.send("cancel", run=1)
    assert "did not end" in orchestrator.lost()


def test_silence_ends_the_allocation(orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.1)
    orchestrator.lead()
    assert "no heartbeat" in orchestrator.lost()


def test_replaced_and_lost_warm_nodes_are_named(orchestrator: Orchestrator) -> None:
    orchestrator.lead({("b", "ensure"): "they grew", ("a", "explain"): "was killed by SIGKILL"})
    started = orchestrator.run(1, "true", warm=True)
    assert started == LeaderAnswer(kind="started", run=1, reason="they grew (b)")
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=1)
    orchestrator.run(2, "exit 69", warm=True)
    reason = "the process of warm nodes was killed by SIGKILL (a)"
    assert orchestrator.answer() == LeaderAnswer(kind="ended", run=2, code=69, reason=reason)


def test_warm_nodes_that_are_lost_end_the_allocation(orchestrator: Orchestrator) -> None:
    orchestrator.lead({("a", "ensure"): "no memory"}, usable=False)
    orchestrator.send("run", run=1, warm=True)
    assert orchestrator.lost() == "a: no memory"
    said = "srun: note\nsrun: error: yard2: task 1: Killed\nsrun: error: yard1: task 0: Terminated\n"
    exits = [sys.executable, "-S", "-c", f"import sys; sys.exit({said!r})"]
    nodes = WarmNodes(exits, 2, orchestrator.directory / "warm-nodes.log")
    with pytest.raises(LostError, match=r"^a warm node was lost \(yard2: task 1: Killed\)$"):
        nodes.ask("ensure")
    nodes.close()


def test_complete_lines_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    reader = LineReader(path, LeaderRequest)
    requests = [LeaderRequest(kind="run", run=1, script="/a b", warm=True), LeaderRequest(kind="heartbeat")]
    with pytest.raises(FileNotFoundError):  # a file that was removed stays so
        append(path, requests[0])
    assert reader.new() == []
    path.touch()
    for each in requests:
        append(path, each)
    lines = path.read_text()
    assert [reader.new(), reader.new()] == [requests, []]
    for end, found in ((9, []), (len(lines) - 1, requests[:1]), (len(lines), requests[1:])):
        path.write_text(lines + lines[:end])
        assert reader.new() == found


def test_line_that_is_no_record_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    for line in ("nonsense", '{"kind": "dance"}', '{"kind": "ended", "code": "0"}', "[]"):
        path.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"^answers\.jsonl: "):
            LineReader(path, LeaderAnswer).new()
