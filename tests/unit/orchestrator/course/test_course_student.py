"""Mistakes in calls of a student's code: messages that are believed or never end, unreadable errors."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.course.checks import Failure
from orchestrator.course.student import Student
from orchestrator.sandbox.base import MAX_BYTES, Channel, Ended, Sandbox
from trainer.core.frames import frame, message


class Scripted(Sandbox):
    """Sends prepared messages."""

    def __init__(self, *messages: dict[str, Any] | bytes, end: str = "ended") -> None:
        frames = [each if isinstance(each, bytes) else frame(each) for each in ({"ready": True}, *messages)]
        self._data, self._end = b"".join(frames), end
        self.written: list[dict[str, Any]] = []
        self.closed = False

    def open(self) -> None:
        pass

    def read(self, count: int, timeout_s: float) -> bytes:
        data, self._data = self._data[:count], self._data[count:]
        return data

    def write(self, data: bytes, timeout_s: float) -> None:
        self.written.append(message(data[4:]))

    def ending(self) -> str:
        return self._end

    def close(self) -> None:
        self.closed = True


def student(sandbox: Sandbox) -> Student:
    return Student(Channel(sandbox), "answer.py", 2.0)


def ask(number: Any = 0, function: Any = 0, arguments: Any = (), named: Any = ()) -> dict[str, Any]:
    """A call of a function of the check."""
    named = {"dict": [*named]}
    return {"call": 0, "ask": number, "function": function, "arguments": arguments, "named": named}


def test_a_call_returns_the_result() -> None:
    sandbox = Scripted({"call": 0, "result": [1, 2]})
    code = student(sandbox)
    assert code.call("A.b", 5, fields={"c": 1}) == [1, 2]
    assert code.intact
    assert sandbox.written == [
        {"file": "answer.py", "target": "A.b", "fields": {"dict": [["c", 1]]}, "calls": [[5]]}
    ]


def test_invalid_messages_fail_the_check() -> None:
    messages: list[dict[str, Any] | bytes] = [
        {},
        {"call": 7, "result": 1},
        {"call": "0", "result": 1},
        {"call": 0},
        {"call": 0, "error": "text"},
        {"call": 0, "result": {"pickle": 1}},
        ask(function=5),
        ask(function=-1),
        ask(arguments=1),
        ask(named=[[1, 1]]),
        ask(number=[]),
        b"\xff\xff\xff\xff",
        b"\0\0\0\1x",
        b"",
    ]
    for sent in messages:
        code = student(Scripted(sent))
        with pytest.raises(Failure):
            code.call("answer", lambda: None)
        assert not code.intact


def test_a_function_of_the_check_is_called_here_and_refuses_wrong_arguments() -> None:
    sandbox = Scripted(ask(0, arguments=[2]), ask(1), {"call": 0, "result": None})
    student(sandbox).call("answer", lambda value: value + 1)
    _, answer, refusal = sandbox.written
    assert answer == {"answer": 0, "value": 3}
    assert refusal["refused"].startswith("<lambda>() missing 1 required")


def test_a_check_may_receive_so_much_and_no_more() -> None:
    class Endless(Scripted):
        def read(self, count: int, timeout_s: float) -> bytes:
            return super().read(count, timeout_s) or noise

    noise = frame(ask(arguments=["x" * 2**20]))
    with pytest.raises(Failure, match=f"{MAX_BYTES >> 20} MiB"):
        Student(Channel(Endless()), "answer.py", 600.0).call("answer", lambda text: None)


def test_a_channel_begins_with_a_process_that_is_ready() -> None:
    sandbox = Scripted(end="was stopped")
    channel = Channel(sandbox)
    with pytest.raises(Ended, match="was stopped"):
        channel.receive(time.monotonic() + 1)
    channel.close()
    assert sandbox.closed
