"""The command `check`: tries the laws of components in a process of their own, and shows what it finds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError
from rich.text import Text as Line

from orchestrator.errors import InputError
from orchestrator.sweeps.component_names import ImportName
from orchestrator.sweeps.trials import MakeSandbox, TrialError, Trials, local_sandbox
from orchestrator.sweeps.validation import detail_lines, dotted, error_lines
from orchestrator.sweeps.yaml import parse_yaml
from trainer.components.examine import Finding, examine_all
from trainer.components.find import kinds
from trainer.components.kind import Elsewhere, Input, Law, Outcome
from trainer.components.messages import Answer, Place, Request
from trainer.core.record import Record, Text, one_line
from trainer.core.registry import is_import_path, suggestion
from trainer.spec.registries import REGISTRIES

COLOURS = {"ok": "green", "failed": "red", "note": "yellow", "skipped": "bright_black"}
STATUS_WIDTH, LAW_WIDTH = 9, 12
MAX_S = 86400  # that a check of one component may take
GOES_ON = "a process that goes on"
BUILDS = Finding(law="builds", statement="it can be built", status="failed", expected="a component")


class Report(Record):
    """What was found on one component.

    component: its label. data: the samples that it takes. unclear: names of what the file `component`
    defines whose kind is unclear: it is not checked.
    """

    component: Text
    kind: Text = ""
    data: Text = ""
    findings: list[Finding] = Field(default=[])
    unclear: list[Text] = Field(default=[])

    @property
    def failed(self) -> bool:
        """Whether a law does not hold."""
        return any(finding.status == "failed" for finding in self.findings)


def request_of(
    target: str,
    sets: Sequence[str],
    dataset: str | None,
    kind: str | None,
    equals: str | None,
    data_dir: Path,
    limit_s: float,
) -> Request:
    """What the command line asks for. Raises InputError."""
    if kind is not None and kind not in kinds():
        raise InputError(
            f"--kind {kind}: unknown kind{suggestion(kind, kinds())}; allowed: {', '.join(kinds())}"
        )
    if not 0 < limit_s <= MAX_S:
        raise InputError(f"--timeout {limit_s:g} is not allowed; allowed: more than 0, at most {MAX_S}")
    found = _registered(target, kind) or _file(target) or _imported(target)
    place = found.place.model_copy(update={"parameters": _parameters(sets)})
    for option, given in (("--set", sets), ("--equals", equals)):
        if given and not place.registered and not place.attribute:
            raise InputError(f"{option} needs one component; name it, as in {target}:NAME")
    allowed = [name for each in kinds().values() for name in each.equal_to]
    if equals is not None and equals not in allowed:
        hint = suggestion(equals, allowed)
        raise InputError(f"--equals {equals}: not a reference{hint}; allowed: {', '.join(allowed)}")
    asked = found.model_copy(
        update={
            "place": place,
            "kind": found.kind or kind or "",
            "dataset": None if dataset is None else _dataset(dataset),
            "equals": equals or "",
            "data_dir": str(data_dir.resolve()),
            "limit_s": limit_s,
        }
    )
    if asked.kind and (reason := _without_effect(asked)):
        raise InputError(reason)
    return asked


def _asked(place: Place, label: str, kind: str = "") -> Request:
    return Request(do="open", place=place, label=label, kind=kind, limit_s=MAX_S)


def _without_effect(asked: Request) -> str | None:
    """Why an option has no effect on a component, whose kind is known."""
    kind = kinds()[asked.kind]
    if asked.equals and asked.equals not in kind.equal_to:
        allowed = ", ".join(kind.equal_to) or "only for a strategy or an optimizer"
        return f"--equals {asked.equals}: no reference of kind {asked.kind}; allowed: {allowed}"
    if asked.dataset and kind.datasets is None:
        return f"--dataset has no effect on kind {asked.kind}; allowed: only for model and augmentation"
    return None


def _registered(target: str, kind: str | None) -> Request | None:
    """A registered component: `dirichlet`, or with its kind, `partitioner:dirichlet`."""
    prefix, _, name = target.rpartition(":")
    if prefix and prefix not in kinds():
        return None
    candidates = [prefix] if prefix else [kind] if kind else [*kinds()]
    holding = [each for each in candidates if name in REGISTRIES[each].entries]
    if len(holding) == 1:
        return _asked(Place(registered=name), name, holding[0])
    if holding:
        forms = ", ".join(f"{each}:{name}" for each in holding)
        raise InputError(f"{target}: several components have this name; choose one of {forms}")
    if prefix:
        registry = REGISTRIES[prefix]
        hint = suggestion(name, registry.entries)
        raise InputError(f"{target}: unknown {prefix}{hint}; known: {', '.join(registry.entries)}")
    return None


def _file(target: str) -> Request | None:
    """All components of a file."""
    if is_import_path(target) or not target.endswith(".py"):
        return None
    file = Path(target).expanduser().resolve()
    if not file.is_file():
        raise InputError(f"{target}: there is no file {file}")
    return _asked(Place(directory=str(file.parent), module=file.name), target)


def _imported(target: str) -> Request:
    """One component from an import path."""
    if not is_import_path(target):
        if os.path.exists(target):
            what = "is a directory" if os.path.isdir(target) else "is no file of Python"
            raise InputError(f"{target}: {what}; allowed: FILE.py, FILE.py:NAME")
        hint = suggestion(target, [name for kind in kinds() for name in REGISTRIES[kind].entries])
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
    return _asked(_place(name), name.label)


def _place(name: ImportName, **parameters: Any) -> Place:
    return Place(
        directory=str(name.directory), module=name.module, attribute=name.attribute, parameters=parameters
    )


def _parameters(sets: Sequence[str]) -> dict[str, Any]:
    """`--set key=value`, values as in YAML."""
    parameters: dict[str, Any] = {}
    for text in sets:
        key, equal, value = text.partition("=")
        if not equal or not key.isidentifier():
            raise InputError(f"--set {text}: allowed: KEY=VALUE, e.g. alpha=0.1")
        parameters[key] = parse_yaml(value, f"--set {text}")
    return parameters


def _dataset(text: str) -> Place:
    """The dataset of a model: a registered one with parameters, or where a user's is imported from."""
    value = parse_yaml(text, f"--dataset {text}")
    form = {"name": value} if isinstance(value, str) else value
    if not isinstance(form, dict) or not isinstance(form.get("name"), str):
        raise InputError(f"--dataset {text}: allowed: a name, or a mapping such as '{{name: synthetic}}'")
    parameters = {key: value for key, value in form.items() if key != "name"}
    try:
        name = ImportName.of("dataset", form["name"], Path.cwd())
    except ValueError as error:
        raise InputError(f"--dataset {text}: {error}") from error
    if name is not None:
        return _place(name, **parameters)
    registry = REGISTRIES["dataset"]
    try:
        registry.parse(form)
    except PydanticCustomError as error:  # no dataset has this name
        raise InputError(f"--dataset {form['name']}: {error.message()}") from error
    except ValidationError as error:
        lines = error_lines(
            error, lambda at: f"--dataset {text}: {dotted(at)}", lambda at: registry.parameters(form, *at)
        )
        raise InputError("\n".join(lines)) from error
    return Place(registered=form["name"], parameters=parameters)


