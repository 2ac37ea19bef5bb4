"""How plugs, and `docker exec` in the switch's container, talk to the switch: JSON over a Unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainer.core.record import Record, checked, parse_object
from trainer.spec.link import Links

SOCKET = Path("/run/switch/socket")  # on a volume that only switch and plugs mount
MAX_BYTES = 2**18
ANSWER_S = 60.0  # for all plugs to connect

Address = Annotated[str, Field(pattern=r"\A\d{1,3}(\.\d{1,3}){3}\z")]


class Setup(Record):
    """The links of the next run.

    Attributes:
        addresses: those of all containers that are or will be plugged in; node i of the run has the i-th.
        nodes: the number of nodes of the run.
        seed: the seed of jitter and loss.
        timeout_s: the time after which the run has ended in any case.
    """

    kind: Literal["setup"] = "setup"
    addresses: list[str]
    nodes: Annotated[int, Field(ge=1, le=1024)]
    seed: int
    timeout_s: Annotated[float, Field(gt=0)]
    link: Links


class Plug(Record):
    """A container is plugged in; the descriptor of its TUN device comes with the message."""

    kind: Literal["plug"] = "plug"
    address: Address


class Stats(Record):
    """What the switch has done for the run. A question has no counts."""

    kind: Literal["stats"] = "stats"
    delivered: int = 0
    lost: int = 0
    overflowed: int = 0
    cpu_s: float = 0.0  # since the switch has started


class SwitchAnswer(Record):
    """error: why a message was refused; None: it was not."""

    kind: Literal["answer"] = "answer"
    error: str | None = None


Message = Setup | Plug | Stats | SwitchAnswer
_KINDS: dict[str, type[Setup | Plug | Stats | SwitchAnswer]] = {
    "setup": Setup,
    "plug": Plug,
    "stats": Stats,
    "answer": SwitchAnswer,
}


class SwitchError(Exception):
    """The switch does not answer, or refuses a message; the message says why."""


def parse(line: bytes) -> Message:
    """The message. Raises ValueError."""
    fields = parse_object(line, "message")
    kind = _KINDS.get(str(fields.get("kind")))
    if kind is None:
        raise ValueError(f"message: unknown kind; allowed: {', '.join(_KINDS)}")
    return checked(kind, fields, "message")


def ask(message: Message, descriptors: Sequence[int] = (), path: Path = SOCKET) -> Message:
    """Send a message to the switch and wait for its answer. Raises SwitchError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as switch:
        switch.settimeout(ANSWER_S)
        try:
            switch.connect(str(path))
            socket.send_fds(switch, [dump(message)], descriptors)
            line = switch.recv(MAX_BYTES)
        except TimeoutError:
            raise SwitchError(f"the switch did not answer within {ANSWER_S:g} s") from None
        except OSError as error:
            raise SwitchError(f"the switch does not answer: {error.strerror}") from None
    try:
        answer = parse(line)
    except ValueError as error:
        raise SwitchError(f"the switch's answer is not valid: {error}") from None
    if isinstance(answer, SwitchAnswer) and answer.error:
        raise SwitchError(answer.error)
    return answer


def dump(message: Message) -> bytes:
    """The message as it is sent."""
    return json.dumps(message.model_dump(mode="json")).encode()
