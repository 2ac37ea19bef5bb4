"""Values between the grader and a student's code, and what the grader makes of invalid ones."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.course.checks import Failure
from orchestrator.course.student import Student
from orchestrator.sandbox.base import MAX_BYTES, Channel, Ended, Sandbox
from trainer.core.frames import MAX_FRAME, ProtocolError, frame, length, message
from trainer.course.protocol import Seed, decode, encode


def passed(value: Any) -> Any:
    """The value after its way as JSON."""
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize("value", [None, True, 3, -2.5, "é", [1, [2]], {"a": {1: [2.0]}}, float("inf")])
def test_plain_values_arrive_unchanged(value: Any) -> None:
    assert passed(value) == value


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "bool", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_arrive_with_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    arrived = passed(array)
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(arrived, array)
    arrived[...] = 0  # it is writable


def test_tuples_become_lists_and_tensors_arrays() -> None:
    assert passed((1, (2,))) == [1, [2]]
    np.testing.assert_array_equal(passed(torch.arange(3)), [0, 1, 2])


def test_objects_and_functions_of_the_grader_arrive() -> None:
    known: list[Callable[..., Any]] = []

    def register(function: Callable[..., Any]) -> int:
        known.append(function)
        return len(known) - 1

    form = encode(SimpleNamespace(rank=1, send=len, seed=Seed(3)), register)
    arrived = decode(json.loads(json.dumps(form)), known.__getitem__)
    assert (arrived.rank, arrived.send) == (1, len)
    assert arrived.seed.integers(1000) == np.random.default_rng(3).integers(1000)


@pytest.mark.parametrize("value", [len, object(), {1, 2}, np.array(["x"]), np.array([None]), 1j, b"x"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ProtocolError, match="type"):
        encode(value)


DATA = base64.b64encode(bytes(16)).decode()


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"array": 1, "dict": []},
        {"array": ["<f8", [2]]},
        {"array": ["<f8", [3], DATA]},
        {"array": ["<f8", [-1], DATA]},
        {"array": ["<f8", [2.0], DATA]},
        {"array": ["|O8", [2], DATA]},
        {"array": ["<f3", [2], DATA]},
        {"array": ["<f8", [2], "!"]},
        {"array": [["<f8"], [2], DATA]},
        {"dict": [[[], 1]]},
        {"dict": [1]},
        {"object": []},
        {"function": 0},
        {"seed": 0},
        {"pickle": "x"},
    ],
)
def test_invalid_forms_are_refused(form: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(form)


def test_forms_that_are_nested_too_deeply_are_refused() -> None:
    form: Any = []
    for _ in range(100_000):
        form = [form]
    with pytest.raises(ProtocolError):
        decode(form)
    with pytest.raises(ProtocolError):
        message(b"[" * 100_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["array", "dict", "object", "function", "seed"]), inner, max_size=2
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_decoded_or_refused(form: Any) -> None:
    with contextlib.suppress(ProtocolError, KeyError):
        decode(form, {0: len}.__getitem__)


def test_frames_have_a_largest_length() -> None:
    assert length(frame({"a": 1})[:4]) == len(b'{"a": 1}')
    with pytest.raises(ProtocolError, match="16 MiB"):
        length((MAX_FRAME + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"\xff", b"1" * 5000])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        message(body)


# Calls of a process that answers what a test has prepared


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
