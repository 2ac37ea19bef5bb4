"""The command line.

Exit codes: 0 all ok, 1 a run or a law failed, a file cannot be written, conditions are unequal (--strict),
a loss is above a limit (--fail-on), a submission cannot be graded or one's own fails a test (course), 2 bad
input, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from orchestrator import __version__
from orchestrator.commands.sweep import (
    INTERRUPTED,
    HowToRun,
    RuntimeSelection,
    SelectedRuntime,
    print_plan,
    print_unequal,
    publish_report,
    run_sweep,
    select_runtime,
    text_console,
)
from orchestrator.course import Visibility
from orchestrator.errors import InputError, StorageError, output_error, storage_trouble
from orchestrator.export import EXPORTERS
from orchestrator.results.store import SweepPaths, check_output, claimed, write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.shipped import find_sweep
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.load import Sweep, import_directory, load_sweep
from orchestrator.sweeps.trials import MakeSandbox
from orchestrator.terminal import guard_output, print_error, usage_message

FAILED, BAD_INPUT = 1, 2  # exit codes

app = typer.Typer(
    name="shardyard",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _directory(text: str | Path) -> Path:
    """The path of a directory on the command line; nodes get it as UTF-8."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError("Input should be valid UTF-8") from None
    return _path(text)


def _path(text: str | Path) -> Path:
    """A path on the command line. An empty one would be the current directory."""
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


DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        parser=_directory,
        metavar="DIRECTORY",
        envvar="SHARDYARD_DATA",
        help="Directory of the datasets, downloaded if missing.",
    ),
]


Runtime = Annotated[
    str | None,
    typer.Option(
        envvar="SHARDYARD_RUNTIME",
        help=f"Where nodes run: {' or '.join(RUNTIMES.entries)}. Default: that of the sweep file, or the "
        "first one available.",
    ),
]
TriedBy = Annotated[
    str | None,
    typer.Option(
        envvar="SHARDYARD_RUNTIME",
        help="Try your own code as a sweep on this runtime does. Default: the first one available.",
    ),
]


def _sandbox_of(runtime: str | None) -> MakeSandbox:
    """The sandbox for users' code, as of sweeps. The runtime is selected when there is such code."""

    @cache
    def selected() -> SelectedRuntime:
        found = select_runtime(runtime)
        if not found.runtime.confines:
            text_console(sys.stderr).print("your code runs with your rights; --runtime docker confines it")
        return found

    return lambda program: selected().runtime.sandbox(program)


Nodes = Annotated[str | None, typer.Option(help="Node counts that replace the file's, e.g. 1,2,4.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a field in all runs, e.g. epochs=5."),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Runs of each configuration, with consecutive seeds. Finished runs are not repeated.",
    ),
]
NoWarmUpRun = Annotated[
    bool,
    typer.Option(
        "--no-warm-up-run", help="Leave out the short run before the first one, whose result is dropped."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the runs, then exit.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="With --dry-run: print fields and commands of each run, too."),
]
Cold = Annotated[bool, typer.Option("--cold", help="Start all processes afresh for every run.")]
SharedNetwork = Annotated[
    bool,
    typer.Option(
        "--shared-network",
        help="Let local nodes use this machine's network instead of one of their own: local users can then "
        "connect to the nodes, and over rpc run code as you; mpi also listens to other machines.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with code 1 if compared runs differ in a condition such as the global batch; print each "
        "difference.",
    ),
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the page on 127.0.0.1. 0: any free one.")
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop after the first failed run.")]


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
        str, typer.Argument(help="A sweep file, `-` for standard input, or the name of a shipped sweep.")
    ] = "quickstart",
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_directory, metavar="DIRECTORY", help="Results directory. Default: results/NAME."
        ),
    ] = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    sets: Sets = None,
    repeat: Repeat = None,
    until_decided: Annotated[
        bool | None,
        typer.Option(
            "--until-decided/--no-until-decided",
            help="Add seeds in stages until the choice is decided. Default: as in the file.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time for the runs of --until-decided; one seed of each runs anyway. 90s, 10m or 2h.",
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS", help="Differences that do not matter. Default: accuracy=1pt,time=5%."
        ),
    ] = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    fail_fast: FailFast = False,
    strict: Strict = False,
    no_warm_up_run: NoWarmUpRun = False,
    cold: Cold = False,
    shared_network: SharedNetwork = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page on 127.0.0.1 that follows the sweep.")
    ] = False,
    port: Port = 0,
) -> None:
    """Run a sweep and write a report that compares its runs.

    Interrupted? Run the same command to resume."""
    if port and not watch:
        raise InputError(f"--port {port}: needs --watch")
    selection = RuntimeSelection(runtime, cold, shared_network)
    path = find_sweep(file)
    loaded = load_sweep(
        path,
        sets or (),
        nodes,
        repeat=repeat,
        cores=selection.shared_cores,
        imports=selection.imports(import_directory(path), data_dir),
        until_decided=until_decided,
        budget=budget,
        tolerance=tolerance,
    )
    directory = out or Path("results") / loaded.spec.name
    how = HowToRun(fail_fast, not no_warm_up_run, strict, port if watch else None)
    command = Command(selection.of(loaded.spec), data_dir, how, dry_run, verbose)
    raise typer.Exit(command.execute(loaded, directory))


