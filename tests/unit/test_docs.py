"""Docs that hold: links lead somewhere, commands exist, the sweep file that is shown loads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.sweep import load_sweep
from trainer.compression import COMPRESSIONS
from trainer.data.partitioners import PARTITIONERS
from trainer.models import MODELS
from trainer.optimizers import OPTIMIZERS
from trainer.spec import REGISTRIES, RunSpec
from trainer.strategies.ddp import HOOKS

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")])


def commands(pattern: str) -> set[str]:
    return {found for page in PAGES for found in re.findall(pattern, page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = commands(r"(?m)(?:^|`)make ([a-z]+)")
    assert {"sweep", "test", "doctor"} <= named
    for target in named:
        assert re.search(rf"(?m)^{target}:", makefile), f"make {target}"


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
            if name != "placebo":
                assert f"`{name}`" in readme, f"{kind} {name}"
