"""A student's code as checks call it, in a process that answers what a test has prepared."""

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
        ready: dict[str, Any] = {"ready": True}
        frames = [each if isinstance(each, bytes) else frame(each) for each in (ready, *messages)]
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


def student(*messages: dict[str, Any] | bytes) -> Student:
    return Student(Channel(Scripted(*messages)), "answer.py", 2.0)


def test_a_call_returns_the_result() -> None:
    sandbox = Scripted({"call": 0, "result": [1, 2]})
    code = Student(Channel(sandbox), "answer.py", 2.0)
    assert code.call("A.b", 5, fields={"c": 1}) == [1, 2]
    assert code.intact
    assert sandbox.written == [
        {"file": "answer.py", "target": "A.b", "fields": {"dict": [["c", 1]]}, "calls": [[5]]}
    ]


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"call": 7, "result": 1},
        {"call": "0", "result": 1},
        {"call": 0},
        {"call": 0, "error": "text"},
        {"call": 0, "result": {"pickle": 1}},
        {"call": 0, "ask": 0, "function": 5, "arguments": [], "named": {"dict": []}},
        {"call": 0, "ask": 0, "function": -1, "arguments": [], "named": {"dict": []}},
        {"call": 0, "ask": 0, "function": 0, "arguments": 1, "named": {"dict": []}},
        {"call": 0, "ask": 0, "function": 0, "arguments": [], "named": {"dict": [[1, 1]]}},
        {"call": 0, "ask": [], "function": 0, "arguments": [], "named": {"dict": []}},
        b"\xff\xff\xff\xff",
        b"\0\0\0\1x",
        b"",
    ],
)
def test_invalid_messages_fail_the_check(sent: dict[str, Any] | bytes) -> None:
    code = student(sent)
    with pytest.raises(Failure):
        code.call("answer", lambda: None)
    assert not code.intact


def test_an_error_is_shown_in_one_printable_line() -> None:
    error = {"type": "ValueError", "text": "\x1b[31m\n" + "x" * 10**5, "where": "answer.py, line 2"}
    with pytest.raises(Failure) as caught:
        student({"call": 0, "error": error}).call("answer")
    assert caught.value.problem.startswith("it raised ValueError (answer.py, line 2): ")
    assert caught.value.problem.isprintable()
    assert len(caught.value.problem) < 1000


def test_a_function_of_the_check_is_called_here_and_refuses_wrong_arguments() -> None:
    def ask(number: int, *arguments: int) -> dict[str, Any]:
        return {"call": 0, "ask": number, "function": 0, "arguments": [*arguments], "named": {"dict": []}}

    sandbox = Scripted(ask(0, 2), ask(1), {"call": 0, "result": None})
    Student(Channel(sandbox), "answer.py", 2.0).call("answer", lambda value: value + 1)
    replies = sandbox.written[1:]
    assert replies[0] == {"answer": 0, "value": 3}
    assert replies[1]["refused"].startswith("<lambda>() missing 1 required")


def test_a_check_may_receive_so_much_and_no_more() -> None:
    class Endless(Scripted):
        def read(self, count: int, timeout_s: float) -> bytes:
            return super().read(count, timeout_s) or noise

    noise = frame({"call": 0, "ask": 0, "function": 0, "arguments": ["x" * 2**20], "named": {"dict": []}})
    code = Student(Channel(Endless()), "answer.py", 600.0)
    with pytest.raises(Failure, match=f"{MAX_BYTES >> 20} MiB"):
        code.call("answer", lambda text: None)


def test_a_channel_begins_with_a_process_that_is_ready() -> None:
    sandbox = Scripted(end="was stopped")
    channel = Channel(sandbox)
    with pytest.raises(Ended, match="was stopped"):
        channel.receive(time.monotonic() + 1)
    channel.close()
    assert sandbox.closed
