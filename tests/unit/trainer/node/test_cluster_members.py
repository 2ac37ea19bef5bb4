"""Mistakes of agents that a coordinator starts: over their streams, run after run, and how they fail."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster_support import FIELDS
from tests.unit.conftest import PROJECT, event, rank_fields
from trainer.core.sources import own_digest
from trainer.node import lead, members
from trainer.node.channel import SPEC, Answer, PipeChannel, Request
from trainer.node.coordinator import serve
from trainer.node.members import Started
from trainer.node.site import Plan

# An agent that trains nothing: argv has its hello, and the events of its rank.
CHILD = """
import asyncio, json, sys
from trainer.node.protocol import FROM_COORDINATOR, over_stdio

async def main():
    connection = await over_stdio(FROM_COORDINATOR)
    print("what it prints is no message")
    while message := await connection.receive():
        match message["kind"]:
            case "begin":
                await connection.send("hello", **json.loads(sys.argv[1]))
            case "assignment":
                rank = message["index"]
                await connection.send("events", sys.argv[2].replace("RANK", str(rank)).encode(), rank=rank)
                await connection.send("exit", codes={str(rank): 0}, cause=None, usage=None)
            case "shutdown":
                await connection.send("clean", left=None)
    print("ended", file=open(sys.argv[3], "a"))

asyncio.run(main())
"""


def child(directory: Path, **hello: Any) -> list[str]:
    """The command of such an agent."""
    made = [event("start", pid=7), event("result", **rank_fields()), event("done")]
    lines = "\n".join(each.to_line() for each in made).replace('"rank": 0', '"rank": RANK')
    said = {"address": "127.0.0.1", "port": 1234, "sources": own_digest(), **hello}
    return [sys.executable, "-c", CHILD, json.dumps(said), lines, str(directory / "ended")]


class Led:
    """A coordinator of these agents, which takes two runs through pipes."""

    def __init__(self, directory: Path, *agents: list[str]) -> None:
        self.directory, self._count = directory, len(agents)
        for number, command in enumerate(agents):
            (directory / f"agent-{number}").write_text(f"exec {shlex.join(command)}")
        self._members = Started(Plan(count=len(agents), agent=["sh", f"{directory}/agent-{{number}}"]))

    def answers(self, cancelled: bool = False) -> list[Answer]:
        (answers, answer), (requests, ask) = os.pipe(), os.pipe()
        own = PipeChannel(answers, ask, Answer)
        for number in (1, 2):
            run = self.directory / f"run-{number}"
            run.mkdir()
            (run / SPEC).write_text(json.dumps({**FIELDS["ddp"], "nodes": self._count}))
            own.post(Request(kind="run", run=number, directory=run.name))
            if cancelled:
                own.post(Request(kind="cancel", run=number))

        async def play() -> None:
            channel = PipeChannel(requests, answer, Request)
            try:
                await asyncio.wait_for(
                    serve(channel, self.directory, lambda: self._members, idle_s=0.2), 20
                )
            finally:
                await self._members.close()

        asyncio.run(play())
        found = own.new()
        for descriptor in (answers, answer, requests, ask):
            os.close(descriptor)
        return found


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))


def test_agents_stay_for_further_runs_and_end_with_the_coordinator(tmp_path: Path) -> None:
    found = Led(tmp_path, *[child(tmp_path)] * 2).answers()
    endings = [each.ending for each in found if each.ending]
    assert [each.exits for each in endings] == [{"node-1": 0, "node-2": 0, "coordinator": 0}] * 2
    assert [(each.untrusted, each.cut_off) for each in endings] == [(None, None)] * 2
    agents = json.loads((tmp_path / "run-2" / "assignment.json").read_text())
    assert [(each["address"], each["port"], each["ranks"]) for each in agents] == [
        ("127.0.0.1", 1234, [0]),
        ("127.0.0.1", 1234, [1]),
    ]
    assert (tmp_path / "ended").read_text() == "ended\n" * 2


@pytest.mark.parametrize(
    ("agent", "cause"),
    [
        ({"refusal": "no memory left"}, "node 1: no memory left"),
        ({"sources": "other"}, "node 1 has a trainer of sources other"),
        (["sh", "-c", "exit 3"], "node 1 ended with exit code 3, before it registered"),
        (["sh", "-c", "echo junk; cat"], "node 1 sent invalid data: message: "),
    ],
    ids=["refusal", "sources", "exit", "junk"],
)
def test_agent_that_does_not_register_is_named(tmp_path: Path, agent: Any, cause: str) -> None:
    other = child(tmp_path, **agent) if isinstance(agent, dict) else agent
    began = time.monotonic()
    found = Led(tmp_path, child(tmp_path), other).answers()
    assert time.monotonic() - began < 15
    assert found[-1].kind == "ended"
    first = next(each.ending for each in found if each.ending)
    assert first.exits == {"coordinator": 1}
    assert (tmp_path / "run-1" / "summary.txt").read_text().startswith(f"FAILED: {cause}")


def test_a_run_is_cancelled_for_which_an_agent_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until none can register any more."""
    monkeypatch.setattr(members, "REGISTRATION_S", 2.0)
    led = Led(tmp_path, ["sh", "-c", "cat > /dev/null"])
    began = time.monotonic()
    assert [each.kind for each in led.answers(cancelled=True)].count("ended") == 2
    assert time.monotonic() - began < 3.0
    for number in (1, 2):
        summary = (tmp_path / f"run-{number}" / "summary.txt").read_text()
        assert summary == "FAILED: cancelled by the orchestrator\n"


def test_lead_ends_when_the_orchestrator_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "SILENCE_S", 0.2)
    for name in ("requests.jsonl", "answers.jsonl"):
        (tmp_path / name).touch()
    assert lead.main(Plan(count=1, agent=["false"], channel=str(tmp_path)).model_dump_json()) == 0