@dataclass(frozen=True)
class Command:
    """What the options of `sweep`, `run` and `lab` say about how a sweep runs."""

    selected: SelectedRuntime
    data_dir: Path
    how: HowToRun
    dry_run: bool = False
    verbose: bool = False

    def execute(self, loaded: Sweep, directory: Path) -> int:
        """Run a sweep, or print its plan. Returns the exit code."""
        paths = SweepPaths(directory)
        if self.dry_run:
            print_plan(loaded, paths, self.selected, self.data_dir, self.verbose)
            return 0
        with claimed(paths):
            return run_sweep(loaded, paths, self.selected, self.data_dir, text_console(), self.how)


@app.command()
def run(
    strategy: Annotated[
        str, typer.Argument(help="Name, or YAML such as '{name: local_sgd, local_steps: 10}'.")
    ],
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes. Default: 2, or the fewest that the strategy needs.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the serial reference, and compare with it.")
    ] = False,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_directory, metavar="DIRECTORY", help="Results directory. Default: below results/run/."
        ),
    ] = None,
    runtime: Runtime = None,
    sets: Sets = None,
    repeat: Repeat = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    cold: Cold = False,
    shared_network: SharedNetwork = False,
) -> None:
    """Run one strategy without a sweep file."""
    from orchestrator.commands.run import directory_of, load_run

    selected = select_runtime(runtime, cold, shared_network)
    loaded = load_run(
        strategy,
        nodes,
        sets or (),
        repeat,
        compare,
        lambda _: selected.shared_cores(),
        selected.imports(Path(), data_dir),
    )
    directory = out or directory_of(loaded)
    how = HowToRun(warm_up_run=compare)  # only runs that are compared need a run before them
    raise typer.Exit(Command(selected, data_dir, how, dry_run, verbose).execute(loaded, directory))


@app.command()
def labs(data_dir: DataDir = Path("data")) -> None:
    """List the labs: sweeps that reproduce published experiments."""
    from orchestrator.commands.labs import listing

    for line in listing(data_dir, text_console().width):
        print(line)


