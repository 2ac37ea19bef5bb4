"""SweepSpec: a sweep file, and its expansion into runs. Pure: nothing is started here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import InputError
from orchestrator.sweeps.expand import BlockFields, check_field, expand, matches
from orchestrator.sweeps.lab import Ablation, AblationStep, BlockRecord, Lab, Published
from orchestrator.sweeps.validation import Location, complaints, dotted
from orchestrator.sweeps.yaml import parse_yaml, read_yaml
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]


class Block(BaseModel):
    """Runs that share a base: one for every combination of the axes' values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        "", description="what a report calls these runs beside published figures; blocks may share it"
    )
    base: Values = Field(default={}, description="fields of every run of this block")
    axes: dict[str, list[Any]] = Field(default={}, description="field -> the values it takes in turn")
    skip: list[Values] = Field(
        default=[],
        description="leave out runs that match all fields of an entry (a value or a list of values)",
    )
    published: list[Published] = Field(default=[], description="figures that others have published")
    quick: Values | None = Field(
        default={},
        description="fields of a quick look: values instead of base's, lists instead of axes; null: it is "
        "no part of one",
    )


class SweepSpec(BaseModel):
    """A sweep file. A field is written as in RunSpec; `strategy.init` is a component's parameter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description="also the name of its results directory"
    )
    description: str = ""
    lab: Lab | None = Field(None, description="the published experiment that is reproduced")
    base: Values = Field(default={}, description="fields of every run")
    quick: Values = Field(default={}, description="of a quick look at every block, see a block's")
    blocks: list[Block] = Field(min_length=1)


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its runs in order, each once."""

    spec: SweepSpec
    source: str  # the file's text
    overrides: list[str]  # options that changed it, as typed
    runs: list[RunSpec]
    blocks: list[BlockRecord]  # those that have a name


def load_sweep(
    path: Path, sets: Sequence[str] = (), nodes: str | None = None, quick: bool = False
) -> Sweep:
    """Read, override and expand a sweep file.

    sets: `key=value` for all runs. nodes: "1,2,4" for every block that varies nodes. quick: as the file's
    own `quick` says. Raises InputError, naming file, key, value and what is allowed.
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
    overrides = [f"--set {assignment}" for assignment in sets] + ([f"--nodes {nodes}"] if nodes else [])
    if quick:
        _make_quick(sheets, spec, path)
        overrides.insert(0, "--quick")
    for assignment in sets:
        _set(sheets, assignment)
    if nodes is not None:
        _set_nodes(sheets, spec.blocks, nodes, path)
    left_out = [quick and block.quick is None for block in spec.blocks]
    expanded = [[] if out else list(expand(sheet)) for sheet, out in zip(sheets, left_out, strict=True)]
    runs = _distinct(chain.from_iterable(expanded))
    # Seed by seed: a machine that gets slower over minutes then slows every strategy of a seed alike, and
    # shows as spread between seeds instead of as a difference between strategies.
    runs.sort(key=lambda run: run.seed)
    if not runs:
        raise InputError(f"{path}: no run is left; every combination is in a block's skip")
    # Options may well leave out some of the runs that figures are of.
    _check_published(spec, None if overrides else expanded, path)
    return Sweep(spec, text, overrides, runs, _named(spec.blocks, expanded))


def _named(blocks: Sequence[Block], expanded: Sequence[list[RunSpec]]) -> list[BlockRecord]:
    """The blocks by their names, in the order of the file; those that share one are one."""
    named: dict[str, BlockRecord] = {}
    for block, its in zip(blocks, expanded, strict=True):
        if block.name:
            one = named.setdefault(block.name, BlockRecord(name=block.name, keys=[]))
            one.keys.extend(run.key for run in its)
            one.published.extend(block.published)
    return [*named.values()]


def _check_published(spec: SweepSpec, expanded: Sequence[list[RunSpec]] | None, path: Path) -> None:
    """Raises InputError for a figure or a rung that is of no run, or of several cells.

    expanded: each block's runs; None: check only what can be told without.
    """
    known: dict[str, list[RunSpec]] = {}
    for number, block in enumerate(spec.blocks):
        at = f"{path}: blocks[{number}]"
        if block.published and not block.name:
            raise InputError(f"{at}: has published figures, so it needs a name")
        its = expanded[number] if expanded else None
        for i, entry in enumerate(block.published):
            _check_meant(entry.runs, its, f"{at}.published[{i}].runs")
        if block.name:
            known.setdefault(block.name, []).extend(its or ())
    for i, ladder in enumerate(spec.lab.ablations if spec.lab else ()):
        for j, rung in enumerate(ladder.steps):
            at = f"{path}: lab.ablations[{i}].steps[{j}]"
            if rung.block not in known:
                raise InputError(
                    f"{at}.block: {rung.block!r} is no block's name; allowed: {', '.join(known)}"
                )
            for nodes in ladder.nodes:
                meant = {"nodes": nodes, **rung.runs}
                _check_meant(meant, known[rung.block] if expanded else None, f"{at}.runs")


def _check_meant(entry: Values, runs: Sequence[RunSpec] | None, place: str) -> None:
    for field in entry:
        check_field(field, place)
    if runs is None:
        return
    cells = {
        json.dumps({**run.canonical(), "seed": 0}, sort_keys=True) for run in runs if matches(run, entry)
    }
    if not cells:
        raise InputError(f"{place}: no run of the block has {json.dumps(entry)}")
    if len(cells) > 1:
        raise InputError(
            f"{place}: {json.dumps(entry)} means {len(cells)} cells of the block; name as many fields as "
            "leave runs that differ by their seed alone"
        )


def _distinct(expanded: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once, although several blocks may describe it."""
    runs: dict[str, RunSpec] = {}
    for run in expanded:
        same = runs.setdefault(run.key, run)
        if same.canonical() != run.canonical():
            raise InputError(f"{run.key}: two different runs have this key; change the seed of one")
    return list(runs.values())


