"""The `requirements` of a sweep."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Inspection, local_sandbox
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.requirements import missing, read_requirements


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    return path


def test_packages_are_met_by_name_version_and_marker(tmp_path: Path) -> None:
    numpy = version("numpy")
    lines = ["# comment", f"numpy=={numpy}  # installed", "", "gone; python_version < '3'", "NumPy>=1"]
    assert missing(read_requirements(written(tmp_path, "\n".join(lines)))) == []
    absent = missing(read_requirements(written(tmp_path, "numpy==0.1\nno-such-package>=2")))
    assert absent == [f"numpy==0.1 (installed: {numpy})", "no-such-package>=2"]


@pytest.mark.parametrize("line", ["-r other.txt", "--index-url https://example.org", "numpy = 3", "./dir"])
def test_other_lines_are_refused_with_their_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, f"numpy\n{line}\n")
    with pytest.raises(InputError, match=rf"{path}:2: "):
        read_requirements(path)


def test_missing_packages_are_named_before_anything_starts(tmp_path: Path) -> None:
    inspection = Inspection([tmp_path], tmp_path, tmp_path, 512, written(tmp_path, "no-such-package"))
    with pytest.raises(InputError, match=r"no-such-package; pip install -r .*requirements.txt"):
        local_sandbox(inspection)


def test_requirements_without_import_paths_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "numpy")
    sweep = tmp_path / "sweep.yml"
    sweep.write_text("{name: s, requirements: requirements.txt, blocks: [{base: {strategy: serial}}]}")
    with pytest.raises(InputError, match=r"requirements: 'requirements.txt' has no effect"):
        load_sweep(sweep)
    sweep.write_text("{name: s, requirements: gone.txt, blocks: [{base: {strategy: serial}}]}")
    with pytest.raises(InputError, match=r"requirements: [^ ]*gone\.txt: No such file or directory$"):
        load_sweep(sweep)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "requirements.txt")
    with pytest.raises(InputError, match=r"requirements\.txt: is a pipe"):
        read_requirements(tmp_path / "requirements.txt")
