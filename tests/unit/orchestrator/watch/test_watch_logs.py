"""Mistakes in logs that grow: lines twice or never, replaced and huge files, control characters, links."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.watch.files import FIRST_BYTES, LINE_CHARACTERS, MOST_BYTES, LogPart, LogTail, log_names


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "node-0.log"


def append(log: Path, data: bytes) -> None:
    with open(log, "ab") as file:
        file.write(data)


def test_lines_come_once_and_whole(log: Path) -> None:
    append(log, b"one\ntw")
    tail = LogTail(log.parent, log.name)
    assert tail.new() == LogPart(["one"], restarted=True)
    assert tail.new() == LogPart([], restarted=False)
    append(log, b"o\n\xff\xfe three\r\nfo")
    assert tail.new() == LogPart(["two", "\ufffd\ufffd three"], restarted=False)
    assert tail.new(complete=True) == LogPart(["fo"], restarted=False)
    assert tail.new(complete=True) == LogPart([], restarted=False)
    with open(log, "r+b") as file:
        file.write(b"ONE")  # what was read is not read again
    append(log, "\x1b[31mred\x07 \u202ebackwards\x00\t<b>\n".encode())
    assert tail.new() == LogPart(["\\x1b[31mred\\x07 \\u202ebackwards\\x00\t<b>"], restarted=False)


def test_a_log_that_is_replaced_or_truncated_starts_again(log: Path) -> None:
    tail = LogTail(log.parent, log.name)
    (missing,) = tail.new().lines
    assert "node-0.log cannot be read" in missing
    assert tail.new() == LogPart([], restarted=False)  # said once
    log.write_bytes(b"one\ntwo\n")
    assert tail.new() == LogPart(["one", "two"], restarted=True)
    other = log.with_name("other")
    other.write_bytes(b"a new file\nof the same run\n")
    other.replace(log)
    assert tail.new() == LogPart(["a new file", "of the same run"], restarted=True)
    log.write_bytes(b"short\n")
    assert tail.new() == LogPart(["short"], restarted=True)


def test_of_a_long_log_the_end_is_shown(log: Path) -> None:
    append(log, b"".join(b"line %06d\n" % number for number in range(10_000)))
    tail = LogTail(log.parent, log.name)
    first = tail.new()
    assert first.restarted
    assert first.lines[0].startswith("…")
    assert first.lines[1].startswith("line ")  # a whole one
    assert first.lines[-1] == "line 009999"
    assert FIRST_BYTES / 12 - 2 <= len(first.lines) <= FIRST_BYTES / 12 + 2
    append(log, b"flood\n" * MOST_BYTES + b"last\n")
    more = tail.new()
    assert (more.restarted, more.lines[0][0], more.lines[-1]) == (False, "…", "last")
    assert len(more.lines) < MOST_BYTES / 6


def test_of_a_long_line_the_beginning_is_shown(log: Path) -> None:
    append(log, b"x" * (LINE_CHARACTERS + 5))
    tail = LogTail(log.parent, log.name)
    assert tail.new().lines == ["x" * LINE_CHARACTERS + " … 5 more characters"]
    append(log, b"rest\n")
    assert tail.new().lines == ["rest"]


def test_names_of_logs(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for name in ("node-10", "node-2", "launcher", "compose", "a\x1bb"):
        (directory / f"{name}.log").touch()
    (directory / "result.json").touch()
    assert log_names(directory) == ["compose", "launcher", "node-2", "node-10"]
    (tmp_path / "link").symlink_to(directory)
    assert log_names(tmp_path / "link") == log_names(tmp_path / "absent") == []