def _keys_at(location: Location) -> Sequence[str]:
    within: dict[str, type[BaseModel]] = {
        "blocks": Block,
        "lab": Lab,
        "published": Published,
        "ablations": Ablation,
        "steps": AblationStep,
    }
    inside = [within[part] for part in location if isinstance(part, str) and part in within]
    return list((inside or [SweepSpec])[-1].model_fields)


def _sheet(spec: SweepSpec, number: int, path: Path) -> BlockFields:
    """A block with the file's base: what is written, and where."""
    block, at = spec.blocks[number], f"{path}: blocks[{number}]"
    sheet = BlockFields(at, [(entry, f"{at}.skip[{i}]") for i, entry in enumerate(block.skip)])
    for field, value in spec.base.items():
        sheet.write(field, [value], f"{path}: base")
    for field, value in block.base.items():
        sheet.write(field, [value], f"{at}.base")
    for field, axis in block.axes.items():
        if not axis:
            raise InputError(f"{at}.axes.{field}: the list is empty; name at least one value")
        sheet.write(field, axis, f"{at}.axes", axis=True)
    return sheet


def _make_quick(sheets: Sequence[BlockFields], spec: SweepSpec, path: Path) -> None:
    """The file's own smaller values: those for all blocks, and over them a block's."""
    if not spec.quick and all(block.quick == {} for block in spec.blocks):
        raise InputError(f"{path}: has no quick form; write what is smaller there under `quick`")
    for field in spec.quick:
        check_field(field, f"{path}: quick")
    for number, (sheet, block) in enumerate(zip(sheets, spec.blocks, strict=True)):
        # A list is for blocks that have the axis.
        every = {
            field: value
            for field, value in spec.quick.items()
            if not isinstance(value, list) or field in block.axes
        }
        at = f"{path}: blocks[{number}].quick"
        for field in block.quick or {}:
            check_field(field, at)
        for place, fields in ((f"{path}: quick", every), (at, block.quick or {})):
            for field, value in fields.items():
                values = value if isinstance(value, list) else [value]
                sheet.override(field, values, f"{place}.{field}")


def _set(sheets: Sequence[BlockFields], assignment: str) -> None:
    """`key=value` goes over whatever base or axis says about the key."""
    key, equals, text = assignment.partition("=")
    option = f"--set {assignment}"
    if not equals or not key:
        raise InputError(f"{option}: is written key=value")
    check_field(key, option)
    value = parse_yaml(text, option)
    for sheet in sheets:
        sheet.override(key, [value], option)


def _set_nodes(sheets: Sequence[BlockFields], blocks: Sequence[Block], text: str, path: Path) -> None:
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