@app.command()
def lab(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Labs to run; `labs` lists them.")
    ] = None,
    all_labs: Annotated[bool, typer.Option("--all", help="Run all labs.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on `digits`, which needs no download.")
    ] = False,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Parent of the results directories. Default: results/labs[-quick].",
        ),
    ] = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    sets: Sets = None,
    repeat: Repeat = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    fail_fast: FailFast = False,
    strict: Strict = False,
    no_warm_up_run: NoWarmUpRun = False,
    cold: Cold = False,
    shared_network: SharedNetwork = False,
) -> None:
    """Run a lab and compare its results with the published figures.

    With --all, the other labs run although one is refused; the causes are printed at the end."""
    from orchestrator.commands.labs import load_lab, names_wanted

    selection = RuntimeSelection(runtime, cold, shared_network)
    directory = out or Path("results") / ("labs-quick" if quick else "labs")
    wanted: list[Sweep] = []
    imports = selection.imports(Path(), data_dir)
    refused: dict[str, InputError] = {}
    for name in names_wanted(names, all_labs):
        try:
            wanted.append(load_lab(name, sets or (), nodes, quick, repeat, selection.shared_cores, imports))
        except InputError as error:
            if not all_labs:
                raise
            refused[name] = error
    codes = [FAILED] if refused else []
    how = HowToRun(fail_fast, not no_warm_up_run, strict)
    for loaded in wanted if not (fail_fast and refused) else ():
        results = directory / loaded.spec.name
        try:
            command = Command(selection.of(loaded.spec), data_dir, how, dry_run, verbose)
            codes.append(command.execute(loaded, results))
        except InputError as error:
            if not all_labs:
                raise
            refused[loaded.spec.name] = error
            codes.append(FAILED)
        if codes[-1] == INTERRUPTED or (fail_fast and codes[-1]):
            break
    for name, cause in refused.items():
        print_error(f"lab {name}: {cause}")
    raise typer.Exit(max(codes, default=0))


@app.command()
def watch(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="A results directory.")
    ] = Path("results/quickstart"),
    port: Port = 0,
) -> None:
    """Serve a page on 127.0.0.1 that follows a sweep, which any process may run, until Ctrl-C."""
    from orchestrator.commands import watch as command

    command.watch(SweepPaths(directory), port, text_console())


@app.command()
def report(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="A results directory.")
    ] = Path("results/quickstart"),
    real: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Results of the same sweep on real nodes: they calibrate the times of virtual nodes, and "
            "show their error.",
        ),
    ] = None,
    strict: Strict = False,
) -> None:
    """Rewrite the report of a results directory from its files."""
    from orchestrator.results.real_nodes import calibrate_virtual_nodes

    console = text_console()
    if real is not None:
        calibrate_virtual_nodes(SweepPaths(directory), real)
    unequal = publish_report(SweepPaths(directory), console)
    if strict and print_unequal(unequal, console):
        raise typer.Exit(FAILED)


@app.command()
def compare(
    directories: Annotated[
        list[Path],
        typer.Argument(
            parser=_directory, metavar="DIRECTORY...", help="Results directories, the reference first."
        ),
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(parser=_directory, metavar="FILE", help="Also write a page: FILE.html or FILE.md."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS",
            help="Exit with code 1 if a loss is shown and was measured above a limit, or if a "
            "configuration no longer finishes; e.g. slower=10%,accuracy=1pt.",
        ),
    ] = None,
) -> None:
    """Compare the runs that results directories have in common."""
    from orchestrator.commands.compare import Comparing, check_page
    from orchestrator.report.directory_comparison.limits import Limits

    limits = None if fail_on is None else Limits.parse(fail_on)
    for file in out or ():
        check_page(file)
    found, console = Comparing.of(directories), text_console()
    for line in (*found.lines(), *found.remarks()):
        console.print(line)
    for file in out or ():
        found.write(file)
        console.print(f"wrote {file}")
    if limits and (broken := found.broken(limits)):
        for each in broken:
            console.print(f"--fail-on: {each}")
        raise typer.Exit(FAILED)


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(
            parser=_directory,
            metavar="SOURCE",
            help="A results directory; or a sweep: a file, a shipped one by name, or - for standard input.",
        ),
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"{', '.join(EXPORTERS.entries)}.")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Directory to write to. Default: export/FORMAT in the results directory; for a sweep, "
            "export/SWEEP/FORMAT.",
        ),
    ] = None,
    sets: Sets = None,
    nodes: Nodes = None,
    gloo_for_mpi: Annotated[
        bool, typer.Option("--gloo-for-mpi", help="Export runs of a sweep over mpi as runs over gloo.")
    ] = False,
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="Trainer image that the cluster can pull.")
    ] = None,
    results_claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="PersistentVolumeClaim that results are written to.")
    ] = None,
    data_claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="PersistentVolumeClaim with the data directory.")
    ] = None,
) -> None:
    """Export results for other programs, or the runs of a sweep for a cluster.

    Exporting again replaces what has changed, and duplicates nothing."""
    from orchestrator.commands import export as command
    from orchestrator.export.base import Options

    options = Options(tuple(sets or ()), nodes, gloo_for_mpi, image, results_claim, data_claim)
    console = text_console()
    for line in command.export(source, to, out, options):
        console.print(line)


