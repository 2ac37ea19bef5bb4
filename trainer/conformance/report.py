"""What a check asks, and what it finds. Imports no torch.

A report comes from a process that runs users' code, so its texts hold no control characters.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainer.component_trials.messages import Invalid
from trainer.core.record import Record, Text

Status = Literal["ok", "failed", "note", "skipped"]
Equal = Literal["serial", "all_reduce", "sgd", "momentum", "adam", "adamw"]

# The kinds of components that have laws: fields of a run.
KINDS = ("partitioner", "strategy", "model", "dataset", "optimizer", "loss", "augmentation")
EQUALS = {"strategy": ("serial", "all_reduce"), "optimizer": ("sgd", "momentum", "adam", "adamw")}
TAKE_SAMPLES = ("model", "augmentation")  # of a dataset that can be chosen


class CheckRequest(Record):
    """Asks for the laws of one component, or of all in a file.

    kind: the kind of the component; empty: to be found out. registered: its name in a registry, or empty.
    label: its name in reports. directory, module, attribute: where it is imported from; without an
    attribute, every component of the file. parameters: its parameters by name. dataset: the form of the
    dataset whose samples it takes; None: the default. equals: what it is compared with; empty: what it
    declares. limit_s: seconds in which the laws of a component must have been tried.
    """

    kind: str = ""
    registered: str = ""
    label: str = ""
    directory: str = "."
    module: str = ""
    attribute: str = ""
    parameters: dict[str, Any] = Field(default={})
    dataset: dict[str, Any] | None = None
    equals: str = ""
    data_dir: str = "data"
    limit_s: float = 60.0


def without_effect(request: CheckRequest) -> str | None:
    """Why an option has no effect on the component of a request, whose kind is known."""
    references = EQUALS.get(request.kind, ())
    if request.equals and request.equals not in references:
        allowed = ", ".join(references) or "only for a strategy or an optimizer"
        return f"--equals {request.equals}: no reference of kind {request.kind}; allowed: {allowed}"
    if request.dataset and request.kind not in TAKE_SAMPLES:
        return f"--dataset has no effect on kind {request.kind}; allowed: only for model and augmentation"
    return None


class Finding(Record):
    """One law on one component.

    law: its name. statement: what must hold. inputs: how many were tried. input: the smallest on which it
    fails. expected, got: the values for it. reason: why it was not tried, or what is worth knowing.
    """

    law: Text
    statement: Text
    status: Status
    inputs: int = 0
    input: Text = ""
    expected: Text = ""
    got: Text = ""
    reason: Text = ""


class Report(Record):
    """What was found on one component.

    component: its label. data: the samples that it takes. error: why it cannot be checked. invalid,
    allowed: what is wrong with its parameters, and their names. option: the command-line option for them.
    unclear: names of what the file `component` defines whose kind is unclear: it is not checked.
    """

    component: Text
    kind: Text = ""
    data: Text = ""
    findings: list[Finding] = Field(default=[])
    error: Text = ""
    invalid: list[Invalid] = Field(default=[])
    allowed: list[Text] = Field(default=[])
    option: Text = "--set"
    unclear: list[Text] = Field(default=[])

    @property
    def failed(self) -> bool:
        """Whether a law does not hold."""
        return any(finding.status == "failed" for finding in self.findings)
