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
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.mutants.catalogue import CATALOGUE, PROJECT, CatalogueError, Mutant, read_catalogue

LIMIT_S = 300.0  # for the tests of a mutant; a mistake may let ranks wait for ever
LEAST_KILLED = 0.95
KILLED, LATE, SURVIVED = "killed", "killed (time limit)", "survived"
POLL_S = 0.05
# Of plugins that are imported before pytest starts, it cannot rewrite assertions, which is no error here.
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
# Libraries that take long to import. The tests of each mutant run in a fork of a process that has them.
LIBRARIES = ("torch", "torch.distributed.rpc", "docker", "hypothesis", "rich.console")
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


def start(tests: Sequence[str], directory: Path) -> int:
    """Run tests of a copy in a fork of this process, which has the libraries. Returns the process id."""
    if pid := os.fork():
        return pid
    with suppress(BaseException):
        os.setsid()
        os.chdir(directory)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        os.environ |= {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ.pop("CI", None)  # where skips fail
        for name in [*sys.modules]:
            if name.partition(".")[0] == "tests":
                del sys.modules[name]
        sys.path[:] = [str(directory), *(path for path in sys.path if Path(path).resolve() != PROJECT)]
        sys.dont_write_bytecode = True
        os._exit(pytest.main([*PYTEST, *tests]))
    os._exit(pytest.ExitCode.INTERNAL_ERROR)


@dataclass
class Trial:
    """A mutant in a copy of the repository, whose tests run."""

    mutant: Mutant
    directory: Path

    def __post_init__(self) -> None:
        self._source, self._began = self.directory / self.mutant.file, time.monotonic()
        self._text = self._source.read_text(encoding="utf-8")
        self._source.write_text(self.mutant.applied_to(self._text), encoding="utf-8")
        self._pid = start(self.mutant.tests, self.directory)

    def outcome(self) -> Outcome | None:
        """What became of it; None while its tests run."""
        seconds = time.monotonic() - self._began
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return self._ended(VERDICTS.get(code, f"error (pytest {code})"), seconds)
        return self._ended(LATE, seconds) if seconds > LIMIT_S else None

    def _ended(self, verdict: str, seconds: float) -> Outcome:
        self.close()
        return Outcome(self.mutant, verdict, seconds)

    def close(self) -> None:
        """End its tests, and undo the mistake."""
        for each in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if each.pid == self._pid or os.getsid(each.pid) == self._pid:
                    each.kill()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._source.write_text(self._text, encoding="utf-8")


def tried_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """The outcomes, as they come. jobs: mutants at a time, each in a copy of its own."""
    for name in LIBRARIES:
        import_module(name)
    with TemporaryDirectory(prefix="mutants-") as name:
        free = [copy_repository(Path(name) / str(number)) for number in range(jobs)]
        left, trials = [*reversed(mutants)], list[Trial]()
        try:
            while left or trials:
                while left and free:
                    trials.append(Trial(left.pop(), free.pop()))
                time.sleep(POLL_S)
                for trial in [*trials]:
                    if outcome := trial.outcome():
                        trials.remove(trial)
                        free.append(trial.directory)
                        yield outcome
        finally:
            for trial in trials:
                trial.close()


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