@app.command()
def replay(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="A results directory.")
    ] = Path("results/quickstart"),
    link: Annotated[
        str, typer.Option(help="Bandwidth and latency between two nodes, e.g. 100mbit/1ms.")
    ] = "1000mbit/0.1ms",
    node_speed: Annotated[
        str | None,
        typer.Option(
            help="Speed of each node, e.g. 1,1,0.5; one number for all. 1: as recorded. Default: the "
            "node_speed of each run."
        ),
    ] = None,
    write_timeline: Annotated[
        bool, typer.Option("--timeline", help="Also write timeline.json for each run, for Perfetto.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute the time of finished runs on a cluster with these links and nodes."""
    from orchestrator.commands import replay as command

    options = command.Options(
        command.parse_link(link), () if node_speed is None else command.parse_speeds(node_speed)
    )
    found = list(command.rows(SweepPaths(directory), options, write_timeline))
    if as_json:
        print(command.as_json(found))
        return
    console = text_console()
    if any(command.has_time(row) for row in found):
        console.print(command.table(found), soft_wrap=False)
        for line in command.conclusions(SweepPaths(directory), found):
            console.print(f"With links of {link}: {line}")
    for line in command.reasons(found):
        console.print(line)
    if not found:
        console.print(f"{directory} has no finished runs")


@app.command()
def calibrate(
    file: Annotated[
        Path, typer.Argument(parser=_directory, metavar="FILE", help="The file to write.")
    ] = Path("cluster.json"),
    out: Annotated[
        Path, typer.Option(parser=_directory, metavar="DIRECTORY", help="Results directory of the runs.")
    ] = Path("results/calibrate"),
    data_dir: DataDir = Path("data"),
    runtime: Runtime = None,
    sets: Sets = None,
    cold: Cold = False,
    shared_network: SharedNetwork = False,
) -> None:
    """Measure in a few minutes what messages and exchanges cost on a runtime, for `predict --cluster`."""
    from orchestrator.commands.calibrate import SWEEP, check_real, write_costs

    check_output(file, "FILE")
    selection = RuntimeSelection(runtime, cold, shared_network)
    loaded = load_sweep(find_sweep(SWEEP), sets or ())
    selected = selection.of(loaded.spec)
    check_real(selected)
    code = Command(selected, data_dir, HowToRun(verdicts=False)).execute(loaded, out)
    if code == INTERRUPTED:
        raise typer.Exit(code)
    for line in write_costs(SweepPaths(out), file):
        text_console().print(line)
    print(f"wrote {file}")
    raise typer.Exit(code)


@app.command()
def predict(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A results directory; or a sweep, whose runs are executed first: a file, or the name of a "
            "shipped one.",
        ),
    ] = "results/quickstart",
    nodes: Annotated[str, typer.Option(help="Numbers of nodes, e.g. 8,64,1024.")] = "8,64",
    link: Annotated[
        str | None,
        typer.Option(
            help="Bandwidth and latency between two nodes, e.g. 10gbit/50us. Default: as measured."
        ),
    ] = None,
    node_speed: Annotated[
        float, typer.Option(min=1e-3, max=1e3, help="Speed of all nodes; 1: as measured.")
    ] = 1.0,
    price: Annotated[
        str | None, typer.Option(metavar="PRICE/h", help="Price of a node in an hour, e.g. 2.50/h.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="FILE",
            help="Costs of messages that `calibrate` has measured. Default: as in the directory's runs.",
        ),
    ] = None,
    learned: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Results of virtual nodes with a target accuracy, to predict the time to it.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also add the predictions to the report of the results.")
    ] = False,
    data_dir: DataDir = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    runtime: Runtime = None,
) -> None:
    """Predict what measured configurations do on more nodes, with 90 % intervals."""
    from orchestrator.commands import predict as command

    asked = command.asked(nodes, link, node_speed, price)
    question = command.question_of(asked, cluster, learned)
    directory, code = Path(source), 0
    if not directory.is_dir():
        if as_json:
            raise InputError(
                f"--json: {source} is no results directory, and the runs of a sweep print more"
            )
        selection, path = RuntimeSelection(runtime), find_sweep(source)
        imports = selection.imports(import_directory(path), data_dir)
        loaded = load_sweep(path, cores=selection.shared_cores, imports=imports)
        directory = Path("results") / loaded.spec.name
        code = Command(selection.of(loaded.spec), data_dir, HowToRun()).execute(loaded, directory)
        if code == INTERRUPTED:
            raise typer.Exit(code)
    predictions = command.predict(SweepPaths(directory), asked, question, data_dir)
    if as_json:
        print(predictions.model_dump_json(indent=1))
    else:
        console = text_console()
        for shown in command.lines(predictions):
            console.print(shown, soft_wrap=False)
        for line in command.refusals(predictions):
            console.print(line)
        if learned and not any(each.to_target for each in predictions.forecasts):
            console.print(f"{learned}: no run reaches its target with a configuration that is predicted")
    if report:
        from orchestrator.report import write_report
        from orchestrator.results.predictions import write_predictions

        write_predictions(SweepPaths(directory), predictions)
        write_report(SweepPaths(directory))
    raise typer.Exit(code)


