"""Mistakes of commands before nodes start: signals, the runtime, plans, tracebacks, exit codes."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.commands import doctor
from orchestrator.commands import sweep as run_sweep
from orchestrator.commands.doctor import Finding
from orchestrator.errors import InputError, StorageError
from orchestrator.execution.order import execution_order
from orchestrator.interrupts import SIGNALS, interruptible
from orchestrator.report import Written
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from orchestrator.sweeps.load import load_sweep
from orchestrator.terminal import _Output
from tests.unit.conftest import PROJECT

SERIAL = "name: s\nblocks: [{base: {strategy: serial}}]"


def lacks(monkeypatch: pytest.MonkeyPatch, **reasons: str | None) -> None:
    """Why runtimes are not available; None if one is."""
    for name, reason in reasons.items():
        monkeypatch.setattr(RUNTIMES.load(name), "unavailable_reason", lambda self, reason=reason: reason)


# Signals


@pytest.fixture
def heeded() -> Iterator[None]:
    """The signals are not ignored, as they are if the tests run in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
def test_a_signal_interrupts_once_and_neither_during_cleanup_nor_if_it_was_ignored() -> None:
    for number in SIGNALS:
        cleaned = False
        with pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012
            try:
                os.kill(os.getpid(), number)
                pytest.fail("was not interrupted")
            finally:
                for each in SIGNALS:
                    os.kill(os.getpid(), each)
                cleaned = True
        assert cleaned
        assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by `nohup`
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


# The runtime


@pytest.mark.parametrize(
    ("engine", "option", "of_file", "name", "reason"),
    [
        (None, None, None, "docker", "default; alternative: --runtime local"),
        ("no engine", None, None, "local", "no engine"),
        (None, "local", "virtual", "local", "--runtime local"),
        (None, None, "virtual", "virtual", "the sweep file has runtime: virtual"),
        ("no engine", "docker", None, None, "--runtime docker: no engine"),
        ("no engine", None, "docker", None, "the sweep file has runtime: docker: no engine"),
        (None, "nomad", None, None, "--runtime nomad: unknown runtime; known: docker, local"),
    ],
)
def test_the_option_the_file_or_the_first_available_names_the_runtime(
    monkeypatch: pytest.MonkeyPatch, engine: str | None, option: Any, of_file: Any, name: Any, reason: str
) -> None:
    lacks(monkeypatch, docker=engine)
    spec = load_sweep(Path("s.yml"), text=f"{SERIAL}\nruntime: {of_file or 'null'}").spec
    selection = run_sweep.RuntimeSelection(option)
    if name is None:
        with pytest.raises(InputError, match=f"^{reason}"):
            selection.of(spec)
    else:
        selected = selection.of(spec)
        assert (selected.name, type(selected.runtime)) == (name, RUNTIMES.load(name))
        assert selected.reason.startswith(reason)


def test_equal_quotas_share_the_cores_of_the_machines_that_the_file_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SwarmRuntime, "cores", lambda self: 2.0 if self.options.constraints else 6.0)
    selected = run_sweep.SelectedRuntime("swarm", SwarmRuntime(), "")
    options = "swarm: {constraints: [node.labels.rack==3]}"
    text = f"name: s\n{options}\nblocks: [{{base: {{strategy: serial, cpus: equal}}}}]"
    loaded = load_sweep(Path("s.yml"), text=text, cores=selected.shared_cores)
    assert loaded.equal_cpus is not None
    assert loaded.equal_cpus.cores == 2.0


def test_code_that_no_container_confines_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loaded, local = load_sweep(Path("s.yml"), text=SERIAL), run_sweep.select_runtime("local")
    assert run_sweep.unconfined_code(loaded, local.runtime) is None
    monkeypatch.setattr(run_sweep, "is_imported", lambda run, field: field == "model")
    assert run_sweep.unconfined_code(loaded, RUNTIMES.load("docker")()) is None
    named = f"code of {loaded.runs[0].name_of('model')} runs with your rights"
    run_sweep.print_plan(loaded, SweepPaths(tmp_path), local, tmp_path)
    assert capsys.readouterr().out.startswith(named)


# What is printed


def swept(
    monkeypatch: pytest.MonkeyPatch, out: Path, unequal: Sequence[str], strict: bool
) -> tuple[int, str]:
    """The exit code of a sweep without runs, and what it prints."""
    runner = "orchestrator.execution.sweep_runner.SweepRunner"
    monkeypatch.setattr(f"{runner}.prepare", lambda self, loaded: None)
    monkeypatch.setattr(f"{runner}.results", lambda self, loaded: iter(()))
    monkeypatch.setattr(RUNTIMES.load("local"), "clean", lambda self: 2)
    monkeypatch.setattr(run_sweep, "publish_report", lambda paths, console: unequal)
    loaded, how = (
        load_sweep(Path("s.yml"), text=SERIAL),
        run_sweep.HowToRun(warm_up_run=False, strict=strict),
    )
    selected, file = run_sweep.select_runtime("local"), io.StringIO()
    console = run_sweep.text_console(file)
    return run_sweep.run_sweep(loaded, SweepPaths(out), selected, out, console, how), file.getvalue()


