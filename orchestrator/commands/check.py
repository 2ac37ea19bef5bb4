"""The command `check`: tries the laws of components in a process of its own, and shows what it finds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from rich.text import Text

from orchestrator.errors import InputError
from orchestrator.sandbox.base import Channel, Ended, SandboxError, TimedOut
from orchestrator.sandbox.local import LocalSandbox
from orchestrator.sweeps.imports import ImportName
from orchestrator.sweeps.validation import detail_lines, dotted, error_lines
from orchestrator.sweeps.yaml import parse_yaml
from trainer.conformance.report import EQUALS, KINDS, CheckRequest, Finding, Report, without_effect
from trainer.core.frames import ProtocolError
from trainer.core.record import checked, one_line
from trainer.core.registry import is_import_path, suggestion
from trainer.core.user_code import CODE
from trainer.spec.registries import REGISTRIES

COLOURS = {"ok": "green", "failed": "red", "note": "yellow", "skipped": "bright_black"}
STATUS_WIDTH, LAW_WIDTH = 9, 12
MAX_S = 86400  # that a check of one component may take
MORE_S = 60.0  # for a process to end after its time limit, on a busy machine


def request_of(
    target: str,
    sets: Sequence[str],
    dataset: str | None,
    kind: str | None,
    equals: str | None,
    data_dir: Path,
    limit_s: float,
) -> CheckRequest:
    """What the command line asks for. Raises InputError."""
    if kind is not None and kind not in KINDS:
        raise InputError(
            f"--kind {kind}: unknown kind{suggestion(kind, KINDS)}; allowed: {', '.join(KINDS)}"
        )
    if not 0 < limit_s <= MAX_S:
        raise InputError(f"--timeout {limit_s:g} is not allowed; allowed: more than 0, at most {MAX_S}")
    place = _registered(target, kind) or _file(target) or _imported(target)
    options = {"parameters": _parameters(sets), "limit_s": limit_s, "data_dir": str(data_dir.resolve())}
    found = CheckRequest(**{**({"kind": kind} if kind else {}), **place, **options})
    for option, given in (("--set", sets), ("--equals", equals)):
        if given and not found.registered and not found.attribute:
            raise InputError(f"{option} needs one component; name it, as in {target}:NAME")
    allowed = [name for names in EQUALS.values() for name in names]
    if equals is not None and equals not in allowed:
        hint = suggestion(equals, allowed)
        raise InputError(f"--equals {equals}: not a reference{hint}; allowed: {', '.join(allowed)}")
    form = None if dataset is None else _dataset_form(dataset)
    found = found.model_copy(update={"equals": equals or "", "dataset": form})
    if found.kind and (reason := without_effect(found)):
        raise InputError(reason)
    return found


def _registered(target: str, kind: str | None) -> dict[str, Any] | None:
    """A registered component: `dirichlet`, or with its kind, `partitioner:dirichlet`."""
    prefix, _, name = target.rpartition(":")
    if prefix and prefix not in KINDS:
        return None
    kinds = [prefix] if prefix else [kind] if kind else [*KINDS]
    holding = [each for each in kinds if name in REGISTRIES[each].entries]
    if len(holding) == 1:
        return {"kind": holding[0], "registered": name, "label": name}
    if holding:
        forms = ", ".join(f"{each}:{name}" for each in holding)
        raise InputError(f"{target}: several components have this name; choose one of {forms}")
    if prefix:
        registry = REGISTRIES[prefix]
        hint = suggestion(name, registry.entries)
        raise InputError(f"{target}: unknown {prefix}{hint}; known: {', '.join(registry.entries)}")
    return None


def _file(target: str) -> dict[str, Any] | None:
    """All components of a file."""
    if is_import_path(target) or not target.endswith(".py"):
        return None
    file = Path(target).expanduser().resolve()
    if not file.is_file():
        raise InputError(f"{target}: there is no file {file}")
    return {"label": target, "directory": str(file.parent), "module": file.name}


def _imported(target: str) -> dict[str, Any]:
    """One component from an import path."""
    known = [name for kind in KINDS for name in REGISTRIES[kind].entries]
    if not is_import_path(target):
        if os.path.exists(target):
            what = "is a directory" if os.path.isdir(target) else "is no file of Python"
            raise InputError(f"{target}: {what}; allowed: FILE.py, FILE.py:NAME")
        hint = suggestion(target, known)
        raise InputError(
            f"{target}: no such file or component{hint}; allowed: FILE.py, FILE.py:NAME, "
            "PACKAGE.MODULE:NAME, or the name of a registered component"
        )
    try:
        name = ImportName.of("model", target, Path.cwd())
    except ValueError as error:
        raise InputError(f"{one_line(target)}: {error}") from error
    if name is None:
        raise InputError(f"{target}: no import path")
    return {
        "label": name.label,
        "directory": str(name.directory),
        "module": name.module,
        "attribute": name.attribute,
    }


def _parameters(sets: Sequence[str]) -> dict[str, Any]:
    """`--set key=value`, values as in YAML."""
    parameters: dict[str, Any] = {}
    for text in sets:
        key, equal, value = text.partition("=")
        if not equal or not key.isidentifier():
            raise InputError(f"--set {text}: allowed: KEY=VALUE, e.g. alpha=0.1")
        parameters[key] = parse_yaml(value, f"--set {text}")
    return parameters


def _dataset_form(text: str) -> dict[str, Any]:
    """The dataset of a model: a registered one with parameters, or where a user's is imported from."""
    value = parse_yaml(text, f"--dataset {text}")
    form = {"name": value} if isinstance(value, str) else value
    if not isinstance(form, dict) or not isinstance(form.get("name"), str):
        raise InputError(f"--dataset {text}: allowed: a name, or a mapping such as '{{name: synthetic}}'")
    try:
        name = ImportName.of("dataset", form["name"], Path.cwd())
    except ValueError as error:
        raise InputError(f"--dataset {text}: {error}") from error
    if name is not None:
        parameters = {key: value for key, value in form.items() if key != "name"}
        return {
            "directory": str(name.directory),
            "module": name.module,
            "attribute": name.attribute,
            "parameters": parameters,
        }
    registry = REGISTRIES["dataset"]
    try:
        registry.parse(form)
    except PydanticCustomError as error:  # no dataset has this name
        raise InputError(f"--dataset {form['name']}: {error.message()}") from error
    except ValidationError as error:
        lines = error_lines(
            error,
            lambda at: f"--dataset {text}: {dotted(at)}",
            lambda at: registry.parameters(form, *at),
        )
        raise InputError("\n".join(lines)) from error
    return form