@app.command()
def partitions(
    dataset: Annotated[str, typer.Option(help="Name, or YAML with parameters.")] = "digits",
    nodes: Annotated[int, typer.Option(help="Number of nodes (of ranks, if nodes have several).")] = 4,
    partitioner: Annotated[
        list[str] | None,
        typer.Option(help="Name, or YAML such as '{name: dirichlet, alpha: 0.1}'. Default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the partition, as in a run.")] = 0,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Also write partitions.csv, labels.csv and labels.svg to this directory.",
        ),
    ] = None,
    runtime: TriedBy = None,
) -> None:
    """Show how partitioners divide a dataset over nodes, without training."""
    from orchestrator.commands.partitions import check_files, preview, runs_of, tables, write_files

    if out:
        check_files(out)
    console, imports = text_console(), Imports(Path(), data_dir, _sandbox_of(runtime))
    runs = runs_of(dataset, nodes, partitioner or (), seed, imports)
    previews = list(preview(runs, data_dir, imports))
    console.print(tables(previews, console.width))
    for path in write_files(previews, out) if out else ():
        console.print(f"wrote {path}")
    if any(item.summary is None for item in previews):
        raise typer.Exit(1)


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name, or YAML with parameters.")],
    dataset: Annotated[str, typer.Option(help="Dataset whose input shape is used.")] = "fashion_mnist",
    loss: Annotated[str, typer.Option(help="Name, or YAML with parameters.")] = "nll",
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 32,
    parts: Annotated[str | None, typer.Option(help="Numbers of stages. Default: 2,3,4.")] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="DEGREES",
            help="Instead, show what each rank of strategy hybrid holds, e.g. data=2,pipeline=2,tensor=2.",
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    runtime: TriedBy = None,
) -> None:
    """Profile a model's blocks and propose split points, or show the ranks of a mesh."""
    from orchestrator.commands.model import sections

    imports = Imports(Path(), data_dir, _sandbox_of(runtime))
    width = text_console().width
    for section in sections(name, dataset, batch_size, parts, width, imports, loss, mesh):
        print(section, flush=True)


