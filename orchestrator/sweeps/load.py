"""Load a sweep file and expand it into runs. Starts nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from orchestrator.errors import InputError
from orchestrator.registries import RUNTIME_CLASSES
from orchestrator.sweeps.component_names import from_here
from orchestrator.sweeps.equal_cpus import EqualShare, resolve_equal
from orchestrator.sweeps.expand import SEED, BlockFields, FieldValue, check_field, expand, matches
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.lab import Ablation, AblationStep, BlockRecord, Lab, Published
from orchestrator.sweeps.question import Question
from orchestrator.sweeps.requirements import read_requirements
from orchestrator.sweeps.stages import BUDGET_PATTERN, STAGES, budget_seconds
from orchestrator.sweeps.tolerance import DEFAULT, Tolerances, parse_tolerances
from orchestrator.sweeps.validation import Location, dotted, error_lines
from orchestrator.sweeps.yaml import parse_yaml, read_yaml
from trainer.core.registry import Registry
from trainer.core.whole_number import whole_number
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
EPOCHS = "epochs"
MAX_COUNT = 10**9  # of nodes in an option; what a run may have is checked with the run
MAX_COMBINATIONS = 10_000  # of the axes' values, in all blocks; expanding them takes seconds


MAX_REPEAT = 1000
REPEAT = "number of runs of each configuration, with the seeds seed, seed + 1, ..."


class Block(BaseModel):
    """Runs that share a base: one for every combination of the axes' values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        "", description="name of these runs in reports, beside published figures; blocks may share it"
    )
    base: Values = Field(default={}, description="fields of every run of this block")
    axes: dict[str, list[Any]] = Field(default={}, description="field -> its values, one run for each")
    repeat: int | None = Field(None, ge=1, le=MAX_REPEAT, description=f"{REPEAT}; default: the file's")
    skip: list[Values] = Field(
        default=[],
        description="leave out runs that match all fields of an entry (a value or a list of values)",
    )
    published: list[Published] = Field(default=[], description="published figures of these runs")
    quick: Values | None = Field(
        default={},
        description="fields of a quick run: values replace base's, lists replace axes; null: leave the "
        "block out",
    )


class SweepSpec(BaseModel):
    """A sweep file. Fields are those of RunSpec; `strategy.init` is a component's parameter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        description="also the name of its results directory", json_schema_extra={"pattern": NAME_PATTERN}
    )
    description: str = ""
    lab: Lab | None = Field(None, description="the published experiment that the sweep reproduces")
    runtime: str | None = Field(
        None,
        description="where nodes run, unless --runtime or SHARDYARD_RUNTIME names another runtime; null: "
        "the first one available",
        json_schema_extra={"enum": [*RUNTIME_CLASSES, None]},
    )
    base: Values = Field(default={}, description="fields of every run")
    repeat: int | None = Field(
        None,
        ge=1,
        le=MAX_REPEAT,
        description=f"{REPEAT}; default: one run for each seed of the axis `seed`",
    )
    until_decided: bool = Field(
        False,
        description="add seeds in stages of 5, 8, 12 and 20 until the choice is decided, and leave out "
        "what has no chance; `repeat` is the most seeds",
    )
    budget: str | None = Field(
        None,
        description="the time in which `until_decided` starts runs, beside one seed of each configuration, "
        "as 90s, 10m or 2h",
        json_schema_extra={"pattern": BUDGET_PATTERN},
    )
    tolerance: Tolerances = Field(
        DEFAULT, description="differences that do not matter when a report decides what to choose"
    )
    questions: list[Question] = Field(
        default=[], description="comparisons that the report answers first, beside those with serial"
    )
    quick: Values = Field(default={}, description="fields of a quick run, for every block")
    requirements: str | None = Field(
        None,
        description="file with packages that users' components need, one per line; containers run an image "
        "with them, which is built once",
    )
    blocks: list[Block] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
            raise ValueError(
                "Input should be 1 to 64 lower-case letters, digits, - and _, the first a letter or digit"
            )
        return name

    @field_validator("runtime")
    @classmethod
    def _check_runtime(cls, runtime: str | None) -> str | None:
        if runtime is not None and runtime not in RUNTIME_CLASSES:
            raise ValueError(f"Input should be {' or '.join(RUNTIME_CLASSES)}")
        return runtime

    def options_of(self, runtime: str) -> BaseModel | None:
        """The options of a runtime; None if the file has none."""
        options: BaseModel | None = getattr(self, runtime, None)
        return options


class HasOptions(Protocol):
    """A runtime, of which a sweep file may have options under the runtime's name."""

    Options: type[BaseModel]


