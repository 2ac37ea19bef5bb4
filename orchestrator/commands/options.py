"""Options of commands. What several commands take is written here once: flag, type, help and group.

A command that has a record as a parameter takes every field of the record as an option (`with_records`).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from orchestrator.commands.sweep import (
    HowToRun,
    RuntimeSelection,
    SelectedRuntime,
    print_plan,
    run_sweep,
    select_runtime,
    text_console,
)
from orchestrator.course import Visibility
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths, claimed
from orchestrator.runtimes import RUNTIMES
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.load import Sweep
from orchestrator.sweeps.trials import MakeSandbox
from trainer.core.whole_number import whole_number

MAX_PORT = 65535
# Groups of options in help; the others are in none.
WHERE, HOW = "Where", "How"


def option(text: str, *flags: str, takes: str | None = None, group: str | None = None, **more: Any) -> Any:
    """An option.

    Args:
        text: its help.
        flags: its names; default: that of its parameter.
        takes: what help calls its value; default: its type.
        group: the group of options in help.
        more: see `typer.Option`.
    """
    return typer.Option(*flags, help=text, metavar=takes, rich_help_panel=group, show_envvar=False, **more)


def flag(text: str, *flags: str, group: str | None = None) -> Any:
    """An option without a value."""
    return option(text, *flags, takes="", group=group)


def place(text: str, *flags: str, takes: str = "DIRECTORY", group: str | None = None, **more: Any) -> Any:
    """An option whose value is a path."""
    return option(text, *flags, takes=takes, group=group, parser=path, **more)


def place_argument(text: str, takes: str = "DIRECTORY") -> Any:
    """An argument that is a path."""
    return typer.Argument(parser=path, metavar=takes, help=text)


def path(text: str | Path) -> Path:
    """A path on the command line; nodes get it as UTF-8."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError("Input should be valid UTF-8") from None
    return any_path(text)


def any_path(text: str | Path) -> Path:
    """A path on the command line, in any encoding. An empty one would be the current directory."""
    if not str(text):
        raise ValueError("Input should be the path of a directory")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError(
                "Input should be shorter: the file system has no names of this length"
            ) from None
    return Path(text)


def port_number(text: str | int) -> int:
    """The number of a port; 0 stands for any free one."""
    found = whole_number(str(text), MAX_PORT)
    if found is None:
        raise ValueError(f"Input should be 0 to {MAX_PORT}")
    return found


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of the dataclasses among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def options() -> Iterator[Parameter]:
        for name, parameter in signature(command).parameters.items():
            if name not in records:
                yield parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
        for record in records.values():
            of_fields = get_type_hints(record, include_extras=True)
            for each in fields(record):
                hint = of_fields[each.name]
                yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hint)

    @wraps(command)
    def expanded(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{each.name: given.pop(each.name) for each in fields(record)})
        command(**given)

    expanded.__signature__ = signature(command).replace(parameters=[*options()])  # type: ignore[attr-defined]
    return expanded


*_FIRST, _LAST = RUNTIMES.entries
ALL_RUNTIMES = f"{', '.join(_FIRST)} or {_LAST}"
OF_RUNTIME: dict[str, Any] = {"group": WHERE, "envvar": "SHARDYARD_RUNTIME"}

DataDir = Annotated[
    Path, place("Datasets, downloaded if missing.", "--data-dir", group=WHERE, envvar="SHARDYARD_DATA")
]
Out = Annotated[Path | None, place("Results. Default: below results/.", group=WHERE)]
Runtime = Annotated[
    str | None,
    option(f"{ALL_RUNTIMES}. Default: the file's, or an available one.", takes="NAME", **OF_RUNTIME),
]
TriedBy = Annotated[
    str | None, option("Tries your own code. Default: an available one.", takes="NAME", **OF_RUNTIME)
]
SharedNetwork = Annotated[
    bool, flag("Nodes use this machine's network: open to local users.", "--shared-network", group=WHERE)
]
Cold = Annotated[bool, flag("Start all processes afresh for every run.", "--cold", group=WHERE)]
Nodes = Annotated[str | None, option("Node counts in place of the file's: 1,2,4.", takes="COUNTS")]
Sets = Annotated[
    list[str] | None, option("A field of all runs: epochs=5. Repeatable.", "--set", takes="KEY=VALUE")
]
Repeat = Annotated[int | None, option("Runs of each configuration, one per seed.", takes="N")]
Strict = Annotated[bool, flag("Fail if compared conditions are unequal.", "--strict", group=HOW)]
Port = Annotated[
    int, option("Port of the page; 0: any free one.", takes="N", group=HOW, parser=port_number)
]
AsJson = Annotated[bool, flag("Print JSON.", "--json")]
Results = Annotated[Path, place_argument("A results directory.")]


