"""Mistakes in what orchestrator and coordinator tell each other: lines in parts, odd ones, silence."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.node import coordinator
from trainer.node.channel import (
    REQUESTS,
    Answer,
    Channel,
    Ending,
    FileChannel,
    PipeChannel,
    Request,
    coordinators_channel,
    file_channel,
    log_marks,
)
from trainer.node.coordinator import Requests

ENDED = Answer(kind="ended", run=2, ending=Ending(exits={"coordinator": 0}))
RUN = Request(kind="run", run=1, directory="a")
Ends = tuple[Channel[Answer], Channel[Request]]  # the orchestrator's and the coordinator's


@pytest.fixture(params=["files", "pipes"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    if request.param == "files":
        yield file_channel(tmp_path), coordinators_channel(tmp_path)
        return
    (answers, answer), (requests, ask) = os.pipe(), os.pipe()
    yield PipeChannel(answers, ask, Answer), PipeChannel(requests, answer, Request)
    for descriptor in (answers, answer, requests, ask):
        os.close(descriptor)


def test_each_end_reads_all_lines_of_the_other_once_and_in_order(ends: Ends) -> None:
    own, other = ends
    beat = Answer(kind="alive", run=2)
    for answer in (beat, ENDED):
        other.post(answer)
    own.post(RUN)
    assert (own.new(), own.new(), other.new()) == ([beat, ENDED], [], [RUN])
    other.post(beat)
    assert own.new() == [beat]
    assert not own.closed


def test_a_line_in_parts_is_read_once_it_ends(ends: Ends) -> None:
    own, other = ends
    line, found = ENDED.model_dump_json().encode() + b"\n", list[Answer]()
    for part in (line[:9], line[9:-1], line[-1:] + line[:3]):
        assert found == []
        other._write(part)
        found = own.new()
    assert found == [ENDED]


@pytest.mark.parametrize(
    "line", [b"junk\n", b"\n", b'{"kind": "odd"}\n', b'{"kind": "alive", "run": "1"}\n']
)
def test_a_line_that_is_no_record_is_an_error(ends: Ends, line: bytes) -> None:
    own, other = ends
    other._write(line)
    with pytest.raises(ValueError, match="answer"):
        own.new()


def test_a_file_that_was_removed_stays_so(tmp_path: Path) -> None:
    """The orchestrator has removed the directory, and the coordinator still runs."""
    own, other = file_channel(tmp_path), coordinators_channel(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    for channel, record in ((own, RUN), (other, ENDED)):
        with pytest.raises(FileNotFoundError):
            channel.post(record)
        assert channel.new() == []
    assert [*tmp_path.iterdir()] == []


def test_a_pipe_that_is_closed_has_no_more_lines() -> None:
    source, sink = os.pipe()
    inbox = PipeChannel(source, sink, Request)
    inbox._write(RUN.model_dump_json().encode() + b"\n")
    os.close(sink)
    assert (inbox.closed, inbox.new(), inbox.closed) == (False, [RUN], True)
    os.close(source)
    source, sink = os.pipe()
    os.close(source)
    with pytest.raises(BrokenPipeError):
        PipeChannel(sink, sink, Request).post(RUN)
    os.close(sink)


def test_ranks_of_suspended_processes_are_numbers() -> None:
    answer = Answer(kind="suspended", suspended={"3": 7, "mpirun": 8})
    assert answer.processes == {3: 7, "mpirun": 8}


def test_marks_of_a_run_are_not_those_of_another() -> None:
    assert len({*log_marks("a"), *log_marks("b"), *log_marks("of run a")}) == 6


# The coordinator's orders


class Interrupted:
    """A run, and why it was interrupted."""

    interruption = ""

    def interrupt(self, cause: str) -> None:
        self.interruption = cause


def orders(directory: Path, *requests: Request) -> tuple[Requests, FileChannel[Answer]]:
    """A coordinator's, after these requests, and the orchestrator's end."""
    own = file_channel(directory)
    for each in requests:
        own.post(each)
    return Requests(coordinators_channel(directory), lambda: {"waits": 1.0}), own


def test_runs_are_taken_in_order_until_the_orchestrator_ends_or_is_idle(tmp_path: Path) -> None:
    runs = [Request(kind="run", run=number) for number in (1, 2)]
    made, own = orders(tmp_path, runs[0], Request(kind="beat", beat=3), runs[1])

    async def take(idle_s: float = 5.0) -> Request | None:
        return await asyncio.wait_for(made.next_run(idle_s), 4.0)

    assert [asyncio.run(take()) for _ in runs] == runs
    assert asyncio.run(take(idle_s=0.05)) is None
    own.post(Request(kind="end"))
    assert asyncio.run(take()) is None
    assert own.new() == [Answer(kind="alive", beat=3, facts={"waits": 1.0})], "the answer to the heartbeat"


def test_a_heartbeat_keeps_a_coordinator_and_its_run(tmp_path: Path) -> None:
    made, own = orders(tmp_path)
    run: Any = Interrupted()

    async def beats(last: Request) -> None:
        for _ in range(8):
            own.post(Request(kind="beat"))
            await asyncio.sleep(0.05)
        own.post(last)

    async def between_runs_and_during_one() -> Request | None:
        beating = asyncio.create_task(beats(RUN))
        found = await made.next_run(0.2)
        beating.cancel()
        await asyncio.gather(beats(Request(kind="cancel", run=1)), made.follow(1, run, silence_s=0.2))
        return found

    assert asyncio.run(between_runs_and_during_one()) == RUN
    assert run.interruption == "cancelled by the orchestrator"


@pytest.mark.parametrize(
    ("request_", "cause", "goes_on"),
    [
        (Request(kind="cancel", run=1), "cancelled by the orchestrator", True),
        (Request(kind="end"), "cancelled by the orchestrator", False),
        (None, "no heartbeat of the orchestrator for 0.2 s", False),
        (Request(kind="cancel", run=2), "no heartbeat of the orchestrator for 0.2 s", False),  # of another
    ],
    ids=["cancel", "end", "silence", "another run"],
)
def test_what_interrupts_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Request | None, cause: str, goes_on: bool
) -> None:
    """And whether the coordinator takes a run that was asked for meanwhile."""
    monkeypatch.setattr(coordinator, "CANCEL_POLL_S", 0.01)
    made, _ = orders(tmp_path, *([request_] if request_ else []), RUN)
    run: Any = Interrupted()
    asyncio.run(asyncio.wait_for(made.follow(1, run, silence_s=0.2), 5.0))
    assert run.interruption == cause
    following = asyncio.run(made.next_run(0.1))
    assert following == (RUN if goes_on else None)


def test_requests_are_not_read_from_a_directory_without_any(tmp_path: Path) -> None:
    """A new directory of the same name may not have them yet."""
    own = coordinators_channel(tmp_path)
    assert own.new() == []
    (tmp_path / REQUESTS).write_text(RUN.model_dump_json() + "\n")
    assert own.new() == [RUN]
