"""Mistakes that a new component shows, which is one file and one registry line: suites, docs, schema, runs.

The tests add a strategy to a copy of the project and change nothing else in it.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT, Done
from tests.support.command_line import run as run_command
from tests.support.runs import lines_in, write_sweep

pytestmark = pytest.mark.nightly

COPIED = ("trainer", "orchestrator", "tools", "tests", "docs", "sweeps", "compose")
COPIED_FILES = ("README.md", "CONTRIBUTING.md", "pyproject.toml")

STRATEGY = '''
"""Mean of gradients: what all_reduce does, in its shortest form."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class MeanGradient(Strategy):
    """Average the gradients over all ranks, without compression (Doe et al. 2026)."""

    transports: ClassVar[tuple[str, ...]] = ("memory", "gloo")
    synchronous: ClassVar[bool] = True

    uneven: Uneven = "join"
    halved: bool = Field(False, description="apply half of the mean")

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                gradient = replica.gradient()
                session.comm.all_reduce(gradient, "mean")
                replica.set_gradient(gradient / 2 if self.halved else gradient)
                replica.step()
'''

NAME, FILE = "mean_gradient", "trainer/strategies/mean_gradient.py"
BASE = {
    "dataset": {"name": "synthetic", "samples": 120, "test_samples": 32},
    "model": {"name": "mlp", "hidden": [8]},
    "lr": 0.01,
    "epochs": 1,
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the strategy: one file and one registry line."""
    directory = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns(".*")
    for name in COPIED:
        shutil.copytree(PROJECT / name, directory / name, ignore=ignored)
    for name in COPIED_FILES:
        shutil.copy(PROJECT / name, directory / name)
    (directory / FILE).write_text(STRATEGY.lstrip())
    registries = directory / "trainer" / "spec" / "registries.py"
    line = f'        "{NAME}": "{FILE.removesuffix(".py").replace("/", ".")}:MeanGradient",\n'
    text, added = re.subn(
        r"(?ms)^(STRATEGIES: .*?)^    },$",
        lambda match: f"{match[1]}{line}    }},",
        registries.read_text(),
        count=1,
    )
    assert added == 1
    registries.write_text(text)
    return directory


def run(copy: Path, *arguments: str | Path) -> Done:
    """Run a module of the copy with Python; it must succeed."""
    done = run_command([sys.executable, "-m", *arguments], copy, 240, PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_conformance_suite_tests_the_new_components(copy: Path) -> None:
    suites = sorted((copy / "tests" / "unit" / "trainer" / "components").glob("test_*.py"))
    assert suites
    options = ["-q", "-p", "no:cacheprovider", "-k", NAME, "-rA"]
    done = run(copy, "pytest", *options, *suites)
    assert re.search(rf"PASSED .*\[.*{NAME}.*\]", done.stdout)


def test_docs_and_schemas_list_the_new_components(copy: Path) -> None:
    before = {page: page.read_text() for page in [copy / "README.md", *(copy / "docs").rglob("*.md")]}
    run(copy, "tools.docs")
    run(copy, "tools.docs", "--check")
    run(copy, "orchestrator", "schema")
    readme, reference = (copy / "README.md").read_text(), (copy / "docs" / "components.md").read_text()
    schema = (copy / "schemas" / "sweep.schema.json").read_text()
    assert f"`{NAME}`" in readme
    assert f"[`{NAME}`](../{FILE})" in reference
    assert f'"{NAME}"' in schema
    assert not any(f"`{NAME}`" in text for text in before.values())
    assert "(Doe et al. 2026)" in reference
    assert re.search(r"\| `halved` \| `mean_gradient` \| false \| .*\| apply half of the mean", reference)


def test_a_sweep_runs_with_the_new_components(copy: Path, tmp_path: Path) -> None:
    file = write_sweep(
        tmp_path / "new.yml",
        BASE,
        {"strategy": "serial"},
        {"strategy": {"name": NAME, "halved": True}, "nodes": 2},
    )
    out = tmp_path / "out"
    run(copy, "orchestrator", "sweep", file, "--runtime", "local", "--dry-run")
    run(copy, "orchestrator", "sweep", file, "--runtime", "local", "--out", out)
    rows = lines_in(out)
    assert {(row["strategy"].split()[0], row["status"]) for row in rows} == {("serial", "ok"), (NAME, "ok")}
