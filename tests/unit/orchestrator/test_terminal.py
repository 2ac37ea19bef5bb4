"""Mistakes in what the command line prints of bad input or to bad output: tracebacks, floods, silence."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.errors import StorageError
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.terminal import _Output, shortened
from tests.unit.conftest import PROJECT

LONG = "x" * 5000


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["sweep", "--node", "2"], ["no such option: --node (did you mean '--nodes'?)"]),
        (["run", "ddp", "--transport", "gloo"], ["--transport", "--set transport=VALUE"]),
        (["check", "dirichlet", "--lr", "1"], ["no such option: --lr"]),  # has no --set
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
    # The SDK leaves a socket open where there is no engine.
    monkeypatch.setattr(DockerRuntime, "unavailable_reason", lambda self: "there is no engine")
    monkeypatch.setattr(sys, "argv", ["orchestrator", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    text = capsys.readouterr().err
    assert (caught.value.code, text.startswith("error: "), text.count("\n")) == (2, True, 1)
    assert len(text) < 1000
    assert [fact for fact in facts if fact not in text] == []
    assert ("--set" in text) == any("--set" in each for each in (*arguments, *facts))


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
