"""`make docs`: tables of README and docs that list components and columns, written from the code.

A page holds `<!-- table: NAME -->` and `<!-- end of table -->`, each on a line of its own, and the lines
between them are replaced. A new component appears in every table without an edit of any page. With
`--check` nothing is written, and the exit code is 1 if a table is stale.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.commands import labs
from orchestrator.errors import InputError
from orchestrator.export import EXPORTERS
from orchestrator.report.render.csv_tables import DICTIONARY, Entry
from orchestrator.results.store import write_atomic
from orchestrator.runtimes import RUNTIMES
from orchestrator.shipped import IMPORT_ROOT, LABS
from orchestrator.sweeps.lab import NOT_STATED
from orchestrator.sweeps.load import load_sweep
from tools import strategy_api
from trainer.core.registry import Component, ComponentRegistry, Registry
from trainer.core.strategy import ALL_TRANSPORTS
from trainer.launch.launchers import LAUNCHERS
from trainer.spec.link import Link
from trainer.spec.registries import AGGREGATIONS, ATTACKS, COMPRESSIONS, REGISTRIES, TRANSPORTS
from trainer.spec.run_spec import RunSpec

PROJECT = IMPORT_ROOT
KINDS: dict[str, Registry[Any]] = {
    **REGISTRIES,
    "compression": COMPRESSIONS,
    "aggregation": AGGREGATIONS,
    "attack": ATTACKS,
    "transport": TRANSPORTS,
    "runtime": RUNTIMES,
}
_BLOCK = re.compile(r"(?ms)^(<!-- table: ([\w ]+) -->\n).*?^(<!-- end of table -->)$")

Rows = Iterable[tuple[str, ...]]


def pages(project: Path = PROJECT) -> list[Path]:
    """The pages of a checkout. Raises InputError outside of one."""
    found = sorted([*project.glob("*.md"), *project.glob("docs/**/*.md")])
    if not (project / "docs").is_dir():
        raise InputError(f"{project}: has no docs/; the command works in a checkout of Shardyard only")
    return found


def stale(project: Path = PROJECT) -> dict[Path, str]:
    """Pages with outdated tables, and their text with current ones."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages(project)}
    return {page: new for page, text in texts.items() if (new := with_tables(text, page)) != text}


def write_tables(project: Path = PROJECT) -> list[Path]:
    """Update the tables of all pages. Returns the changed pages."""
    changed = stale(project)
    for page, text in changed.items():
        write_atomic(page, text)
    return list(changed)


