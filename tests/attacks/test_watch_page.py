"""Attacks on the page of a sweep: files out of reach, connections that keep its user out, damage."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.watch import connections
from orchestrator.watch.messages import Updates
from orchestrator.watch.server import serve
from tests.unit.orchestrator.watch.test_watch_server import ask, first
from tests.unit.watch_support import SweepInProgress, serial

SECRET = "a secret of the user"
NAMES = ("secret.log", "result.json", "events.jsonl", "spec.json", "timeline.json", "report.html")
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
    """The links lead to files that have the names of a run's."""
    outside, key = tmp_path / "outside", sweep.runs[1].key
    directory = sweep.paths.run(key).directory
    outside.mkdir()
    if kind == "link":
        directory.symlink_to(outside)
    else:
        directory.mkdir()
    for name in NAMES:
        (outside / name).write_text(SECRET)
        if kind == "files are links":
            (directory / name).symlink_to(outside / name)
        elif kind == "files are pipes":
            os.mkfifo(directory / name)
    sweep.paths.html.symlink_to(outside / "report.html")
    assert SECRET not in str(first(address, run=key, log="secret"))  # the page knows the runs from now on
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


def damage(sweep: SweepInProgress) -> Any:
    """What the page lists as damaged."""
    return json.loads(Updates(sweep.follower).message(sweep.poll()))["head"]["damage"]


def test_the_page_says_what_is_damaged(sweep: SweepInProgress) -> None:
    assert damage(sweep) == []
    ended, other = (sweep.paths.run(run.key) for run in sweep.runs)
    ended.result.write_text('{"key":')
    other.directory.mkdir()
    other.spec.write_text("[]")
    files = [line.partition(" ")[0] for line in damage(sweep)]
    assert files == [f"{ended.directory.name}/result.json", f"{other.directory.name}/spec.json"]
    sweep.active = True
    sweep.paths.record.write_text("{")
    assert damage(sweep)[0].startswith("sweep.json ")


def test_the_page_names_runs_that_are_no_directories(tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(1), keys=["../other", serial(1)[0].key], order=["x"])
    sweep.begin()
    found = damage(sweep)
    assert [line.partition(" ")[0] for line in found] == ["sweep.json"] * 2
    assert "../other" in found[0]
