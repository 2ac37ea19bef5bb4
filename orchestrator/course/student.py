"""A student's code as checks use it: call a function, or one on several ranks at once."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.course.checks import Failure
from orchestrator.sandbox.base import Channel, Ended, TimedOut, no_answer
from trainer.core.frames import NO_MESSAGE, ProtocolError
from trainer.core.record import cut, one_line
from trainer.course.protocol import decode, encode

SETTLE_S = 0.5  # in which a rank with threads of its own may still send something
MAX_WAITING = 64  # functions of the check that wait at once
MAX_TEXT = 600  # characters of an error of the student's code


class Waiting(Exception):
    """Raised by a function that a student's code calls: it has to wait. The function is called again.

    The message says for what: "a message from rank 1".
    """


class Student:
    """The code of one file of a submission, for one check.

    Attributes:
        intact: whether the process can run another check.
    """

    def __init__(self, channel: Channel, file: str, seconds: float) -> None:
        self._channel, self._file, self._seconds = channel, file, seconds
        self._deadline = time.monotonic() + seconds
        self.intact = True

    def call(self, target: str, *arguments: Any, fields: dict[str, Any] | None = None) -> Any:
        """Call a function of the file.

        Args:
            target: its name; `Class.method` is that of an object, which is made with `fields`.
            arguments: numbers, strings, arrays, lists, dictionaries, Seed, functions of the check, and
                SimpleNamespace of these. A function of the check runs here, in the grader.
            fields: the fields of the object.

        Returns:
            What it returned: a value of these types, lists in place of tuples.

        Raises:
            Failure: It raised an exception, took too long, or ended its process.
        """
        return self.together(target, [arguments], fields)[0]

    def together(
        self, target: str, calls: Sequence[Sequence[Any]], fields: dict[str, Any] | None = None
    ) -> list[Any]:
        """Make several calls at once, each in a thread: call r is that of rank r.

        Returns:
            What they returned, in order.

        Raises:
            Failure: As for `call`; also if all calls that have not returned wait.
        """
        self.intact = False  # until all have returned
        try:
            results = _Calls(self._channel, self._deadline).run(self._file, target, calls, fields or {})
        except (Ended, TimedOut, ProtocolError) as error:
            raise Failure(no_answer(error, "it", self._seconds)) from None
        self.intact = True
        return results


@dataclass
class _Ask:
    """A rank's call of a function of the check, which is answered once it need not wait."""

    call: int
    number: int
    function: Callable[..., Any]
    arguments: list[Any]
    named: dict[str, Any]
    waits_for: str = ""


class _Calls:
    """Calls in progress."""

    def __init__(self, channel: Channel, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline
        self._functions: list[Callable[..., Any]] = []
        self._waiting: deque[_Ask] = deque()

    def run(
        self, file: str, target: str, calls: Sequence[Sequence[Any]], fields: dict[str, Any]
    ) -> list[Any]:
        arguments = [encode(each, self._register) for each in calls]
        request = {"file": file, "target": target, "fields": encode(fields), "calls": arguments}
        self._channel.send(request, self._deadline)
        results: dict[int, Any] = {}
        while len(results) < len(calls):
            message = self._next(set(range(len(calls))) - results.keys())
            if time.monotonic() > self._deadline:  # reading a message takes time, too
                raise TimedOut
            match message:
                case {"call": int(number)} if number not in range(len(calls)):
                    raise ProtocolError(NO_MESSAGE)
                case {"call": int(number), "ask": int(ask)}:
                    self._waiting.append(self._asked(number, ask, message))
                    self._serve()
                    if len(self._waiting) > MAX_WAITING:
                        raise ProtocolError(f"waits in more than {MAX_WAITING} places at once")
                case {"call": int(number), "result": result}:
                    results[number] = decode(result)
                case {"call": int(number), "error": str(error)}:
                    rank = f"rank {number}" if len(calls) > 1 else "it"
                    raise Failure(cut(one_line(f"{rank} fails: {error}"), MAX_TEXT))
                case _:
                    raise ProtocolError(NO_MESSAGE)
        return [results[number] for number in range(len(calls))]

    def _register(self, function: Callable[..., Any]) -> int:
        self._functions.append(function)
        return len(self._functions) - 1

    def _function(self, number: Any) -> Callable[..., Any]:
        """A function that the student's code knows by its number. Raises ProtocolError."""
        if not isinstance(number, int) or number not in range(len(self._functions)):
            raise ProtocolError(NO_MESSAGE)
        return self._functions[number]

    def _asked(self, call: int, number: int, message: dict[str, Any]) -> _Ask:
        """The ask in a message. Raises ProtocolError."""
        function = self._function(message.get("function"))
        arguments, named = (decode(message.get(name), self._function) for name in ("arguments", "named"))
        if not isinstance(arguments, list) or not isinstance(named, dict):
            raise ProtocolError(NO_MESSAGE)
        if not all(isinstance(name, str) for name in named):
            raise ProtocolError(NO_MESSAGE)
        return _Ask(call, number, function, arguments, named)

    def _next(self, unfinished: set[int]) -> dict[str, Any]:
        """The next message. Raises Failure if every unfinished call waits."""
        if not unfinished <= {ask.call for ask in self._waiting}:
            return self._channel.receive(self._deadline)
        try:
            return self._channel.receive(min(self._deadline, time.monotonic() + SETTLE_S))
        except TimedOut:
            waits = sorted({(ask.call, ask.waits_for) for ask in self._waiting})
            text = "; ".join(f"rank {call} waits for {what}" for call, what in waits)
            raise Failure(f"deadlock: {text}") from None

    def _serve(self) -> None:
        """Answer what can be answered: an answer to one rank may let others continue."""
        progress = True
        while progress:
            progress = False
            for _ in range(len(self._waiting)):
                ask = self._waiting.popleft()
                if (reply := self._reply(ask)) is None:
                    self._waiting.append(ask)
                else:
                    self._channel.send(reply, self._deadline)
                    progress = True

    def _reply(self, ask: _Ask) -> dict[str, Any] | None:
        """The answer; None: the rank has to wait."""
        try:
            value = ask.function(*ask.arguments, **ask.named)
            return {"answer": ask.number, "value": encode(value, self._register)}
        except Waiting as waiting:
            ask.waits_for = str(waiting)
            return None
        except Failure:
            raise
        except Exception as error:  # the student's arguments are invalid
            # Without the place where the function is defined: `Network.functions.<locals>.send()`.
            text = re.sub(r"[\w.]+\.<locals>\.", "", str(error))
            return {"answer": ask.number, "refused": text}
