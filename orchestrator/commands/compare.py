"""The command `compare`: results directories side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.differences import Directories, read_directories
from orchestrator.report.directory_comparison.pages import Change, page_of, remarks, summary
from orchestrator.report.formats import ABSENT
from orchestrator.report.render import html, markdown
from orchestrator.results.store import check_output, write_atomic

WRITERS = {".html": html.render, ".md": markdown.render}
COLOURS = {"worse": "red", "better": "green"}


def check_page(file: Path) -> None:
    """Raise InputError for a name that is not of a page."""
    if file.suffix not in WRITERS:
        raise InputError(f"--out {file}: must end in {' or '.join(WRITERS)}")
    check_output(file, "--out")


def compared(directories: list[Path]) -> Directories:
    """Read and compare. Raises InputError."""
    if len(directories) < 2:
        raise InputError("compare: at least two results directories are required")
    return read_directories(directories)


def write_page(found: Directories, file: Path) -> None:
    """Write the page, whose name `check_page` has accepted."""
    write_atomic(file, WRITERS[file.suffix](page_of(found)))


def lines_of(found: Directories) -> Iterator[Text | str]:
    """What is shown of each directory, how each configuration differs, and how the directories do."""
    for directory in found.names[1:]:
        differences = [each for each in found.differences if each.directory == directory]
        yield Text(f"{directory}: {summary(differences)}")
        for each in differences:
            yield Text(each.name, style="bold")
            if not (each.reference.ok and each.other.ok):
                yield Text(f"  no run finished in {'the reference' if each.other.ok else directory}")
            for what, side in ((f"{each.clock} time", each.time), ("accuracy", each.accuracy)):
                if (change := Change.of(side)).values != ABSENT:
                    text = Text(f"  {what:12}  {change.values}: ")
                    yield text.append(change.text, COLOURS.get(change.effect, ""))
    yield from remarks(found)
