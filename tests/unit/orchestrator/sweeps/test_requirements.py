"""Mistakes in the `requirements` of a sweep: what is met, lines that are no packages, no import paths."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.sandbox.base import Limits, Program
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.requirements import missing, read_requirements
from orchestrator.sweeps.trials import local_sandbox


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
    program = Program(["module"], {}, Limits(), {}, written(tmp_path, "no-such-package"))
    with pytest.raises(InputError, match=r"no-such-package; pip install -r .*requirements.txt"):
        local_sandbox(program)


def test_what_is_no_package_or_no_file_is_refused(tmp_path: Path) -> None:
    for line in ("-r other.txt", "--index-url https://example.org", "numpy = 3", "./dir"):
        path = written(tmp_path, f"numpy\n{line}\n")
        with pytest.raises(InputError, match=rf"{path}:2: "):
            read_requirements(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe: is a pipe"):
        read_requirements(tmp_path / "pipe")


def test_requirements_of_a_sweep_need_a_file_and_import_paths(tmp_path: Path) -> None:
    written(tmp_path, "numpy")
    (tmp_path / "s.yml").touch()
    for name, reason in (("requirements.txt", "has no effect"), ("gone.txt", "No such file or directory$")):
        text = f"{{name: s, requirements: {name}, blocks: [{{base: {{strategy: serial}}}}]}}"
        with pytest.raises(InputError, match=rf"requirements: [^ ]*{name}'?:? {reason}"):
            load_sweep(tmp_path / "s.yml", text=text)
