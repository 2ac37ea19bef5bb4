"""`python -m trainer.conformance`: tries the laws of components, each in a process of its own.

Reads a request from standard input and writes a report for each component, in frames.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainer.components.parameters import ParameterFailure
from trainer.conformance.check import (
    DatasetParameterFailure,
    RequestError,
    data_label,
    laws_of,
    left_out,
    on_data,
    source_of,
)
from trainer.conformance.find import components, stated_kind
from trainer.conformance.law import Law, examine_all
from trainer.conformance.report import CheckRequest, Finding, Report, without_effect
from trainer.core.forked import Ended, Send, forked
from trainer.core.frames import HEADER, frame, length
from trainer.core.frames import message as message_in
from trainer.core.processes import end_with_parent
from trainer.core.user_code import ImportFailure, located

BUILDS = "it can be built"
NOISE = "noise (--dataset takes a dataset)"


def main() -> None:
    """Serve the request on standard input."""
    end_with_parent()
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what users' code prints is no answer
    _send(answers, {"ready": True})
    request = CheckRequest.model_validate(message_in(requests.read(length(requests.read(HEADER)))))
    for report in reports(request):
        _send(answers, {"report": report.model_dump(mode="json")})
    _send(answers, {"end": True})


def _send(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(frame(answer))
    answers.flush()


def reports(request: CheckRequest) -> Iterator[Report]:
    """The reports on the components that a request names."""
    if request.registered:
        yield report_on(request)
        return
    unclear: list[str] = []
    for message in _messages(lambda send: _find(request, send), request):
        if "error" in message:
            yield Report(component=request.label, error=message["error"])
            return
        if not message["kind"]:
            unclear.append(message["name"])
            continue
        label = request.label if request.attribute else f"{request.label}:{message['name']}"
        found = {"kind": message["kind"], "attribute": message["name"], "label": label}
        yield report_on(request.model_copy(update=found), alone=bool(request.attribute))
    if unclear:
        yield Report(component=request.label, unclear=unclear)


def _find(request: CheckRequest, send: Send) -> None:
    """Send kind and name of each component of a file, or of the one that is named; kind "" if unclear."""
    try:
        if request.attribute:
            found = [(stated_kind(source_of(request), request.kind), request.attribute)]
        else:
            found = [*components(Path(request.directory), request.module)]
    except ImportFailure as error:
        send(json.dumps({"error": str(error)}))
        return
    if not found:
        reason = "it defines no component"
        send(json.dumps({"error": reason}))
    for kind, name in found:
        send(json.dumps({"kind": kind, "name": name}))


def _messages(work: Callable[[Send], None], request: CheckRequest) -> Iterator[dict[str, Any]]:
    """What a process of its own sends; an error if it does not end well."""
    try:
        for line in forked(work, request.limit_s):
            yield json.loads(line)
    except Ended as error:
        yield {"error": f"the process that imports it {error}"}


def report_on(request: CheckRequest, alone: bool = True) -> Report:
    """The report on one component, whose kind is known. alone: the request names it."""
    findings: list[Finding] = []
    trying = Finding(law="builds", statement=BUILDS, status="failed")
    report: dict[str, Any] = {"component": request.label, "kind": request.kind}
    try:
        for line in forked(lambda send: _try(request, send, alone), request.limit_s):
            message = json.loads(line)
            if "trying" in message:
                trying = Finding.model_validate(message["trying"])
            elif "finding" in message:
                findings.append(Finding.model_validate(message["finding"]))
            else:
                report |= message
    except Ended as error:
        end = {"status": "failed", "expected": "a process that goes on", "got": f"it {error}"}
        findings.append(trying.model_copy(update=end))
    return Report(**report, findings=findings)


def _try(request: CheckRequest, send: Send, alone: bool) -> None:
    """Send what each law finds, and before it the law."""

    def begin(law: Law[Any]) -> None:
        send(json.dumps({"trying": {"law": law.name, "statement": law.statement, "status": "failed"}}))

    directory = Path(request.directory)
    try:
        if alone and (reason := without_effect(request)):
            raise RequestError(reason)
        if not alone and (reason := left_out(request)):
            send(json.dumps({"finding": _skipped(reason)}))
            return
        request = on_data(request)
        if request.dataset:
            send(json.dumps({"data": data_label(request.dataset)}, default=str))
        elif request.kind == "augmentation":
            send(json.dumps({"data": NOISE}))
        for finding in examine_all(laws_of(request), directory, begin):
            send(json.dumps({"finding": finding.model_dump(mode="json")}))
    except RequestError as error:
        send(json.dumps({"error": str(error)}))
    except ParameterFailure as error:
        send(json.dumps(_invalid(error, alone), default=str))
    except DatasetParameterFailure as error:
        send(json.dumps({**_invalid(error.failure, alone=True), "option": "--dataset"}, default=str))
    except Exception as error:
        got = located(error, directory)
        broken = Finding(law="builds", statement=BUILDS, status="failed", expected="a component", got=got)
        send(json.dumps({"finding": broken.model_dump(mode="json")}))


def _invalid(error: ParameterFailure, alone: bool) -> dict[str, Any]:
    """What to say about parameters. Missing ones are no mistake if the component is one of several."""
    missing = [str(each["loc"][0]) for each in error.errors if each["type"] == "missing"]
    if not alone and len(missing) == len(error.errors):
        reason = f"it needs {', '.join(missing)}; check it alone, with --set {missing[0]}=VALUE"
        return {"finding": _skipped(reason)}
    return {"invalid": error.errors, "allowed": error.allowed}


def _skipped(reason: str) -> dict[str, Any]:
    """The finding on a component that is not checked."""
    return Finding(law="builds", statement=BUILDS, status="skipped", reason=reason).model_dump(mode="json")


if __name__ == "__main__":
    main()
