"""Mistakes of commands before nodes start: signals, the runtime, plans, tracebacks, exit codes."""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

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
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.sweeps.load import load_sweep
from orchestrator.terminal import _Output
from tests.unit.conftest import PROJECT, run_result
from tests.unit.golden import GOLDEN, assert_reviewed

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


# Help

MOST_LINES = 45


def test_help_of_every_command_fits_a_screen_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def pages(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        done = CliRunner().invoke(cli.app, [*path, "--help"])
        yield path, done.output.splitlines()
        for name, command in getattr(group, "commands", {}).items():
            yield from pages(command, (*path, name))

    monkeypatch.setenv("COLUMNS", "80")
    found = dict(pages(typer.main.get_command(cli.app)))
    assert ("course", "grade") in found
    assert {path: len(lines) for path, lines in found.items() if len(lines) > MOST_LINES} == {}
    assert not any(len(line) > 80 or "…" in line for lines in found.values() for line in lines)


# The runtime


@pytest.mark.parametrize(
    ("engine", "option", "of_file", "name", "reason"),
    [
        (None, None, None, "docker", "default; also here: --runtime local, "),
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
    lacks(monkeypatch, docker=engine, slurm="no slurm.conf")
    spec = load_sweep(Path("s.yml"), text=f"{SERIAL}\nruntime: {of_file or 'null'}").spec
    selection = run_sweep.RuntimeSelection(option)
    if name is None:
        with pytest.raises(InputError, match=f"^{reason}"):
            selection.of(spec)
    else:
        selected = selection.of(spec)
        assert (selected.name, type(selected.runtime)) == (name, RUNTIMES.load(name))
        assert selected.reason.startswith(reason)
        assert "slurm" not in selected.reason


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


def test_verdicts_and_the_path_of_a_report_are_printed_verbatim(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written("", ["Choose a[/b]:ok:."] * 5, [])
    monkeypatch.setattr("orchestrator.report.write_report", lambda paths: written)
    file, name = io.StringIO(), "long" * 40 + "[b]"
    run_sweep.publish_report(SweepPaths(Path(name)), run_sweep.text_console(file))
    *verdicts, more, path = file.getvalue().splitlines()
    assert verdicts == written.verdicts[:3]
    assert ("2 more workloads" in more, path) == (True, f"report: {name}/report.html")
    run_sweep.publish_report(SweepPaths(Path(name)), run_sweep.text_console(file), verdicts=False)
    assert file.getvalue().splitlines()[5:] == [path]  # the command asks for costs, as `calibrate`


def test_doctor_fails_if_a_required_finding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("mpi", "missing", "no")]
    monkeypatch.setattr(doctor, "examine", lambda data_dir: iter(findings))
    cli.doctor(Path())
    findings.append(Finding("torch", "missing", "make venv", required=True))
    with pytest.raises(typer.Exit):
        cli.doctor(Path())


def test_clean_counts_what_every_runtime_has_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(RUNTIMES.entries):
        monkeypatch.setattr(RUNTIMES.load(name), "clean", lambda self, number=number: 2**number)
    cli.clean()
    assert capsys.readouterr().out.startswith(f"removed {2 ** len(RUNTIMES.entries) - 1} process")


# What commands pass on, and how sweeps end. `make golden` writes all but the first lines of these texts.


def check_golden(name: str, describe: Callable[[str], Iterator[str]]) -> None:
    """Compare the blocks of a text with the lines that follow from their first ones."""
    firsts = [block.partition("\n")[0] for block in (GOLDEN / name).read_text().split("\n\n")]
    assert_reviewed(name, "\n\n".join("\n".join([first, *describe(first)]) for first in firsts) + "\n")


class CalledError(Exception):
    """The function was called that does the work of a command."""


def test_options_reach_the_functions_that_they_are_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def arguments(line: str) -> Iterator[str]:
        command, _, function = line.partition(" -> ")
        module, _, name = f"orchestrator.{function}".rpartition(".")
        signature = inspect.signature(getattr(import_module(module), name))
        with patch(f"orchestrator.{function}", side_effect=CalledError) as called, suppress(CalledError):
            cli.app(command.split(), standalone_mode=False)
        bound = signature.bind(*called.call_args.args, **called.call_args.kwargs)
        for option, value in bound.arguments.items():
            if isinstance(value, run_sweep.SelectedRuntime):
                of = value.runtime
                yield f"  {option}: {value.name}, cold {of.cold}, shared network {of.shared_network}"
            elif option not in ("console", "cores", "imports", "loaded"):  # which the command makes
                yield f"  {option}: {repr(value).replace(f'{PROJECT}/', '')}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    check_golden("options.txt", arguments)


def test_a_sweep_says_how_it_ended_and_reports_what_has_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed, late = run_result("failed", log="node-0.log"), run_result("timeout")
    errors = {
        "refused": InputError("x"),
        "full": StorageError("x", "y"),
        "interrupted": KeyboardInterrupt(),
    }
    found: dict[str, Any] = {"ok": run_result(), "failed": failed, "timeout": late, **errors}
    selected = run_sweep.select_runtime("local")
    monkeypatch.setattr(RUNTIMES.load("local"), "clean", lambda self: 2)

    def lines(first: str) -> Iterator[str]:
        def results(*_: object) -> Iterator[RunResult]:
            for word in runs.split():
                if isinstance(each := found[word], BaseException):
                    raise each
                yield each

        def report(*_: object) -> list[str]:
            console.print("(report)")
            if "unreadable" in options:
                raise InputError("there is no record")
            return ["one", "other"] * ("unequal" in options)

        runs, _, options = first.partition(" with ")
        console = run_sweep.text_console(file := io.StringIO())
        runner = "orchestrator.execution.sweep_runner.SweepRunner"
        for name, stub in (
            (f"{runner}.prepare", lambda *_: None),
            (f"{runner}.warm_up", lambda *_: console.print("(warm-up run)")),
            (f"{runner}.results", results),
            (
                f"{run_sweep.__name__}._followed",
                lambda *_: nullcontext(lambda: console.print("(after run)")),
            ),
            (f"{run_sweep.__name__}.publish_report", report),
            (f"{run_sweep.__name__}.memory_warning", lambda *_: options if "memory" in options else None),
            (f"{run_sweep.__name__}.unconfined_code", lambda *_: options if "code" in options else None),
        ):
            monkeypatch.setattr(name, stub)
        how = run_sweep.HowToRun("fail-fast" in options, "no warm-up" not in options, "strict" in options)
        loaded = load_sweep(Path("s.yml"), text=SERIAL, repeat=3)
        arguments = loaded, SweepPaths(tmp_path), selected, tmp_path, console, how
        try:
            end = f"exit code {run_sweep.run_sweep(*arguments)}"
        except (InputError, StorageError) as error:
            end = repr(error)
        yield from (line or "." for line in file.getvalue().replace(str(tmp_path), "OUT").splitlines())
        yield end

    check_golden("endings.txt", lines)


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


def test_bad_usage_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def message(line: str) -> Iterator[str]:
        for name, text in (("LONG", "x" * 5000), ("NINES", "9" * 5000), ("NO-UTF-8", "\udcff")):
            line = line.replace(name, text)
        monkeypatch.setattr(sys, "argv", ["orchestrator", *shlex.split(line)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        text = capsys.readouterr().err
        assert (caught.value.code, text.count("\n"), len(text) < 1200) == (2, 1, True), text
        text = re.sub(r"\(see [^()]*orchestrator", "(see orchestrator", text.rstrip())  # as it was started
        yield re.sub("(known|shipped): .*|(allowed): .{120,}", r"\1\2: …", text)

    lacks(monkeypatch, docker="there is no engine")  # the SDK leaves a socket open where there is none
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.commands.options.run_sweep", Mock(side_effect=CalledError))
    check_golden("mistakes.txt", message)


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