OPTIONS_OF: Registry[HasOptions] = Registry("runtime", RUNTIME_CLASSES)


def with_options(runtimes: Iterable[str]) -> type[SweepSpec]:
    """The model of a sweep file that may have options of these runtimes, each under the runtime's name."""
    options = {name: OPTIONS_OF.load(name).Options for name in runtimes}
    fields: dict[str, Any] = {
        name: (model, Field(model(), description=f"{model.__doc__} Only for runtime {name}."))
        for name, model in options.items()
        if model.model_fields
    }
    return create_model("SweepSpec", __base__=SweepSpec, __doc__=SweepSpec.__doc__, **fields)


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: its runs in the order of the file, each once."""

    spec: SweepSpec
    source: str  # the file's text
    overrides: list[str]  # options that changed it, as typed
    runs: list[RunSpec]
    blocks: list[BlockRecord]  # those that have a name
    equal_cpus: EqualShare | None = None  # what `cpus: equal` was replaced by
    imports: Imports | None = None  # holds the files of users' components
    until_decided: bool = False  # whether it adds seeds in stages
    budget_s: float | None = None  # in which it starts runs, if it adds seeds in stages
    tolerance: Tolerances = DEFAULT


def load_sweep(
    path: Path,
    sets: Sequence[str] = (),
    nodes: str | None = None,
    quick: bool = False,
    repeat: int | None = None,
    cores: Callable[[SweepSpec], float] | None = None,
    text: str | None = None,
    imports: Callable[[SweepSpec], Imports] | None = None,
    places: Mapping[str, str] | None = None,
    until_decided: bool | None = None,
    budget: str | None = None,
    tolerance: str | None = None,
) -> Sweep:
    """Read, override and expand a sweep file.

    Args:
        sets: `key=value` for all runs.
        nodes: "1,2,4" for every block that varies nodes.
        quick: apply the file's own `quick` values.
        repeat: number of runs of each configuration, from the smallest seed of its block on.
        cores: returns the cores that the nodes of a file share, for `cpus: equal`; raises InputError if
            nodes have no quotas.
        text: the text of a sweep that is in no file; messages name it by `path`.
        imports: returns what finds users' components of a file; None: tries them in processes of this
            machine.
        places: where the user has written the fields of a sweep that is in no file.
        until_decided, budget: replace the file's; None: the file's.
        tolerance: `accuracy=0.5pt,time=10%`, which replaces the file's.

    Raises:
        InputError: names file, key, value and what is allowed.
    """
    content, text = read_yaml(path) if text is None else (parse_yaml(text, str(path)), text)
    if not isinstance(content, dict):
        keys = ", ".join(with_options(RUNTIME_CLASSES).model_fields)
        raise InputError(f"{path}: must be a mapping with the keys {keys}")
    try:
        spec = with_options(name for name in RUNTIME_CLASSES if name in content).model_validate(content)
    except ValidationError as error:
        lines = error_lines(error, lambda at: f"{path}: {dotted(at)}", _keys_at)
        raise InputError("\n".join(lines)) from error
    found = imports(spec) if imports else Imports(import_directory(path))
    if spec.requirements is not None:
        found.requirements = import_directory(path).absolute() / spec.requirements
        read_requirements(found.requirements)
    all_fields = [_fields_of_block(spec, number, path) for number in range(len(spec.blocks))]
    if places is not None:
        for block_fields in all_fields:
            block_fields.write_at(places)
    overrides = [f"--set {assignment}" for assignment in sets] + ([f"--nodes {nodes}"] if nodes else [])
    if quick:
        _make_quick(all_fields, spec, path)
        overrides.insert(0, "--quick")
    base_epochs = (quick and spec.quick.get(EPOCHS)) or spec.base.get(EPOCHS)
    multiples = [_epochs_of_base(block_fields, base_epochs) for block_fields in all_fields]
    check_not_set(sets, {} if nodes is None else {"nodes": f"--nodes {nodes}"})
    for assignment in sets:
        _set(all_fields, assignment, multiples)
    if nodes is not None:
        _set_nodes(all_fields, spec.blocks, nodes, path)
    staged = spec.until_decided if until_decided is None else until_decided
    budget_s = _budget(spec, staged, budget, path)
    if repeat is not None:
        overrides.append(_set_repeat(all_fields, repeat))
    elif staged and not spec.until_decided:
        _set_repeat(all_fields, STAGES[-1])
    if until_decided is not None:
        overrides.append("--until-decided" if until_decided else "--no-until-decided")
    overrides += [f"--budget {budget}"] if budget else []
    tolerances = spec.tolerance if tolerance is None else parse_tolerances(tolerance, spec.tolerance)
    overrides += [f"--tolerance {tolerance}"] if tolerance else []
    left_out = [quick and block.quick is None for block in spec.blocks]
    _check_combinations(all_fields, path)

    def expanded_blocks(every_skip_matches: bool = False) -> list[list[RunSpec]]:
        return [
            [] if out else list(expand(block_fields, found, every_skip_matches=every_skip_matches))
            for block_fields, out in zip(all_fields, left_out, strict=True)
        ]

    shared = partial(cores, spec) if cores else None
    share = resolve_equal(all_fields, lambda: [*chain.from_iterable(expanded_blocks())], shared)
    expanded = expanded_blocks(every_skip_matches=not overrides)
    runs = _distinct(chain.from_iterable(expanded))
    if not runs:
        raise InputError(f"{path}: no runs; skip excludes every combination")
    # Options may exclude runs that have published figures.
    _check_published(spec, None if overrides else expanded, path)
    _check_questions(spec, None if overrides else runs, path)
    found.close()
    if spec.requirements is not None and found.code is None:
        raise InputError(
            f"{path}: requirements: {spec.requirements!r} has no effect without an import path"
        )
    if len({run.seed for run in runs}) < STAGES[0]:
        if until_decided or (staged and not overrides):
            place = "--until-decided" if until_decided else f"{path}: until_decided"
            raise InputError(
                f"{place}: needs at least {STAGES[0]} seeds; allowed: repeat from {STAGES[0]} on"
            )
        staged = False  # an option has fixed the seeds
    if staged:
        _check_stages(spec, runs, path)
    return Sweep(
        spec,
        text,
        overrides,
        runs,
        _named(spec.blocks, expanded),
        share,
        found,
        staged,
        budget_s,
        tolerances,
    )


def _budget(spec: SweepSpec, staged: bool, budget: str | None, path: Path) -> float | None:
    """The budget in seconds. Raises InputError for what is no time, or without stages."""
    if spec.budget is not None and not spec.until_decided:
        raise InputError(f"{path}: budget: {spec.budget!r} needs `until_decided: true`")
    if budget is not None and not staged:
        raise InputError(f"--budget {budget}: needs --until-decided")
    if budget is not None:
        return budget_seconds(budget, "--budget")
    return budget_seconds(spec.budget, f"{path}: budget") if staged and spec.budget else None


def _check_stages(spec: SweepSpec, runs: Sequence[RunSpec], path: Path) -> None:
    """Raise InputError if no choice can be decided by the times and accuracies of the runs."""
    if spec.lab:
        raise InputError(
            f"{path}: a lab cannot be run until it is decided; its seeds are those of the file"
        )
    for run in runs:
        for field in ("faults", "target_accuracy"):
            if getattr(run, field):
                raise InputError(
                    f"{path}: {run.key} has {field}, with which it cannot be run until decided"
                )


def import_directory(path: Path) -> Path:
    """The directory from which import paths of a sweep count: that of its file, or the current one."""
    return path.parent if path.is_file() else Path()


def _check_combinations(all_fields: Sequence[BlockFields], path: Path) -> None:
    """Raise InputError if the blocks have more combinations of values than a sweep may have."""
    counts = [block_fields.combinations for block_fields in all_fields]
    if sum(counts) > MAX_COMBINATIONS:
        largest = max(range(len(counts)), key=counts.__getitem__)
        axes = [
            f"{name} ({len(values)})"
            for name, values in all_fields[largest].fields.items()
            if len(values) > 1
        ]
        raise InputError(
            f"{path}: {sum(counts):,} combinations of the axes' values; allowed: at most "
            f"{MAX_COMBINATIONS:,}, with those that skip leaves out. "
            f"Most are in {all_fields[largest].place.removeprefix(f'{path}: ')}: {' × '.join(axes)}"
        )


def _named(blocks: Sequence[Block], expanded: Sequence[list[RunSpec]]) -> list[BlockRecord]:
    """Named blocks in the order of the file; blocks that share a name are merged."""
    named: dict[str, BlockRecord] = {}
    for block, runs in zip(blocks, expanded, strict=True):
        if block.name:
            record = named.setdefault(block.name, BlockRecord(name=block.name, keys=[]))
            record.keys.extend(run.key for run in runs)
            record.published.extend(block.published)
    return [*named.values()]


def _check_published(spec: SweepSpec, expanded: Sequence[list[RunSpec]] | None, path: Path) -> None:
    """Raise InputError unless each published figure and ablation step selects one configuration.

    expanded: each block's runs; None: check only the field names and block names.
    """
    known: dict[str, list[RunSpec]] = {}
    for number, block in enumerate(spec.blocks):
        at = f"{path}: blocks[{number}]"
        if block.published and not block.name:
            raise InputError(f"{at}: has published figures and needs a name")
        runs = expanded[number] if expanded else None
        for i, entry in enumerate(block.published):
            _check_selection(entry.runs, runs, f"{at}.published[{i}].runs")
        if block.name:
            known.setdefault(block.name, []).extend(runs or ())
    for i, ablation in enumerate(spec.lab.ablations if spec.lab else ()):
        for j, step in enumerate(ablation.steps):
            at = f"{path}: lab.ablations[{i}].steps[{j}]"
            if step.block not in known:
                raise InputError(
                    f"{at}.block: {step.block!r} is not the name of a block; allowed: {', '.join(known)}"
                )
            for nodes in ablation.nodes:
                selection = {"nodes": nodes, **step.runs}
                _check_selection(selection, known[step.block] if expanded else None, f"{at}.runs")


def _check_questions(spec: SweepSpec, runs: Sequence[RunSpec] | None, path: Path) -> None:
    """Raise InputError unless each question selects two configurations. runs: None: check only fields."""
    for number, question in enumerate(spec.questions):
        at = f"{path}: questions[{number}]"
        selected = _check_selection(question.compare, runs, f"{at}.compare")
        against = _check_selection(question.against, runs, f"{at}.against")
        if selected is not None and selected == against:
            raise InputError(
                f"{at}: compare {json.dumps(question.compare)} and against {json.dumps(question.against)} "
                "select the same runs"
            )


def _check_selection(entry: Values, runs: Sequence[RunSpec] | None, place: str) -> str | None:
    """The one configuration that the entry selects; None without runs. Raises InputError."""
    for field in entry:
        check_field(field, place)
    if runs is None:
        return None
    configurations = {configuration(run) for run in runs if matches(run, entry)}
    if not configurations:
        raise InputError(f"{place}: no run matches {json.dumps(entry)}")
    if len(configurations) > 1:
        raise InputError(
            f"{place}: {json.dumps(entry)} matches runs that differ in more than the seed; add fields "
            "until only seeds differ"
        )
    return configurations.pop()


def configuration(run: RunSpec) -> str:
    """What runs that differ only in their seed have in common, as text."""
    return json.dumps({**run.canonical(), SEED: 0}, sort_keys=True)


def _distinct(expanded: Iterable[RunSpec]) -> list[RunSpec]:
    """The runs without duplicates: several blocks may describe the same run."""
    runs: dict[str, RunSpec] = {}
    for run in expanded:
        same = runs.setdefault(run.key, run)
        if same is not run and same.canonical() != run.canonical():
            raise InputError(f"{run.key}: two different runs have the same key; change one seed")
    return list(runs.values())


def _keys_at(location: Location) -> Sequence[str]:
    within: dict[str, type[BaseModel]] = {
        "blocks": Block,
        "lab": Lab,
        "published": Published,
        "questions": Question,
        "ablations": Ablation,
        "steps": AblationStep,
    }
    if location and location[0] in RUNTIME_CLASSES:
        return list(OPTIONS_OF.load(str(location[0])).Options.model_fields)
    inside = [within[part] for part in location if isinstance(part, str) and part in within]
    return list((inside or [with_options(RUNTIME_CLASSES)])[-1].model_fields)


def _fields_of_block(spec: SweepSpec, number: int, path: Path) -> BlockFields:
    """A block's fields with their locations, those of the file's base included."""
    block, at = spec.blocks[number], f"{path}: blocks[{number}]"
    block_fields = BlockFields(at, [(entry, f"{at}.skip[{i}]") for i, entry in enumerate(block.skip)])
    for field, value in spec.base.items():
        block_fields.write(field, [value], f"{path}: base")
    for field, value in block.base.items():
        block_fields.write(field, [value], f"{at}.base")
    for field, axis in block.axes.items():
        if not axis:
            raise InputError(f"{at}.axes.{field}: is an empty list; at least one value is required")
        block_fields.write(field, axis, f"{at}.axes", axis=True)
    for owner, place in ((block, f"{at}.repeat"), (spec, f"{path}: repeat")):
        if owner.repeat is None:
            continue
        if SEED in block.axes:
            raise InputError(
                f"{place}: {owner.repeat} cannot be combined with {at}.axes.{SEED}, which is "
                f"{block.axes[SEED]}; allowed: one of the two"
            )
        block_fields.repeat = FieldValue(owner.repeat, place)
        break
    return block_fields


def _make_quick(all_fields: Sequence[BlockFields], spec: SweepSpec, path: Path) -> None:
    """Apply the file's `quick` values, then each block's."""
    if not spec.quick and all(block.quick == {} for block in spec.blocks):
        raise InputError(f"{path}: has no `quick` values; --quick needs them")
    for field in spec.quick:
        check_field(field, f"{path}: quick")
    for number, (block_fields, block) in enumerate(zip(all_fields, spec.blocks, strict=True)):
        # A list applies to blocks that have the axis; `repeat` is an axis of seeds.
        every = {
            field: value
            for field, value in spec.quick.items()
            if not isinstance(value, list) or field in block.axes or (field == SEED and block_fields.repeat)
        }
        at = f"{path}: blocks[{number}].quick"
        for field in block.quick or {}:
            check_field(field, at)
        for place, fields in ((f"{path}: quick", every), (at, block.quick or {})):
            for field, value in fields.items():
                values = value if isinstance(value, list) else [value]
                block_fields.override(field, values, f"{place}.{field}")


def check_not_set(sets: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Raise InputError if `--set` names a field that another option sets. elsewhere: these, by field."""
    for assignment in sets:
        if other := elsewhere.get(field := assignment.partition("=")[0]):
            raise InputError(f"--set {assignment}: {other} sets {field}, too; allowed: one of the two")


