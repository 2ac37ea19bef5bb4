"""README and docs: links, anchors, files and commands exist, examples load, generated parts are current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands import labs
from orchestrator.shipped import LABS
from orchestrator.sweeps.lab import Published
from orchestrator.sweeps.load import load_sweep
from tests.mutants.catalogue import read_catalogue
from tests.unit.project.test_imports import ORCHESTRATOR, TRAINER
from tools.docs import KINDS, TABLES, listed, stale
from tools.picture import GAP, PICTURE, draw_picture, grid, same_drawing

PROJECT = Path(__file__).resolve().parents[3]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
# Directories to which paths in pages may be relative.
ROOTS = (PROJECT, PROJECT / "orchestrator", PROJECT / "trainer")
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
ENDINGS = r"(?:py|md|yml|json|svg|toml|txt)"


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text())


def blocks(language: str, *pages: Path) -> Iterator[str]:
    """The code blocks of a language; "" selects blocks without one, which hold commands and output."""
    for page in pages:
        yield from (text for found, text in FENCE.findall(page.read_text()) if found == language)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.+)$", prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Links and files


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    now = re.sub(r"[\w./-]+`?,? of\s+(the\s+same\s+)?commit\b", "", prose(page))  # files of the past
    for name in re.findall(rf"[\w.-]+/[\w./-]*\.{ENDINGS}\b(?!:\w)", now):  # no import paths
        written_by_runs = name.startswith(("results/", "plots/"))
        found = any((root / name).exists() for root in (*ROOTS, page.parent))
        assert written_by_runs or "://" in name or found or f"<name>.{name[-2:]}" in name, name


def test_architecture_lists_the_packages_in_the_order_of_their_imports() -> None:
    rooms = re.findall(r"(?m)^\| `(\w+)/` \|", (PROJECT / "docs" / "architecture.md").read_text())
    modules = {
        "__main__",
        "errors",
        "identity",
        "interrupts",
        "registries",
        "shipped",
        "terminal",
        "api",
        "cli",
    }
    assert rooms == [name for name in (*TRAINER, *ORCHESTRATOR) if name not in modules]


# Commands


def commands_shown() -> list[str]:
    """Every command line that a page shows for make or the orchestrator, without its comment."""
    lines: list[str] = []
    for text in blocks("", *PAGES):
        lines += text.replace("\\\n", " ").splitlines()
    for page in PAGES:
        lines += re.findall(r"`((?:make|python -m orchestrator) [^`]+)`", prose(page))
    shown = (" ".join(line.partition(" #")[0].split()) for line in lines)
    return sorted({line for line in shown if re.match(r"make |(\S*/)?python -m orchestrator ", line)})


def orchestrator_commands(line: str) -> list[list[str]]:
    """The arguments that a command passes to the orchestrator; for make, those in its recipe."""
    if line.startswith("make "):
        # Without the arguments of a `make test ARGS=...` around this test.
        outer = {"ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"}
        ready = ["-o", ".venv/ready", "-o", ".venv/ready-dev"]
        done = subprocess.run(
            ["make", "--no-print-directory", "-n", *ready, *shlex.split(line)[1:]],
            cwd=PROJECT,
            env={name: value for name, value in os.environ.items() if name not in outer},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        recipe = done.stdout.splitlines()
    else:
        recipe = [line]
    return [shlex.split(part[1]) for each in recipe if (part := re.search(r"-m orchestrator (.+)", each))]


def parse(arguments: list[str]) -> None:
    """Parse a command line without executing it. Raises on an unknown command or option."""
    group = typer.main.get_command(app)
    with group.make_context("orchestrator", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, list(arguments))  # type: ignore[attr-defined]
        if rest:  # prose may name a command without arguments
            command.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("line", commands_shown())
def test_shown_command_parses(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    if "RESULTS_DIR" in line or "NAME" in line:
        return
    for arguments in orchestrator_commands(line):
        parse(arguments)


def test_commands_are_found_and_unknown_ones_rejected() -> None:
    assert {"make sweep", "make test", "make test-all", "make doctor"} <= set(commands_shown())
    assert orchestrator_commands('make sweep ARGS="--nodes 2"') == [["sweep", "--nodes", "2"]]
    for wrong in (["swep"], ["sweep", "--node", "2"]):
        with pytest.raises(Exception, match=wrong[-1] if len(wrong) == 1 else "--node"):
            parse(wrong)


def test_the_targets_of_make_are_listed_in_columns() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    lines = re.findall(r"(?m)^([a-z%-]+)( *)(.*)$", done.stdout)
    assert {"slurm-cluster", "test-process", "venv"} <= {name for name, _, _ in lines}
    assert len({len(name + gap) for name, gap, _ in lines}) == 1
    assert all(len(gap) > 0 for _, gap, _ in lines)


LAB_COMMANDS = [line for line in commands_shown() if re.match(r"python -m orchestrator lab (?!NAME)", line)]


@pytest.mark.parametrize("line", LAB_COMMANDS)
def test_shown_lab_command_has_runs(line: str, tmp_path: Path) -> None:
    options = ["--dry-run", "--runtime", "local", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(app, [*shlex.split(line)[3:], *options])
    assert done.exit_code == 0, done.exception or done.output


# Examples and figures


def test_example_sweep_file_loads(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(next(blocks("yaml", PROJECT / "docs" / "sweeps.md")))
    assert len(load_sweep(file).runs) == 5 * (1 + (3 * 2 - 1) + 2)


@pytest.mark.parametrize(("quick", "runs"), [(False, 5 * (1 + 3 + 2)), (True, 1 + 2 + 1)])
def test_example_lab_loads(quick: bool, runs: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(next(blocks("yaml", PROJECT / "docs" / "labs.md")))
    assert len(load_sweep(file, quick=quick).runs) == runs


@pytest.mark.parametrize("name", labs.names())
def test_page_of_a_lab_has_its_blocks_and_published_figures(name: str) -> None:
    page = (PROJECT / "docs" / "labs" / f"{name}.md").read_text()
    rows = [{cell.strip() for cell in line.split("|")} for line in page.splitlines()]
    for block in load_sweep(LABS / f"{name}.yml").spec.blocks:
        assert f"`{block.name}`" in page
        for entry in block.published:
            assert any(set(figures(entry)) <= row for row in rows), entry


def test_the_page_of_bugs_names_mutants_their_tests_and_where_they_were_reported() -> None:
    page = (PROJECT / "docs" / "bugs.md").read_text()
    mutants = {mutant.name: mutant for mutant in read_catalogue()}
    assert set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page)) <= set(mutants)
    for names in re.findall(r"--only ([a-z0-9 -]+)", page):
        assert set(names.split()) <= set(mutants)
    rows = re.findall(r"(?m)^\| `([^`]+)` \| .+\]\(\.\./(tests/[^)]+)\).* \| (.+) \|$", page)
    for name, file, _ in rows:
        assert file in {test.partition("::")[0] for test in mutants[name].tests}, name
    reports = [report for _, _, report in rows if report != "no public report found"]
    assert len(reports) >= 30
    assert all(re.match(r"\[[^]]+\]\(https://", report) for report in reports)


def figures(entry: Published) -> list[str]:
    """The published figures, formatted as on a page."""
    formats = [
        (entry.time_s, lambda value: f"{value:g} s"),
        (entry.accuracy, lambda value: f"{100 * value:.4g} %"),
        (entry.coverage, lambda value: f"{100 * value:.4g} %"),
        (entry.accuracy_change, lambda value: f"{100 * value:+.4g} points".replace("-", "−")),
        (entry.rounds_to_target, str),
        (entry.steps_per_epoch, str),
        (entry.staleness, lambda value: f"{value:g}"),
    ]
    return [write(value) for value, write in formats if value is not None]


def test_versions_in_the_readme_are_pinned() -> None:
    files = ("requirements.txt", "trainer/requirements.txt")
    pinned = {word for file in files for word in (PROJECT / file).read_text().split()}
    named = set(re.findall(r"\b[a-z]+==[\d.]+", (PROJECT / "README.md").read_text()))
    assert {name.partition("==")[0] for name in named} == {"torch", "torchvision"}
    assert named <= pinned


# Generated parts


def test_generated_tables_are_current() -> None:
    assert list(stale()) == [], "run: make docs"


def test_every_kind_of_component_has_a_table() -> None:
    asked = {name for page in PAGES for name in re.findall(r"<!-- table: ([\w ]+) -->", page.read_text())}
    assert asked <= set(TABLES)
    for kind in KINDS:
        assert asked & {kind, f"{kind} details", f"{kind} transports"}, kind


def test_fault_injection_is_not_listed() -> None:
    assert "fault_injection" in KINDS["strategy"].entries
    assert "fault_injection" not in listed("strategy")


@pytest.mark.slow
def test_picture_equals_the_figures_of_the_report() -> None:
    drawn = draw_picture()
    assert same_drawing(drawn, PICTURE.read_text()), "run: make picture"
    assert not same_drawing(drawn.replace("Speedup", "Slowdown"), PICTURE.read_text())


def test_figures_of_the_picture_are_side_by_side() -> None:
    svg = '<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}"><g id="a" clip-path="url(#a)"/></svg>'
    picture = grid([svg.format(100, 50), svg.format(90, 60), svg.format(100, 40)], columns=2)
    assert f'viewBox="0 0 {200 + GAP} {100 + GAP}"' in picture
    placed = re.findall(r'<svg x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', picture)
    right, below = str(100 + GAP), str(60 + GAP)
    assert placed == [("0", "0", "100", "50"), (right, "0", "90", "60"), ("0", below, "100", "40")]
    ids = re.findall(r'id="([^"]+)"', picture)
    assert len(set(ids)) == 3
    assert re.findall(r"url\(#([^)]+)\)", picture) == ids
