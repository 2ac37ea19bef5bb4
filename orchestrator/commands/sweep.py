"""The command `sweep`: select a runtime, run the sweep, report, and handle interruption."""

from __future__ import annotations

import json
import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import TextIO

from pydantic_core import PydanticCustomError
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.errors import InputError, StorageError
from orchestrator.results.environment import memory_free, ranks_fitting
from orchestrator.results.limits import counted
from orchestrator.results.store import SweepPaths
from orchestrator.results.times import duration, time_line
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from orchestrator.runtimes.launch_plan import ClusterPlan, Process
from orchestrator.sweeps.imports import FIELDS, Imports, is_imported
from orchestrator.sweeps.load import Sweep, SweepSpec
from orchestrator.sweeps.stages import Standing, configurations
from trainer.core.record import printable
from trainer.core.registry import shortened

INTERRUPTED = 130  # the exit code
MOST_VERDICTS = 3  # that are printed


@dataclass(frozen=True)
class SelectedRuntime:
    """A runtime, and why it was selected."""

    name: str
    runtime: Runtime
    reason: str

    def configure(self, spec: SweepSpec) -> None:
        """Give the runtime its options in a sweep file."""
        self.runtime.configure(spec.options_of(self.name) or self.runtime.Options())

    def imports(self, directory: Path, data_dir: Path) -> Imports:
        """What finds users' components of a sweep in `directory`, with the software of the nodes."""
        return Imports(directory, data_dir, self.runtime.sandbox)

    def shared_cores(self) -> float:
        """The cores that quotas can divide among the nodes of a run.

        Raises InputError if nodes have no quotas.
        """
        if not self.runtime.info.enforces_limits:
            enforcing = [name for name in RUNTIMES.entries if RUNTIMES.load(name).info.enforces_limits]
            raise InputError(
                f"runtime {self.name} cannot limit every node to a share of the cores; use --runtime "
                f"{' or '.join(enforcing)}, or a number"
            )
        return self.runtime.cores()


class RuntimeSelection:
    """The runtime of each sweep of a command: that of the option, else that of the file, else a default."""

    def __init__(self, option: str | None, cold: bool = False, shared_network: bool = False) -> None:
        """
        Args:
            option: the name after --runtime; None without it.
            cold, shared_network: as of the runtime.
        """
        self._select = cache(lambda of_file: select_runtime(option, cold, shared_network, of_file))

    def of(self, spec: SweepSpec | None = None) -> SelectedRuntime:
        """The runtime of a sweep file; None: of what is in no file. Raises InputError if not available."""
        return self._select(spec.runtime if spec else None)

    def shared_cores(self, spec: SweepSpec) -> float:
        """The cores that quotas can divide. Raises InputError, as `SelectedRuntime.shared_cores` does."""
        return self.of(spec).shared_cores()

    def imports(self, directory: Path, data_dir: Path) -> Callable[[SweepSpec], Imports]:
        """What finds users' components in `directory`; it selects a runtime when it meets the first."""
        return lambda spec: Imports(
            directory, data_dir, lambda program: self.of(spec).runtime.sandbox(program)
        )


@dataclass(frozen=True)
class HowToRun:
    """How the command runs a sweep.

    Attributes:
        fail_fast: whether it ends after the first run that failed.
        warm_up_run: whether it executes a short run before the first one, and drops its result.
        strict: whether unequal conditions are errors.
        watch_port: the port of a page that follows the sweep; 0: any free one; None: no page.
        verdicts: whether it prints those of the report.
    """

    fail_fast: bool = False
    warm_up_run: bool = True
    strict: bool = False
    watch_port: int | None = None
    verdicts: bool = True


@contextmanager
def _followed(paths: SweepPaths, port: int | None, console: Console) -> Iterator[Callable[[], None]]:
    """Serve a page that follows the sweep, if there is a port. Yields what to call after each run."""
    if port is None:
        yield lambda: None
        return
    from orchestrator.watch.growing_report import GrowingReport
    from orchestrator.watch.server import serve  # loads the server

    with serve(paths, port) as address:
        console.print(f"watch: {address}")
        yield GrowingReport(paths).after_run


