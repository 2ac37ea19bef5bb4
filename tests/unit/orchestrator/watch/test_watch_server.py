"""Mistakes of the page's server: who is answered, with which headers, files out of reach, what has changed,
its end, what a sweep without a page loads, and how often reports come."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.watch import connections, growing_report
from orchestrator.watch.growing_report import FIRST_S, SHARE, GrowingReport
from orchestrator.watch.messages import Updates
from orchestrator.watch.server import serve
from tests.unit.conftest import FakeTime
from tests.unit.watch_support import EVIL, SHOWN, SweepInProgress, epoch, serial

TIMEOUT_S = 20
NOTHING = {"default-src": "'none'", "frame-ancestors": "'none'"}
NO_DOCUMENT = {**NOTHING, "base-uri": "'none'", "form-action": "'none'"}
REFUSED = {**NOTHING, "sandbox": ""}
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
    """A sweep with a failed run, whose cause and log have markup, one in progress, and one that waits."""
    sweep = SweepInProgress(tmp_path_factory.mktemp("watched"), serial(3), name=EVIL)
    sweep.begin()
    failed, running, _ = sweep.runs
    sweep.end(failed, status="failed", cause=EVIL, log="node-0.log")
    sweep.paths.run(failed.key).log("node-0").write_text(f"{EVIL}\n")
    paths = sweep.start(running)
    sweep.report(running, "epoch", **epoch(1, 0.5))
    for node in range(2):
        paths.log(f"node-{node}").write_text(f"log of node {node}\n")
    sweep.paths.html.write_text("<!doctype html><title>report</title>")
    (sweep.paths.directory / "secret.log").write_text("secret")
    (sweep.paths.directory.parent / "outside.log").write_text("secret")
    return sweep


@pytest.fixture(scope="module")
def address(sweep: SweepInProgress) -> Iterator[str]:
    with serve(sweep.paths, 0, lambda: sweep.active) as address:
        first(address)  # the server knows the runs from now on
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


def messages(address: str, **query: str) -> Iterator[tuple[str, str]]:
    """The server-sent events: kind and data."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"{url.path}messages?{urlencode(query)}")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")
        kind = ""
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, value
    finally:
        connection.close()


def first(address: str, **query: str) -> dict[str, Any]:
    """The first message."""
    kind, data = next(messages(address, **query))
    assert kind == "message"
    return json.loads(data)


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
    assert policy_of(answer) == {**NO_DOCUMENT, **own, "connect-src": "'self'"}


def test_the_report_is_sandboxed_and_files_are_plain_text(address: str, sweep: SweepInProgress) -> None:
    answer, text = ask(address, "report.html")
    assert (answer.status, text) == (200, sweep.paths.html.read_text())
    assert policy_of(answer) == {
        **NO_DOCUMENT,
        "sandbox": "allow-scripts allow-popups",  # nothing of the same origin
        "style-src": "'unsafe-inline'",
        "script-src": "'unsafe-inline' 'unsafe-eval'",
        "img-src": "data:",
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
    paths = [f"/{end}{more}" for end in ends for more in ("", "/messages")]
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
    "log",
    ["../secret", "../../outside", "/etc/passwd", "../secret.log", "%2e%2e/secret", "\x00", "spec.json"],
)
def test_paths_in_names_of_logs_lead_nowhere(address: str, sweep: SweepInProgress, log: str) -> None:
    key = sweep.runs[1].key
    assert first(address, run=key, log=log)["logs"]["name"] == "node-0"
    assert first(address, run=f"../{key}")["detail"]["key"] == key
    quoted = quote(log, safe="")
    for path in (f"{key}/{log}", f"{key}/{quoted}", f"{quoted}/node-0.log"):
        if "\x00" not in path:
            assert ask(address, path)[0].status in (403, 404), path


# Messages