def _set(all_fields: Sequence[BlockFields], assignment: str, multiples: Sequence[Fraction]) -> None:
    """Apply `key=value`, which overrides base and axes.

    multiples: the ratios of each block's epochs to the base's. `epochs` keeps them: a block that trains
    longer than the others exists for this difference.
    """
    key, equals, text = assignment.partition("=")
    option = f"--set {assignment}"
    if not equals or not key:
        raise InputError(f"{option}: must have the form key=value")
    check_field(key, option)
    value = parse_yaml(text, option)
    if key in REGISTRIES:
        value = from_here(value)
    for block_fields, multiple in zip(all_fields, multiples, strict=True):
        new = _multiplied(value, multiple, block_fields, option) if key == EPOCHS else value
        block_fields.override(key, [new], option)


def _epochs_of_base(block_fields: BlockFields, base: object) -> Fraction:
    """A block's epochs as a multiple of those of the base; 1 for an axis, which an option replaces."""
    own = [field.value for field in block_fields.fields.get(EPOCHS, [])]
    if len(own) == 1 and _is_count(own[0]) and _is_count(base):
        return Fraction(own[0], base)
    return Fraction(1)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _multiplied(epochs: object, multiple: Fraction, block_fields: BlockFields, option: str) -> object:
    """The epochs of a block. An invalid value is left to the check of the run."""
    if not _is_count(epochs):
        return epochs
    if (epochs * multiple).denominator > 1:
        raise InputError(
            f"{option}: {block_fields.place} has {multiple} times the base's epochs, and "
            f"{multiple} × {epochs} is not a whole number; allowed: multiples of {multiple.denominator}"
        )
    return int(epochs * multiple)


def _set_repeat(all_fields: Sequence[BlockFields], count: int) -> str:
    """Set the number of runs of each configuration in all blocks. Returns the option."""
    option = f"--repeat {count}"
    if not 1 <= count <= MAX_REPEAT:
        raise InputError(f"{option}: must be 1 to {MAX_REPEAT}")
    for block_fields in all_fields:
        block_fields.override_repeat(count, option)
    return option


def _set_nodes(all_fields: Sequence[BlockFields], blocks: Sequence[Block], text: str, path: Path) -> None:
    """Replace the node counts of the blocks that vary them."""
    option = f"--nodes {text}"
    counts = [whole_number(part.strip(), MAX_COUNT) for part in text.split(",")]
    if None in counts:
        raise InputError(f"{option}: must be whole numbers separated by commas, e.g. --nodes 1,2,4")
    varied = [
        block_fields
        for block_fields, block in zip(all_fields, blocks, strict=True)
        if "nodes" in block.axes
    ]
    if not varied:
        raise InputError(f"{option}: no block of {path} varies nodes; use --set nodes=N")
    for block_fields in varied:
        block_fields.override("nodes", counts, option)
