"""The command line.

Exit codes: 0 all ok, 1 a run or a law failed, a file cannot be written, conditions are unequal (--strict),
a loss is above a limit (--fail-on), a submission cannot be graded or one's own fails a test (course), 2 bad
input, 130 interrupted.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from orchestrator import __version__
from orchestrator.commands.options import (
    AsJson,
    Cold,
    DataDir,
    GradeOptions,
    Nodes,
    Port,
    Results,
    RunOptions,
    Runtime,
    Sets,
    SharedNetwork,
    Strict,
    TrialOptions,
    any_path,
    flag,
    option,
    place,
    place_argument,
    with_records,
)
from orchestrator.commands.sweep import (
    INTERRUPTED,
    print_unequal,
    publish_report,
    select_runtime,
    text_console,
)
from orchestrator.errors import InputError, StorageError, output_error, storage_trouble
from orchestrator.export import EXPORTERS
from orchestrator.results.store import SweepPaths, check_output, write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.shipped import find_sweep
from orchestrator.sweeps.load import Sweep, import_directory, load_sweep
from orchestrator.terminal import guard_output, print_error, usage_message

FAILED, BAD_INPUT = 1, 2  # exit codes
# The groups of commands in help.
RUN, READ, TRY, SETUP = "Run", "Use results", "Look at components", "Teach and set up"
UNTIL = "Until decided"  # a group of options
OF_A_COMPONENT = "Name, or YAML with parameters."

app = typer.Typer(
    name="shardyard",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shardyard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, option("Print the version.", "--version", takes="", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train one model in every way that training can be split over nodes, and compare."""


@app.command(rich_help_panel=RUN)
@with_records
def sweep(
    options: RunOptions,
    file: Annotated[
        str, typer.Argument(metavar="SWEEP", help="A sweep file, a shipped sweep, or - for standard input.")
    ] = "quickstart",
    nodes: Nodes = None,
    until_decided: Annotated[
        bool | None,
        option(
            "Add seeds until the choice is decided.",
            "--until-decided/--no-until-decided",
            takes="",
            group=UNTIL,
        ),
    ] = None,
    budget: Annotated[
        str | None, option("Time for these runs: 90s, 10m or 2h.", takes="TIME", group=UNTIL)
    ] = None,
    tolerance: Annotated[
        str | None, option("Differences to ignore: accuracy=1pt,time=5%.", takes="LIMITS", group=UNTIL)
    ] = None,
) -> None:
    """Run a sweep and write a report that compares its runs.

    Interrupted? Run the same command to resume."""
    source = find_sweep(file)
    loaded = load_sweep(
        source,
        options.sets or (),
        nodes,
        repeat=options.repeat,
        cores=options.selection.shared_cores,
        imports=options.selection.imports(import_directory(source), options.data_dir),
        until_decided=until_decided,
        budget=budget,
        tolerance=tolerance,
    )
    raise typer.Exit(options.execute(loaded, options.out or Path("results") / loaded.spec.name))


@app.command(rich_help_panel=RUN)
@with_records
def run(
    options: RunOptions,
    strategy: Annotated[
        str, typer.Argument(metavar="STRATEGY", help="Name, or YAML: '{name: local_sgd, local_steps: 10}'.")
    ],
    nodes: Annotated[int | None, option("Nodes. Default: 2, or the fewest possible.", takes="N")] = None,
    compare: Annotated[bool, flag("Also run the serial reference.", "--compare")] = False,
) -> None:
    """Run one strategy without a sweep file."""
    from orchestrator.commands.run import directory_of, load_run

    selected = options.selection.of()
    loaded = load_run(
        strategy,
        nodes,
        options.sets or (),
        options.repeat,
        compare,
        lambda _: selected.shared_cores(),
        selected.imports(Path(), options.data_dir),
    )
    # Only runs that are compared need a run before them.
    raise typer.Exit(options.execute(loaded, options.out or directory_of(loaded), warm_up_run=compare))