@contextmanager
def checking(asked: Request, make_sandbox: MakeSandbox) -> Iterator[Checking]:
    """What tries the laws of components, in processes that are gone after the block.

    make_sandbox: for code of users; registered components are tried in a process of this machine.
    """
    places = [asked.place, *([asked.dataset] if asked.dataset else [])]
    if all(place.registered for place in places):
        make_sandbox = local_sandbox
    directory, data_dir = Path(asked.place.directory or ".").resolve(), Path(asked.data_dir)
    here, elsewhere = (
        Trials(directory, data_dir, make_sandbox, prints=seed == 0, hash_seed=seed) for seed in (0, 1)
    )
    with closing(here), closing(elsewhere):
        yield Checking(here, elsewhere)


class Checking:
    """Tries the laws of components. elsewhere: another process, in which hashes of strings differ."""

    def __init__(self, trials: Trials, elsewhere: Trials) -> None:
        self._trials, self._elsewhere = trials, elsewhere

    def reports(self, asked: Request) -> Iterator[Report]:
        """A report for each component that is asked for. Raises InputError if one cannot be checked."""
        if asked.place.registered:
            yield self.report(asked)
            return
        unclear = []
        answer = self._answer(asked.model_copy(update={"do": "find"}))
        if reason := answer.error or (answer.ended and f"the process that imports it {answer.ended}"):
            raise InputError(f"{asked.label}: {reason}")
        for found in answer.found:
            place = asked.place.model_copy(update={"attribute": found.name})
            label = asked.label if asked.place.attribute else f"{asked.label}:{found.name}"
            if found.kind not in kinds():
                unclear.append(found.name)
                continue
            one = {"place": place, "label": label, "kind": found.kind}
            yield self.report(asked.model_copy(update=one), alone=bool(asked.place.attribute))
        if unclear:
            yield Report(component=asked.label, unclear=unclear)

    def report(self, asked: Request, alone: bool = True) -> Report:
        """The report on one component, whose kind is known. alone: the command line names it."""
        if reason := _without_effect(asked):
            if alone:
                raise InputError(reason)
            asked = asked.model_copy(update={"dataset": None, "equals": ""})
        laws, end = kinds()[asked.kind].laws(), time.monotonic() + asked.limit_s
        with ThreadPoolExecutor(1) as beside:
            answer = self._answer(asked)
            if broken := self._not_opened(asked, answer, alone):
                findings = [broken]
            else:
                elsewhere = beside.submit(self._digest, asked) if any(law.across for law in laws) else None
                first = self._first(asked, answer, elsewhere)
                findings = [*examine_all(laws, first, self._attempt(asked, end))]
        return Report(component=asked.label, kind=asked.kind, data=answer.data, findings=findings)

    def _answer(self, request: Request) -> Answer:
        try:
            return self._trials.ask(request)
        except TrialError as error:
            raise InputError(f"{request.label}: {error}") from error

    def _not_opened(self, asked: Request, answer: Answer, alone: bool) -> Finding | None:
        """Why the laws of a component cannot be tried; None if they can. Raises InputError for mistakes."""
        if answer.of_dataset and answer.error:
            raise InputError(f"{asked.label}: {answer.error}")
        if answer.invalid:
            missing = [str(each.loc[0]) for each in answer.invalid if each.type == "missing"]
            if answer.of_dataset or alone or len(missing) < len(answer.invalid):
                option, allowed = "--dataset" if answer.of_dataset else "--set", answer.allowed
                lines = detail_lines(
                    [each.model_dump() for each in answer.invalid],
                    lambda path: f"{option} {dotted(path)}",
                    lambda _: allowed or ["no parameters"],
                )
                raise InputError("\n".join(f"{asked.label}: {line}" for line in lines))
            reason = f"it needs {', '.join(missing)}; check it alone, with --set {missing[0]}=VALUE"
            return _skipped(reason)
        if answer.left_out and not alone:
            return _skipped(answer.left_out)
        if answer.ended:
            return BUILDS.model_copy(update={"expected": GOES_ON, "got": f"it {answer.ended}"})
        return BUILDS.model_copy(update={"got": answer.error}) if answer.error else None

    def _first(
        self, asked: Request, opened: Answer, elsewhere: Future[Elsewhere] | None
    ) -> Callable[[Law], Sequence[Input] | str]:
        """The inputs of each law, which must be as it declares. elsewhere: of one that has no others."""

        def first(law: Law) -> Sequence[Input] | str:
            if law.across and elsewhere:
                return [elsewhere.result()]
            values = opened.first.get(law.name, "")
            if isinstance(values, str):
                return values
            try:
                return [law.input.model_validate(each, strict=False) for each in values]
            except ValidationError as error:
                reason = f"its process sent no input of the law {law.name}"
                raise InputError(f"{asked.label}: {reason}") from error

        return first

    def _digest(self, asked: Request) -> Elsewhere:
        """What another process computes with the component."""
        try:
            for do in ("open", "digest"):
                answer = self._elsewhere.ask(asked.model_copy(update={"do": do}))
                if reason := answer.error or answer.ended:
                    return Elsewhere(error=reason)
        except TrialError as error:
            return Elsewhere(error=str(error))
        return Elsewhere(digest=answer.digest)

    def _attempt(self, asked: Request, end: float) -> Callable[[Law, Input], Outcome]:
        """Tries an input, until the process ends or has had its time."""
        gone = ""

        def attempt(law: Law, given: Input) -> Outcome:
            nonlocal gone
            if gone:
                return Outcome(status="skipped", reason=f"not tried, since its process {gone}")
            one: dict[str, Any] = {"do": "try", "law": law.name}
            one["given"] = given.model_dump(mode="json")
            one["limit_s"] = max(0.01, end - time.monotonic())
            answer = self._answer(asked.model_copy(update=one))
            if gone := answer.ended:
                if time.monotonic() >= end:
                    gone = f"did not finish within {asked.limit_s:g} s"
                return Outcome(status="failed", expected=GOES_ON, got=f"it {gone}")
            if answer.error or answer.invalid:
                got = answer.error or answer.invalid[0].msg
                return Outcome(status="failed", expected="no exception", got=got)
            return answer.outcome

        return attempt


