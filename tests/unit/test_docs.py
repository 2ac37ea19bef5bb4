"""Docs that hold: links lead somewhere, commands exist, the sweep file that is shown loads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands import labs
from orchestrator.commands.docs import stale
from orchestrator.sweeps.lab import Published
from orchestrator.sweeps.load import Sweep, load_sweep
from trainer.spec.registries import COMPRESSIONS, MODELS, OPTIMIZERS, PARTITIONERS, REGISTRIES
from trainer.spec.run_spec import RunSpec
from trainer.strategies.ddp import HOOKS

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
# What `make sweep-NAME` and the like are the names of.
MADE_OF = {"sweep": PROJECT / "sweeps", "lab": labs.LABS}


def commands(pattern: str) -> set[str]:
    return {found for page in PAGES for found in re.findall(pattern, page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = commands(r"(?m)(?:^|`)make ([a-z]+(?:-\w+)?)")
    assert {"sweep", "test", "doctor", "lab-parallel_sgd"} <= named
    for target in named:
        kind, _, name = target.partition("-")
        if re.search(rf"(?m)^{target}:", makefile):
            continue
        assert re.search(rf"(?m)^{kind}-%:", makefile), f"make {target}"
        assert name == "NAME" or (MADE_OF[kind] / f"{name}.yml").exists(), f"make {target}"


def test_orchestrator_commands_exist() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--help"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = commands(r"-m orchestrator ([a-z]+)")
    assert {"sweep", "report"} <= named
    for command in named:
        assert re.search(rf"\b{command}\b", shown), f"python -m orchestrator {command}"


def test_versions_that_the_readme_installs_are_the_pinned_ones() -> None:
    files = ("requirements.txt", "trainer/requirements.txt")
    pinned = {word for file in files for word in (PROJECT / file).read_text().split()}
    named = set(re.findall(r"\b[a-z]+==[\d.]+", (PROJECT / "README.md").read_text()))
    assert {name.partition("==")[0] for name in named} == {"torch", "torchvision"}
    assert named <= pinned


def test_files_that_commands_name_exist() -> None:
    for name in commands(r"\b((?:sweeps|schemas|trainer|orchestrator|tests)/[\w./]+\.(?:yml|json|py))"):
        assert (PROJECT / name).exists(), name


def test_the_sweep_file_that_is_shown_loads(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "sweeps.md").read_text()
    shown = re.search(r"```yaml\n(.*?)```", page, re.S)
    assert shown
    file = tmp_path / "mine.yml"
    file.write_text(shown[1])
    assert len(load_sweep(file).runs) == 1 + (3 * 2 * 2 - 2) + 2


def shown_in_labs(tmp_path: Path, quick: bool) -> Sweep:
    shown = re.search(r"```yaml\n(.*?)```", (PROJECT / "docs" / "labs.md").read_text(), re.S)
    assert shown
    file = tmp_path / "mine.yml"
    file.write_text(shown[1])
    return load_sweep(file, quick=quick)


def test_the_lab_that_is_shown_loads(tmp_path: Path) -> None:
    assert len(shown_in_labs(tmp_path, quick=False).runs) == 1 + 3 + 2
    assert len(shown_in_labs(tmp_path, quick=True).runs) == 1 + 2 + 1


def test_the_table_of_labs_has_them_all_with_their_runs_and_epochs() -> None:
    page = (PROJECT / "docs" / "labs.md").read_text()
    rows = re.findall(
        r"(?m)^\| \[(\w+)\]\(labs/(\w+)\.md\) \| [^|]+ \| (\w+) \| (\d+) \| (\d+)( at most)? \|$", page
    )
    assert [row[0] for row in rows] == [row[1] for row in rows] == labs.names()
    for name, _, dataset, runs, epochs, at_most in rows:
        sweep = load_sweep(labs.LABS / f"{name}.yml")
        assert {run.name_of("dataset") for run in sweep.runs} == {dataset}
        assert (len(sweep.runs), sum(run.epochs for run in sweep.runs)) == (int(runs), int(epochs)), name
        assert bool(at_most) == any(run.target_accuracy is not None for run in sweep.runs)


@pytest.mark.parametrize("name", labs.names())
def test_the_page_of_a_lab_has_its_blocks_and_its_published_figures(name: str) -> None:
    page = (PROJECT / "docs" / "labs" / f"{name}.md").read_text()
    rows = [{cell.strip() for cell in line.split("|")} for line in page.splitlines()]
    for block in load_sweep(labs.LABS / f"{name}.yml").spec.blocks:
        assert f"`{block.name}`" in page
        for entry in block.published:
            assert any(set(written(entry)) <= row for row in rows), entry


def written(entry: Published) -> list[str]:
    """Its figures, as a page has them."""
    figures = [
        (entry.time_s, lambda value: f"{value:g} s"),
        (entry.accuracy, lambda value: f"{100 * value:.4g} %"),
        (entry.coverage, lambda value: f"{100 * value:.4g} %"),
        (entry.accuracy_change, lambda value: f"{100 * value:+.4g} points".replace("-", "−")),
        (entry.steps_per_epoch, str),
    ]
    return [write(value) for value, write in figures if value is not None]


LAB_COMMANDS = sorted(commands(r"(?m)^python -m orchestrator (lab [^#\n]+)"))


@pytest.mark.parametrize("command", LAB_COMMANDS)
def test_commands_of_labs_have_runs(command: str, tmp_path: Path) -> None:
    options = ["--dry-run", "--runtime", "local", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(app, [*shlex.split(command), *options])
    assert done.exit_code == 0, done.exception or done.output
    assert "nothing was started" in done.output


def test_the_table_of_partitioners_is_that_of_the_registry() -> None:
    page = (PROJECT / "docs" / "partitioners.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \|([^|]+)\|", page)
    assert {name for name, _ in rows} == set(PARTITIONERS.entries)
    for name, cell in rows:
        fields = PARTITIONERS.load(name).model_fields
        defaults = {field: str(info.default).lower() for field, info in fields.items()}
        assert defaults.pop("reshuffle") == "false"
        assert dict(re.findall(r"`(\w+)` \(([^)]+)\)", cell)) == defaults


def test_the_table_of_models_is_that_of_the_registry() -> None:
    page = (PROJECT / "docs" / "models.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \|([^|]+)\| [^|]+ \|$", page)
    assert {name for name, _ in rows} == set(MODELS.entries)
    for name, cell in rows:
        defaults = {field: str(info.default) for field, info in MODELS.load(name).model_fields.items()}
        assert dict(re.findall(r"`(\w+)` \(([^)]+)\)", cell)) == defaults


def test_the_table_of_fields_is_that_of_the_spec() -> None:
    page = (PROJECT / "docs" / "sweeps.md").read_text()
    table = page[page.index("| field | default |") :].partition("\n\n")[0]
    defaults = dict(re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \|", table))
    assert set(defaults) == set(RunSpec.model_fields)
    for field, info in RunSpec.model_fields.items():
        if field not in ("strategy", "transport"):
            default = "null" if info.default is None else str(info.default).lower()  # as YAML has it
            assert defaults[field].lower() == default


def test_the_table_of_compressions_is_that_of_the_registry() -> None:
    page = (PROJECT / "docs" / "sweeps.md").read_text()
    table = page[page.index("| compression | parameter |") :].partition("\n\n")[0]
    rows = {row.split("`")[1]: row.split("|") for row in table.splitlines()[2:]}
    assert list(rows) == list(COMPRESSIONS.entries)
    for name, (_, _, written, _, in_ddp, _) in rows.items():
        fields = COMPRESSIONS.load(name).model_fields
        assert written.strip() == ", ".join(f"`{key}: {field.default}`" for key, field in fields.items())
        assert (in_ddp.strip() != "no") == (name in HOOKS.entries)


def test_the_table_of_optimizers_is_that_of_the_registry() -> None:
    page = (PROJECT / "docs" / "sweeps.md").read_text()
    table = page[page.index("| optimizer | parameters (default) |") :].partition("\n\n")[0]
    rows = {row.split("`")[1]: row.split("|")[2] for row in table.splitlines()[2:]}
    assert list(rows) == list(OPTIMIZERS.entries)
    for name, cell in rows.items():
        fields = OPTIMIZERS.load(name).model_fields.items()
        defaults = {field: str(info.default).lower() for field, info in fields}
        assert dict(re.findall(r"`(\w+)` \(([^)]+)\)", cell)) == defaults


def test_every_component_is_named_in_the_readme() -> None:
    readme = (PROJECT / "README.md").read_text()
    for kind, registry in {**REGISTRIES, "compression": COMPRESSIONS}.items():
        for name in registry.entries:
            if name != "fault_injection":
                assert f"`{name}`" in readme, f"{kind} {name}"


def test_generated_tables_are_current() -> None:
    assert list(stale()) == [], "run: make docs"