def test_the_first_message_has_everything(address: str, sweep: SweepInProgress) -> None:
    failed, running, _ = sweep.runs
    message = first(address)
    assert message["order"] == [run.key for run in sweep.runs]
    assert [run["state"] for run in message["runs"]] == ["failed", "running", "waiting"]
    head: dict[str, Any] = {"name": SHOWN, "state": "running", "doing": "", "running": running.key}
    head |= {"failed": failed.key, "counts": ["1 of 3 runs ended", "1 failed"], "damage": []}
    head |= {"done": round((1 + 1 / 3) / 3, 4), "more_damage": 0, "elapsed": "", "left": "", "report": ""}
    head["file"] = str(sweep.paths.html)
    assert {**message["head"], "elapsed": "", "left": "", "report": ""} == head
    detail: dict[str, Any] = {"key": running.key, "state": "running", "cause": "", "time": "", "more": 0}
    detail |= {"epoch": "1/3 done", "loss": "0.500", "accuracy": "50.0%", "follows": True}
    detail |= {"ranks": [["node 0", "1/3 done", "0.500", "50.0%", ""]]}
    assert {**message["detail"], "time": ""} == detail
    assert message["curves"] == {"run": running.key, "epochs": 3, "points": [[1, 0.5, 0.5]]}
    assert message["logs"] == {"names": ["node-0", "node-1"], "name": "node-0", "run": running.key}
    assert message["lines"] == {"new": ["log of node 0"], "restarted": True}
    chosen = first(address, run=running.key, log="node-1")
    assert (chosen["lines"]["new"], chosen["detail"]["follows"]) == (["log of node 1"], False)
    # Texts from files have no control characters.
    message = first(address, run=failed.key)
    texts = [message["head"]["name"], message["runs"][0]["cause"], message["detail"]["cause"]]
    assert [*texts, *message["lines"]["new"]] == [SHOWN] * 4


def test_messages_have_only_what_has_changed(tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(1))
    sweep.begin()
    run = sweep.runs[0]
    log = sweep.start(run).log("node-0")
    sweep.report(run, "epoch", **epoch(1, 0.5))
    updates = Updates(sweep.follower)

    def message() -> dict[str, Any]:
        return json.loads(updates.message(sweep.poll()) or "{}")

    # Events stand in for the logs of containers, which are saved when a run has ended.
    shown = message()
    assert (shown["logs"]["name"], len(shown["lines"]["new"])) == ("events", 1)
    assert "lines" not in message()
    sweep.report(run, "failed", cause="broke", traceback=EVIL)
    assert len(message()["lines"]["new"]) == 2
    log.write_text("the log\n")
    shown = message()
    assert (shown["logs"]["names"], shown["lines"]) == (["node-0"], {"new": ["the log"], "restarted": True})
    log.write_text("the log\nmore\n")
    assert message()["lines"] == {"new": ["more"], "restarted": False}


# Beginning and end


def test_pages_get_the_last_state_when_the_server_ends(tmp_path: Path) -> None:
    sweep = SweepInProgress(tmp_path, serial(2))
    sweep.begin()
    sweep.start(sweep.runs[0])
    with serve(sweep.paths, 0) as address:
        # Of the time before the server, so it waits for the sweep to begin.
        stream = messages(address)
        assert json.loads(next(stream)[1])["head"]["state"] == "starting"
        sweep.end(sweep.runs[0])
    *_, (_, data), (kind, _) = stream
    last = json.loads(data)
    assert (kind, last["head"]["state"]) == ("end", "stopped")
    assert [run["state"] for run in last["runs"]] == ["ok", "not run"]
    with pytest.raises(OSError):  # noqa: PT011
        ask(address)


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
        kind, data = next(messages(address))
        assert (kind, "sweep.json" in data) == ("trouble", True)
        used = urlsplit(address).port or 0
        with pytest.raises(InputError, match=f"--port {used}: in use"), serve(sweep.paths, used):
            pass


def test_a_sweep_without_a_page_loads_no_server_and_partitions_no_torch() -> None:
    heavy = {"starlette", "uvicorn", "anyio", "asyncio", "altair", "torch"}
    modules = "orchestrator.cli, orchestrator.commands.watch, orchestrator.execution.sweep_runner"
    run = "orchestrator.cli.app(['partitions', '--partitioner', 'shards'], standalone_mode=False)"
    code = f"import sys, {modules}; {run}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_the_report_is_written_once_that_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    time, began = FakeTime(), list[float]()

    def write(paths: SweepPaths) -> None:
        began.append(time())
        time.pass_(2.0)
        if len(began) == 1:
            raise OSError("the disk is full")  # the report at the end says why

    monkeypatch.setattr(growing_report.time, "monotonic", time)
    monkeypatch.setattr(growing_report, "write_report", write)
    start, growing = time(), GrowingReport(SweepPaths(Path("absent")))
    for _ in range(250):
        time.pass_(1)
        growing.after_run()
    # The first is expected to take longer than the others do.
    expected = [start + FIRST_S / SHARE]
    while expected[-1] + 2 + 2 / SHARE <= time():
        expected.append(expected[-1] + 2 + 2 / SHARE)
    assert began == expected
