"""Text of the CSV files, which spreadsheets and data frames read."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from trainer.core.record import printable

# Where a spreadsheet that takes lines, tabs or semicolons for ends of cells would see a formula.
_FORMULA = re.compile(r"(?m)(^|[\t;])(?=\s*[=+\-@＝＋－＠])")


def csv_text(columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> str:
    """A CSV file with a header; an absent value is an empty cell, and no text is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(line.get(name)) for name in columns] for line in lines)
    return text.getvalue()


def _cell(value: object) -> object:
    """Names and messages in cells are those of users and students, whose text must not be executed."""
    if isinstance(value, bool):
        return str(value).lower()
    return printable(_FORMULA.sub(r"\1'", value)) if isinstance(value, str) else value
