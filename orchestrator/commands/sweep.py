"""A sweep from its runs to its report: where they run, who is told, and what an interruption leaves."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pydantic_core import PydanticCustomError
from rich.console import Console

from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from orchestrator.sweeps.load import Sweep

INTERRUPTED = 130  # the exit code


@dataclass(frozen=True)
class Choice:
    """A runtime, and why it is this one."""

    name: str
    place: Runtime
    reason: str


def run_sweep(
    loaded: Sweep,
    paths: SweepPaths,
    choice: Choice,
    data_dir: Path,
    fail_fast: bool,
    console: Console,
) -> int:
    """Run what is not done yet and write the report; the exit code, 0 where all runs are ok."""
    from orchestrator.execution.progress import progress_on
    from orchestrator.execution.sweep_runner import SweepRunner

    if removed := choice.place.clean():
        console.print(f"removed {removed} thing(s) that an orchestrator had left behind")
    total = len(loaded.runs)
    console.print(f"{loaded.spec.name}: {total} runs, results in {paths.directory}/")
    console.print(f"nodes are {choice.place.node_kind()} ({choice.reason})")
    results = []
    try:
        with progress_on(console, total) as display:
            runner = SweepRunner(choice.place, choice.name, paths, data_dir, display)
            runner.prepare(loaded)
            for result in runner.results(loaded):
                results.append(result)
                if fail_fast and result.status != "ok":
                    break
    except KeyboardInterrupt:
        console.print(f"\ninterrupted after {len(results)} of {total} runs; everything is stopped")
        console.print("the same command goes on where it stopped")
        if results:
            report_on(paths, console)
        return INTERRUPTED
    except InputError:
        if results:  # what is done is done, whatever keeps the rest from running
            report_on(paths, console)
        raise
    report_on(paths, console)
    failed = [result for result in results if result.status != "ok"]
    for result in failed:
        console.print(f"{result.status}: {result.key}: {result.cause}")
    console.print(f"{len(results) - len(failed)} of {total} runs ok, {len(failed)} not")
    return 1 if failed else 0


def report_on(paths: SweepPaths, console: Console) -> None:
    """Write the report of a results directory, and say where it is."""
    from orchestrator.report import write_report

    write_report(paths)
    console.print(f"report: {paths.html}")


def choose(name: str | None) -> Choice:
    """The runtime of this name; None: the first of the registry that is available. Raises InputError."""
    if name is None:
        return _first_available()
    try:
        place = RUNTIMES.load(name)()
    except PydanticCustomError as error:
        raise InputError(f"--runtime {name}: {error}") from error
    if reason := place.unavailable_reason():
        raise InputError(f"--runtime {name}: {reason}")
    return Choice(name, place, f"--runtime {name}")


def _first_available() -> Choice:
    reasons: dict[str, str] = {}
    for name in RUNTIMES.entries:
        runtime = RUNTIMES.load(name)()
        reason = runtime.unavailable_reason()
        if reason is None:
            others = " or ".join(f"--runtime {other}" for other in RUNTIMES.entries if other != name)
            return Choice(name, runtime, "; ".join(reasons.values()) or f"default; {others} to change")
        reasons[name] = reason
    lines = [f"{name}: {reason}" for name, reason in reasons.items()]
    raise InputError("\n".join(["no runtime is available", *lines]))


def print_plan(loaded: Sweep, paths: SweepPaths, place: Runtime, data_dir: Path) -> None:
    """The runs and what would be started for each."""
    from orchestrator.report.model.labels import ClusterShape

    for number, run in enumerate(loaded.runs, start=1):
        plan = place.plan(run, paths.run(run.key), data_dir)
        shape = ClusterShape.of(run).short
        print(f"[{number}/{len(loaded.runs)}] {run.key}: {shape} × {run.topology}")
        print(f"  spec: {json.dumps(run.canonical())}")
        for process in plan.processes:
            print(f"  {process.name}: {shlex.join(process.argv)}")
    print(f"{len(loaded.runs)} runs; nothing was started")


def plain_console(file: TextIO | None = None) -> Console:
    """A console that shows text as it is: `[red]` in a path is no colour and `:ok:` no picture."""
    return Console(file=file, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, a closed terminal and `kill` all stop a sweep the same way, once."""

    def interrupt(*_: Any) -> NoReturn:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not break the cleaning up
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
