"""`make mutants`: make deliberate mistakes, one at a time, and show which ones the tests notice.

Each mistake is made in a copy of the tracked files, where the tests run that its entry in catalogue.yml
names. It is killed if one of them fails. The exit code is 1 if too few mistakes are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import psutil

from tests.mutants.catalogue import CATALOGUE, PROJECT, CatalogueError, Mutant, read_catalogue

LIMIT_S = 300.0  # for the tests of a mutant; a mistake may let ranks wait for ever
LEAST_KILLED = 0.95
KILLED, LATE, SURVIVED = "killed", "killed (time limit)", "survived"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header")
# Exit codes of pytest: tests passed, tests failed, tests cannot be collected.
VERDICTS = {0: SURVIVED, 1: KILLED, 2: KILLED}


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. verdict: one of the three, or why its tests did not run."""

    mutant: Mutant
    verdict: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict:<20}{self.seconds:6.1f} s  {self.mutant.name}"


def copy_repository(to: Path) -> Path:
    """Copy the tracked files. Their bytecode is valid by content: a mistake may be made within a second."""
    command = ("git", "ls-files", "-z")
    listed = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # deleted, and not committed yet
            shutil.copy2(PROJECT / name, to / name, follow_symlinks=False)
    by_content = ("--invalidation-mode", "checked-hash")
    subprocess.run((sys.executable, "-m", "compileall", "-q", *by_content, "."), cwd=to, check=False)
    return to


def exit_code(tests: Sequence[str], directory: Path) -> int | None:
    """The exit code of pytest; None if it exceeds the time limit."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}  # where skips fail
    environment |= {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        (*PYTEST, *tests),
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


def tried(mutant: Mutant, directory: Path) -> Outcome:
    """Make the mistake in a copy of the repository, run the tests, and undo it."""
    source, began = directory / mutant.file, time.monotonic()
    text = source.read_text(encoding="utf-8")
    source.write_text(mutant.applied_to(text), encoding="utf-8")
    try:
        code = exit_code(mutant.tests, directory)
    finally:
        source.write_text(text, encoding="utf-8")
    verdict = LATE if code is None else VERDICTS.get(code, f"error (pytest {code})")
    return Outcome(mutant, verdict, time.monotonic() - began)


def tried_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """The outcomes, in the order of the mutants. jobs: mutants at a time, each in a copy of its own."""
    free: SimpleQueue[Path] = SimpleQueue()

    def in_a_copy(mutant: Mutant) -> Outcome:
        directory = free.get()
        try:
            return tried(mutant, directory)
        finally:
            free.put(directory)

    with TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            free.put(copy_repository(Path(name) / str(number)))
        yield from pool.map(in_a_copy, mutants)


def main() -> int:
    """Try the mutants that the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of mutants; default: all")
    parser.add_argument("--catalogue", type=Path, default=CATALOGUE, help="another file of mistakes")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time; default: 1")
    parser.add_argument("--list", action="store_true", help="show names and mistakes, and try nothing")
    options = parser.parse_args()
    try:
        mutants = read_catalogue(options.catalogue)
    except CatalogueError as error:
        print(error, file=sys.stderr)
        return 2
    if unknown := {*(options.only or ())} - {mutant.name for mutant in mutants}:
        parser.error(f"unknown names: {', '.join(sorted(unknown))}; --list shows all")
    mutants = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    if options.list:
        print("\n".join(f"{mutant.name}: {mutant.mistake}" for mutant in mutants))
        return 0
    outcomes = []
    for outcome in tried_all(mutants, options.jobs):
        print(outcome, flush=True)
        outcomes.append(outcome)
    return summed_up(outcomes)


def summed_up(outcomes: Sequence[Outcome]) -> int:
    """Print totals and what was not killed. Returns the exit code."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    killed = counts[KILLED] + counts[LATE]
    left = [outcome for outcome in outcomes if outcome.verdict not in (KILLED, LATE)]
    seconds, share = sum(outcome.seconds for outcome in outcomes), killed / len(outcomes)
    print(f"\n{killed} of {len(outcomes)} mutants killed ({share:.0%}) in {seconds:.0f} s")
    for outcome in left:
        print(f"{outcome.verdict}: {outcome.mutant.name}: {outcome.mutant.mistake}")
    errors = [outcome for outcome in left if outcome.verdict != SURVIVED]
    return 1 if errors or share < LEAST_KILLED else 0


if __name__ == "__main__":
    sys.exit(main())
