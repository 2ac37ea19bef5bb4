"""`make release`: build the distributions in dist/, and check them as a user gets them.

The wheel is installed with the dependencies that it declares into an environment of its own, and runs a
sweep from there. Nothing is tagged or uploaded; the last lines say how to.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator import __version__
from orchestrator.shipped import IMPORT_ROOT

DIST = IMPORT_ROOT / "dist"
CHANGELOG = IMPORT_ROOT / "CHANGELOG.md"
# A run on two nodes, with its serial reference and a report, within seconds.
TRIAL = "run all_reduce --nodes 2 --compare --set transport=gloo --set epochs=1 --out results"


def problems(version: str, changelog: str, changed_files: str) -> list[str]:
    """Why a version cannot be released, one line each.

    Args:
        version: the version of the package.
        changelog: the text of CHANGELOG.md.
        changed_files: what `git status --porcelain` prints.
    """
    found = []
    if not re.search(rf"(?m)^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog):
        found.append(f"CHANGELOG.md: no heading '## {version} - YYYY-MM-DD'")
    if changed_files:
        found.append("the checkout has changes that are not committed")
    return found


def _environment(directory: Path) -> Path:
    """Create a virtual environment. Returns its directory of programs."""
    venv.create(directory, with_pip=True)
    return directory / "bin"


def _run(*command: str | Path, cwd: Path = IMPORT_ROOT) -> None:
    print("$", *command, flush=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=cwd, env=variables, check=True)


def build(scratch: Path) -> Path:
    """Build source distribution and wheel, and check their metadata. Returns the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    python = _environment(scratch / "build") / "python"
    _run(python, "-m", "pip", "install", "-q", "build", "twine")
    _run(python, "-m", "build", "--outdir", DIST, IMPORT_ROOT)
    _run(python, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check(wheel: Path, scratch: Path, torch_index: str) -> None:
    """Install the wheel into a new environment, and use it in an empty directory."""
    programs, empty = _environment(scratch / "user"), scratch / "empty"
    empty.mkdir()
    pip = (programs / "python", "-m", "pip", "install", "-q")
    pinned = (IMPORT_ROOT / "trainer" / "requirements.txt").read_text(encoding="utf-8")
    torch = re.findall(r"(?m)^torch(?:vision)?==\S+", pinned)
    _run(*pip, "--no-deps", "--extra-index-url", torch_index, *torch)  # without CUDA's 3 GB
    _run(*pip, "-c", IMPORT_ROOT / "requirements.txt", wheel)
    for arguments in ("--version", "doctor", "sweep quickstart --dry-run", TRIAL, "report results"):
        _run(programs / "shardyard", *arguments.split(), cwd=empty)


def main() -> int:
    """Build and check. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument(
        "--torch-index", required=True, metavar="URL", help="where torch publishes CPU builds"
    )
    parser.add_argument("--trial", action="store_true", help="also build what cannot be released yet")
    options = parser.parse_args()
    status = subprocess.run(
        ("git", "status", "--porcelain"), cwd=IMPORT_ROOT, check=True, capture_output=True, text=True
    )
    found = problems(__version__, CHANGELOG.read_text(encoding="utf-8"), status.stdout)
    for problem in found:
        print(problem, file=sys.stderr)
    if found and not options.trial:
        return 1
    try:
        with TemporaryDirectory(prefix="release-") as scratch:
            wheel = build(Path(scratch))
            check(wheel, Path(scratch), options.torch_index)
    except subprocess.CalledProcessError as error:
        print(f"exit code {error.returncode}: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    print(
        f"{wheel.name} works. Tag it with: git tag -s v{__version__}; publish it with: twine upload dist/*"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