def with_tables(text: str, page: Path) -> str:
    """The page's text with current tables. Raises InputError for a table that does not exist."""

    def block(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise InputError(f"{page}: unknown table '{match[2]}'; known: {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[match[2]](page.parent)}{match[3]}"

    return _BLOCK.sub(block, text)


def markdown_table(header: tuple[str, ...], rows: Rows) -> str:
    """A Markdown table; every line ends in a newline."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def listed(kind: str) -> dict[str, type[Any]]:
    """The classes of a kind by name, without strategies that train nothing (fault injection)."""
    loaded = {name: KINDS[kind].load(name) for name in KINDS[kind].entries}
    return {name: found for name, found in loaded.items() if getattr(found, "trains", True)}


def _summary(found: type[Any]) -> str:
    """The first line of a class's docstring, without its full stop."""
    return (inspect.getdoc(found) or "").partition("\n")[0].removesuffix(".")


def _link(found: type[Any], name: str, directory: Path) -> str:
    """The name, linked to the file of the class."""
    source = PROJECT / (found.__module__.replace(".", "/") + ".py")
    return f"[`{name}`]({os.path.relpath(source, directory)})"


def _yaml(value: Any) -> str:
    """A default in YAML syntax."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _fields(found: type[Any]) -> dict[str, FieldInfo]:
    return found.model_fields if issubclass(found, Component) else {}


def _choices(info: FieldInfo) -> tuple[Any, ...]:
    """The values of a field that takes one of a few; () for any other."""
    if info.annotation is bool:
        return (True, False)
    options = get_args(info.annotation) if get_origin(info.annotation) in (Union, UnionType) else ()
    found = [option for option in (*options, info.annotation) if get_origin(option) is Literal]
    return get_args(found[0]) if found else ()


def _brief(kind: str) -> Callable[[Path], str]:
    """Name and summary of every component of a kind."""

    def items(directory: Path) -> Iterator[str]:
        for name, found in listed(kind).items():
            yield f"- {_link(found, name, directory)}: {_summary(found)}\n"

    return lambda directory: "".join(items(directory))


def _transports(directory: Path) -> str:
    """Strategies with the transports that each supports."""
    items = []
    for name, found in listed("strategy").items():
        over = "" if found.transports == ALL_TRANSPORTS else f"; over {', '.join(found.transports)}"
        items.append(f"- {_link(found, name, directory)}: {_summary(found)}{over}\n")
    return "".join(items)


def _parameters(kind: str) -> Callable[[Path], str]:
    """A kind's parameters: those of several components, then each component's own. Errors name limits."""

    def items() -> Iterator[str]:
        found = listed(kind)
        having: dict[tuple[str, str], list[str]] = {}
        for name, each in found.items():
            for field, info in _fields(each).items():
                value = ", else ".join(filter(None, (_yaml(info.default), _others(info))))
                having.setdefault((f"`{field}` ({value})", info.description or ""), []).append(name)
        own: dict[str, list[str]] = {}
        for (parameter, meaning), names in having.items():
            if len(names) > 1:
                listing = ", ".join(f"`{each}`" for each in names)
                of = f"all {_plural(kind)}" if len(names) == len(found) else listing
                yield f"- {parameter}, of {of}: {meaning}\n"
            else:
                own.setdefault(names[0], []).append(f"{parameter}: {meaning}\n")
        for name, (first, *more) in own.items():
            yield f"- `{name}`:\n  - {'  - '.join((first, *more))}" if more else f"- `{name}`: {first}"

    return lambda _: "".join(items())


def _others(info: FieldInfo) -> str:
    """The choices of a field beside its default."""
    choices = [each for each in _choices(info) if each != info.default]
    return ", ".join(f"`{_yaml(each)}`" for each in choices)


def _run_fields(_: Path) -> str:
    """The fields of a run, with defaults, other choices and descriptions."""
    defaults = {"strategy": "required", "transport": "the strategy's first", "threads": "from `cpus`"}
    items = []
    for name, info in RunSpec.model_fields.items():
        values = ", else ".join(filter(None, (defaults.get(name, _yaml(info.default)), _others(info))))
        field = f"[`{name}`](components.md#{_plural(name)})" if name in KINDS else f"`{name}`"
        items.append(f"- {field} ({values}): {info.description or ''}\n")
    return "".join(items)


def _faults(_: Path) -> str:
    """The actions of faults and the moments at which they fire, with the parameters of each."""
    (fault,) = get_args(RunSpec.model_fields["faults"].annotation)
    items = []
    for name, info in fault.model_fields.items():
        for parameter, field in _part(info.annotation).model_fields.items():
            inner = _part(field.annotation)
            named = inner.model_fields.items() if inner else [("", field)]
            for each, deeper in named:
                path = ".".join(filter(None, (name, parameter, each)))
                default = "required" if deeper.is_required() else _yaml(deeper.default)
                items.append(f"- `{path}` ({default}): {deeper.description or ''}\n")
    return "".join(items)


def _link_fields(_: Path) -> str:
    """The properties of a link."""
    return "".join(f"- `{name}`: {info.description or ''}\n" for name, info in Link.model_fields.items())


def _part(annotation: Any) -> Any:
    """The pydantic model in an annotation, or None."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    models = [each for each in options if isinstance(each, type) and issubclass(each, BaseModel)]
    return models[0] if models else None


def _labs(directory: Path) -> str:
    """The labs, with datasets and numbers of runs and epochs."""
    rows = []
    for name in labs.names():
        sweep = load_sweep(LABS / f"{name}.yml")
        title = sweep.spec.lab.title if sweep.spec.lab else sweep.spec.description
        data = ", ".join(dict.fromkeys(run.name_of("dataset") for run in sweep.runs))
        at_most = " at most" if any(run.target_accuracy is not None for run in sweep.runs) else ""
        epochs = f"{sum(run.epochs for run in sweep.runs)}{at_most}"
        page = os.path.relpath(PROJECT / "docs" / "labs" / f"{name}.md", directory)
        rows.append((f"[{name}]({page})", title.removesuffix("."), data, str(len(sweep.runs)), epochs))
    return markdown_table(("lab", "exercise", "data", "runs", "epochs in all"), rows)


def _differences(name: str) -> Callable[[Path], str]:
    """The known differences between a lab's source and its runs, as a list."""

    def block(directory: Path) -> str:
        sweep = load_sweep(LABS / f"{name}.yml")
        hardware = sweep.spec.lab.hardware if sweep.spec.lab else NOT_STATED
        known = sweep.spec.lab.differences(sweep.runs) if sweep.spec.lab else []
        facts = [f"hardware of the source: {hardware}", *(known or [labs.NONE_KNOWN])]
        return "".join(f"- {fact}\n" for fact in facts)

    return block


def _export_formats(directory: Path) -> str:
    """The formats of the command `export`."""
    found = {name: EXPORTERS.load(name) for name in EXPORTERS.entries}
    rows = [
        (
            _link(each, name, directory),
            each.takes,
            _summary(each),
            f"`pip install 'shardyard[{name}]'`" if each.modules else "",
        )
        for name, each in found.items()
    ]
    return markdown_table(("`--to`", "takes", "writes", "needs"), rows)


def _launchers(_: Path) -> str:
    """The launchers of ranks, with their variables."""

    def names(variables: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in variables)

    rows = []
    for name, each in LAUNCHERS.items():
        default = f"{each.port}" if each.port else f"from {names(each.job)}" if each.job else ""
        port = ", else ".join(filter(None, (names(each.ports), default)))
        local = names([*each.local_rank, *each.ranks_per_node, *each.gpus_per_node])
        rows.append(
            (
                f"`{name}`",
                each.starts,
                names(each.number),
                names(each.count),
                local,
                names(each.host_names),
                port,
            )
        )
    header = ("launcher", "starts", "number", "count", "per node", "`HOST`", "`PORT`")
    return markdown_table(header, rows)


def _columns(file: str) -> Callable[[Path], str]:
    """The data dictionary of a CSV file. Columns with the same explanation share an item."""
    shared = Counter(each.empty for each in DICTIONARY[file])
    lists: dict[str, dict[str, list[str]]] = {"": {}}
    for each in DICTIONARY[file]:
        text, empty = _explained(each), each.empty
        if each.column.startswith("cluster_"):  # empty where the other is
            empty = ""
        elif empty and shared[empty] == 1:
            text, empty = f"{text}; empty if {empty}", ""
        lists.setdefault(empty, {}).setdefault(text, []).append(f"`{each.column}`")

    def lines() -> Iterator[str]:
        for empty, items in lists.items():
            yield f"\nEmpty if {empty}:\n\n" if empty else ""
            yield from (f"- {', '.join(columns)}{text}\n" for text, columns in items.items())

    return lambda _: "".join(lines())


def _explained(entry: Entry) -> str:
    """The unit and the meaning of a column."""
    if entry.column.startswith("cluster_"):
        return ": as without `cluster_`, in cluster time"
    field = RunSpec.model_fields.get(entry.column)
    if field and field.description == entry.meaning:
        return ": the [field of the run](sweeps.md#fields-of-a-run)"
    return f" ({entry.unit}): {entry.meaning}" if entry.unit else f": {entry.meaning}"


def _plural(kind: str) -> str:
    return {"strategy": "strategies", "loss": "losses"}.get(kind, f"{kind}s")


# All tables, by the name in the marker.
TABLES: dict[str, Callable[[Path], str]] = {
    **{kind: _brief(kind) for kind in KINDS},
    "strategy transports": _transports,
    **{
        f"{kind} parameters": _parameters(kind)
        for kind, registry in KINDS.items()
        if isinstance(registry, ComponentRegistry)
    },
    "run fields": _run_fields,
    "faults": _faults,
    "link fields": _link_fields,
    "export formats": _export_formats,
    "launchers": _launchers,
    **{f"methods of {name}": strategy_api.reference(name) for name in strategy_api.CLASSES},
    "summary columns": _columns("summary.csv"),
    "result columns": _columns("results.csv"),
    "epoch columns": _columns("epochs.csv"),
    "labs": _labs,
    **{f"differences {name}": _differences(name) for name in labs.names()},
}


def main() -> int:
    """Write the tables, or check them. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is stale")
    try:
        if not parser.parse_args().check:
            for page in write_tables():
                print(page)
            return 0
        outdated = stale()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for page in outdated:
        print(f"{page}: a table is stale; run: make docs")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
