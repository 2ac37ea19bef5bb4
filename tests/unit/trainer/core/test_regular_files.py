"""Reading of regular files only: links, pipes, devices and sockets are refused, and none of them hangs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.core.regular_files import RefusedFile, open_below, open_regular, read_regular


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file at two levels, and a secret beside it."""
    (tmp_path / "secret").write_text("secret")
    found = tmp_path / "files"
    (found / "inner").mkdir(parents=True)
    (found / "a").write_text("a")
    (found / "inner" / "b").write_text("b")
    return found


@pytest.mark.parametrize(("relative", "content"), [("a", b"a"), ("inner/b", b"b")])
def test_files_below_a_directory_are_read(directory: Path, relative: str, content: bytes) -> None:
    with open_below(directory, relative) as file:
        assert file.read() == content
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        for _ in range(2):  # the descriptor stays open
            with open_below(descriptor, relative) as file:
                assert file.read() == content
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "relative",
    [
        *["", ".", "..", "/", "../secret", "inner/../a", "./a", "inner//b", "inner/b/", "/etc/passwd"],
        *["a\0", "inner/\0", "\ud800"],
    ],
)
def test_other_paths_are_refused(directory: Path, relative: str) -> None:
    with pytest.raises(RefusedFile):
        open_below(directory, relative)


def test_links_are_refused_at_every_level(directory: Path) -> None:
    (directory / "link").symlink_to("../secret")
    (directory / "within").symlink_to("a")
    (directory / "up").symlink_to("..")
    (directory / "inner" / "again").symlink_to("../inner")
    for relative in ("link", "within", "up/secret", "up", "inner/again/b"):
        with pytest.raises(RefusedFile, match="symbolic link"):
            open_below(directory, relative)


def test_a_directory_itself_may_be_reached_through_a_link(directory: Path) -> None:
    (directory.parent / "link").symlink_to(directory)
    with open_below(directory.parent / "link", "a") as file:
        assert file.read() == b"a"


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            os.chdir(path.parent)
            bound.bind(path.name)


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket"])
def test_other_kinds_of_files_are_refused_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(directory)  # where a socket's name is short
    make(kind, directory / "special")
    attempts: list[Callable[[], object]] = [
        lambda: open_below(directory, "special"),
        lambda: open_regular(directory / "special"),
        lambda: read_regular(directory / "special"),
    ]
    for attempt in attempts:
        with pytest.raises(RefusedFile) as raised:
            attempt()
        assert kind in str(raised.value.strerror)
        assert str(raised.value).startswith(f"{directory / 'special'}: ")


def test_a_device_is_refused() -> None:
    with pytest.raises(RefusedFile, match="device"):
        read_regular(Path("/dev/zero"))
    with pytest.raises(RefusedFile, match="device"):
        open_below(Path("/dev"), "zero")


def test_a_file_is_no_directory(directory: Path) -> None:
    with pytest.raises(RefusedFile, match="not a directory"):
        open_below(directory, "a/b")
    with pytest.raises(RefusedFile, match="not a directory"):
        open_below(directory / "a", "b")


def test_absent_files_are_named(directory: Path) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: open_below(directory, "inner/none"),
        lambda: open_below(directory, "none/inner"),
        lambda: open_below(directory / "none", "a"),
        lambda: open_regular(directory / "none"),
    ]
    for attempt in attempts:
        with pytest.raises(FileNotFoundError) as raised:
            attempt()
        assert str(directory) in str(raised.value.filename)


def test_files_of_the_user_may_be_links_and_have_a_limit(directory: Path) -> None:
    (directory / "link").symlink_to("a")
    assert read_regular(directory / "link", max_bytes=1) == b"a"
    with pytest.raises(RefusedFile, match="larger than 0 bytes"):
        read_regular(directory / "link", max_bytes=0)


def test_no_descriptor_is_left(directory: Path) -> None:
    os.mkfifo(directory / "inner" / "pipe")
    before = {*os.listdir("/dev/fd")}
    for relative in ("inner/b", "inner/pipe", "inner/none", "a/b"):
        try:
            open_below(directory, relative).close()
        except OSError:
            continue
    assert {*os.listdir("/dev/fd")} == before
