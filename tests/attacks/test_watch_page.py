"""Attacks on the page of a sweep: files out of reach, and connections that keep its user out."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.watch import connections
from orchestrator.watch.server import serve
from tests.unit.orchestrator.watch.test_watch_server import ask, now
from tests.unit.watch_support import SweepInProgress, serial

SECRET = "a secret of the user"
NAMES = ("node-0.log", "events.jsonl", "timeline.json", "report.html", "result.json")
TIMEOUT_S = 60
START = b"GET / HTTP/1.1\r\nHost: x\r\n"
REFUSED = b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


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


@pytest.mark.parametrize("kind", ["link", "files are links", "files are pipes"])
def test_no_link_is_followed_and_no_pipe_waited_for(
    sweep: SweepInProgress, address: str, tmp_path: Path, kind: str
) -> None:
    """The links lead to files that have the names of a run's, which is in progress."""
    outside, run = tmp_path / "outside", sweep.runs[1]
    key, directory = run.key, sweep.paths.run(run.key).directory
    sweep.active = True
    outside.mkdir()
    (outside / "live").mkdir()
    sweep.report(run, "failed", directory=outside / "live", cause=SECRET, traceback="")
    (outside / "spec.json").write_text(run.model_dump_json())
    if kind == "link":
        directory.symlink_to(outside)
    else:
        sweep.start(run).live.rmdir()
        (directory / "live").symlink_to(outside / "live")
    sweep.paths.html.symlink_to(outside / "report.html")
    assert SECRET not in str(now(address))
    for name in NAMES:  # with its result, the run has ended
        (outside / name).write_text(SECRET)
        if kind == "files are links":
            (directory / name).symlink_to(outside / name)
        elif kind == "files are pipes":
            os.mkfifo(directory / name)
        found = now(address)
        assert found["log_of"].startswith(key) == (name != "result.json")
        assert SECRET not in str(found)
    for path in (*(f"{key}/{name}" for name in NAMES), "report.html"):
        answer, text = ask(address, path)
        assert (answer.status, SECRET in text) == (404, False), path


def half_open(address: str, stack: ExitStack, start: bytes = START) -> socket.socket:
    url = urlsplit(address)
    connection = stack.enter_context(socket.create_connection((str(url.hostname), url.port or 0)))
    connection.settimeout(TIMEOUT_S)
    connection.sendall(start)
    return connection


@pytest.mark.parametrize("start", [b"", START, 20 * REFUSED + b"GET /"], ids=["silent", "half", "refused"])
def test_connections_of_others_do_not_keep_the_user_out(
    address: str, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    """Also if none is closed for its time."""
    monkeypatch.setattr(connections, "REQUEST_S", TIMEOUT_S)
    with ExitStack() as stack:
        for number in range(4 * connections.MAX_WAITING):
            half_open(address, stack, start)
            if number % 32 == 31:
                assert ask(address)[0].status == 200


def test_a_request_that_comes_byte_by_byte_is_cut_off(
    sweep: SweepInProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    deadline = time.monotonic() + TIMEOUT_S / 3
    with serve(sweep.paths, 0, lambda: False) as address, ExitStack() as stack:
        for start in (START, REFUSED + b"GET /"):
            connection = half_open(address, stack, start)
            with suppress(OSError):
                while time.monotonic() < deadline:
                    connection.sendall(b"x")
                    time.sleep(0.05)
    assert time.monotonic() < deadline