def test_a_sweep_shows_its_runtime_and_fails_if_unequal_conditions_are_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = swept(monkeypatch, tmp_path, ["one", "other"], strict=False)
    assert (code, "unequal" in text) == (0, False)
    assert "removed 2 leftover(s)" in text
    assert "nodes are local processes (--runtime local)\n" in text
    code, text = swept(monkeypatch, tmp_path, ["one", "other"], strict=True)
    assert (code, "unequal conditions: one\nunequal conditions: other\n" in text) == (1, True)
    assert swept(monkeypatch, tmp_path, [], strict=True)[0] == 0


def test_verdicts_and_the_path_of_a_report_are_printed_verbatim(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written("", ["Choose a[/b]:ok:."] * 5, [])
    monkeypatch.setattr("orchestrator.report.write_report", lambda paths: written)
    file, name = io.StringIO(), "long" * 40 + "[b]"
    run_sweep.publish_report(SweepPaths(Path(name)), run_sweep.text_console(file))
    *verdicts, more, path = file.getvalue().splitlines()
    assert verdicts == written.verdicts[:3]
    assert ("2 more workloads" in more, path) == (True, f"report: {name}/report.html")


def test_doctor_fails_if_a_required_finding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("mpi", "missing", "no")]
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter(findings))
    cli.doctor(Path())
    findings.append(Finding("torch", "missing", "make venv", required=True))
    with pytest.raises(typer.Exit):
        cli.doctor(Path())


# Plans


def test_a_run_that_memory_may_not_suffice_for_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for runtime, strategy, gib, warned in (
        ("local", "ddp", 20, True),
        ("local", "ddp", 500, False),
        ("local", "one_shot, transport: memory", 20, False),  # its ranks are threads
        ("slurm", "ddp", 20, False),  # its nodes are other machines
    ):
        monkeypatch.setattr(run_sweep, "memory_free", lambda gib=gib: gib * 2**30)
        text = f"name: s\nblocks: [{{base: {{strategy: {strategy}}}, axes: {{nodes: [2, 600]}}}}]"
        loaded = load_sweep(Path("s.yml"), text=text)
        found = run_sweep.memory_warning(loaded, RUNTIMES.load(runtime)())
        assert ({"600", "28", "20.0"} <= {*re.findall(r"[\d.]+", found or "")}) == warned


def planned(tmp_path: Path, text: str, *options: str) -> list[str]:
    (tmp_path / "s.yml").write_text(text)
    done = CliRunner().invoke(cli.app, ["sweep", str(tmp_path / "s.yml"), "--dry-run", *options])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_dry_run_prints_the_order_of_execution_and_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_sweep, "memory_free", lambda: 0)
    text = "name: s\nblocks: [{base: {strategy: ddp}, axes: {nodes: [1, 2, 3, 4, 5]}}]"
    warning, *lines, _ = planned(tmp_path, text, "--runtime", "local", "--shared-network", "--repeat", "2")
    assert warning.startswith("warning: ")
    expected = execution_order("s", [load_sweep(tmp_path / "s.yml", repeat=2).runs])
    starts = [f"[{number}/10] {run.key}:" for number, run in enumerate(expected, start=1)]
    assert [line.partition(": ")[0] + ":" for line in lines] == starts


def test_dry_run_shows_options_of_the_runtime_and_what_they_exclude(tmp_path: Path) -> None:
    block = "{base: {strategy: all_reduce, transport: gloo}, axes: {nodes: [2, 4]}}"
    text = f"name: s\nruntime: virtual\nvirtual: {{workers: 9999}}\nblocks: [{block}]"
    first, *_, refused, last = planned(tmp_path, text)
    assert first == 'virtual: {"workers": 9999}'
    assert refused.startswith("2 runs cannot be executed here, all_reduce-gloo-n2")
    assert "virtual.workers is 9999; allowed: 1 to " in refused
    assert last == "2 runs planned; nothing was started"


# Bad input, and outputs that cannot be written


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["sweep", "--node", "2"], ["no such option: --node (did you mean '--nodes'?)"]),
        (["run", "ddp", "--transport", "gloo"], ["--transport", "--set transport=VALUE"]),
        (["check", "dirichlet", "--lr", "1"], ["no such option: --lr"]),  # has no --set
        (["swep"], ["swep", "'sweep'"]),
        (["partitions", "--nodes", "x"], ["--nodes: 'x'", "a whole number"]),
        (["sweep", "--out", ""], ["--out: ''", "the path of a directory"]),
        (["sweep", "--out", "r\udcff"], ["--out", "UTF-8"]),
        (["labs", "--data-dir", "x" * 5000], ["--data-dir", "shorter"]),
        (["sweep", "quikstart"], ["did you mean 'quickstart'?"]),
        (["sweep", "--set", "epoch=3"], ["did you mean 'epochs'?"]),
        (["sweep", "--runtime", "docker"], ["--runtime docker: there is no engine"]),
        (["sweep", "--runtime", "local", "--set", "cpus=equal"], ["--set cpus=equal", "--runtime docker"]),
        (["schema", "/dev/null"], ["/dev/null", "another DIRECTORY"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    facts: list[str],
) -> None:
    lacks(monkeypatch, docker="there is no engine")  # the SDK leaves a socket open where there is none
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
