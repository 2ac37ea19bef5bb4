"""Mistakes of users' components in containers: rebuilds, other weights, packages, code that is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from tests.support.command_line import refused, run_cli
from tests.support.containers import docker
from tests.support.runs import digests, results_in

WORDS = """
import os
from pathlib import Path
import torch
from torch import nn

def sentences(samples: int = 64):
    words = Path(__file__).with_name("words.txt").read_text().split()
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(words), (samples, 4), generator=rng)
    return tokens, (tokens[:, 0] > len(words) // 2).long()

def net(classes: int, fails: bool = False):
    layers = [nn.Embedding(8, 6), nn.Flatten(), nn.Dropout(0.1), nn.Linear(24, classes)]
    return nn.Sequential(*layers, Fails()) if fails else nn.Sequential(*layers)

class Fails(nn.Module):
    def forward(self, x):
        if "SHARDYARD_SPEC" in os.environ:  # in a node
            Path(__file__).write_text("changed")
        return x

def entropy(output, target):
    return nn.functional.cross_entropy(output, target)
"""
SWEEP = """
name: words
base: {dataset: ./words.py:sentences, model: ./words.py:net, loss: ./words.py:entropy, epochs: 1}
blocks:
  - base: {strategy: serial}
  - base: {nodes: 2}
    axes: {strategy: [ddp, pipeline]}
"""


def line_of(code: str, words: str) -> int:
    return 1 + next(number for number, line in enumerate(code.splitlines()) if words in line)


def written(directory: Path, sweep: str) -> Path:
    """The sweep file beside the component's files."""
    directory.mkdir(exist_ok=True)
    (directory / "words.py").write_text(WORDS)
    (directory / "words.txt").write_text("the film was not very good but long")
    (directory / "sweep.yml").write_text(sweep)
    return directory / "sweep.yml"


def results_of(file: Path, out: Path, runtime: str) -> dict[str, RunResult]:
    """The results by run key."""
    done = run_cli("sweep", file, "--out", out, "--runtime", runtime, timeout_s=280)
    assert "Traceback" not in done.stdout + done.stderr
    found = {result.key: result for result in results_in(out)}
    assert found, done.stdout + done.stderr
    return found


def images() -> set[str]:
    return {*docker("images", "-q").split()}


def test_the_same_keys_and_weights_as_in_local_processes_without_a_rebuild(tmp_path: Path) -> None:
    file, before = written(tmp_path / "mine", SWEEP), images()
    contained = results_of(file, tmp_path / "contained", "docker")
    assert images() <= before
    local = results_of(file, tmp_path / "local", "local")
    assert {result.status for result in contained.values()} == {"ok"}
    assert len(contained) == 3
    assert contained.keys() == local.keys()
    for key, result in contained.items():
        assert digests(result) == digests(local[key]), key
    copied = sorted(path.name for path in SweepPaths(tmp_path / "contained").code.glob("*/*"))
    assert "words.py" in copied
    assert "words.txt" in copied


@pytest.mark.nightly
def test_the_code_is_read_only_and_its_exception_is_the_cause(tmp_path: Path) -> None:
    model = "model: {name: ./words.py:net, fails: true}"
    sweep = SWEEP.replace("model: ./words.py:net", model).replace("[ddp, pipeline]", "[ddp]")
    found = results_of(written(tmp_path / "mine", sweep), tmp_path / "out", "docker")
    assert {result.status for result in found.values()} == {"failed"}
    for result in found.values():
        assert f"words.py:{line_of(WORDS, 'write_text')}: OSError" in (result.cause or "")
        assert "Read-only file system" in (result.cause or "")


@pytest.mark.nightly
def test_packages_that_the_image_lacks_are_added_once(tmp_path: Path) -> None:
    sweep = "requirements: requirements.txt\n" + SWEEP.replace("[ddp, pipeline]", "[ddp]")
    file = written(tmp_path / "mine", sweep)
    (tmp_path / "mine" / "requirements.txt").write_text("einops==0.8.1\n")
    (tmp_path / "mine" / "words.py").write_text("import einops\n" + WORDS)
    found = results_of(file, tmp_path / "out", "docker")
    assert {result.status for result in found.values()} == {"ok"}
    built = images()
    (tmp_path / "mine" / "words.py").write_text("import einops  # again\n" + WORDS)
    assert {result.status for result in results_of(file, tmp_path / "again", "docker").values()} == {"ok"}
    assert images() <= built


@pytest.mark.nightly
def test_packages_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    file = written(tmp_path / "mine", f"requirements: requirements.txt\n{SWEEP}")
    (tmp_path / "mine" / "requirements.txt").write_text("numpy==0.0.1\n")
    said = refused("sweep", file, "--runtime", "docker")
    assert "requirements.txt: cannot be installed in the image" in said