@dataclass(frozen=True)
class RunOptions:
    """What every command that runs sweeps takes: `sweep`, `run` and `lab`."""

    sets: Sets = None
    repeat: Repeat = None
    out: Out = None
    data_dir: DataDir = Path("data")
    runtime: Runtime = None
    shared_network: SharedNetwork = False
    cold: Cold = False
    watch: Annotated[bool, flag("Serve a page that follows the sweep.", "--watch", group=HOW)] = False
    port: Port = 0
    dry_run: Annotated[bool, flag("Print the runs, start nothing.", "--dry-run", group=HOW)] = False
    verbose: Annotated[
        bool, flag("With --dry-run: also fields and commands.", "--verbose", "-v", group=HOW)
    ] = False
    fail_fast: Annotated[bool, flag("Stop after the first failed run.", "--fail-fast", group=HOW)] = False
    strict: Strict = False
    no_warm_up_run: Annotated[
        bool, flag("Leave out the short run before the first one.", "--no-warm-up-run", group=HOW)
    ] = False

    def __post_init__(self) -> None:
        if self.port and not self.watch:
            raise InputError(f"--port {self.port}: needs --watch")

    @cached_property
    def selection(self) -> RuntimeSelection:
        """The runtime of each sweep that the command runs."""
        return RuntimeSelection(self.runtime, self.cold, self.shared_network)

    def execute(
        self, loaded: Sweep, directory: Path, warm_up_run: bool = True, verdicts: bool = True
    ) -> int:
        """Run a sweep, or print its plan. Returns the exit code.

        warm_up_run, verdicts: see `HowToRun`; an option leaves out the warm-up run, too.
        """
        selected, paths = self.selection.of(loaded.spec), SweepPaths(directory)
        if self.dry_run:
            print_plan(loaded, paths, selected, self.data_dir, self.verbose)
            return 0
        warm_up_run = warm_up_run and not self.no_warm_up_run
        port = self.port if self.watch else None
        how = HowToRun(self.fail_fast, warm_up_run, self.strict, port, verdicts)
        with claimed(paths):
            return run_sweep(loaded, paths, selected, self.data_dir, text_console(), how)


@dataclass(frozen=True)
class TrialOptions:
    """What commands take that try users' components, as a sweep does before its runs."""

    data_dir: DataDir = Path("data")
    runtime: TriedBy = None

    @cached_property
    def _selected(self) -> SelectedRuntime:
        found = select_runtime(self.runtime)
        if not found.runtime.confines:
            text_console(sys.stderr).print("your code runs with your rights; --runtime docker confines it")
        return found

    @property
    def sandbox(self) -> MakeSandbox:
        """The sandbox for users' code, as of sweeps. The runtime is selected when there is such code."""
        return lambda program: self._selected.runtime.sandbox(program)

    @property
    def imports(self) -> Imports:
        """What finds users' components."""
        return Imports(Path(), self.data_dir, self.sandbox)


@dataclass(frozen=True)
class GradeOptions:
    """How submissions are graded, and where that is written."""

    runtime: Annotated[
        str, option("docker: a container each. local: your rights, for code you trust.", takes="NAME")
    ] = "docker"
    jobs: Annotated[int | None, option("Graded at once. Default: cores.", takes="", min=1, max=256)] = None
    memory_mb: Annotated[int, option("MiB of each.", takes="", min=128, max=2**20)] = 1024
    processes: Annotated[int, option("Processes and threads of each.", takes="", min=32, max=2**15)] = 128
    as_json: AsJson = False
    csv_file: Annotated[Path | None, place("Also write a gradebook as CSV.", "--csv", takes="FILE")] = None
    results: Annotated[
        Path | None, place("Also results.json, of several each in a directory.", "--gradescope")
    ] = None
    visibility: Annotated[Visibility, option("When students see tests.", takes="NAME")] = "after_published"
    user: Annotated[str, option("With local, as root: run as this user.", takes="NAME")] = ""
