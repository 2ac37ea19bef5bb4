"""The command line. Exit codes: 0 all ok, 1 some run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.errors import InputError
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from orchestrator.store import SweepPaths, claimed
from orchestrator.sweep import Sweep, load_sweep

app = typer.Typer(
    name="orchestrator",
    help="Train one model in every way that training can be split, and compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="SHARDYARD_DATA", help="Where datasets lie, and are downloaded to."),
]


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="The sweep file.")] = Path("sweeps/quickstart.yml"),
    data_dir: DataDir = Path("data"),
    out: Annotated[Path | None, typer.Option(help="Results directory; default: results/NAME.")] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            envvar="SHARDYARD_RUNTIME",
            help="docker or local: where nodes run; default: docker where an engine answers.",
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Node counts instead of the file's, e.g. 1,2,4.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Fix a field in all runs.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print runs and plans, start nothing.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")
    ] = False,
) -> None:
    """Run a sweep file's runs and write their comparison. Run again, it goes on where it stopped."""
    loaded = load_sweep(file, sets or (), nodes)
    paths = SweepPaths(out or Path("results") / loaded.spec.name)
    choice = _runtime(runtime) if runtime else _default_runtime()
    if dry_run:
        _print_plan(loaded, paths, choice.place, data_dir)
        return
    console = plain_console()
    with claimed(paths), interruptible():
        code = _carry_out(loaded, paths, choice, data_dir, fail_fast, console)
    raise typer.Exit(code)


@dataclass(frozen=True)
class Choice:
    """A runtime, and why it is this one."""

    name: str
    place: Runtime
    reason: str


def _carry_out(
    loaded: Sweep,
    paths: SweepPaths,
    choice: Choice,
    data_dir: Path,
    fail_fast: bool,
    console: Console,
) -> int:
    from orchestrator.display import display_on
    from orchestrator.runner import Runner

    if removed := choice.place.clean():
        console.print(f"removed {removed} thing(s) that an orchestrator had left behind")
    total = len(loaded.runs)
    console.print(f"{loaded.spec.name}: {total} runs, results in {paths.directory}/")
    console.print(f"nodes are {choice.place.summary()} ({choice.reason})")
    results = []
    try:
        with display_on(console, total) as display:
            runner = Runner(choice.place, choice.name, paths, data_dir, display)
            runner.prepare(loaded)
            for result in runner.results(loaded):
                results.append(result)
                if fail_fast and result.status != "ok":
                    break
    except KeyboardInterrupt:
        console.print(f"\ninterrupted after {len(results)} of {total} runs; everything is stopped")
        console.print("the same command goes on where it stopped")
        if results:
            _report(paths, console)
        return 130
    except InputError:
        if results:  # what is done is done, whatever keeps the rest from running
            _report(paths, console)
        raise
    _report(paths, console)
    failed = [result for result in results if result.status != "ok"]
    for result in failed:
        console.print(f"{result.status}: {result.key}: {result.cause}")
    console.print(f"{len(results) - len(failed)} of {total} runs ok, {len(failed)} not")
    return 1 if failed else 0


def _report(paths: SweepPaths, console: Console) -> None:
    from orchestrator.report import write_report

    write_report(paths)
    console.print(f"report: {paths.html}")


def _runtime(name: str) -> Choice:
    from pydantic_core import PydanticCustomError

    try:
        place = RUNTIMES.load(name)()
    except PydanticCustomError as error:
        raise InputError(f"--runtime {name}: {error}") from error
    if reason := place.unavailable():
        raise InputError(f"--runtime {name}: {reason}")
    return Choice(name, place, f"--runtime {name}")


def _default_runtime() -> Choice:
    """Containers where an engine answers, else local processes."""
    containers = RUNTIMES.load("docker")()
    if reason := containers.unavailable():
        return Choice("local", _runtime("local").place, reason)
    return Choice("docker", containers, "an engine answers; --runtime local for processes")


