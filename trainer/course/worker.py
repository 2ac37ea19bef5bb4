"""The process that runs a student's code: it loads a file, calls a function, and returns its value.

Arguments may hold functions of the grader, such as `send` and `recv` of a rank. Calling one here sends its
arguments to the grader and waits for the answer, so the grader sees all that ranks exchange.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from trainer.core.frames import HEADER, ProtocolError, frame, length, message
from trainer.core.record import cut
from trainer.core.user_code import load, located, name_in_code
from trainer.course.protocol import decode, encode

MAX_TEXT = 400  # characters of an error


class GraderFunction:
    """A function of the grader, called from one of its calls."""

    def __init__(self, worker: Worker, call: int, number: int) -> None:
        self._worker, self._call, self.number = worker, call, number

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._worker.ask(self._call, self.number, values, named)


def _number(function: Callable[..., Any]) -> int:
    """How the grader knows a function. Raises ProtocolError for one of the student's."""
    if not isinstance(function, GraderFunction):
        raise ProtocolError("sent a function")
    return function.number


class Worker:
    """Serves the grader's calls on two byte streams."""

    def __init__(self, directory: Path, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._directory, self._incoming, self._outgoing = directory.resolve(), incoming, outgoing
        self._lock = threading.Lock()
        self._numbers = count()
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}

    def serve(self) -> None:
        """Serve until the grader closes its stream. Each call runs in a thread of its own."""
        self._send({"ready": True})
        while header := self._incoming.read(HEADER):
            request = message(self._incoming.read(length(header)))
            if "answer" in request:
                self._answers[request["answer"]].put(request)
            elif "reset" in request:
                self._reset()
            else:
                threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _reset(self) -> None:
        """Import the student's files again before the next call."""
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if file and name_in_code(Path(file), self._directory):
                del sys.modules[name]

    def _run(self, request: dict[str, Any]) -> None:
        """Load the function, then make all calls at once, each in a thread."""
        try:
            function = self._function(request["file"], request["target"], decode(request["fields"]))
        except BaseException as error:
            self._send({"call": 0, "error": self._described(error)})
            return
        for number, arguments in enumerate(request["calls"]):
            threading.Thread(target=self._call, args=(function, number, arguments), daemon=True).start()

    def _function(self, file: str, target: str, fields: dict[str, Any]) -> Callable[..., Any]:
        """The function of a file; `Class.method` is that of an object with these fields."""
        name, _, method = target.partition(".")
        found = load(self._directory, file, name)
        function: Callable[..., Any] = getattr(found(**fields), method) if method else found
        return function

    def _call(self, function: Callable[..., Any], number: int, arguments: Any) -> None:
        try:
            values = decode(arguments, lambda identifier: GraderFunction(self, number, identifier))
            reply = {"call": number, "result": encode(function(*values))}
        except BaseException as error:
            reply = {"call": number, "error": self._described(error)}
        self._send(reply)

    def ask(self, call: int, identifier: int, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function of the grader."""
        number = next(self._numbers)
        answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._answers[number] = answers
        try:
            encoded = {"arguments": encode(values, _number), "named": encode(named, _number)}
        except ProtocolError as error:
            raise TypeError(str(error)) from None
        self._send({"call": call, "ask": number, "function": identifier, **encoded})
        answer = answers.get()
        del self._answers[number]
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return decode(answer["value"], lambda other: GraderFunction(self, call, other))

    def _send(self, reply: dict[str, Any]) -> None:
        with self._lock:
            self._outgoing.write(frame(reply))
            self._outgoing.flush()

    def _described(self, error: BaseException) -> str:
        return cut(located(error, self._directory), MAX_TEXT)


def limit(limits: Mapping[str, int]) -> None:
    """Set limits of this process and those that it starts, which cannot raise them again.

    limits: the limits by their names in the module `resource`, such as RLIMIT_AS. Names that the system
        lacks are ignored.
    """
    for name, value in limits.items():
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (value, value))


def main(directory: str, limits: str = "{}") -> None:
    """Serve on standard input and output, which the student's code does not get: it prints to stderr.

    limits: the limits for `limit`, in JSON.
    """
    limit(json.loads(limits))
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        Worker(Path(directory), incoming, outgoing).serve()
    finally:
        os._exit(0)  # also while a thread of the student's runs