@app.command(rich_help_panel=RUN)
@with_records
def lab(
    options: RunOptions,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Labs to run; `labs` lists them.")
    ] = None,
    all_labs: Annotated[bool, flag("All labs.", "--all")] = False,
    quick: Annotated[bool, flag("A small version, which needs no download.", "--quick")] = False,
    nodes: Nodes = None,
) -> None:
    """Run a lab and compare its results with the published figures.

    With --all, the other labs run although one is refused; the causes are printed at the end."""
    from orchestrator.commands.labs import load_lab, names_wanted

    selection, fail_fast = options.selection, options.fail_fast
    directory = options.out or Path("results") / ("labs-quick" if quick else "labs")
    imports = selection.imports(Path(), options.data_dir)
    given = options.sets or (), nodes, quick, options.repeat, selection.shared_cores, imports
    wanted: list[Sweep] = []
    refused: dict[str, InputError] = {}
    for name in names_wanted(names, all_labs):
        try:
            wanted.append(load_lab(name, *given))
        except InputError as error:
            if not all_labs:
                raise
            refused[name] = error
    codes = [FAILED] if refused else []
    for loaded in wanted if not (fail_fast and refused) else ():
        try:
            codes.append(options.execute(loaded, directory / loaded.spec.name))
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


@app.command(rich_help_panel=RUN)
def labs(data_dir: DataDir = Path("data")) -> None:
    """List the labs: sweeps that reproduce published experiments."""
    from orchestrator.commands.labs import listing

    for line in listing(data_dir, text_console().width):
        print(line)


@app.command(rich_help_panel=RUN)
def watch(directory: Results = Path("results/quickstart"), port: Port = 0) -> None:
    """Serve a page on 127.0.0.1 that follows a sweep.

    Any process may run the sweep. Ctrl-C ends the page."""
    from orchestrator.commands import watch as command

    command.watch(SweepPaths(directory), port, text_console())