@app.command()
def layout(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Name, or YAML with parameters.")] = "gpt",
    nodes: Annotated[int, typer.Option(min=2, max=1024, help="How many nodes.")] = 8,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory of a node for the model's state, e.g. 4gb. Default: any."
        ),
    ] = None,
    link: Annotated[
        str, typer.Option(help="Bandwidth and latency between two nodes; none: as fast as the software.")
    ] = "10gbit/50us",
    cluster: Annotated[
        Path | None,
        typer.Option(parser=_directory, metavar="FILE", help="Costs of messages, from `calibrate`."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Dataset whose input shape is used: copy, induction or synthetic.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step, of all nodes.")] = 64,
    transport: Annotated[str, typer.Option(help="gloo, mpi or rpc.")] = "gloo",
    sets: Sets = None,
    real: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            metavar="N",
            help="How many of the fastest layouts run for real. Default: 3 if each node can have a core, "
            "otherwise none.",
        ),
    ] = None,
    runtime: Runtime = None,
    data_dir: DataDir = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare the ways to divide a model's training over nodes, by predicted time and memory."""
    from orchestrator.commands import layout as command

    wanted = command.asked(name, nodes, memory, link, cluster, dataset, batch_size, sets or (), transport)
    found = command.advice(wanted, data_dir, None if real == 0 else select_runtime(runtime), real)
    if as_json:
        print(command.record(found).model_dump_json(indent=1))
        return
    console = text_console()
    for shown in command.lines(wanted, found, console.width):
        console.print(shown, soft_wrap=False)


course = typer.Typer(help="Write assignments for a course, and grade submissions.", no_args_is_help=True)
app.add_typer(course, name="course")

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=256,
        metavar="N",
        help="Submissions that are graded at once. Default: the number of cores.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@course.command("new")
def course_new(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="A new or empty directory.")
    ],
    assignment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A shipped assignment. Default: all, each in its own directory."),
    ] = None,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="Also write hidden tests and solutions, for teachers.")
    ] = False,
) -> None:
    """Write an assignment: skeletons, public tests, a sweep file and a report template."""
    from orchestrator.course.assignments import write

    for path in write(directory, assignment, solutions):
        print(path)


@course.command("grade")
def course_grade(
    submissions: Annotated[
        list[Path],
        typer.Argument(parser=_path, metavar="SUBMISSION...", help="Directories of students' files."),
    ],
    tests: Annotated[
        list[Path],
        typer.Option(
            "--tests",
            parser=_directory,
            metavar="PATH",
            help="Tests: a directory or a Python file; repeatable.",
        ),
    ],
    runtime: Annotated[
        str,
        typer.Option(
            help="docker: a container for each submission. local: a process with your rights, for code you "
            "trust."
        ),
    ] = "docker",
    jobs: Jobs = None,
    memory_mb: Annotated[
        int, typer.Option(min=128, max=2**20, metavar="MIB", help="Memory of each submission.")
    ] = 1024,
    processes: Annotated[
        int, typer.Option(min=32, max=2**15, metavar="N", help="Processes and threads of each submission.")
    ] = 128,
    as_json: AsJson = False,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", parser=_directory, metavar="FILE", help="Also write a gradebook as CSV."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--gradescope",
            parser=_directory,
            metavar="DIRECTORY",
            help="Also write Gradescope's results.json there; of several submissions, each in a directory "
            "of its name.",
        ),
    ] = None,
    visibility: Annotated[
        Visibility, typer.Option(help="When students see the tests on Gradescope.")
    ] = "after_published",
    user: Annotated[
        str,
        typer.Option(metavar="NAME", help="Run submissions as this user, with --runtime local, as root."),
    ] = "",
) -> None:
    """Grade submissions with tests; a wrong submission is no error."""
    from orchestrator.commands.course import grade
    from orchestrator.sandbox.base import Limits

    limits = Limits(memory_mb, processes)
    raise typer.Exit(
        grade(
            submissions,
            tests,
            runtime,
            jobs,
            limits,
            as_json,
            text_console(),
            csv_file=csv_file,
            results=results,
            visibility=visibility,
            user=user,
        )
    )


@course.command("test")
def course_test(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="Directory of the files to test.")
    ] = Path("."),
    tests: Annotated[
        list[Path] | None,
        typer.Option("--tests", parser=_directory, metavar="PATH", help="Default: DIRECTORY/tests."),
    ] = None,
) -> None:
    """Run the public tests on your own files, as local processes; shows what your code prints."""
    from orchestrator.commands.course import grade
    from orchestrator.sandbox.base import Limits

    paths = tests or [directory / "tests"]
    raise typer.Exit(
        grade([directory], paths, "local", 1, Limits(), as_json=False, console=text_console(), own=True)
    )


