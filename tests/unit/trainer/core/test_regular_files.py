"""Mistakes in what comes from outside: links that are followed, pipes that hang, limits.

tests/unit/trainer/node/test_cluster_node.py has those in the usage of containers.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trainer.core import cgroup
from trainer.core.frames import HEADER, MAX_FRAME, ProtocolError, frame, length, message
from trainer.core.json_files import JsonLimits, read_json, read_json_below
from trainer.core.regular_files import (
    RefusedFile,
    open_below,
    open_regular,
    other_kind,
    read_below,
    read_regular,
)
from trainer.core.result import listed_waits


def test_a_frame_has_its_length_and_a_message_its_limits() -> None:
    sent = frame({"a": [1, "ü\n"]})
    assert length(sent[:HEADER]) == len(sent) - HEADER
    assert message(sent[HEADER:]) == {"a": [1, "ü\n"]}
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
    (tmp_path / "a.json").write_text("[1, 2]")  # 6 bytes; a list and a comma
    for read in (partial(read_json, tmp_path / "a.json"), partial(read_json_below, tmp_path, "a.json")):
        assert read(JsonLimits(6, 2)) == b"[1, 2]"
        for limits in (JsonLimits(5, 2), JsonLimits(6, 1)):
            with pytest.raises(RefusedFile):
                read(limits)


def test_waits_of_at_most_256_ranks_are_listed() -> None:
    assert listed_waits({1: 0.5}, 3) == [0.0, 0.5, 0.0]
    assert len(listed_waits({}, 256) or ()) == 256
    assert listed_waits({}, 257) is None


MIB = 2**20


def written(directory: Path, files: dict[str, object]) -> Path:
    """A fake /sys/fs/cgroup. files: contents by path."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return directory


def test_a_quota_may_differ_by_two_percent(tmp_path: Path) -> None:
    for quota, fits in {25_000: True, 24_600: True, 24_400: False, 25_600: False}.items():
        assert cgroup.wait_for_quota(0.25, 0.0, written(tmp_path, {"cpu.max": f"{quota} 100000"})) is fits


def test_the_smallest_limit_of_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=500 * MIB))
    assert cgroup.memory_left(tmp_path) == 500 * MIB
    written(tmp_path, {"memory.max": 700 * MIB, "memory.current": 100 * MIB})
    assert cgroup.memory_left(tmp_path) == 500 * MIB
    written(tmp_path, {"memory.current": 300 * MIB})
    assert cgroup.memory_left(tmp_path) == 400 * MIB
    old = {"limit_in_bytes": 350 * MIB, "usage_in_bytes": 100 * MIB}
    written(tmp_path, {"memory.max": "max", **{f"memory/memory.{name}": old[name] for name in old}})
    assert cgroup.memory_left(tmp_path) == 250 * MIB


def test_threads_and_shared_memory_of_both_versions(tmp_path: Path) -> None:
    for version, pids, stat in ((2, "", ""), (1, "pids/", "memory/")):
        cgroups = tmp_path / str(version)
        assert (cgroup.threads(cgroups), cgroup.shared_memory_mb(cgroups)) == (None, None)
        files = {f"{pids}pids.current": 7, f"{stat}memory.stat": f"anon 5\nshmem {3 * MIB}"}
        written(cgroups, files)
        assert (cgroup.threads(cgroups), cgroup.shared_memory_mb(cgroups)) == (7, 3)


# Files of others


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
    for below in (directory, directory.parent / "link", descriptor, descriptor):  # which stays open
        assert (read_below(below, "a"), read_below(below, "inner/b")) == (b"a", b"b")
    os.close(descriptor)


def test_other_paths_and_links_at_every_level_are_refused(directory: Path) -> None:
    for name, target in (("link", "../secret"), ("within", "a"), ("up", ".."), ("inner/again", "../inner")):
        (directory / name).symlink_to(target)
    paths = ["", ".", "..", "/", "../secret", "inner/../a", "./a", "inner//b", "inner/b/", "/etc/passwd"]
    for path in (*paths, "a\0", "inner/\0", "\ud800"):
        with pytest.raises(RefusedFile, match="not a path below"):
            open_below(directory, path)
    for path in ("link", "within", "up/secret", "up", "inner/again/b"):
        with pytest.raises(RefusedFile, match="symbolic link"):
            open_below(directory, path)
    assert read_regular(directory / "within") == b"a"  # a path of the user's
    assert other_kind(directory / "within") == "a symbolic link"


def test_other_kinds_of_files_are_refused_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)  # where a socket's name is short
    os.mkfifo("pipe")
    Path("directory").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    kinds = ("pipe", "directory", "socket")
    opens: list[Callable[[Path], object]] = [open_regular, lambda path: open_below(path.parent, path.name)]
    for path, kind in ((Path("/dev/zero"), "device"), *((directory / kind, kind) for kind in kinds)):
        for opened in opens:
            with pytest.raises(RefusedFile) as raised:
                opened(path)
            assert str(raised.value) == f"{path}: is a {kind}, not a regular file"
        assert other_kind(path) == f"a {kind}"
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
    growing = Path("/proc/self/status")  # whose size is 0 before it is read
    for read in (lambda: read_below(directory, "a", 0), lambda: read_regular(growing, 0)):
        with pytest.raises(RefusedFile, match="larger than 0 bytes"):
            read()


def test_no_descriptor_is_left(directory: Path) -> None:
    os.mkfifo(directory / "inner" / "pipe")
    before = {*os.listdir("/dev/fd")}
    for relative in ("inner/b", "inner/pipe", "inner/none", "a/b"):
        with suppress(OSError):
            open_below(directory, relative).close()
    assert {*os.listdir("/dev/fd")} == before