@app.command(rich_help_panel=READ)
def report(
    directory: Results = Path("results/quickstart"),
    real: Annotated[
        Path | None, place("Results on real nodes, which calibrate the times of virtual ones.")
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


@app.command(rich_help_panel=READ)
def compare(
    directories: Annotated[
        list[Path], place_argument("Results directories, the reference first.", "DIRECTORY...")
    ],
    out: Annotated[
        list[Path] | None, place("Also write a page: FILE.html or FILE.md.", takes="FILE")
    ] = None,
    fail_on: Annotated[
        str | None, option("Exit code 1 on a larger loss: slower=10%,accuracy=1pt.", takes="LIMITS")
    ] = None,
) -> None:
    """Compare the runs that results directories have in common."""
    from orchestrator.commands.compare import check_page, compared, lines_of, write_page
    from orchestrator.report.directory_comparison.limits import Limits

    limits = None if fail_on is None else Limits.parse(fail_on)
    for file in out or ():
        check_page(file)
    found, console = compared(directories), text_console()
    for line in lines_of(found):
        console.print(line)
    for file in out or ():
        write_page(found, file)
        console.print(f"wrote {file}")
    if limits and (broken := limits.broken(found)):
        for each in broken:
            console.print(f"--fail-on: {each}")
        raise typer.Exit(FAILED)


@app.command(rich_help_panel=READ)
def export(
    source: Annotated[Path, place_argument("A results directory; or a sweep, as of `sweep`.", "SOURCE")],
    to: Annotated[str, option(f"{', '.join(EXPORTERS.entries)}.", takes="FORMAT")],
    out: Annotated[
        Path | None, place("Default: export/FORMAT in the results; for a sweep export/SWEEP/FORMAT.")
    ] = None,
    sets: Sets = None,
    nodes: Nodes = None,
    gloo_for_mpi: Annotated[
        bool, flag("Runs over gloo in place of mpi.", "--gloo-for-mpi", group="Kubernetes")
    ] = False,
    image: Annotated[
        str | None, option("Trainer image that the cluster can pull.", takes="NAME", group="Kubernetes")
    ] = None,
    results_claim: Annotated[
        str | None, option("Volume claim that keeps the results.", takes="NAME", group="Kubernetes")
    ] = None,
    data_claim: Annotated[
        str | None, option("Volume claim with the datasets.", takes="NAME", group="Kubernetes")
    ] = None,
) -> None:
    """Export results, or the runs of a sweep for a cluster.

    Exporting again replaces what has changed, and duplicates nothing."""
    from orchestrator.commands import export as command
    from orchestrator.export.base import Options

    options = Options(tuple(sets or ()), nodes, gloo_for_mpi, image, results_claim, data_claim)
    console = text_console()
    for line in command.export(source, to, out, options):
        console.print(line)


@app.command(rich_help_panel=READ)
def replay(
    directory: Results = Path("results/quickstart"),
    link: Annotated[str, option("Bandwidth/latency between two nodes.", takes="LINK")] = "1000mbit/0.1ms",
    node_speed: Annotated[
        str | None, option("Speed of each node: 1,1,0.5. 1: as recorded. Default: as run.", takes="SPEEDS")
    ] = None,
    write_timeline: Annotated[bool, flag("Also write timeline.json of each run.", "--timeline")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the time of finished runs on another cluster."""
    from orchestrator.commands import replay as command

    options = command.options(link, node_speed)
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


@app.command(rich_help_panel=READ)
def predict(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A results directory; or a sweep, which runs first.")
    ] = "results/quickstart",
    nodes: Annotated[str, option("Numbers of nodes.", takes="COUNTS")] = "8,64",
    link: Annotated[
        str | None,
        option("Bandwidth/latency between two nodes: 10gbit/50us. Default: as measured.", takes="LINK"),
    ] = None,
    node_speed: Annotated[
        float, option("Speed of all nodes; 1: as measured.", takes="", min=1e-3, max=1e3)
    ] = 1.0,
    price: Annotated[str | None, option("Price of a node in an hour: 2.50/h.", takes="PRICE/h")] = None,
    cluster: Annotated[Path | None, place("Costs of messages, from `calibrate`.", takes="FILE")] = None,
    learned: Annotated[
        Path | None, place("Results of virtual nodes, for the time to their target accuracy.")
    ] = None,
    report: Annotated[bool, flag("Also add the predictions to the report.", "--report")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = Path("data"),
    runtime: Runtime = None,
) -> None:
    """Predict what measured configurations do on more nodes."""
    from orchestrator.commands import predict as command

    asked = command.asked(nodes, link, node_speed, price)
    question = command.question_of(asked, cluster, learned)
    directory, code = Path(source), 0
    if not directory.is_dir():
        if as_json:
            raise InputError(
                f"--json: {source} is no results directory, and the runs of a sweep print more"
            )
        options, file = RunOptions(data_dir=data_dir, runtime=runtime), find_sweep(source)
        imports = options.selection.imports(import_directory(file), data_dir)
        loaded = load_sweep(file, cores=options.selection.shared_cores, imports=imports)
        directory = Path("results") / loaded.spec.name
        code = options.execute(loaded, directory)
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


@app.command(rich_help_panel=READ)
def calibrate(
    file: Annotated[Path, place_argument("The file to write.", "FILE")] = Path("cluster.json"),
    out: Annotated[Path, place("Results directory of the runs.")] = Path("results/calibrate"),
    data_dir: DataDir = Path("data"),
    runtime: Runtime = None,
    sets: Sets = None,
    cold: Cold = False,
    shared_network: SharedNetwork = False,
) -> None:
    """Measure what messages cost, for `predict --cluster`.

    That takes a few minutes."""
    from orchestrator.commands.calibrate import SWEEP, check_real, write_costs

    check_output(file, "FILE")
    options = RunOptions(data_dir=data_dir, runtime=runtime, cold=cold, shared_network=shared_network)
    loaded = load_sweep(find_sweep(SWEEP), sets or ())
    check_real(options.selection.of(loaded.spec))
    code = options.execute(loaded, out, verdicts=False)
    if code == INTERRUPTED:
        raise typer.Exit(code)
    for line in write_costs(SweepPaths(out), file):
        text_console().print(line)
    print(f"wrote {file}")
    raise typer.Exit(code)


@app.command(rich_help_panel=TRY)
@with_records
def partitions(
    options: TrialOptions,
    dataset: Annotated[str, option(OF_A_COMPONENT)] = "digits",
    nodes: Annotated[int, option("Nodes; ranks, if nodes have several.", takes="N")] = 4,
    partitioner: Annotated[
        list[str] | None, option("Name, or YAML: '{name: dirichlet, alpha: 0.1}'. Default: all.")
    ] = None,
    seed: Annotated[int, option("Seed of the partition, as in a run.", takes="N")] = 0,
    out: Annotated[Path | None, place("Also write partitions.csv, labels.csv and labels.svg.")] = None,
) -> None:
    """Show how partitioners divide a dataset, without training."""
    from orchestrator.commands.partitions import check_files, preview, runs_of, tables, write_files

    if out:
        check_files(out)
    console, imports = text_console(), options.imports
    runs = runs_of(dataset, nodes, partitioner or (), seed, imports)
    previews = list(preview(runs, options.data_dir, imports))
    console.print(tables(previews, console.width))
    for file in write_files(previews, out) if out else ():
        console.print(f"wrote {file}")
    if any(item.summary is None for item in previews):
        raise typer.Exit(1)


@app.command(rich_help_panel=TRY)
@with_records
def model(
    options: TrialOptions,
    name: Annotated[str, typer.Argument(metavar="MODEL", help=OF_A_COMPONENT)],
    dataset: Annotated[str | None, option("Its input shape is used. Default: one that fits.")] = None,
    loss: Annotated[str, option(OF_A_COMPONENT)] = "nll",
    batch_size: Annotated[int, option("Samples per step.", takes="N")] = 32,
    parts: Annotated[str | None, option("Numbers of stages. Default: 2,3,4.", takes="COUNTS")] = None,
    mesh: Annotated[
        str | None, option("Show the ranks of hybrid instead: data=2,tensor=2.", takes="DEGREES")
    ] = None,
) -> None:
    """Profile a model's blocks and propose split points."""
    from orchestrator.commands.model import sections

    width = text_console().width
    for section in sections(name, dataset, batch_size, parts, width, options.imports, loss, mesh):
        print(section, flush=True)


@app.command(rich_help_panel=TRY)
def plan(
    name: Annotated[str, typer.Argument(metavar="MODEL", help=OF_A_COMPONENT)] = "gpt",
    nodes: Annotated[int, option("How many nodes.", takes="", min=2, max=1024)] = 8,
    link: Annotated[str, option("1gbit, infiniband, 10gbit/50us or none.", takes="LINK")] = "10gbit",
    hardware: Annotated[
        str | None, option("h100 or another. Default: cores of this machine.", takes="NAME")
    ] = None,
    memory: Annotated[str | None, option("Of a node, for the model's state: 4gb.", takes="SIZE")] = None,
    batch_size: Annotated[int, option("Samples per step, of all nodes.", takes="", min=1)] = 64,
    samples: Annotated[int | None, option("Of an epoch, for time and price.", takes="N", min=1)] = None,
    epochs: Annotated[int, option("Passes over the samples.", takes="", min=1)] = 1,
    noise_scale: Annotated[
        float | None, option("Of gradients, as a report shows it.", takes="SAMPLES")
    ] = None,
    price: Annotated[str | None, option("Price of a node in an hour: 2.50/h.", takes="PRICE/h")] = None,
    dataset: Annotated[str | None, option("copy, induction or synthetic.")] = None,
    transport: Annotated[str, option("gloo, mpi or rpc.")] = "gloo",
    cluster: Annotated[Path | None, place("Costs of messages, from `calibrate`.", takes="FILE")] = None,
    sets: Sets = None,
    seconds: Annotated[
        float | None,
        option("Of execution on virtual nodes. Default: 60, or 0 with --hardware.", takes="", min=0),
    ] = None,
    real: Annotated[
        int | None, option("Fastest layouts that run. Default: 3 or none.", takes="", min=0, max=100)
    ] = None,
    page: Annotated[Path | None, place("An HTML page of the plan.", takes="FILE")] = None,
    runtime: Runtime = None,
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Choose how to split a model's training over nodes.

    First by formula, then by execution on virtual nodes, then for real."""
    from orchestrator.commands import plan as command

    if hardware and (seconds or real):
        raise InputError(
            f"--hardware {hardware}: nothing is executed on such machines; leave out --seconds and --real"
        )
    wanted = command.asked(
        *(name, nodes, memory, link, cluster, dataset, batch_size, sets or (), transport),
        *(hardware, price, samples, epochs, noise_scale),
    )
    console = text_console()
    planner = command.planner(wanted, data_dir, partial(print, file=sys.stderr, flush=True))
    if not as_json:
        for shown in command.formula_lines(planner, console.width):
            console.print(shown, soft_wrap=False)
    if page:
        from orchestrator.commands.plan_page import write_page

        write_page(planner, page)  # execution takes long: an error comes before
    seconds = (0.0 if hardware else 60.0) if seconds is None else seconds
    if seconds:
        planner.execute(seconds)
    if real or (seconds and real is None):
        planner.run(select_runtime(runtime), real)
    if (seconds or real) and not as_json:
        for shown in command.executed_lines(planner, console.width):
            console.print(shown, soft_wrap=False)
    if page:
        write_page(planner, page)
        print(f"page: {page}", file=sys.stderr)
    if as_json:
        print(command.record(planner).model_dump_json(indent=1))


@app.command(rich_help_panel=TRY)
@with_records
def check(
    options: TrialOptions,
    component: Annotated[
        str,
        typer.Argument(
            metavar="COMPONENT", help="FILE.py[:NAME], PACKAGE.MODULE:NAME, or a registered one: dirichlet."
        ),
    ],
    sets: Annotated[
        list[str] | None, option("A parameter of the component: alpha=0.1.", "--set", takes="KEY=VALUE")
    ] = None,
    dataset: Annotated[str | None, option("Samples for a model or an augmentation.")] = None,
    kind: Annotated[str | None, option("What a function is, if unclear: dataset.")] = None,
    equals: Annotated[
        str | None, option("What a strategy or an optimizer must equal: all_reduce.", takes="NAME")
    ] = None,
    timeout: Annotated[float, option("Limit for one component.", takes="SECONDS")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Check that a component keeps the laws of its kind.

    Where one fails, the smallest input is shown."""
    from orchestrator.commands import check as command

    asked = command.request_of(component, sets or (), dataset, kind, equals, options.data_dir, timeout)
    console, found = text_console(), []
    with command.checking(asked, options.sandbox) as checking:
        for report in checking.reports(asked):
            if not as_json:
                for line in command.lines(report, console.width):
                    console.print(line)
            found.append(report)
    if as_json:
        print(command.as_json(found))
    if any(report.failed for report in found):
        raise typer.Exit(FAILED)


course = typer.Typer(help="Write assignments for a course, and grade submissions.", no_args_is_help=True)
app.add_typer(course, name="course", rich_help_panel=SETUP)


@course.command("new")
def course_new(
    directory: Annotated[Path, place_argument("A new or empty directory.")],
    assignment: Annotated[str | None, option("A shipped assignment. Default: all.", takes="NAME")] = None,
    solutions: Annotated[
        bool, flag("Also hidden tests and solutions, for teachers.", "--solutions")
    ] = False,
) -> None:
    """Write an assignment: skeletons, public tests, a sweep file and a report template."""
    from orchestrator.course.assignments import write

    for file in write(directory, assignment, solutions):
        print(file)


@course.command("grade")
@with_records
def course_grade(
    submissions: Annotated[
        list[Path],
        typer.Argument(parser=any_path, metavar="SUBMISSION...", help="Directories of students' files."),
    ],
    tests: Annotated[
        list[Path], place("A directory or a Python file; repeatable.", "--tests", takes="PATH")
    ],
    options: GradeOptions,
) -> None:
    """Grade submissions with tests; a wrong submission is no error."""
    from orchestrator.commands.course import grade

    raise typer.Exit(grade(submissions, tests, options, text_console()))


@course.command("test")
def course_test(
    directory: Annotated[Path, place_argument("Directory of the files to test.")] = Path("."),
    tests: Annotated[list[Path] | None, place("Default: DIRECTORY/tests.", "--tests", takes="PATH")] = None,
) -> None:
    """Run the public tests on your own files, as local processes; shows what your code prints."""
    from orchestrator.commands.course import grade

    options = GradeOptions(runtime="local", jobs=1)
    raise typer.Exit(grade([directory], tests or [directory / "tests"], options, text_console(), own=True))


@app.command(rich_help_panel=SETUP)
def doctor(data_dir: DataDir = Path("data")) -> None:
    """Check what can run on this machine, and say how to fix the rest."""
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


@app.command(rich_help_panel=SETUP)
def image(
    wheels: Annotated[Path | None, place("Wheels to install. Default: pip's find-links.")] = None,
) -> None:
    """Build the image that containers run."""
    from orchestrator.runtimes.docker.engine import reach
    from orchestrator.runtimes.docker.image import build

    if wheels and not wheels.is_dir():
        raise InputError(f"--wheels {wheels}: no such directory")
    raise typer.Exit(build(reach(), wheels))


@app.command(rich_help_panel=SETUP)
def clean() -> None:
    """Remove what killed sweeps left: processes, containers, networks."""
    count = sum(RUNTIMES.load(name)().clean() for name in RUNTIMES.entries)
    print(f"removed {count} process(es), container(s) and network(s)")


@app.command(rich_help_panel=SETUP)
def schema(directory: Annotated[Path, place_argument("Directory to write to.")] = Path("schemas")) -> None:
    """Write the JSON Schemas of runs and sweep files, for editors."""
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