def _print_plan(loaded: Sweep, paths: SweepPaths, place: Runtime, data_dir: Path) -> None:
    from orchestrator.report.labels import Shape
    from orchestrator.topology import plan

    for number, run in enumerate(loaded.runs, start=1):
        described = place.describe(plan(run), paths.run(run.key), data_dir)
        print(f"[{number}/{len(loaded.runs)}] {run.key}: {Shape.of(run).short} × {described['topology']}")
        print(f"  spec: {json.dumps(run.canonical())}")
        for process in described["processes"]:
            print(f"  {process['name']}: {' '.join(process['argv'])}")
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


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A results directory.")] = Path("results/quickstart"),
) -> None:
    """Write the report of a results directory again, from its files alone."""
    _report(SweepPaths(directory), plain_console())


@app.command()
def partitions(
    dataset: Annotated[str, typer.Option(help="Name, or YAML with parameters.")] = "digits",
    nodes: Annotated[int, typer.Option(help="Nodes, or ranks where nodes are to have several.")] = 4,
    partitioner: Annotated[
        list[str] | None,
        typer.Option(help="Name, or YAML such as '{name: ..., parameter: ...}'; repeatable. Default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the runs that would train on it.")] = 0,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="Directory for partitions.csv, labels.csv and labels.svg.")
    ] = None,
) -> None:
    """Show how partitioners split a dataset: what runs of this seed train on, without training."""
    from orchestrator.partitions import draw, runs_of, write_files
    from orchestrator.split_table import LEGEND, heading, label_lines, summary_lines

    console = plain_console()
    drawn = list(draw(runs_of(dataset, nodes, partitioner or (), seed), data_dir))
    tables = [[heading(drawn)], [*summary_lines(drawn, console.width), "", *LEGEND]]
    tables += [lines for item in drawn if (lines := label_lines(item, console.width))]
    console.print("\n\n".join("\n".join(lines) for lines in tables))
    for path in write_files(drawn, out) if out else ():
        console.print(f"wrote {path}")
    if any(item.survey is None for item in drawn):
        raise typer.Exit(1)


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name, or YAML with parameters.")],
    dataset: Annotated[str, typer.Option(help="Whose shape the images have.")] = "fashion_mnist",
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 32,
    parts: Annotated[str | None, typer.Option(help="To cut it into; default: 2,3,4.")] = None,
) -> None:
    """Measure a model's blocks, and propose where to cut it. Takes no data."""
    from orchestrator.model_table import pages

    for page in pages(name, dataset, batch_size, parts, plain_console().width):
        print(page, flush=True)


@app.command()
def doctor(data_dir: DataDir = Path("data")) -> None:
    """Say what can run here, and why not what cannot."""
    from orchestrator.doctor import examine

    findings = list(examine(data_dir))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    for finding in findings:
        mark = Text(finding.verdict, style=colours[finding.verdict])
        table.add_row(mark, Text(finding.subject), Text(finding.detail))
    plain_console().print(table, soft_wrap=False)
    if any(finding.required and finding.verdict == "missing" for finding in findings):
        raise typer.Exit(1)


@app.command()
def image(
    wheels: Annotated[
        Path | None, typer.Option(help="A directory of wheels to prefer; default: pip's find-links.")
    ] = None,
) -> None:
    """Build the trainer image, of which every container is started."""
    from orchestrator.engine import reach
    from orchestrator.image import build

    if wheels and not wheels.is_dir():
        raise InputError(f"--wheels {wheels}: no such directory")
    raise typer.Exit(build(reach(), wheels))


@app.command()
def clean() -> None:
    """Remove processes, containers and networks that an orchestrator which is gone has left behind."""
    count = sum(RUNTIMES.load(name)().clean() for name in RUNTIMES.entries)
    print(f"removed {count} process(es), container(s) and network(s)")


@app.command()
def schema(directory: Annotated[Path, typer.Argument(help="Where to write.")] = Path("schemas")) -> None:
    """Write the JSON Schemas of runs and sweep files."""
    from orchestrator.schema import write_schemas

    for path in write_schemas(directory):
        print(path)


def main() -> None:
    """Run the command line; what a user can mend is one message and exit code 2, never a traceback."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
