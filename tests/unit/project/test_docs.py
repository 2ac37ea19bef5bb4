"""Mistakes in README and docs: dead links, commands that do not parse, examples and tables that are old."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, get_origin, get_type_hints

import pytest
import typer
from packaging.version import Version
from typer.testing import CliRunner

from orchestrator import __version__
from orchestrator.cli import app
from orchestrator.commands import labs
from orchestrator.shipped import LABS
from orchestrator.sweeps.lab import Published
from orchestrator.sweeps.load import load_sweep
from tests.mutants.catalogue import read_catalogue
from tests.unit.conftest import PROJECT
from tests.unit.project.test_imports import ORCHESTRATOR, TRAINER
from tools.docs import KINDS, TABLES, listed, stale
from tools.picture import PICTURE, draw_picture, same_drawing
from tools.strategy_api import DECLARED
from trainer.components.strategy import StrategyKind
from trainer.core.strategy import Strategy

FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
FILES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), PROJECT / "tests" / "attacks" / "README.md"]
PAGES = {page: page.read_text() for page in sorted(FILES)}
PROSE = {page: FENCE.sub("", text) for page, text in PAGES.items()}
# Where paths in pages may begin.
ROOTS = (PROJECT, PROJECT / "orchestrator", PROJECT / "trainer")
DOCS = PROJECT / "docs"


def blocks(language: str, *pages: Path) -> Iterator[str]:
    """The code blocks of a language; "" selects blocks without one, which hold commands and output."""
    for page in pages:
        yield from (text for found, text in FENCE.findall(PAGES[page]) if found == language)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.+)$", PROSE.get(page, ""))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_anchors_and_files_exist() -> None:
    for page, prose in PROSE.items():
        for target in re.findall(r"\]\(((?:(?!://)[^)])+)\)", prose):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), (page, target)
            assert not anchor or anchor in anchors(there), (page, target)
        now = re.sub(r"[\w./-]+`?,? of\s+(the\s+same\s+)?commit\b", "", prose)  # files of the past
        for name in re.findall(r"[\w.-]+/[\w./-]*\.(?:py|md|yml|json|svg|toml|txt)\b(?!:\w)", now):
            found = any((root / name).exists() for root in (*ROOTS, page.parent))
            of_runs = name.startswith(("results/", "plots/"))
            assert found or of_runs or "://" in name or f"<name>.{name[-2:]}" in name, (page, name)


def test_lists_of_packages_and_decisions_are_complete_and_in_order() -> None:
    rooms = re.findall(r"(?m)^\| `(\w+)/` \|", PAGES[DOCS / "architecture.md"])
    packages = {path.parent.name for root in ROOTS[1:] for path in root.glob("*/*.py")}
    assert rooms == [name for name in (*TRAINER, *ORCHESTRATOR) if name in packages]
    decisions = {page.name for page in DOCS.glob("decisions/0*.md")}
    assert decisions == {*re.findall(r"\]\((0[\w-]+\.md)\)", PAGES[DOCS / "decisions" / "README.md"])}


# Commands


def commands_shown() -> list[str]:
    """Every command line that a page shows for make or the orchestrator, without its comment."""
    lines = [line for text in blocks("", *PAGES) for line in text.replace("\\\n", " ").splitlines()]
    for prose in PROSE.values():
        lines += re.findall(r"`((?:make|shardyard|python -m orchestrator) [^`]+)`", prose)
    shown = (" ".join(line.partition(" #")[0].removeprefix("$ ").split()) for line in lines)
    return sorted(
        {line for line in shown if re.match(r"make |shardyard (?!--)|(\S*/)?python -m orchestrator ", line)}
    )


def orchestrator_commands(line: str) -> list[list[str]]:
    """The arguments that a command passes to the orchestrator; for make, those in its recipe."""
    recipe = re.sub(r"^shardyard ", "-m orchestrator ", line)
    if line.startswith("make "):
        command = ["make", "-n", "-o", ".venv/ready", "-o", ".venv/ready-dev", *shlex.split(line)[1:]]
        alone = {"PATH": os.environ["PATH"]}  # without the arguments of a `make` around this test
        recipe = subprocess.run(
            command, cwd=PROJECT, env=alone, capture_output=True, check=True, text=True
        ).stdout
    return [shlex.split(each) for each in re.findall(r"-m orchestrator (.+)", recipe)]


COMMANDS = typer.main.get_command(app)


def parse(arguments: list[str]) -> None:
    """Parse a command line without executing it. Raises on an unknown command or option."""
    with COMMANDS.make_context("orchestrator", list(arguments)) as context:
        name, command, rest = COMMANDS.resolve_command(context, list(arguments))  # type: ignore[attr-defined]
        if rest:  # prose may name a command without arguments
            command.make_context(name, rest, parent=context).close()


def test_shown_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    shown = [line for line in commands_shown() if not re.search("RESULTS_DIR|NAME|…", line)]
    assert {"make sweep", "make test", "make test-all", "shardyard doctor"} <= {*shown}
    targets = [line.split()[1] for line in shown if re.fullmatch(r"make [\w-]+", line)]
    others = [line for line in shown if line.removeprefix("make ") not in targets]
    for line in [" ".join(["make", *targets]), *others]:
        for arguments in orchestrator_commands(line):
            parse(arguments)
    with pytest.raises(Exception, match="--node"):
        parse(*orchestrator_commands('make sweep ARGS="--node 2"'))


@pytest.mark.slow
def test_shown_commands_that_change_labs_have_runs(tmp_path: Path) -> None:
    shown = [line for line in commands_shown() if re.match(r"shardyard lab (?!NAME).*--(set|nodes)", line)]
    assert shown
    for line in shown:
        options = ["--dry-run", "--runtime", "local", "--data-dir", str(tmp_path)]
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], *options])
        assert done.exit_code == 0, (line, done.exception or done.output)


def test_examples_load(tmp_path: Path) -> None:
    for page, quick, runs in (
        ("sweeps", False, 5 * (1 + 5 + 2)),
        ("labs", False, 5 * 6),
        ("labs", True, 4),
    ):
        (tmp_path / "mine.yml").write_text(next(blocks("yaml", DOCS / f"{page}.md")))
        assert len(load_sweep(tmp_path / "mine.yml", quick=quick).runs) == runs


def test_pages_of_labs_have_their_blocks_and_published_figures() -> None:
    for name in labs.names():
        page = PAGES[DOCS / "labs" / f"{name}.md"]
        rows = [{cell.strip() for cell in line.split("|")} for line in page.splitlines()]
        for block in load_sweep(LABS / f"{name}.yml").spec.blocks:
            assert f"`{block.name}`" in page
            for entry in block.published:
                assert any({*figures(entry)} <= row for row in rows), (name, entry)


def figures(entry: Published) -> list[str]:
    """The published figures, formatted as on a page."""
    formats = [
        (entry.time_s, "{:g} s"),
        (entry.accuracy and 100 * entry.accuracy, "{:.4g} %"),
        (entry.coverage and 100 * entry.coverage, "{:.4g} %"),
        (entry.accuracy_change and 100 * entry.accuracy_change, "{:+.4g} points"),
        (entry.rounds_to_target, "{}"),
        (entry.steps_per_epoch, "{}"),
        (entry.staleness, "{:g}"),
        (entry.state and 100 * entry.state, "{:.4g} %"),
        (entry.sent, "{:g}"),
        (entry.exchange_share and 100 * entry.exchange_share, "{:.4g} %"),
    ]
    return [form.format(value).replace("-", "−") for value, form in formats if value is not None]


@pytest.mark.slow
def test_mutants_fit_the_sources_and_the_page_of_bugs_names_their_tests_and_reports() -> None:
    page = PAGES[DOCS / "bugs.md"]
    mutants = {mutant.name: mutant for mutant in read_catalogue()}  # an error names entries that do not fit
    assert len(mutants) >= 110
    named = {name for names in re.findall(r"--only ([a-z0-9 -]+)", page) for name in names.split()}
    assert named | {*re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page)} <= {*mutants}
    rows = re.findall(r"(?m)^\| `([^`]+)` \| .+\]\(\.\./(tests/[^)]+)\).* \| (.+) \|$", page)
    for name, file, report in rows:
        assert file in {test.partition("::")[0] for test in mutants[name].tests}, name
        assert re.match(r"\[[^]]+\]\(https://|no public report found$", report), name
    assert len(rows) >= 30


def test_versions_to_install_are_pinned() -> None:
    files = ("requirements.txt", "trainer/requirements.txt")
    pinned = {word for file in files for word in (PROJECT / file).read_text().split()}
    named = {*re.findall(r"\b[a-z]+==[\d.]+", PAGES[DOCS / "questions.md"])}
    assert {name.partition("==")[0] for name in named} == {"torch", "torchvision"}
    assert named <= pinned


def test_the_version_follows_from_the_changelog() -> None:
    """With entries that no release has, it is a development version; with removals, of a new major one."""
    found = re.match(r"(?ms)(.*?)^## (\d\S*) - ", PAGES[PROJECT / "CHANGELOG.md"])
    assert found
    changes = re.findall(r"(?m)^### (\w+)", found[1])
    newest, version = Version(found[2]), Version(__version__)
    assert version.is_devrelease == bool(changes)
    assert (version > newest) == bool(changes)
    assert version.major >= newest.major + ("Removed" in changes)


def test_generated_tables_are_current(tmp_path: Path) -> None:
    assert list(stale()) == [], "run: make docs"
    (page := tmp_path / "docs" / "old.md").parent.mkdir()
    page.write_text("<!-- table: methods of Batch -->\nAn older table.\n<!-- end of table -->\n")
    assert [*stale(tmp_path)] == [page]
    asked = {name for text in PAGES.values() for name in re.findall(r"<!-- table: ([\w ]+) -->", text)}
    assert asked <= {*TABLES}
    for kind in KINDS:
        assert asked & {kind, f"{kind} details", f"{kind} transports"}, kind
    assert {*KINDS["strategy"].entries} - {*listed("strategy")} == {"fault_injection"}


def test_the_readme_has_every_strategy_in_one_group() -> None:
    table = PAGES[PROJECT / "README.md"].partition("| strategies |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(listed("strategy"))


def test_what_a_strategy_declares_is_in_one_group_with_a_law_that_exists() -> None:
    hints = get_type_hints(Strategy).items()
    declared = {name for name, hint in hints if get_origin(hint) is ClassVar}
    grouped = [name for group in DECLARED.values() for name in group]
    assert sorted(grouped) == sorted(name for name in declared if not name.startswith(("_", "model_")))
    laws = {law for group in DECLARED.values() for law in group.values()} - {""}
    assert laws <= {law.name for law in StrategyKind.laws()}


@pytest.mark.slow
def test_picture_equals_the_figures_of_the_report() -> None:
    drawn = draw_picture()
    assert same_drawing(drawn, PICTURE.read_text()), "run: make picture"
    assert not same_drawing(drawn.replace("Speedup", "Slowdown"), PICTURE.read_text())
