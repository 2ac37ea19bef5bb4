"""Mistakes in what the command line prints of bad input or to bad output: tracebacks, floods, silence."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.errors import StorageError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.terminal import _Output, print_error, shortened
from tests.unit.conftest import PROJECT

LONG = "x" * 5000


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for no Docker engine: the SDK leaves a socket open where there is none."""
    monkeypatch.setattr(DockerRuntime, "unavailable_reason", lambda self: "there is no engine")


def message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """The exit code of a command line, and what it writes to standard error."""
    monkeypatch.setattr(sys, "argv", ["orchestrator", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["sweep", "--node", "2"], ["no such option: --node (did you mean '--nodes'?)"]),
        (["run", "ddp", "--transport", "gloo"], ["--transport", "--set transport=VALUE"]),
        (["sweep", "--batch-size=64"], ["--batch-size", "--set batch_size=VALUE"]),
        (["swep"], ["swep", "'sweep'"]),
        (["partitions", "--nodes", "x"], ["--nodes: 'x'", "a whole number"]),
        (["sweep", "--out", ""], ["--out: ''", "the path of a directory"]),
        (["report", ""], ["DIRECTORY: ''"]),
        (["sweep", "--out", "r\udcff"], ["--out", "UTF-8"]),
        (["labs", "--data-dir", LONG], ["--data-dir", "shorter"]),
        (["sweep", LONG], ["no such file or shipped sweep", "quickstart"]),
        (["sweep", "quikstart"], ["did you mean 'quickstart'?"]),
        (["lab", "paralel_sgd"], ["did you mean 'parallel_sgd'?"]),
        (["sweep", "--set", "epoch=3"], ["did you mean 'epochs'?"]),
        (["sweep", "--set", "strategy=all_redus"], ["did you mean 'all_reduce'?"]),
        (["sweep", "--runtime", "docker"], ["--runtime docker: there is no engine"]),
        (
            ["sweep", "--runtime", "local", "--set", "cpus=equal"],
            ["--set cpus=equal", "'equal'", "local", "--runtime docker", "a number"],
        ),
        (["schema", "/dev/null"], ["/dev/null", "another DIRECTORY"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    facts: list[str],
) -> None:
    code, text = message(monkeypatch, capsys, *arguments)
    assert (code, text.startswith("error: "), text.count("\n")) == (2, True, 1)
    assert len(text) < 1000
    assert [fact for fact in facts if fact not in text] == []


def test_set_is_advised_only_where_it_sets_a_field_that_is_no_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["check", "dirichlet", "--lr", "1"], ["run", "ddp", "--nodes"]):
        code, text = message(monkeypatch, capsys, *arguments)
        assert (code, "--set" in text) == (2, False)


def test_file_that_cannot_be_written_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "report.html"))

    monkeypatch.setattr(cli, "publish_report", full)
    code, text = message(monkeypatch, capsys, "report", str(tmp_path))
    assert (code, text) == (1, f"error: {tmp_path}/report.html: the disk is full\n")


def run(*arguments: str, stdout: Any = subprocess.PIPE, **variables: str) -> tuple[int, str, str | None]:
    """Exit code, standard error and standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=PROJECT,
        env={**os.environ, **variables},
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, done.stdout


@pytest.mark.slow
def test_full_disks_are_named_closed_pipes_are_not_and_terminals_lack_characters() -> None:
    with open("/dev/full", "w") as full:
        assert run("--version", stdout=full)[:2] == (1, "error: standard output: the disk is full\n")
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        assert run("labs", stdout=pipe)[:2] == (1, "")
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, error, shown = run("partitions", "--partitioner", "shards", **variables)
    assert (code, error, "EMD, 0?2" in str(shown)) == (0, "", True)


def test_failed_write_is_reported_once_and_clean_up_can_print() -> None:
    with _Output(open("/dev/full", "wb"), write_through=True) as output:
        with pytest.raises(StorageError, match="standard output: the disk is full"):
            print("a", file=output, flush=True)
        print("b", file=output, flush=True)


def test_messages_are_shortened() -> None:
    assert shortened("a b\nc") == "a b\nc"
    assert len(shortened(LONG)) <= 300
    assert len(shortened("word " * 5000)) < 2100
    lines = shortened("line\n" * 50).splitlines()
    assert (len(lines), lines[-1]) == (21, "and 30 more")
    assert shortened("\x1b[31mred") == "\\x1b[31mred"


def test_messages_end_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    control, terminal = pty.openpty()
    monkeypatch.setenv("COLUMNS", "40")
    with open(terminal, "w") as stream, open(control, "rb", buffering=0) as shown:
        monkeypatch.setattr(sys, "stderr", stream)
        print_error("/a/path-of-results: " + "words " * 20)
        stream.flush()
        lines = shown.read(1000).decode().splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(lines).split() == ["error:", "/a/path-of-results:", *["words"] * 20]
