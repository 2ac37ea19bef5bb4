"""A sweep that adds seeds until its choice is decided: its stages, its budget, and what was left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import InputError
from trainer.spec.run_spec import RunSpec

DECIDED, UNFINISHED = "the choice was decided", "the sweep is not finished"
STAGES = (5, 8, 12, 20)  # seeds of each configuration; claims about it need the first of these
SECONDS = {"s": 1, "m": 60, "h": 3600}
BUDGET_PATTERN = r"^[1-9][0-9]{0,5}[smh]$"


class Stages(BaseModel):
    """How the stages of a sweep ended.

    Attributes:
        ended: why no more seeds were added.
        out_of_budget: whether that was because the budget left no time for another run.
        dropped: why configurations got fewer seeds than others, by the key of their first run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ended: str = UNFINISHED
    out_of_budget: bool = False
    dropped: dict[str, str] = {}


@dataclass(frozen=True)
class Standing:
    """What a sweep needs no more seeds for.

    Attributes:
        decided: whether the choice of every workload is.
        hopeless: why a configuration needs no more seeds, by the key of each of its runs.
        lines: the most probable configurations of each workload that is open, as text.
        names: the name of a configuration, by the key of each of its runs.
    """

    decided: bool
    hopeless: Mapping[str, str]
    lines: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)


def stages(most: int) -> list[int]:
    """The numbers of seeds after which a sweep looks at what is decided, up to `most`."""
    return [*(count for count in STAGES if count < most), most]


def budget_seconds(text: str, place: str) -> float:
    """`90s`, `10m` or `2h` in seconds. Raises InputError, which names the place."""
    if not re.fullmatch(BUDGET_PATTERN, text):
        raise InputError(f"{place}: {text!r} is not a time such as 90s, 10m or 2h")
    return float(int(text[:-1]) * SECONDS[text[-1]])


def configurations(runs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """The runs that differ only in their seed, the smallest seed first."""
    found: dict[str, list[RunSpec]] = {}
    for run in runs:
        fields = {name: value for name, value in run.canonical().items() if name != "seed"}
        found.setdefault(json.dumps(fields, sort_keys=True), []).append(run)
    return [sorted(same, key=lambda run: run.seed) for same in found.values()]