def _skipped(reason: str) -> Finding:
    """The finding on a component that is not checked."""
    return BUILDS.model_copy(update={"status": "skipped", "expected": "", "reason": reason})


def lines(report: Report, width: int) -> Iterator[Line]:
    """What a terminal of so many columns shows: a line for each law, and below it what breaks it."""
    if report.unclear:
        yield Line(f"file {report.component}", style="bold")
        reason = f"their kind is unclear: check {report.component}:{report.unclear[0]}, with --kind"
        yield from _row("skipped", ", ".join(report.unclear), reason, width)
        return
    yield Line(
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
    yield Line(f"{held} laws hold, {failed} fail, {len(report.findings) - held - failed} do not apply")


def _law(finding: Finding, width: int) -> Iterator[Line]:
    inputs = f"{finding.inputs} inputs" if finding.inputs > 1 else ""
    room = width - STATUS_WIDTH - LAW_WIDTH
    statement = f"{finding.statement:<{room - len(inputs) - 1}} {inputs}" if inputs else finding.statement
    yield from _row(finding.status, finding.law, statement, width)
    broken = (("input", finding.input), ("expected", finding.expected), ("got", finding.got))
    for name, text in (*broken, ("note", finding.reason)):
        if text:
            yield from _row("", name, text, width)


def _row(status: str, name: str, text: str, width: int) -> Iterator[Line]:
    """A row with its text wrapped in the last column; a long name has lines of its own."""
    indent = " " * (STATUS_WIDTH + LAW_WIDTH)
    names = wrap(name, max(20, width - STATUS_WIDTH)) or [""]
    rows = wrap(text, max(20, width - len(indent)), break_on_hyphens=False, replace_whitespace=False)
    first = rows.pop(0) if rows and len(names) == 1 and len(name) < LAW_WIDTH else ""
    for number, label in enumerate(names):
        mark = Line(f"{'' if number else status:<{STATUS_WIDTH}}", style=COLOURS.get(status, ""))
        yield mark.append(f"{label:<{LAW_WIDTH}}{first}".rstrip(), style="default")
    for row in rows:
        yield Line(f"{indent}{row}")


def as_json(found: Sequence[Report]) -> str:
    """All reports, for programs."""
    return json.dumps([report.model_dump() for report in found], indent=2)
