"""What the orchestrator and the leader of an allocation exchange: lines of two files in a shared directory.

    DIRECTORY/requests.jsonl   the orchestrator appends a LeaderRequest to it
    DIRECTORY/answers.jsonl    the leader appends an LeaderAnswer to it

Both files exist before the job starts. A network file system may hide a new file for a minute; what was
appended to a file is there when the file is opened again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Literal, TypeVar

from trainer.core.record import Count, Record, Text, checked, parse_object

REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
BEAT_S = 2.0  # between heartbeats of the orchestrator
SILENCE_S = 30.0  # without a request, after which the leader ends the job
POLL_S = 0.02


class LeaderRequest(Record):
    """What the leader shall do.

    run: numbers the runs of an allocation. script: starts its ranks. log: the file for the output of the
    script. warm: the ranks are forked by warm nodes, which must be healthy before the script starts.
    """

    kind: Literal["heartbeat", "run", "cancel", "end"]
    run: Count = 0
    script: str = ""
    log: str = ""
    warm: bool = False


class LeaderAnswer(Record):
    """What has happened.

    code: exit code of a run's script, negative for a signal.
    reason: in `started`, why warm nodes were replaced before the run; in `ended`, how warm nodes were lost
        during it; in `lost`, why the leader ends the job.
    """

    kind: Literal["started", "ended", "lost"]
    run: Count = 0
    code: int = 0
    reason: Text | None = None


R = TypeVar("R", bound=Record)


def append(path: Path, record: Record) -> None:
    """Append a line. Raises OSError."""
    line = os.open(path, os.O_WRONLY | os.O_APPEND)  # a file that was removed stays so
    try:
        os.write(line, record.model_dump_json(exclude_defaults=True).encode() + b"\n")
    finally:
        os.close(line)


class LineReader(Generic[R]):
    """Reads what is appended to a file."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self._path, self._model, self._position = path, model, 0

    def new(self) -> list[R]:
        """The records of the complete lines since the last call; none if the file was removed.

        Raises ValueError if a line is no such record.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        name = self._path.name
        return [checked(self._model, parse_object(line, name), name) for line in complete.splitlines()]
