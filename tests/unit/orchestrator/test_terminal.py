"""What the command line prints when its input or its output is bad: one message, never a traceback."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from pathlib import Path

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
        (["sweep", "--frobnicate"], ["--frobnicate", "sweep --help"]),
        (["sweep", "--node", "2"], ["no such option: --node (did you mean '--nodes'?)"]),
        (["run", "ddp", "--transport", "gloo"], ["--transport", "--set transport=VALUE"]),
        (["sweep", "--batch-size=64"], ["--batch-size", "--set batch_size=VALUE"]),
        (["swep"], ["swep", "'sweep'"]),
        (["sweep", "a", "b"], ["b"]),
        (["model"], ["MODEL"]),
        (["lab", "--out"], ["--out"]),
        (["partitions", "--nodes", "x"], ["--nodes: 'x'", "a whole number"]),
        (["sweep", "--out", ""], ["--out: ''", "the path of a directory"]),
        (["sweep", "--data-dir", ""], ["--data-dir", "the path of a directory"]),
        (["report", ""], ["DIRECTORY: ''"]),
        (["sweep", "--out", "r\udcff"], ["--out", "UTF-8"]),
        (["labs", "--data-dir", LONG], ["--data-dir", "shorter"]),
        (["sweep", LONG], ["no such file or shipped sweep", "quickstart"]),
        (["sweep", ""], ["no such file or shipped sweep", "quickstart"]),
        (["sweep", "quikstart"], ["did you mean 'quickstart'?"]),
        (["lab", "paralel_sgd"], ["did you mean 'parallel_sgd'?"]),
        (["sweep", "--set", "epoch=3"], ["did you mean 'epochs'?"]),
        (["sweep", "--set", "strategy=all_redus"], ["did you mean 'all_reduce'?"]),
        (["schema", "/proc/x"], ["/proc/x", "DIRECTORY"]),
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
    assert code == 2
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert len(text) < 1000
    for fact in facts:
        assert fact in text


@pytest.mark.parametrize("arguments", [["check", "dirichlet", "--lr", "1"], ["run", "ddp", "--nodes"]])
def test_set_is_advised_only_where_it_sets_a_field_that_is_no_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, text = message(monkeypatch, capsys, *arguments)
    assert (code, "--set" in text) == (2, False)


def test_file_that_cannot_be_written_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / name))

    monkeypatch.setattr(cli, "publish_report", lambda *_: full("report.html"))
    code, text = message(monkeypatch, capsys, "report", str(tmp_path))
    assert (code, text) == (1, f"error: {tmp_path}/report.html: the disk is full\n")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["labs"], ["--version"], ["--help"]])
def test_full_disk_of_standard_output(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(arguments, stdout=full)
    assert (done.returncode, done.stderr) == (1, "error: standard output: the disk is full\n")


def test_closed_pipe_ends_the_command_without_a_message() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        done = run(["labs"], stdout=pipe)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_terminal_without_unicode(variables: dict[str, str]) -> None:
    done = run(["partitions", "--partitioner", "shards"], {**variables, "PYTHONCOERCECLOCALE": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "EMD, 0?2" in done.stdout


def test_failed_write_is_reported_once_and_clean_up_can_print() -> None:
    with _Output(open("/dev/full", "wb"), write_through=True) as output:
        with pytest.raises(StorageError, match="standard output: the disk is full"):
            print("a", file=output, flush=True)
        print("b", file=output, flush=True)


def run(
    arguments: list[str], variables: dict[str, str] | None = None, **streams: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "orchestrator", *arguments],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        cwd=PROJECT,
        env={**os.environ, **(variables or {})},
        text=True,
        timeout=60,
        check=False,
    )


def test_messages_are_shortened() -> None:
    assert shortened("a b\nc") == "a b\nc"
    assert len(shortened(LONG)) <= 300
    assert len(shortened("word " * 5000)) < 2100
    lines = shortened("line\n" * 50).splitlines()
    assert lines[-1] == "and 30 more"
    assert len(lines) == 21
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
