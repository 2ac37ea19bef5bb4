"""Mistakes of the page's server: who is answered, with which headers, files out of reach, what the page
gets, its end, what a sweep without a page loads, and how often reports come."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.watch import connections, growing_report, server
from orchestrator.watch.growing_report import FIRST_S, SHARE, GrowingReport
from orchestrator.watch.server import serve
from tests.unit.conftest import FakeTime
from tests.unit.watch_support import EVIL, SHOWN, SweepInProgress, epoch, serial

TIMEOUT_S = 20
NOTHING = {"default-src": "'none'"}
REFUSED = {**NOTHING, "sandbox": "", "frame-ancestors": "'self'"}
DOCUMENT = {**NOTHING, "base-uri": "'none'", "form-action": "'none'"}
OF_ALL = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Access-Control-Allow-Origin": None,
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepInProgress:
    """A sweep with a failed run, one in progress whose log has markup, and one that waits."""
    sweep = SweepInProgress(tmp_path_factory.mktemp("watched"), serial(3), name=EVIL)
    sweep.begin()
    failed, running, _ = sweep.runs
    sweep.end(failed, status="failed", cause=EVIL)
    sweep.paths.run(failed.key).log("node-0").write_text(f"{EVIL}\n")
    paths = sweep.start(running)
    sweep.report(running, "epoch", **epoch(1, 0.5))
    paths.log("node-0").write_text(f"{EVIL}\n")
    sweep.paths.html.write_text("<!doctype html><title>report</title>")
    (sweep.paths.directory / "secret.log").write_text("secret")
    (sweep.paths.directory.parent / "outside.log").write_text("secret")
    return sweep


@pytest.fixture(scope="module")
def address(sweep: SweepInProgress) -> Iterator[str]:
    with serve(sweep.paths, 0, lambda: sweep.active) as address:
        now(address)  # the server knows the runs from now on
        yield address


def ask(
    address: str, path: str = "", headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[http.client.HTTPResponse, str]:
    """The answer to a request below the page's address, or at an absolute path."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path if path.startswith("/") else url.path + path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def now(address: str) -> dict[str, Any]:
    """What the page gets once a second."""
    answer, text = ask(address, "now")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "application/json")
    return json.loads(text)


# Headers


