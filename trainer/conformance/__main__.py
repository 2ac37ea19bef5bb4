"""`python -m trainer.conformance`: tries the laws of components, each in a process of its own.

Reads a request, a line of JSON, from standard input. Writes a report, a line of JSON, for each component.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from trainer.conformance.check import DatasetParameterFailure, RequestError, laws_of, source_of
from trainer.conformance.find import components, stated_kind
from trainer.conformance.law import Law, examine_all
from trainer.conformance.report import Finding, Report, Request
from trainer.core.processes import end_with_parent
from trainer.imported.signature import ParameterFailure
from trainer.imported.source import ImportFailure, located
from trainer.inspection.forked import Ended, Send, forked

BUILDS = "it can be built"


def main() -> None:
    """Serve the request on standard input."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _end)
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    sys.dont_write_bytecode = True
    request = Request.model_validate_json(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what users' code prints is no answer
    for report in reports(request):
        print(report.model_dump_json(), file=answers, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # packages clean up when Python exits


def _end(*_: object) -> None:
    """End this process and the one that it has forked, wherever it is."""
    for process in active_children():
        with suppress(ProcessLookupError):
            os.killpg(process.pid or os.getpid(), signal.SIGKILL)
    os._exit(1)


def reports(request: Request) -> Iterator[Report]:
    """The reports on the components that a request names."""
    if request.registered:
        yield report_on(request)
        return
    for message in _messages(lambda send: _find(request, send), request):
        if "error" in message:
            yield Report(component=request.label, error=message["error"])
            return
        label = request.label if request.attribute else f"{request.label}:{message['name']}"
        found = {"kind": message["kind"], "attribute": message["name"], "label": label}
        yield report_on(request.model_copy(update=found), alone=bool(request.attribute))


def _find(request: Request, send: Send) -> None:
    """Send kind and name of each component of a file, or of the one that is named."""
    try:
        if request.attribute:
            found = [(stated_kind(source_of(request), request.kind), request.attribute)]
        else:
            found = [*components(Path(request.directory), request.module)]
    except ImportFailure as error:
        send(json.dumps({"error": str(error)}))
        return
    if not found:
        reason = "it defines no class that is a component; name a function as FILE.py:NAME"
        send(json.dumps({"error": reason}))
    for kind, name in found:
        send(json.dumps({"kind": kind, "name": name}))


def _messages(work: Callable[[Send], None], request: Request) -> Iterator[dict[str, Any]]:
    """What a process of its own sends; an error if it does not end well."""
    try:
        for line in forked(work, request.limit_s):
            yield json.loads(line)
    except Ended as error:
        yield {"error": f"the process that imports it {error}"}


def report_on(request: Request, alone: bool = True) -> Report:
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


def _try(request: Request, send: Send, alone: bool) -> None:
    """Send what each law finds, and before it the law."""

    def begin(law: Law[Any]) -> None:
        send(json.dumps({"trying": {"law": law.name, "statement": law.statement, "status": "failed"}}))

    directory = Path(request.directory)
    try:
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
    """What to say about parameters: of one among others, those that are missing are no mistake."""
    missing = [str(each["loc"][0]) for each in error.errors if each["type"] == "missing"]
    if not alone and len(missing) == len(error.errors):
        reason = f"it needs {', '.join(missing)}; check it alone, with --set {missing[0]}=VALUE"
        skipped = Finding(law="builds", statement=BUILDS, status="skipped", reason=reason)
        return {"finding": skipped.model_dump(mode="json")}
    return {"invalid": error.errors, "allowed": error.allowed}


if __name__ == "__main__":
    main()
