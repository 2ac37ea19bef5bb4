"""Mistakes in what checks are made of: comparisons, loading, networks, calls of untrusted code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.course.checks import Failure, check, close, equal, load_checks
from orchestrator.course.network import Network
from orchestrator.course.student import Student
from orchestrator.errors import InputError
from orchestrator.sandbox.base import MAX_BYTES, Channel, Sandbox
from trainer.core.frames import frame


class Scripted(Sandbox):
    """Sends prepared messages."""

    def __init__(self, *messages: dict[str, Any] | bytes) -> None:
        frames = [each if isinstance(each, bytes) else frame(each) for each in ({"ready": True}, *messages)]
        self._data = b"".join(frames)
        self.closed = False

    def open(self) -> None: ...

    def read(self, count: int, timeout_s: float) -> bytes:
        data, self._data = self._data[:count], self._data[count:]
        return data

    def write(self, data: bytes, timeout_s: float) -> None: ...

    def ending(self) -> str:
        return "ended"

    def close(self) -> None:
        self.closed = True


def ask(number: Any = 0, function: Any = 0, arguments: Any = (), named: Any = ()) -> dict[str, Any]:
    """A call of a function of the check."""
    named = {"dict": [*named]}
    return {"call": 0, "ask": number, "function": function, "arguments": arguments, "named": named}


def test_close_values_pass_and_others_fail() -> None:
    for got, expected in (([1.0, 2.0], np.array([1.0, 2.0])), ([1e9 + 1], [1e9]), (3, 3.0), ([], [])):
        close(got, expected)
    others: list[tuple[Any, Any]] = [
        ([1.0, 2.1], [1.0, 2.0]),
        ([[1.0]], [1.0]),
        (math.nan, 0.0),
        ([math.inf], [1.0]),
        (None, 1.0),
        ([[1.0], [1.0, 2.0]], [1.0, 2.0]),
        ({"a": 1}, [1.0]),
    ]
    for got, expected in others:
        for compare in (close, equal):
            with pytest.raises(Failure):
                compare(got, expected)
    equal([1, 2], np.array([1, 2]))


def test_long_arrays_show_the_first_wrong_value() -> None:
    got = np.zeros((3, 4))
    got[1, 2] = got[2, 0] = 5
    with pytest.raises(Failure) as caught:
        close(got, np.zeros((3, 4)), "it")
    assert (caught.value.problem, caught.value.got) == ("it", "5")
    assert caught.value.expected == "0 at [1, 2], the first of 2 wrong values of 12"


# Loading

CHECK = (
    "from shardyard.course import check\n@check({}, title='t', law='l', reason='r')\ndef f(student): pass\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no checks"),
        ("x = (", "SyntaxError"),
        ("\nimport nothing_of_this_name", "checks.py:2: ModuleNotFoundError"),
        (CHECK.format("'a.txt', points=1"), "checks.py:2: ValueError: file 'a.txt'"),
        (CHECK.format("'a.py', points=0"), "check 't': points"),
        (CHECK.format("'a.py', points=1, cases=[]"), "cases"),
        ("from shardyard.course import check\n@check('a.py', points=1)\ndef f(student): pass\n", "a law"),
        (None, "no such directory or Python file"),
    ],
)
def test_a_file_without_valid_checks_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "checks.py").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_checks([tmp_path / "checks.py"])
    assert f"--tests {tmp_path}" in str(caught.value)


def test_a_check_is_described_by_its_name_and_docstring_unless_it_is_described_otherwise() -> None:
    def full_cover(student: Student, n: int, parts: int) -> None:
        """Every sample
        is in a part.

        So.
        """

    found = check("a.py", points=1, cases=[(2, 1), {"parts": 3, "n": 4}])(full_cover)
    assert (found.title, found.law, found.reason) == ("full cover", "Every sample is in a part.", "So.")
    assert [*found.cases] == [{"n": 2, "parts": 1}, {"n": 4, "parts": 3}]
    found = check("a.py", points=1, title="t", law="l", reason="r")(full_cover)
    assert (found.title, found.law, found.reason) == ("t", "l", "r")
    with pytest.raises(ValueError, match="zip"):
        check("a.py", points=1, cases=[(2,)])(full_cover)


# Networks, of which the assignments' solutions notice the other mistakes


def test_a_network_refuses_what_is_no_other_rank_and_no_numbers() -> None:
    send, recv = Network(2).functions(0)
    peers: list[Any] = [0, 2, -1, 1.0, True, "1", None]
    for peer in peers:
        for call in (lambda peer: send(peer, [1]), recv):
            with pytest.raises(ValueError, match="rank"):
                call(peer)
    with pytest.raises(ValueError, match="numbers"):
        send(1, ["x"])


# A student's code


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
        code = Student(Channel(Scripted(sent)), "answer.py", 2.0)
        with pytest.raises(Failure):
            code.call("answer", lambda: None)
        assert not code.intact


def test_a_check_may_receive_so_much_and_no_more() -> None:
    class Endless(Scripted):
        def read(self, count: int, timeout_s: float) -> bytes:
            return super().read(count, timeout_s) or noise

    noise = frame(ask(arguments=["x" * 2**20]))
    with pytest.raises(Failure, match=f"{MAX_BYTES >> 20} MiB"):
        Student(Channel(Endless()), "answer.py", 30.0).call("answer", lambda text: None)