@app.command()
def check(
    component: Annotated[
        str,
        typer.Argument(
            metavar="COMPONENT",
            help="FILE.py: every component in it; FILE.py:NAME; PACKAGE.MODULE:NAME; or a registered one "
            "such as dirichlet or partitioner:dirichlet.",
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a parameter of the component, e.g. alpha=0.1."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Dataset whose samples a model or an augmentation takes. Name, or YAML."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="What a function is, where its parameters do not say: e.g. dataset.")
    ] = None,
    equals: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What it must equal: serial or all_reduce for a strategy; sgd, momentum, adam or adamw "
            "for an optimizer. Default: what its class declares.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Longest time for one component.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    data_dir: DataDir = Path("data"),
    runtime: TriedBy = None,
) -> None:
    """Check that a component keeps the laws of its kind, and show the smallest input on which one fails."""
    from orchestrator.commands import check as command

    asked = command.request_of(component, sets or (), dataset, kind, equals, data_dir, timeout)
    console, found = text_console(), []
    with command.checking(asked, _sandbox_of(runtime)) as checking:
        for report in checking.reports(asked):
            if not as_json:
                for line in command.lines(report, console.width):
                    console.print(line)
            found.append(report)
    if as_json:
        print(command.as_json(found))
    if any(report.failed for report in found):
        raise typer.Exit(FAILED)


@app.command()
def doctor(data_dir: DataDir = Path("data")) -> None:
    """Check what can run on this machine, and say how to fix what cannot."""
    from orchestrator.commands.doctor import examine

    findings = list(examine(data_dir))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    for finding in findings:
        mark = Text(finding.status, style=colours[finding.status])
        table.add_row(mark, Text(finding.subject), Text(finding.detail))
    text_console().print(table, soft_wrap=False)
    if any(finding.required and finding.status == "missing" for finding in findings):
        raise typer.Exit(1)


@app.command()
def image(
    wheels: Annotated[
        Path | None,
        typer.Option(
            parser=_directory,
            metavar="DIRECTORY",
            help="Directory of wheels to install from. Default: pip's find-links.",
        ),
    ] = None,
) -> None:
    """Build the image that containers run."""
    from orchestrator.runtimes.docker.engine import reach
    from orchestrator.runtimes.docker.image import build

    if wheels and not wheels.is_dir():
        raise InputError(f"--wheels {wheels}: no such directory")
    raise typer.Exit(build(reach(), wheels))


@app.command()
def clean() -> None:
    """Remove processes, containers and networks left by sweeps that were killed."""
    count = sum(RUNTIMES.load(name)().clean() for name in RUNTIMES.entries)
    print(f"removed {count} process(es), container(s) and network(s)")


@app.command()
def schema(
    directory: Annotated[
        Path, typer.Argument(parser=_directory, metavar="DIRECTORY", help="Directory to write to.")
    ] = Path("schemas"),
) -> None:
    """Write the JSON Schemas of runs and sweep files."""
    from orchestrator.sweeps.schema import schema_files

    for name, text in schema_files().items():
        check_output(directory / name, "DIRECTORY")
        try:
            write_atomic(directory / name, text)
        except OSError as error:
            raise output_error(directory, error, "DIRECTORY") from error
        print(directory / name)


def main() -> None:
    """Run the command line. What a user can repair is one message, never a traceback."""
    guard_output()
    try:
        code = app(standalone_mode=False)
        if sys.stdout:
            sys.stdout.flush()
    except typer.TyperException as error:
        code = BAD_INPUT
        if message := usage_message(error):
            print_error(message)
    except InputError as error:
        code = BAD_INPUT
        print_error(str(error))
    except StorageError as error:
        code = FAILED
        print_error(str(error))
    except OSError as error:
        if error.filename is None:  # no file is to blame
            raise
        code = FAILED
        print_error(f"{error.filename}: {storage_trouble(error)}")
    sys.exit(code)
