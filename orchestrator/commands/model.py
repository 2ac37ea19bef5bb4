"""The command `model`: what a model's blocks cost on this machine, and where it would be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.sweeps.expand import BlockFields, expand
from orchestrator.sweeps.yaml import parse_yaml
from trainer.models.split_points import balanced_split_points, validation_error
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from trainer.training.profile import BlockProfile

DEFAULT_PARTS = (2, 3, 4)


@dataclass(frozen=True)
class Cutting:
    """One way to cut a model. Each list has an entry per part; crossing one less, in bytes per sample."""

    split_points: list[str]
    seconds: list[float]
    parameters: list[int]
    crossing: list[float]

    @property
    def largest(self) -> float:
        """The slowest part's share of the time, 1/parts … 1."""
        return max(self.seconds) / sum(self.seconds)


def run_of(model: str, dataset: str, batch_size: int) -> RunSpec:
    """The run on one node whose model is looked at. Raises InputError.

    model, dataset: a name or YAML with parameters, as in a sweep file.
    """
    sheet = BlockFields("model", skip=[])
    sheet.override("strategy", ["serial"], "model")
    for field, text, place in (
        ("model", model, f"model {model}"),
        ("dataset", dataset, f"--dataset {dataset}"),
    ):
        sheet.override(field, [parse_yaml(text, place)], place)
    sheet.override("batch_size", [batch_size], f"--batch-size {batch_size}")
    (run,) = expand(sheet)
    return run


def numbers_of_parts(text: str | None, run: RunSpec) -> list[int]:
    """What `--parts` asks for, e.g. `2,3`; None: 2, 3 and 4, as far as blocks go. Raises InputError."""
    names = run.model.names
    if text is None:
        return [parts for parts in DEFAULT_PARTS if parts <= len(names)]
    option = f"--parts {text}"
    numbers = []
    for word in text.split(","):
        if not word.strip().isdecimal() or (parts := int(word)) < 2:
            wrong = word.strip()
            raise InputError(f"{option}: {wrong!r} is no number of parts; allowed: 2 and more, as 2,3")
        if reason := validation_error(names, None, parts):
            raise InputError(f"{option}: {reason}")
        numbers.append(parts)
    return list(dict.fromkeys(numbers))


def measured(run: RunSpec) -> list[BlockProfile]:
    """The blocks of the run's model, timed here and now. Raises InputError where there is no torch."""
    try:
        from trainer.training.profile import profile_model
    except ModuleNotFoundError as error:
        reason = f"blocks cannot be measured without {error.name}; `make venv` brings it"
        raise InputError(reason) from error
    return profile_model(run)


def proposal(blocks: Sequence[BlockProfile], parts: int) -> Cutting:
    """The cuts whose slowest part takes the least time; there are at least so many blocks."""
    names, seconds = [block.name for block in blocks], [block.seconds for block in blocks]
    chosen = balanced_split_points(names, seconds, parts)
    starts = [0, *(names.index(cut) for cut in chosen), len(blocks)]
    held = [blocks[start:end] for start, end in pairwise(starts)]
    return Cutting(
        chosen,
        [sum(block.seconds for block in part) for part in held],
        [sum(block.parameters for block in part) for part in held],
        [part[-1].output_bytes for part in held[:-1]],
    )