def run_sweep(
    loaded: Sweep,
    paths: SweepPaths,
    selected: SelectedRuntime,
    data_dir: Path,
    console: Console,
    how: HowToRun = HowToRun(),
) -> int:
    """Execute the unfinished runs and write the report. Returns the exit code, 0 if all runs are ok."""
    from orchestrator.execution.clusters import Clusters
    from orchestrator.execution.progress import progress_on
    from orchestrator.execution.sweep_runner import SweepRunner
    from orchestrator.execution.until_decided import results_until_decided

    selected.configure(loaded.spec)
    if removed := selected.runtime.clean():
        console.print(f"removed {removed} leftover(s) of a sweep that was killed")
    total = len(loaded.runs)
    most = "at most " if loaded.until_decided else ""
    console.print(f"{loaded.spec.name}: {most}{counted(total, 'run')}, results in {paths.directory}/")
    if loaded.budget_s:
        console.print(
            f"budget: {duration(loaded.budget_s)} from the first run on; whatever it is, each of "
            f"{counted(len(configurations(loaded.runs)), 'configuration')} runs with one seed"
        )
    console.print(f"nodes are {selected.runtime.node_kind()} ({selected.reason})")
    for remark in remarks(loaded, selected.runtime):
        console.print(remark)
    with _followed(paths, how.watch_port, console) as after_run:
        results = []
        try:
            with (
                progress_on(console, total, loaded.until_decided) as display,
                Clusters(selected.runtime) as clusters,
            ):
                runner = SweepRunner(clusters, selected.name, paths, data_dir, display)
                runner.prepare(loaded)
                ends_at = time.monotonic() + (loaded.budget_s or inf)
                if how.warm_up_run:
                    runner.warm_up(loaded)
                staged = (
                    results_until_decided(
                        runner,
                        loaded,
                        display,
                        lambda: _standing(paths),
                        lambda: ends_at - time.monotonic(),
                    )
                    if loaded.until_decided
                    else None
                )
                for result in staged or runner.results(loaded):
                    results.append(result)
                    if how.fail_fast and result.status != "ok":
                        break
                    if len(results) < total:
                        after_run()
                if staged:
                    staged.close()  # records what was executed, also if it was left early
        except KeyboardInterrupt:
            console.print(f"\ninterrupted after {len(results)} of {total} runs; all nodes are stopped")
            console.print("run the same command to resume")
            if results:
                publish_report(paths, console, how.verdicts)
            return INTERRUPTED
        except InputError:
            if results:  # report the finished runs even if the rest cannot run
                publish_report(paths, console, how.verdicts)
            raise
        except StorageError:
            with suppress(
                OSError, InputError
            ):  # there may be no room for a report, or no record of the sweep
                publish_report(paths, console, how.verdicts)
            raise
        console.print(time_line(results))
        unequal = publish_report(paths, console, how.verdicts)
        failed = [result for result in results if result.status != "ok"]
        for result in failed:
            console.print(f"{result.status}: {result.key}: {result.cause}")
            directory = paths.run(result.key).directory
            console.print(f"  log: {directory / result.log}" if result.log else f"  logs: {directory}/")
        total = len(results) if loaded.until_decided and not how.fail_fast else total
        console.print(f"{len(results) - len(failed)} of {total} runs ok, {len(failed)} not")
        return 1 if failed or (how.strict and print_unequal(unequal, console)) else 0


def _standing(paths: SweepPaths) -> Standing:
    """What needs no more seeds, by the results so far."""
    from orchestrator.report.model.comparison import read_comparison
    from orchestrator.report.verdict.standing import standing

    return standing(read_comparison(paths))


def remarks(loaded: Sweep, runtime: Runtime) -> Iterator[str]:
    """What to know of a sweep before it starts."""
    if unconfined := unconfined_code(loaded, runtime):
        yield unconfined
    if loaded.equal_cpus:
        yield loaded.equal_cpus.label
    if little := memory_warning(loaded, runtime):
        yield f"warning: {little}"


def memory_warning(loaded: Sweep, runtime: Runtime) -> str | None:
    """That the sweep's largest run is unlikely to fit into the memory of this machine; None if it may."""
    separate = [run for run in loaded.runs if run.topology != "single"]  # else ranks share one process
    ranks = max((run.world_size for run in separate), default=0)
    free = memory_free()
    in_one_process = runtime.info.simulates_time
    if runtime.info.remote or in_one_process or ranks <= ranks_fitting(free):
        return None
    return (
        f"memory for about {counted(ranks_fitting(free), 'rank')} is free "
        f"({free / 2**30:.1f} GiB), and a run has {ranks}"
    )


def publish_report(paths: SweepPaths, console: Console, verdicts: bool = True) -> Sequence[str]:
    """Write the report of a results directory; print its path, and its verdicts if they are asked for.

    Returns lines on unequal conditions.
    """
    from orchestrator.report import write_report

    written = write_report(paths)
    if written.disturbed:
        console.print(written.disturbed)
    headlines = written.verdicts if verdicts else ()
    for headline in headlines[:MOST_VERDICTS]:
        console.print(headline)
    if (more := len(headlines) - MOST_VERDICTS) > 0:
        console.print(f"The report has the verdicts on {counted(more, 'more workload')}.")
    console.print(f"report: {paths.html}")
    return written.unequal


def print_unequal(unequal: Sequence[str], console: Console) -> bool:
    """Print each difference in conditions; whether there are any."""
    for line in unequal:
        console.print(f"unequal conditions: {line}")
    return bool(unequal)