def policy_of(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The content security policy by directive. All answers have the other protective headers."""
    assert {name: answer.getheader(name) for name in OF_ALL} == OF_ALL
    parts = answer.getheader("Content-Security-Policy", "").split("; ")
    return {name: values for name, _, values in (part.partition(" ") for part in parts)}


def test_the_page_may_run_only_its_own_script_and_style(address: str) -> None:
    answer, text = ask(address)
    assert answer.status == 200
    own = {
        f"{name}-src": f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"
        for name in ("script", "style")
        for source in re.findall(rf"<{name}>(.*?)</{name}>", text, re.S)
    }
    rest = {"connect-src": "'self'", "frame-src": "'self'", "frame-ancestors": "'none'"}
    assert policy_of(answer) == {**DOCUMENT, **own, **rest}
    (frame,) = re.findall("<iframe[^>]*>", text)
    assert 'sandbox="allow-scripts allow-popups"' in frame  # nothing of the same origin


def test_the_report_is_sandboxed_and_files_are_plain_text(address: str, sweep: SweepInProgress) -> None:
    answer, text = ask(address, "report.html")
    assert (answer.status, text) == (200, sweep.paths.html.read_text())
    assert policy_of(answer) == {
        **DOCUMENT,
        "sandbox": "allow-scripts allow-popups",
        "style-src": "'unsafe-inline'",
        "script-src": "'unsafe-inline' 'unsafe-eval'",
        "img-src": "data:",
        "frame-ancestors": "'self'",
    }
    key = sweep.runs[0].key
    for name in ("node-0.log", "result.json"):
        answer, text = ask(address, f"{key}/{name}")
        assert (answer.status, text) == (200, (sweep.paths.run(key).directory / name).read_text())
        assert answer.getheader("Content-Type") == "text/plain; charset=utf-8"
        assert policy_of(answer) == REFUSED
    for name in ("spec.json", "plan.json", "weights.npy", "timeline.json", "absent"):
        answer, _ = ask(address, f"{key}/{name}")
        assert (answer.status, policy_of(answer)) == (404, REFUSED)


# Requests that are refused


def test_requests_without_the_token_are_refused(address: str) -> None:
    token = urlsplit(address).path.strip("/")
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    ends = ("", "x", "/", "%C3%A9", "%00", "%ff")
    paths = [f"/{end}{more}" for end in ends for more in ("", "/now")]
    for path in (*paths, f"/{wrong}/", f"/{token}x/", f"/{token[:-1]}/", "//"):
        answer, text = ask(address, path)
        assert (answer.status, policy_of(answer)) == (403, REFUSED), path
        assert token not in text


def test_other_hosts_and_methods_are_refused(address: str) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        answer, text = ask(address, headers={"Host": host})
        assert (answer.status, "<h1>" in text) == (400, False)
    assert ask(address, headers={"Host": f"localhost:{urlsplit(address).port}"})[0].status == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(address, method=method)[0].status == 405
    assert urlsplit(address).hostname == "127.0.0.1"
    with socket.socket(socket.AF_INET) as other:
        other.bind(("127.0.0.2", urlsplit(address).port or 0))  # in use if it listened on all addresses


def test_of_too_many_connections_without_a_request_the_oldest_is_closed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_WAITING", 2)
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    place = ("127.0.0.1", urlsplit(address).port or 0)
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(place, TIMEOUT_S)) for _ in range(3)]
        assert made[0].recv(1) == b""
        for other in made[1:]:
            other.settimeout(0.05)
            with pytest.raises(TimeoutError):
                other.recv(1)
        other.settimeout(TIMEOUT_S)
        assert other.recv(1) == b""  # its request takes too long


@pytest.mark.parametrize(
    "name",
    ["../secret", "../../outside", "/etc/passwd", "../secret.log", "%2e%2e/secret", "..", "spec.json"],
)
def test_paths_in_names_lead_nowhere(address: str, sweep: SweepInProgress, name: str) -> None:
    key = sweep.runs[1].key
    quoted = quote(name, safe="")
    for path in (f"{key}/{name}", f"{key}/{quoted}", f"{quoted}/node-0.log", f"{quoted}/secret.log"):
        assert ask(address, path)[0].status in (403, 404), path


# What the page gets


def test_the_page_gets_one_line_of_progress_the_log_and_when_the_report_is_newer(
    address: str, sweep: SweepInProgress
) -> None:
    found = now(address)
    shown = {name: found[name] for name in ("name", "state", "log", "last")}
    # Texts from files have no control characters.
    assert shown == {"name": SHOWN, "state": "running", "log": [SHOWN], "last": False}
    assert found["done"] == pytest.approx((1 + 1 / 3) / 3)
    assert found["now"].startswith(f"{sweep.runs[1].key} · epoch 1/3 done · accuracy 50.0% · ")
    assert int(found["report"]) == sweep.paths.html.stat().st_mtime_ns


# Beginning and end


def test_a_page_that_is_open_gets_the_last_state_when_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "QUIET_S", 1.0)
    sweep = SweepInProgress(tmp_path, serial(2))
    answers = list[dict[str, Any]]()

    def ask_until_it_ends() -> None:
        with suppress(OSError):
            while True:
                answers.append(now(address))
                time.sleep(0.1)

    with serve(sweep.paths, 0) as address:
        assert now(address)["state"] == "starting"
        sweep.begin()
        sweep.start(sweep.runs[0])
        asking = Thread(target=ask_until_it_ends)
        asking.start()
        while not answers:
            time.sleep(0.1)
    asking.join()
    assert (answers[0]["state"], answers[0]["last"]) == ("running", False)
    assert (answers[-1]["state"], answers[-1]["last"]) == ("stopped", True)


def test_a_server_without_an_open_page_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "QUIET_S", TIMEOUT_S)
    began = time.monotonic()
    with serve(SweepPaths(tmp_path), 0):
        pass
    assert time.monotonic() - began < TIMEOUT_S


def test_what_cannot_be_watched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert isinstance(done.exception, InputError)
    assert "no sweep.json" in str(done.exception)
    assert [*tmp_path.iterdir()] == []
    for port in ("-1", "65536", "x"):
        assert CliRunner().invoke(app, ["watch", "--port", port]).exit_code == 2
    sweep = SweepInProgress(tmp_path, serial(1))
    sweep.begin()
    with serve(sweep.paths, 0, lambda: False) as address:
        sweep.paths.record.write_text("{")
        answer, text = ask(address, "now")
        assert (answer.status, "sweep.json" in text) == (503, True)
        used = urlsplit(address).port or 0
        with pytest.raises(InputError, match=f"--port {used}: in use"), serve(sweep.paths, used):
            pass


def test_a_sweep_without_a_page_loads_no_server_and_partitions_no_torch() -> None:
    heavy = {"starlette", "uvicorn", "anyio", "asyncio", "vl_convert", "torch"}
    modules = "orchestrator.cli, orchestrator.commands.watch, orchestrator.execution.sweep_runner"
    run = "orchestrator.cli.app(['partitions', '--partitioner', 'shards'], standalone_mode=False)"
    code = f"import sys, {modules}; {run}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_the_report_is_written_once_that_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, began = FakeTime(), list[float]()

    def write(paths: SweepPaths) -> None:
        began.append(clock())
        clock.pass_(2.0)
        if len(began) == 1:
            raise OSError("the disk is full")  # the report at the end says why

    monkeypatch.setattr(growing_report.time, "monotonic", clock)
    monkeypatch.setattr(growing_report, "write_report", write)
    start, growing = clock(), GrowingReport(SweepPaths(Path("absent")))
    for _ in range(250):
        clock.pass_(1)
        growing.after_run()
    # The first is expected to take less time than the others do.
    expected = [start + FIRST_S / SHARE]
    while expected[-1] + 2 + 2 / SHARE <= clock():
        expected.append(expected[-1] + 2 + 2 / SHARE)
    assert began == expected
