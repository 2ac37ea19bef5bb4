r"""Format latex: a table of the configurations for a paper, to be read with `\input`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.export.base import Exported, ResultsExporter, file_name, write_text
from orchestrator.export.contents import ExportedRun, ExportedSweep, Line
from orchestrator.report import formats
from orchestrator.report.render.csv_values import Value

# What LaTeX reads as a command, and what its text fonts lack. A bracket after `\\` would be an argument.
ESCAPES = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "{}_%&#$"},
    **{char: f"{{{char}}}" for char in "[]"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{char: f"${char}$" for char in "<>|"},
    formats.JOIN: "~",
    formats.ABSENT: "--",
    "−": "$-$",
    "×": r"$\times$",
    "√": r"$\surd$",
    "…": r"\ldots{}",
}

SHARED = ("transport", "partitioner")


@dataclass(frozen=True)
class Column:
    """A column of the table. number: whether to align it to the right."""

    title: str
    cell: Callable[[Line], str]
    number: bool = True


class LatexExporter(ResultsExporter):
    """`configurations.tex`: a table for each workload, with means and 95 % intervals.

    Numbers are rounded as in the report. Runs that are not ok are listed below, with their cause.
    """

    name = "latex"

    def write(self, sweep: ExportedSweep, out: Path) -> Iterator[Exported]:
        yield write_text(out / "configurations.tex", document_part(sweep))

    def advice(self, out: Path) -> str:
        return rf"in a document with \usepackage{{booktabs}}: \input{{{out / 'configurations.tex'}}}"


def document_part(sweep: ExportedSweep) -> str:
    """The tables and the list of runs that are not ok."""
    workloads: dict[str, list[Line]] = {}
    for line in sweep.configurations:
        workloads.setdefault(str(line["workload"]), []).append(line)
    tables = [
        _table(lines, workload, f"tab:{file_name(sweep.name)}-{number}")
        for number, (workload, lines) in enumerate(workloads.items(), 1)
    ]
    head = "% Written by `shardyard export --to latex`; needs \\usepackage{booktabs}.\n"
    return "\n".join([head, *tables, *_not_ok([run for run in sweep.runs if not run.ok])])


def escaped(text: str) -> str:
    """The text in LaTeX. Characters that not every engine and font has are written as U+4E00."""
    written = "".join(
        ESCAPES.get(char) or (char if " " <= char <= "~" else " " if char.isspace() else _code(char))
        for char in text
    )
    return re.sub("-(?=-)", "-{}", written) if "--" in text else written


def _code(char: str) -> str:
    return f"U+{ord(char):04X}"


def _table(lines: Sequence[Line], workload: str, label: str) -> str:
    differing = [name for name in (*SHARED, "seeds") if len(_values(lines, name)) > 1]
    columns = [
        Column("Strategy", _words("strategy"), False),
        *(Column(name.capitalize(), _words(name), name == "seeds") for name in differing),
        Column("Nodes", _words("nodes")),
        Column("Ranks", _words("ranks")),
        Column(f"{str(lines[0]['clock']).capitalize()} time (s)", _interval("time_s", formats.significant)),
        Column("Speedup", _interval("speedup", formats.significant)),
        Column(r"Accuracy (\%)", _interval("accuracy", lambda value: f"{100 * value:.1f}")),
    ]
    if all(line["ranks"] == line["nodes"] for line in lines):
        columns = [column for column in columns if column.title != "Ranks"]
    alignment = "".join("r" if column.number else "l" for column in columns)
    rows = [" & ".join(column.cell(line) for column in columns) for line in lines]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\small",
            rf"  \caption{{{escaped(_caption(lines, workload))}}}",
            rf"  \label{{{label}}}",
            rf"  \begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
            r"    \toprule",
            rf"    {' & '.join(column.title for column in columns)} \\",
            r"    \midrule",
            *(rf"    {row} \\" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _caption(lines: Sequence[Line], workload: str) -> str:
    """The workload, and what its configurations on several nodes share, which then is no column."""
    shared = [f"{name} {values[0]}" for name in SHARED if len(values := _values(lines, name)) == 1]
    seeds = _values(lines, "seeds")
    over = formats.count(int(str(seeds[0])), "seed") if len(seeds) == 1 else "seeds"
    return "; ".join(
        [workload, *shared, f"mean over {over} with 95 % interval, of speedups as compared with serial"]
    )


def _values(lines: Sequence[Line], name: str) -> list[Value]:
    """The values in a column, each once. A serial run has a transport and no partitioner of its own."""
    several = [line for line in lines if line["nodes"] != 1 or name not in SHARED]
    return [*dict.fromkeys(line[name] for line in several if line[name] not in (None, ""))]


def _words(name: str) -> Callable[[Line], str]:
    return lambda line: escaped(formats.ABSENT if line[name] in (None, "") else str(line[name]))


def _interval(name: str, write: Callable[[float], str]) -> Callable[[Line], str]:
    """`0.93 [0.91, 0.95]`; without the interval if there is none."""

    def cell(line: Line) -> str:
        mean, low, high = (line[column] for column in (name, f"{name}_low", f"{name}_high"))
        if not isinstance(mean, int | float):
            return escaped(formats.ABSENT)
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return escaped(write(mean))
        return escaped(f"{write(mean)} [{write(low)}, {write(high)}]")

    return cell


def _not_ok(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """A paragraph with a line for each run that is not ok."""
    if runs:
        lines = [escaped(f"{run.label}: {run.tags.get('cause', '')}") + r" \\" for run in runs]
        yield "\n".join([r"\begin{flushleft}\footnotesize", *lines, r"\end{flushleft}", ""])
