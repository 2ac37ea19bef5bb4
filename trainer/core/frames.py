"""Messages on a byte stream: a length, then JSON. The other end of the stream is not trusted."""

from __future__ import annotations

import json
from typing import Any

from trainer.core.json_files import value_count

HEADER = 4  # bytes of a frame's length, big-endian
MAX_FRAME = 16 * 2**20  # bytes, unless a reader allows another length
MAX_VALUES = 2**18  # in a message that is not trusted: a byte of JSON can take 100 bytes of memory
NO_MESSAGE = "wrote to the channel of its answers"  # what is no message


class ProtocolError(Exception):
    """A frame or a value is invalid. The message says how, as a sentence without subject or full stop."""


def frame(message: dict[str, Any]) -> bytes:
    """The bytes of a message."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEADER, "big") + body


def length(header: bytes, most: int = MAX_FRAME) -> int:
    """The length of a frame's body. Raises ProtocolError above `most` bytes."""
    size = int.from_bytes(header, "big")
    if size > most:
        raise ProtocolError(f"sent more than {most >> 20} MiB at once")
    return size


def message(body: bytes, most_values: int | None = None) -> dict[str, Any]:
    """The message in a frame's body. Raises ProtocolError, also for more than about `most_values`."""
    if most_values is not None and value_count(body) > most_values:
        raise ProtocolError(f"sent more than {most_values:,} values at once")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolError(NO_MESSAGE) from None
    if not isinstance(value, dict):
        raise ProtocolError(NO_MESSAGE)
    return value
