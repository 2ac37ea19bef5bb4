"""SweepSpec: a sweep file, and its expansion into runs. Pure: nothing is started here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import InputError
from orchestrator.expand import Sheet, check_field, expand
from orchestrator.validation import Location, complaints, dotted
from orchestrator.yaml import parse_yaml, read_yaml
from trainer.spec import RunSpec

Values = dict[str, Any]


class Block(BaseModel):
    """Runs that share a base: one for every combination of the axes' values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    base: Values = Field(default={}, description="fields of every run of this block")
    axes: dict[str, list[Any]] = Field(default={}, description="field -> the values it takes in turn")
    skip: list[Values] = Field(
        default=[],
        description="leave out runs that match all fields of an entry (a value or a list of values)",
    )


class SweepSpec(BaseModel):
    """A sweep file. A field is written as in RunSpec; `strategy.init` is a component's parameter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description="also the name of its results directory"
    )
    description: str = ""
    base: Values = Field(default={}, description="fields of every run")
    blocks: list[Block] = Field(min_length=1)


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its runs in order, each once."""

    spec: SweepSpec
    source: str  # the file's text
    overrides: list[str]  # options that changed it, as typed
    runs: list[RunSpec]


def load_sweep(path: Path, sets: Sequence[str] = (), nodes: str | None = None) -> Sweep:
    """Read, override and expand a sweep file.

    sets: `key=value` for all runs. nodes: "1,2,4" for every block that varies nodes. Raises
    InputError, naming file, key, value and what is allowed.
    """
    content, text = read_yaml(path)
    if not isinstance(content, dict):
        keys = ", ".join(SweepSpec.model_fields)
        raise InputError(f"{path}: a sweep file is a mapping with the keys {keys}")
    try:
        spec = SweepSpec.model_validate(content)
    except ValidationError as error:
        lines = complaints(error, lambda at: f"{path}: {dotted(at)}", _keys_at)
        raise InputError("\n".join(lines)) from error
    sheets = [_sheet(spec, number, path) for number in range(len(spec.blocks))]
    for assignment in sets:
        _set(sheets, assignment)
    if nodes is not None:
        _set_nodes(sheets, spec.blocks, nodes, path)
    runs = _distinct(run for sheet in sheets for run in expand(sheet))
    # Seed by seed: a machine that gets slower over minutes then slows every strategy of a seed alike, and
    # shows as spread between seeds instead of as a difference between strategies.
    runs.sort(key=lambda run: run.seed)
    if not runs:
        raise InputError(f"{path}: no run is left; every combination is in a block's skip")
    overrides = [f"--set {assignment}" for assignment in sets] + ([f"--nodes {nodes}"] if nodes else [])
    return Sweep(spec, text, overrides, runs)


def _distinct(expanded: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once, although several blocks may describe it."""
    runs: dict[str, RunSpec] = {}
    for run in expanded:
        same = runs.setdefault(run.key, run)
        if same.canonical() != run.canonical():
            raise InputError(f"{run.key}: two different runs have this key; change the seed of one")
    return list(runs.values())


def _keys_at(location: Location) -> Sequence[str]:
    return list(Block.model_fields if location[:1] == ("blocks",) else SweepSpec.model_fields)


def _sheet(spec: SweepSpec, number: int, path: Path) -> Sheet:
    """A block with the file's base: what is written, and where."""
    block, at = spec.blocks[number], f"{path}: blocks[{number}]"
    sheet = Sheet(at, [(entry, f"{at}.skip[{i}]") for i, entry in enumerate(block.skip)])
    for field, value in spec.base.items():
        sheet.write(field, [value], f"{path}: base")
    for field, value in block.base.items():
        sheet.write(field, [value], f"{at}.base")
    for field, axis in block.axes.items():
        if not axis:
            raise InputError(f"{at}.axes.{field}: the list is empty; name at least one value")
        sheet.write(field, axis, f"{at}.axes", axis=True)
    return sheet


def _set(sheets: Sequence[Sheet], assignment: str) -> None:
    """`key=value` goes over whatever base or axis says about the key."""
    key, equals, text = assignment.partition("=")
    option = f"--set {assignment}"
    if not equals or not key:
        raise InputError(f"{option}: is written key=value")
    check_field(key, option)
    value = parse_yaml(text, option)
    for sheet in sheets:
        sheet.override(key, [value], option)


def _set_nodes(sheets: Sequence[Sheet], blocks: Sequence[Block], text: str, path: Path) -> None:
    """Other node counts for the blocks that vary them."""
    option = f"--nodes {text}"
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: is written as whole numbers with commas, e.g. --nodes 1,2,4") from None
    varied = [sheet for sheet, block in zip(sheets, blocks, strict=True) if "nodes" in block.axes]
    if not varied:
        raise InputError(f"{option}: no block of {path} varies nodes; use --set nodes=N")
    for sheet in varied:
        sheet.override("nodes", counts, option)