def reports(request: CheckRequest) -> Iterator[Report]:
    """Try the laws in another process, which is gone afterwards. Raises InputError."""
    environment = {
        CODE: "",  # the folders of what is checked are absolute
        "SHARDYARD_DATA": request.data_dir,
        "PYTHONHASHSEED": "0",  # so that a process with another one differs
    }
    sandbox = LocalSandbox(["trainer.conformance"], environment, prints=True)
    limit_s = 2 * request.limit_s + MORE_S  # of finding a component and of trying it
    with closing(sandbox):
        try:
            channel = Channel(sandbox)
            channel.send(request.model_dump(mode="json"), time.monotonic() + limit_s)
            while (message := channel.receive(time.monotonic() + limit_s)) != {"end": True}:
                channel.renew()
                yield _usable(checked(Report, message.get("report", {}), "its report"))
        except TimedOut:
            failure = f"the process that checks it sent nothing for {limit_s:g} s"
        except (Ended, ProtocolError, SandboxError, ValueError) as error:
            failure = f"the process that checks it failed: {error}"
        else:
            return
    raise InputError(f"{request.label}: {failure}")


def _usable(report: Report) -> Report:
    """The report. Raises InputError if the component could not be checked."""
    if report.error:
        raise InputError(f"{report.component}: {report.error}")
    if report.invalid:
        allowed = report.allowed or ["no parameters"]
        invalid = [each.model_dump() for each in report.invalid]
        lines = detail_lines(invalid, lambda path: f"{report.option} {dotted(path)}", lambda _: allowed)
        raise InputError("\n".join(f"{report.component}: {line}" for line in lines))
    return report


def lines(report: Report, width: int) -> Iterator[Text]:
    """What a terminal of so many columns shows: a line for each law, and below it what breaks it."""
    if report.unclear:
        yield Text(f"file {report.component}", style="bold")
        reason = f"their kind is unclear: check {report.component}:{report.unclear[0]}, with --kind"
        yield from _row("skipped", ", ".join(report.unclear), reason, width)
        return
    yield Text(
        f"{report.kind} {report.component}{f' on {report.data}' if report.data else ''}", style="bold"
    )
    for _, group in groupby(report.findings, lambda each: (each.status, each.reason or each.law)):
        findings = [*group]
        if findings[0].status == "skipped":
            laws = ", ".join(finding.law for finding in findings)
            yield from _row("skipped", laws, findings[0].reason, width)
        else:
            for finding in findings:
                yield from _law(finding, width)
    failed = sum(finding.status == "failed" for finding in report.findings)
    held = sum(finding.status in ("ok", "note") for finding in report.findings)
    yield Text(f"{held} laws hold, {failed} fail, {len(report.findings) - held - failed} do not apply")


def _law(finding: Finding, width: int) -> Iterator[Text]:
    inputs = f"{finding.inputs} inputs" if finding.inputs > 1 else ""
    room = width - STATUS_WIDTH - LAW_WIDTH
    statement = f"{finding.statement:<{room - len(inputs) - 1}} {inputs}" if inputs else finding.statement
    yield from _row(finding.status, finding.law, statement, width)
    broken = (("input", finding.input), ("expected", finding.expected), ("got", finding.got))
    for name, text in (*broken, ("note", finding.reason)):
        if text:
            yield from _row("", name, text, width)


def _row(status: str, name: str, text: str, width: int) -> Iterator[Text]:
    """A row with its text wrapped in the last column; a long name has lines of its own."""
    indent = " " * (STATUS_WIDTH + LAW_WIDTH)
    names = wrap(name, max(20, width - STATUS_WIDTH)) or [""]
    rows = wrap(text, max(20, width - len(indent)), break_on_hyphens=False, replace_whitespace=False)
    first = rows.pop(0) if rows and len(names) == 1 and len(name) < LAW_WIDTH else ""
    for number, label in enumerate(names):
        mark = Text(f"{'' if number else status:<{STATUS_WIDTH}}", style=COLOURS.get(status, ""))
        yield mark.append(f"{label:<{LAW_WIDTH}}{first}".rstrip(), style="default")
    for row in rows:
        yield Text(f"{indent}{row}")


def as_json(found: Sequence[Report]) -> str:
    """All reports, for programs."""
    return json.dumps(
        [report.model_dump(exclude={"error", "invalid", "allowed"}) for report in found], indent=2
    )
