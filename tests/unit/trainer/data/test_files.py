"""Mistakes in downloads: a second one, partial or damaged files in use, leftovers, unclear errors."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainer.data.base import DataError
from trainer.data.datasets import files
from trainer.data.datasets.files import Archive

CONTENT = bytes(range(256)) * 512  # 128 KiB
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@dataclass
class Reply:
    """A reply of the server: sends `body` after `delay_s`, with Content-Length `announced`."""

    body: bytes = CONTENT
    announced: int = len(CONTENT)
    delay_s: float = 0.0
    hold: threading.Event | None = None  # the second half of the body is sent only once it is set


@dataclass
class Server:
    url: str
    replies: dict[str, Reply] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def archive(self, *names: str) -> Archive:
        return Archive("set/raw/file.gz", MD5, tuple(f"{self.url}/{name}" for name in names), timeout_s=5)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            reply = state.replies.get(self.path)
            if reply is None:
                self.send_error(404)
                return
            time.sleep(reply.delay_s)
            self.send_response(200)
            self.send_header("Content-Length", str(reply.announced))
            self.end_headers()
            half = len(reply.body) // 2
            self.wfile.write(reply.body[:half])
            if reply.hold:
                reply.hold.wait(10)
            self.wfile.write(reply.body[half:])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        state = Server(f"http://127.0.0.1:{httpd.server_port}")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()


@pytest.fixture
def closed_port_url(server: Server) -> str:
    """A URL that refuses connections at once."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as httpd:
        return f"http://127.0.0.1:{httpd.server_port}/file.gz"


def write_archive(archive: Archive, data_dir: Path, content: bytes = CONTENT) -> Path:
    target = data_dir / archive.path
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    return target


def names(data_dir: Path) -> set[str]:
    """Names of all files below the directory except locks, which may stay."""
    return {path.name for path in data_dir.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_an_absent_file_is_downloaded_once_and_for_all_users(server: Server, tmp_path: Path) -> None:
    """Also over what a killed download has left."""
    server.replies["/good"] = Reply(delay_s=0.2)  # long enough for all to find the file absent
    archive = server.archive("good")
    target = tmp_path / archive.path
    target.parent.mkdir(parents=True)
    target.with_name("file.gz.part").write_bytes(CONTENT + b"more than there is")
    target.with_name("file.gz.lock").touch()
    before = os.umask(0o022)
    try:
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(archive.ensure, [tmp_path] * 4)]
    finally:
        os.umask(before)
    assert archive.read(tmp_path) == CONTENT
    assert names(tmp_path) == {"file.gz"}
    assert target.stat().st_mode & 0o777 == 0o644
    assert server.requests == ["/good"]
    with archive.open_verified(tmp_path) as file:
        assert file.read(4) == CONTENT[:4]


def test_a_full_disk_ends_a_download_at_its_first_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fetch(archive: Archive, url: str, partial: Path) -> None:
        tried.append(url)
        partial.write_bytes(b"begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Archive, "_fetch", fetch)
    with pytest.raises(DataError) as caught:
        Archive("file.gz", MD5, ("https://one", "https://two")).ensure(tmp_path)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert tried == ["https://one"]
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (Reply(CONTENT[:-1]), f"{len(CONTENT) - 1} bytes came (announced: {len(CONTENT)})"),
        (Reply(b"", 0), "0 bytes came"),
        (Reply(CONTENT[::-1]), hashlib.md5(CONTENT[::-1], usedforsecurity=False).hexdigest()),
    ],
    ids=["truncated", "empty", "wrong content"],
)
def test_a_bad_download_leaves_no_file(server: Server, tmp_path: Path, reply: Reply, found: str) -> None:
    server.replies["/bad"] = reply
    with pytest.raises(DataError) as caught:
        server.archive("bad").ensure(tmp_path)
    assert found in str(caught.value)
    assert MD5 in str(caught.value)
    assert names(tmp_path) == set()


