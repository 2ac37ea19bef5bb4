"""Mistakes in downloads: a second one, partial or damaged files in use, leftovers, unclear errors."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.data.base import DataError
from trainer.data.datasets import files
from trainer.data.datasets.files import Archive

CONTENT = bytes(range(256)) * 512  # 128 KiB
PATH = "set/raw/file.gz"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def archive(*sources: Path | str) -> Archive:
    """The file with CONTENT, published at these URLs or paths."""
    urls = [source if isinstance(source, str) else source.as_uri() for source in sources]
    return Archive(PATH, md5(CONTENT), tuple(urls), timeout_s=5)


def names(data_dir: Path) -> set[str]:
    """Names of all files below the directory except locks, which may stay."""
    return {path.name for path in data_dir.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A mirror with the file."""
    return put(tmp_path / "mirror" / "good")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is downloaded, which takes 0.1 s each."""
    found: list[str] = []
    fetch = Archive._fetch

    def recorded(self: Archive, url: str, partial: Path) -> None:
        found.append(url.rpartition("/")[2])
        time.sleep(0.1)
        fetch(self, url, partial)

    monkeypatch.setattr(Archive, "_fetch", recorded)
    return found


def test_an_absent_file_is_downloaded_once_and_for_all_users(
    good: Path, data_dir: Path, fetched: list[str]
) -> None:
    """Also over what a killed download has left."""
    put(data_dir / f"{PATH}.part", CONTENT + b"more than there is")
    put(data_dir / f"{PATH}.lock", b"")
    with ThreadPoolExecutor(4) as pool:  # all of them find the file absent
        [*pool.map(archive(good).ensure, [data_dir] * 4)]
    assert names(data_dir) == {"file.gz"}
    assert (data_dir / PATH).stat().st_mode == good.stat().st_mode
    assert fetched == ["good"]
    with archive(good).open_verified(data_dir) as file:
        assert file.read() == CONTENT


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path, data_dir: Path) -> None:
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    with ThreadPoolExecutor(1) as pool:
        download = pool.submit(archive(slow).ensure, data_dir)
        with slow.open("wb") as sender:
            sender.write(CONTENT[:-1])
            sender.flush()
            assert names(data_dir) == {"file.gz.part"}
            sender.write(CONTENT[-1:])
        download.result()
    assert names(data_dir) == {"file.gz"}


def test_mirrors_are_tried_in_order(good: Path, data_dir: Path, fetched: list[str]) -> None:
    cut_off = put(good.with_name("cut_off"), CONTENT[:100])
    archive(good.with_name("gone"), cut_off, good, good.with_name("unneeded")).ensure(data_dir)
    assert archive().read(data_dir) == CONTENT
    assert fetched == ["gone", "cut_off", "good"]


def test_a_bad_download_leaves_no_file(good: Path, data_dir: Path) -> None:
    for content in (CONTENT[:-1], b"", CONTENT[::-1]):
        put(good, content)
        with pytest.raises(
            DataError, match=f"{len(content)} bytes came .*{md5(content)}, .*{md5(CONTENT)}"
        ):
            archive(good).ensure(data_dir)
        assert names(data_dir) == set()


def test_a_full_disk_ends_a_download_at_its_first_address(
    good: Path, data_dir: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "build_opener", full)
    with pytest.raises(DataError, match="No space left on device"):
        archive(good, good).ensure(data_dir)
    assert fetched == ["good"]
    assert names(data_dir) == set()


def reply(listener: socket.socket, body: bytes) -> bytes:
    """Send a body to the next client, as if it were all of CONTENT. Return its request."""
    connection, _ = listener.accept()
    with connection:
        request = connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CONTENT) + body)
    return request


def test_downloads_use_the_proxy_and_end_when_they_are_cut_off_or_stall(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://mirror.invalid/file.gz"  # does not resolve: only the proxy can reply
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(5)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(DataError, match="timed out"):
            Archive(PATH, md5(CONTENT), (url,), timeout_s=0.1).ensure(data_dir)
        listener.accept()[0].close()
        requests = [pool.submit(reply, listener, body) for body in (CONTENT[:-1], CONTENT)]
        with pytest.raises(DataError, match=rf"bytes came \(announced: {len(CONTENT)}\)"):
            archive(url).ensure(data_dir)
        archive(url).ensure(data_dir)
        assert [request.result().split()[1] for request in requests] == [url.encode()] * 2


def test_a_damaged_file_is_an_error_and_stays(good: Path, data_dir: Path, fetched: list[str]) -> None:
    target = put(data_dir / PATH, b"other")
    for method in (archive(good).ensure, archive(good).read):
        with pytest.raises(DataError) as caught:
            method(data_dir)
        named = (str(target), md5(CONTENT), md5(b"other"), "Delete it")
        assert [part for part in named if part not in str(caught.value)] == []
        assert target.read_bytes() == b"other"
    assert fetched == []


def test_without_a_network_the_error_says_what_to_do_by_hand(tmp_path: Path, data_dir: Path) -> None:
    absent = archive(tmp_path / "mirror 1", tmp_path / "mirror 2")
    for method in (absent.ensure, absent.read):
        with pytest.raises(DataError) as caught:
            method(data_dir)
        why, _, steps = str(caught.value).partition("To get it by hand")
        assert why.startswith(f"{PATH} is not in {data_dir}")
        assert ("No such file" in why) == (method == absent.ensure)  # `read` does not download
        named = (*absent.urls, str(data_dir / PATH), "--data-dir or SHARDYARD_DATA")
        assert [part for part in named if part not in steps] == []
        assert names(data_dir) == set()


def test_a_complete_read_only_directory_is_not_written(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(data_dir / PATH).parent.chmod(0o555)
    # Root can write to every directory, so the test also fails on a lock.
    monkeypatch.setattr(files, "FileLock", lambda path: pytest.fail(f"locked {path}"))
    archive("http://mirror.invalid").ensure(data_dir)
    assert [path.name for path in (data_dir / PATH).parent.iterdir()] == ["file.gz"]


def test_what_cannot_be_written_or_read_is_named(good: Path, data_dir: Path) -> None:
    put(data_dir / "set")  # a file in place of the directory: not even root can write below it
    with pytest.raises(DataError, match=r"cannot be put there(.|\n)*/good"):
        archive(good).ensure(data_dir)
    (data_dir / "set").unlink()
    (data_dir / PATH).mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot read .*file\.gz: is a directory"):
        archive(good).read(data_dir)
