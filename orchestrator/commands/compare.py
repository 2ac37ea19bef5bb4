"""The command `compare`: results directories side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.differences import Difference, differences_of
from orchestrator.report.directory_comparison.limits import Limits
from orchestrator.report.directory_comparison.matches import Matches, read_matches
from orchestrator.report.directory_comparison.pages import lines_of, markdown, page, remarks, summary
from orchestrator.report.formats import ABSENT
from orchestrator.results.store import check_output, write_atomic

PAGES = {".html": page, ".md": markdown}
COLOURS = {"worse": "red", "better": "green"}


def check_page(file: Path) -> None:
    """Raise InputError for a name that is not of a page."""
    if file.suffix not in PAGES:
        raise InputError(f"--out {file}: must end in {' or '.join(PAGES)}")
    check_output(file, "--out")


@dataclass(frozen=True)
class Comparing:
    """Results directories that were compared."""

    matches: Matches
    differences: list[Difference]

    @classmethod
    def of(cls, directories: list[Path]) -> Comparing:
        """Read and compare. Raises InputError."""
        if len(directories) < 2:
            raise InputError("compare: at least two results directories are required")
        matches = read_matches(directories)
        return cls(matches, differences_of(matches))

    def write(self, file: Path) -> None:
        """Write the page, whose name `check_page` has accepted."""
        write_atomic(file, PAGES[file.suffix](self.matches, self.differences))

    def broken(self, limits: Limits) -> list[str]:
        """What breaks a limit, a line each. Raises InputError if seeds are too few to tell."""
        return limits.broken(self.matches.missing, self.differences)

    def lines(self) -> Iterator[Text]:
        """What is shown of each directory, and how each configuration differs."""
        for directory in self.matches.directories[1:]:
            yield Text(f"{directory}: {summary(self.differences, directory)}")
            for line in lines_of(self.differences, directory):
                yield Text(line.name, style="bold")
                if line.unfinished:
                    yield Text(f"  no run finished in {line.unfinished}")
                for what, change in ((f"{line.clock} time", line.time), ("accuracy", line.accuracy)):
                    if change.values != ABSENT:
                        text = Text(f"  {what:12}  {change.values}: ")
                        yield text.append(change.text, COLOURS.get(change.effect, ""))

    def remarks(self) -> Iterator[str]:
        """Where the directories differ otherwise."""
        return remarks(self.matches)