def test_a_download_has_its_name_when_it_is_complete_and_ends_when_it_stalls(
    server: Server, tmp_path: Path
) -> None:
    hold = server.replies["/slow"] = Reply(hold=threading.Event())
    assert hold.hold
    with ThreadPoolExecutor(1) as pool:
        download = pool.submit(server.archive("slow").ensure, tmp_path)
        try:
            deadline = time.monotonic() + 5
            while not names(tmp_path) and time.monotonic() < deadline:
                time.sleep(0.005)
            assert names(tmp_path) == {"file.gz.part"}
            with pytest.raises(DataError, match="timed out"):
                replace(server.archive("slow"), timeout_s=0.1).ensure(tmp_path / "stalled")
        finally:
            hold.hold.set()
        download.result()
    assert names(tmp_path) == {"file.gz"}


def test_mirrors_are_tried_in_order_over_the_proxy_of_the_environment(
    server: Server, closed_port_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies |= {"/truncated": Reply(CONTENT[:100]), "/good": Reply()}
    archive = server.archive("gone", "truncated", "good", "unneeded")
    replace(archive, urls=(closed_port_url, *archive.urls)).ensure(tmp_path)
    assert archive.read(tmp_path) == CONTENT
    assert server.requests == ["/gone", "/truncated", "/good"]
    url = "http://mirror.invalid/file.gz"  # does not resolve: only the proxy can reply
    server.replies[url] = Reply()
    monkeypatch.setenv("http_proxy", server.url)
    replace(archive, urls=(url,)).ensure(tmp_path / "by proxy")
    assert server.requests[3:] == [url]


@pytest.mark.parametrize("method", ["ensure", "read"])
def test_a_damaged_file_is_an_error_and_stays(server: Server, tmp_path: Path, method: str) -> None:
    archive = server.archive("good")
    target = write_archive(archive, tmp_path, b"not what was published")
    with pytest.raises(DataError) as caught:
        getattr(archive, method)(tmp_path)
    digest = hashlib.md5(b"not what was published", usedforsecurity=False).hexdigest()
    assert [part for part in (str(target), MD5, digest, "Delete it") if part not in str(caught.value)] == []
    assert target.read_bytes() == b"not what was published"
    assert server.requests == []


@pytest.mark.parametrize("method", ["ensure", "read"])
def test_without_a_network_the_error_says_what_to_do_by_hand(
    closed_port_url: str, tmp_path: Path, method: str
) -> None:
    mirror = closed_port_url.replace("file.gz", "mirror/file.gz")
    with pytest.raises(DataError) as caught:
        getattr(Archive("set/raw/file.gz", MD5, (closed_port_url, mirror)), method)(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"set/raw/file.gz is not in {tmp_path}")
    assert ("Connection refused" in message) == (method == "ensure")  # only `ensure` tries to download
    steps = message.partition("To get it by hand")[2]
    for part in (
        closed_port_url,
        mirror,
        str(tmp_path / "set/raw/file.gz"),
        "--data-dir or SHARDYARD_DATA",
    ):
        assert part in steps
    assert names(tmp_path) == set()


def test_a_complete_read_only_directory_is_not_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = server.archive("good")
    folder = write_archive(archive, tmp_path).parent
    # Root can write to every directory, so the test also fails on a lock.
    monkeypatch.setattr(files, "FileLock", lambda path: pytest.fail(f"locked {path}"))
    folder.chmod(0o555)
    try:
        archive.ensure(tmp_path)
    finally:
        folder.chmod(0o755)
    assert [path.name for path in folder.iterdir()] == ["file.gz"]
    assert server.requests == []


def test_what_cannot_be_written_or_read_is_named(server: Server, tmp_path: Path) -> None:
    archive = server.archive("good")
    (tmp_path / "set").touch()  # a file in place of the directory: not even root can write below it
    with pytest.raises(DataError, match="cannot be put there") as caught:
        archive.ensure(tmp_path)
    assert f"{server.url}/good" in str(caught.value)
    assert server.requests == []
    (tmp_path / "set").unlink()
    (tmp_path / archive.path).mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot read .*file\.gz: is a directory"):
        archive.read(tmp_path)
    (tmp_path / archive.path).rmdir()
    os.mkfifo(tmp_path / archive.path)
    with pytest.raises(DataError, match=r"cannot read .*file\.gz: is a pipe"):
        archive.read(tmp_path)
