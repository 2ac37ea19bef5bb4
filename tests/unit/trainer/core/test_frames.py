"""Frames of messages, and what is no message."""

from __future__ import annotations

import pytest

from trainer.core.frames import MAX_FRAME, ProtocolError, frame, length, message


def test_frames_have_a_largest_length() -> None:
    assert length(frame({"a": 1})[:4]) == len(b'{"a": 1}')
    with pytest.raises(ProtocolError, match="16 MiB"):
        length((MAX_FRAME + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"\xff", b"1" * 5000, b"[" * 100_000])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        message(body)
