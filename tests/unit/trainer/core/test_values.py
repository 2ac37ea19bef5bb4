"""Mistakes in limits of what comes from outside: one more or one fewer than allowed, text that is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.core.frames import HEADER, MAX_FRAME, ProtocolError, frame, length, message
from trainer.core.json_files import JsonLimits, read_json, read_json_below
from trainer.core.record import cut
from trainer.core.regular_files import RefusedFile
from trainer.core.result import listed_waits
from trainer.core.whole_number import whole_number


@given(st.text(max_size=30), st.integers(3, 30))
def test_a_text_is_cut_in_its_middle_to_at_most_the_length(text: str, most: int) -> None:
    found = cut(text, most)
    assert len(found) <= most
    if len(text) <= most:
        assert found == text
    else:
        assert len(found) >= most - 1
        start, _, end = found.partition("…") if "…" not in text else (found[:1], "", found[-1:])
        assert text.startswith(start)
        assert text.endswith(end)


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_whole_number_is_read_up_to_its_limit(number: int, most: int) -> None:
    assert whole_number(str(number), most) == (number if number <= most else None)


@given(st.dictionaries(st.text(), st.lists(st.integers())))
def test_a_frame_has_its_length_and_its_message(values: dict[str, list[int]]) -> None:
    sent = frame(values)
    assert length(sent[:HEADER]) == len(sent) - HEADER
    assert message(sent[HEADER:]) == values


def test_messages_have_limits() -> None:
    assert length(MAX_FRAME.to_bytes(HEADER, "big")) == MAX_FRAME
    with pytest.raises(ProtocolError, match="16 MiB"):
        length((MAX_FRAME + 1).to_bytes(HEADER, "big"))
    body = json.dumps({"a": [1, 2]}).encode()  # an object, a list, a comma
    assert message(body, most_values=3) == {"a": [1, 2]}
    with pytest.raises(ProtocolError, match="2 values"):
        message(body, most_values=2)
    for odd in (b"", b"x", b"[]", b"\xff", b"1" * 5000, b"[" * 100_000):
        with pytest.raises(ProtocolError):
            message(odd)


def test_files_of_json_have_limits(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")  # a list and a comma
    for limits in (JsonLimits(6, 2), JsonLimits(7, 3)):
        assert read_json(tmp_path / "a.json", limits) == read_json_below(tmp_path, "a.json", limits)
    for limits in (JsonLimits(5, 2), JsonLimits(6, 1)):
        with pytest.raises(RefusedFile):
            read_json(tmp_path / "a.json", limits)
        with pytest.raises(RefusedFile):
            read_json_below(tmp_path, "a.json", limits)


def test_waits_of_at_most_256_ranks_are_listed() -> None:
    assert listed_waits({1: 0.5}, 3) == [0.0, 0.5, 0.0]
    assert len(listed_waits({}, 256) or ()) == 256
    assert listed_waits({}, 257) is None
