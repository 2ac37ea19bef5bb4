"""Attacks on the page of a sweep.

The promise: it serves its user only, has no file but those of the runs and the report, refuses links that
lead out of the directories of the runs, and says what of a damaged directory cannot be used.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.watch import connections
from orchestrator.watch.messages import Updates
from orchestrator.watch.server import serve
from tests.unit.orchestrator.watch.test_watch_server import ask, first
from tests.unit.watch_support import SweepInProgress, serial

SECRET = "a secret of the user"
TIMEOUT_S = 60


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory outside of the sweep, with files that have the names of a run's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret.log", "result.json", "events.jsonl", "timeline.json", "report.html"):
        (outside / name).write_text(SECRET)
    return outside


@pytest.fixture
def sweep(tmp_path: Path) -> SweepInProgress:
    found = SweepInProgress(tmp_path / "out", serial(2))
    found.begin()
    found.end(found.runs[0])
    found.active = False
    return found


@pytest.fixture
def address(sweep: SweepInProgress) -> Iterator[str]:
    with serve(sweep.paths, 0, lambda: sweep.active) as address:
        yield address


# Links out of the directory


def test_no_link_in_the_directory_of_a_run_is_followed(
    sweep: SweepInProgress, address: str, secret: Path
) -> None:
    key = sweep.runs[1].key
    directory = sweep.paths.run(key).directory
    directory.mkdir()
    names = [each.name for each in secret.iterdir() if each.name != "report.html"]
    for name in names:
        (directory / name).symlink_to(secret / name)
    first(address)  # the page knows the runs from now on
    for name in names:
        answer, text = ask(address, f"{key}/{name}")
        assert (answer.status, SECRET in text) == (404, False), name
    assert SECRET not in str(first(address, run=key, log="secret"))


def test_a_link_in_place_of_the_directory_of_a_run_is_not_followed(
    sweep: SweepInProgress, address: str, secret: Path
) -> None:
    key = sweep.runs[1].key
    sweep.paths.run(key).directory.symlink_to(secret)
    message = first(address, run=key, log="secret")
    assert SECRET not in str(message)
    assert "secret" not in message["logs"]["names"]
    for name in ("secret.log", "result.json", "events.jsonl", "timeline.json"):
        answer, text = ask(address, f"{key}/{name}")
        assert (answer.status, SECRET in text) == (404, False), name


def test_a_link_in_place_of_the_report_is_not_followed(
    sweep: SweepInProgress, address: str, secret: Path
) -> None:
    sweep.paths.html.symlink_to(secret / "report.html")
    answer, text = ask(address, "report.html")
    assert (answer.status, SECRET in text) == (404, False)


def test_pipes_do_not_stop_the_page(sweep: SweepInProgress, address: str) -> None:
    key = sweep.runs[1].key
    directory = sweep.paths.run(key).directory
    directory.mkdir()
    for name in ("node-0.log", "events.jsonl", "result.json", "spec.json"):
        os.mkfifo(directory / name)
    os.mkfifo(sweep.paths.html)
    assert first(address, run=key)["detail"]["state"] == "unusable"
    for path in (f"{key}/node-0.log", f"{key}/events.jsonl", "report.html"):
        assert ask(address, path)[0].status == 404, path


# Connections of other users of the machine


def half_open(
    address: str, stack: ExitStack, start: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n"
) -> socket.socket:
    url = urlsplit(address)
    connection = stack.enter_context(socket.create_connection((str(url.hostname), url.port or 0)))
    connection.settimeout(TIMEOUT_S)
    connection.sendall(start)
    return connection


def is_closed_while_sending(connection: socket.socket) -> bool:
    """Whether the server closes a connection on which a byte arrives now and then."""
    deadline = time.monotonic() + TIMEOUT_S
    with suppress(OSError):
        while time.monotonic() < deadline:
            connection.sendall(b"x")
            time.sleep(0.05)
    return time.monotonic() < deadline


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_half_open_connections_do_not_keep_the_user_out(address: str, start: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            half_open(address, stack, start)
        assert ask(address)[0].status == 200


def test_a_flood_of_connections_does_not_keep_the_user_out(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if none is closed for its time."""
    monkeypatch.setattr(connections, "REQUEST_S", TIMEOUT_S)
    with ExitStack() as stack:
        for number in range(4 * connections.MAX_WAITING):
            half_open(address, stack)
            if number % 32 == 0:
                assert ask(address)[0].status == 200


def test_refused_requests_do_not_keep_the_user_out(address: str) -> None:
    """Nor if more requests follow on the same connection, whose answers are not read."""
    refused = b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(4 * connections.MAX_WAITING):
            half_open(address, stack, 20 * refused + b"GET /")
        assert ask(address)[0].status == 200


def test_a_request_that_comes_byte_by_byte_is_cut_off(
    sweep: SweepInProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    with serve(sweep.paths, 0, lambda: False) as address, ExitStack() as stack:
        for start in (b"GET / HTTP/1.1\r\n", b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /"):
            connection = half_open(address, stack, start)
            assert is_closed_while_sending(connection)


def test_a_page_stays_connected_for_longer_than_a_request_may_take(
    sweep: SweepInProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that of requests; the messages of a page are one answer."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    sweep.active = True
    with serve(sweep.paths, 0, lambda: sweep.active) as address, ExitStack() as stack:
        request = f"GET {urlsplit(address).path}messages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        connection = half_open(address, stack, request.encode())
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        sweep.end(sweep.runs[1])
        received = b""
        while sweep.runs[1].key.encode() not in received or b'"ok"' not in received:
            part = connection.recv(2**16)
            assert part, received
            received += part


# Damaged directories


def damage(sweep: SweepInProgress) -> list[str]:
    """What the page lists as damaged."""
    found: list[str] = json.loads(Updates(sweep.follower).message(sweep.poll()))["head"]["damage"]
    return found


def test_the_page_says_what_is_damaged(sweep: SweepInProgress) -> None:
    assert damage(sweep) == []
    ended, other = (sweep.paths.run(run.key) for run in sweep.runs)
    ended.result.write_text('{"key":')
    other.directory.mkdir()
    other.spec.write_text("[]")
    files = [line.partition(" ")[0] for line in damage(sweep)]
    assert files == [f"{ended.directory.name}/result.json", f"{other.directory.name}/spec.json"]


def test_the_page_says_that_the_spec_of_the_run_in_progress_is_damaged(sweep: SweepInProgress) -> None:
    sweep.active = True
    sweep.begin()
    paths = sweep.start(sweep.runs[1])
    assert damage(sweep) == []
    sweep.write(paths.spec, "{}x")
    (line,) = damage(sweep)
    assert line.startswith(f"{sweep.runs[1].key}/spec.json ")


def test_the_page_names_runs_that_are_no_directories(tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(1), keys=["../other", serial(1)[0].key], order=["x"])
    sweep.begin()
    found = damage(sweep)
    assert len(found) == 2
    assert all(line.startswith("sweep.json ") for line in found)
    assert "../other" in found[0]


def test_the_page_says_that_the_record_of_a_sweep_in_progress_is_damaged(sweep: SweepInProgress) -> None:
    sweep.active = True
    assert damage(sweep) == []
    sweep.paths.record.write_text("{")
    (line,) = damage(sweep)
    assert line.startswith("sweep.json ")
    sweep.begin()
    assert damage(sweep) == []