def select_runtime(
    option: str | None, cold: bool = False, shared_network: bool = False, of_file: str | None = None
) -> SelectedRuntime:
    """The runtime of this name, else the one of a sweep file, else the first one available.

    Raises:
        InputError: it is unknown or not available.
    """
    name = of_file if option is None else option
    if name is None:
        return _first_available(cold, shared_network)
    where = f"the sweep file has runtime: {name}" if option is None else f"--runtime {name}"
    try:
        runtime = RUNTIMES.load(name)(cold, shared_network)
    except PydanticCustomError as error:
        raise InputError(f"{where}: {error}") from error
    if reason := runtime.unavailable_reason():
        raise InputError(f"{where}: {reason}")
    return SelectedRuntime(name, runtime, where)


def unconfined_code(loaded: Sweep, runtime: Runtime) -> str | None:
    """Whose code runs with the rights of the user of this command; None if no code of users does."""
    labels = {run.name_of(field) for run in loaded.runs for field in FIELDS if is_imported(run, field)}
    if runtime.confines or not labels:
        return None
    return f"code of {shortened(sorted(labels))} runs with your rights; --runtime docker confines it"


def _first_available(cold: bool, shared_network: bool) -> SelectedRuntime:
    reasons: dict[str, str] = {}
    for name in RUNTIMES.entries:
        runtime = RUNTIMES.load(name)(cold, shared_network)
        if reason := runtime.unavailable_reason():
            reasons[name] = reason
        else:
            return SelectedRuntime(name, runtime, "; ".join(reasons.values()) or _preferred(name))
    lines = [f"{name}: {reason}" for name, reason in reasons.items()]
    raise InputError("\n".join(["no runtime is available", *lines]))


def _preferred(name: str) -> str:
    """That a runtime is the default, and which others this machine has."""
    others = [each for each in RUNTIMES.entries if each != name]
    here = [each for each in others if RUNTIMES.load(each)().unavailable_reason() is None]
    return f"default; also here: --runtime {', '.join(here)}" if here else "default"


def print_plan(
    loaded: Sweep, paths: SweepPaths, selected: SelectedRuntime, data_dir: Path, verbose: bool = False
) -> None:
    """Print the runs in the order of their execution.

    verbose: also their fields, and the exact commands that each would start.
    """
    from orchestrator.execution.clusters import Clusters
    from orchestrator.execution.sweep_runner import in_order
    from orchestrator.report.model.labels import ClusterShape

    selected.configure(loaded.spec)
    runtime = selected.runtime
    for remark in remarks(loaded, runtime):
        text_console().print(remark)
    if options := runtime.options.model_dump(mode="json", exclude_defaults=True):
        print(f"{selected.name}: {json.dumps(options)}")
    runtime.check_together(loaded.runs, data_dir)
    clusters = Clusters(runtime)
    clusters.expect(loaded.runs)
    shared: list[ClusterPlan] = []
    for number, run in enumerate(in_order(loaded, runtime), start=1):
        plan = clusters.plan(run, paths.run(run.key), data_dir)
        if verbose and plan.cluster.shared and plan.cluster not in shared:
            shared.append(plan.cluster)
            print(f"cluster {len(shared)}, which several runs share:")
            _print_cluster(plan.cluster)
        shape = ClusterShape.of(run).short
        print(f"[{number}/{len(loaded.runs)}] {run.key}: {shape} × {run.topology}")
        if verbose:
            print(f"  spec: {json.dumps(run.canonical())}")
            if plan.cluster.shared:
                print(f"  on cluster {shared.index(plan.cluster) + 1}")
            else:
                _print_cluster(plan.cluster)
            _print_commands(plan.processes)
            if site := plan.site.model_dump(exclude_defaults=True):
                print(f"  agents: {json.dumps(site)}")
    refused: dict[str, list[str]] = {}
    for run in loaded.runs:
        if reason := runtime.refusal(run):
            refused.setdefault(reason, []).append(run.key)
    for reason, keys in refused.items():
        print(f"{counted(len(keys), 'run')} cannot be executed here, {keys[0]} first: {reason}")
    print(f"{counted(len(loaded.runs), 'run')} planned; nothing was started")


def _print_cluster(plan: ClusterPlan) -> None:
    """What is started, and what an engine is asked for."""
    _print_commands(plan.processes)
    for name, asked in plan.request.items():
        text = asked if isinstance(asked, str) else json.dumps(asked)
        print(textwrap.indent(text, "    ") if "\n" in text else f"  {name}: {text}")


def _print_commands(processes: Sequence[Process]) -> None:
    for process in processes:
        print(f"  {process.name}: {shlex.join(process.argv)}")


class _TextConsole(Console):
    """A console that prints what controls a terminal as visible escapes, whatever prints it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def text_console(file: TextIO | None = None) -> Console:
    """A console that prints text literally: no markup, no emoji, no highlighting."""
    return _TextConsole(file=file, markup=False, emoji=False, highlight=False, soft_wrap=True)
