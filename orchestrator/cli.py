"""The command line. Exit codes: 0 all ok, 1 some run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from orchestrator import __version__
from orchestrator.commands.sweep import (
    INTERRUPTED,
    Choice,
    choose,
    interruptible,
    plain_console,
    print_plan,
    report_on,
    run_sweep,
)
from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths, claimed, write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.shipped import find_sweep
from orchestrator.sweeps.load import Sweep, load_sweep

app = typer.Typer(
    name="shardyard",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="SHARDYARD_DATA", help="Where datasets lie, and are downloaded to."),
]


Runtime = Annotated[
    str | None,
    typer.Option(
        envvar="SHARDYARD_RUNTIME",
        help=f"Where nodes run: {' or '.join(RUNTIMES.entries)}. Default: the first one available.",
    ),
]
Nodes = Annotated[str | None, typer.Option(help="Node counts instead of the file's, e.g. 1,2,4.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Fix a field in all runs.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print runs and plans, start nothing.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shardyard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one model in every way that training can be split over nodes, and compare."""


@app.command()
def sweep(
    file: Annotated[
        str, typer.Argument(help="A sweep file, or the name of a shipped sweep.")
    ] = "quickstart",
    data_dir: DataDir = Path("data"),
    out: Annotated[Path | None, typer.Option(help="Results directory; default: results/NAME.")] = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    fail_fast: FailFast = False,
) -> None:
    """Run a sweep file's runs and write their comparison. Run again, it goes on where it stopped."""
    loaded = load_sweep(find_sweep(file), sets or (), nodes)
    directory = out or Path("results") / loaded.spec.name
    raise typer.Exit(_begin(loaded, directory, choose(runtime), data_dir, dry_run, fail_fast))


def _begin(
    loaded: Sweep, directory: Path, choice: Choice, data_dir: Path, dry_run: bool, fail_fast: bool
) -> int:
    """Carry a sweep out, or only say what that would be; the exit code."""
    paths = SweepPaths(directory)
    if dry_run:
        print_plan(loaded, paths, choice.place, data_dir)
        return 0
    with claimed(paths), interruptible():
        return run_sweep(loaded, paths, choice, data_dir, fail_fast, plain_console())


@app.command()
def labs(data_dir: DataDir = Path("data")) -> None:
    """List the published experiments that are reproduced here."""
    from orchestrator.commands.labs import listing

    for line in listing(data_dir, plain_console().width):
        print(line)


@app.command()
def lab(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="As `labs` has them.")
    ] = None,
    all_labs: Annotated[bool, typer.Option("--all", help="All of them, one after the other.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few epochs; on `digits` where the data is not there.")
    ] = False,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(help="Results go to a directory NAME in it; default: results/labs[-quick]."),
    ] = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    fail_fast: FailFast = False,
) -> None:
    """Reproduce a published experiment, and set its figures beside ours."""
    from orchestrator.commands.labs import load_lab, names_wanted

    choice = choose(runtime)
    wanted = [load_lab(name, data_dir, sets or (), nodes, quick) for name in names_wanted(names, all_labs)]
    directory = out or Path("results") / ("labs-quick" if quick else "labs")
    codes = []
    for loaded in wanted:
        place = directory / loaded.spec.name
        codes.append(_begin(loaded, place, choice, data_dir, dry_run, fail_fast))
        if codes[-1] == INTERRUPTED or (fail_fast and codes[-1]):
            break
    raise typer.Exit(max(codes, default=0))


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A results directory.")] = Path("results/quickstart"),
) -> None:
    """Write the report of a results directory again, from its files alone."""
    report_on(SweepPaths(directory), plain_console())


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
    from orchestrator.commands.partition_table import LEGEND, heading, label_lines, summary_lines
    from orchestrator.commands.partitions import draw, runs_of, write_files

    console = plain_console()
    drawn = list(draw(runs_of(dataset, nodes, partitioner or (), seed), data_dir))
    tables = [[heading(drawn)], [*summary_lines(drawn, console.width), "", *LEGEND]]
    tables += [lines for item in drawn if (lines := label_lines(item, console.width))]
    console.print("\n\n".join("\n".join(lines) for lines in tables))
    for path in write_files(drawn, out) if out else ():
        console.print(f"wrote {path}")
    if any(item.partition_summary is None for item in drawn):
        raise typer.Exit(1)


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name, or YAML with parameters.")],
    dataset: Annotated[str, typer.Option(help="Whose shape the images have.")] = "fashion_mnist",
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 32,
    parts: Annotated[str | None, typer.Option(help="To cut it into; default: 2,3,4.")] = None,
) -> None:
    """Measure a model's blocks, and propose where to cut it. Takes no data."""
    from orchestrator.commands.model_table import pages

    for page in pages(name, dataset, batch_size, parts, plain_console().width):
        print(page, flush=True)


@app.command()
def doctor(data_dir: DataDir = Path("data")) -> None:
    """Say what can run here, and why not what cannot."""
    from orchestrator.commands.doctor import examine

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
    from orchestrator.runtimes.docker.engine import reach
    from orchestrator.runtimes.docker.image import build

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
    from orchestrator.sweeps.schema import write_schemas

    for path in write_schemas(directory):
        print(path)


@app.command(hidden=True)
def docs(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table is stale.")
    ] = False,
) -> None:
    """Write the tables of README and docs from the registries."""
    from orchestrator.commands.docs import stale, write_tables

    if check:
        outdated = stale()
        for page in outdated:
            print(f"{page}: a table is stale; run: python -m orchestrator docs")
        raise typer.Exit(1 if outdated else 0)
    for page in write_tables():
        print(page)


@app.command(hidden=True)
def picture(
    results: Annotated[
        Path | None,
        typer.Argument(help="A results directory to draw from now on; default: docs/picture.json."),
    ] = None,
) -> None:
    """Draw the README's picture with the report's figures."""
    from orchestrator.commands.picture import PICTURE, copy_results, draw_picture

    if results:
        copy_results(results)
    write_atomic(PICTURE, draw_picture())
    print(PICTURE)


def main() -> None:
    """Run the command line; what a user can mend is one message and exit code 2, never a traceback."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
