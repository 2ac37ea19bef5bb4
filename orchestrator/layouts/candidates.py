"""Which layouts of a model a number of nodes allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

# Fields of the serial run that a layout has otherwise.
OWN_FIELDS = {"strategy", "transport", "nodes", "partitioner"}


@dataclass(frozen=True)
class Impossible:
    """A layout that the model or the batch does not allow. strategy: its name and parameters."""

    strategy: str
    reason: str


def candidates(serial: RunSpec, nodes: int, transport: str) -> Iterator[RunSpec | Impossible]:
    """All layouts of a serial run's training that strategies offer, each with the same global batch."""
    shared = serial.model_dump(mode="json", exclude_defaults=True, exclude=OWN_FIELDS)
    for name in STRATEGIES.entries:
        for parameters in STRATEGIES.load(name).layouts_on(nodes):
            form = {"name": name, **parameters}
            try:
                yield RunSpec.model_validate(
                    {**shared, "strategy": form, "nodes": nodes, "transport": transport}
                )
            except ValidationError as error:
                yield Impossible(_title(form), error.errors()[0]["msg"])


def _title(form: dict[str, Any]) -> str:
    """`hybrid mesh={data: 2, tensor: 2} micro_batches=1`."""
    return " ".join([form["name"], *(f"{key}={_text(form[key])}" for key in form if key != "name")])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {each}' for key, each in value.items())}}}"
    return str(value)
