"""Mistakes in the opening of files of others: a link that is followed, a pipe that hangs, any size."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from trainer.core.regular_files import (
    RefusedFile,
    open_below,
    open_regular,
    other_kind,
    own_directories,
    read_below,
    read_regular,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file at two levels, and a secret beside it."""
    (tmp_path / "secret").write_text("secret")
    found = tmp_path / "files"
    (found / "inner").mkdir(parents=True)
    (found / "a").write_text("a")
    (found / "inner" / "b").write_text("b")
    return found


def test_files_below_a_directory_are_read(directory: Path) -> None:
    (directory.parent / "link").symlink_to(directory)  # above the directory it may be
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        for below in (directory, directory.parent / "link", descriptor, descriptor):  # which stays open
            assert read_below(below, "a") == b"a"
            assert read_below(below, "inner/b") == b"b"
    finally:
        os.close(descriptor)


def test_other_paths_are_refused(directory: Path) -> None:
    paths = ["", ".", "..", "/", "../secret", "inner/../a", "./a", "inner//b", "inner/b/", "/etc/passwd"]
    for path in (*paths, "a\0", "inner/\0", "\ud800"):
        with pytest.raises(RefusedFile):
            open_below(directory, path)


def test_links_are_refused_at_every_level_unless_they_are_the_users(directory: Path) -> None:
    (directory / "link").symlink_to("../secret")
    (directory / "within").symlink_to("a")
    (directory / "up").symlink_to("..")
    (directory / "inner" / "again").symlink_to("../inner")
    for relative in ("link", "within", "up/secret", "up", "inner/again/b"):
        with pytest.raises(RefusedFile, match="symbolic link"):
            open_below(directory, relative)
    assert read_regular(directory / "within") == b"a"
    assert other_kind(directory / "within") == "a symbolic link"


def test_other_kinds_of_files_are_refused_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)  # where a socket's name is short
    os.mkfifo("pipe")
    Path("directory").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for kind in ("pipe", "directory", "socket"):
        attempts: list[Callable[[], object]] = [
            lambda kind=kind: open_below(directory, kind),  # type: ignore[misc]
            lambda kind=kind: open_regular(directory / kind),  # type: ignore[misc]
        ]
        for attempt in attempts:
            with pytest.raises(RefusedFile) as raised:
                attempt()
            assert kind in str(raised.value.strerror)
            assert str(raised.value).startswith(f"{directory / kind}: ")
        assert other_kind(directory / kind) == f"a {kind}"
    for device in (lambda: read_regular(Path("/dev/zero")), lambda: open_below(Path("/dev"), "zero")):
        with pytest.raises(RefusedFile, match="device"):
            device()
    assert other_kind(directory / "a") is other_kind(directory / "none") is None


def test_what_is_absent_or_no_directory_is_named(directory: Path) -> None:
    for relative in ("inner/none", "none/inner"):
        with pytest.raises(FileNotFoundError) as raised:
            open_below(directory, relative)
        assert raised.value.filename == str(directory / relative)
    for below, relative in ((directory, "a/b"), (directory / "a", "b")):
        with pytest.raises(RefusedFile, match="not a directory"):
            open_below(below, relative)


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(directory: Path) -> None:
    assert read_regular(directory / "a", max_bytes=1) == read_below(directory, "a", max_bytes=1) == b"a"
    attempts: list[Callable[[int], bytes]] = [
        lambda most: read_regular(directory / "a", most),
        lambda most: read_below(directory, "a", most),
        lambda most: read_regular(Path("/proc/self/status"), most),  # whose size is 0 before it is read
    ]
    for attempt in attempts:
        with pytest.raises(RefusedFile, match="larger than 0 bytes"):
            attempt(0)


def test_only_directories_with_the_prefix_are_ones_own(directory: Path) -> None:
    (directory / "inner-link").symlink_to("inner")
    (directory / "inner.txt").touch()
    assert [*own_directories(directory, "in")] == [directory / "inner"]
    assert [*own_directories(directory / "none", "in")] == []


def test_no_descriptor_is_left(directory: Path) -> None:
    os.mkfifo(directory / "inner" / "pipe")
    before = {*os.listdir("/dev/fd")}
    for relative in ("inner/b", "inner/pipe", "inner/none", "a/b"):
        with suppress(OSError):
            open_below(directory, relative).close()
    assert {*os.listdir("/dev/fd")} == before
