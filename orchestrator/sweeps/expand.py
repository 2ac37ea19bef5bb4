"""Expand a block's fields and axes into runs. Every value records where it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.sweeps.component_names import is_users, short_path
from orchestrator.sweeps.imports import ComponentError, Imports
from orchestrator.sweeps.validation import Location, dotted, error_lines
from orchestrator.sweeps.yaml import parse_yaml
from trainer.core.registry import suggestion
from trainer.spec.byzantine import keys_of_byzantine
from trainer.spec.checks import CHECK_ERROR_TYPES
from trainer.spec.faults import keys_of_fault
from trainer.spec.link import Links, keys_of_link
from trainer.spec.registries import REGISTRIES, STRATEGIES
from trainer.spec.run_spec import RunSpec, with_derived_defaults

Values = dict[str, Any]

SEED = "seed"
NODE_SPEED = "node_speed"


@dataclass(frozen=True)
class FieldValue:
    """A value and its location in the file.

    place: the location. extensible: it is a key path, which may continue, e.g. with `.hidden[0]`.
    """

    value: Any
    place: str
    extensible: bool = True

    def at(self, location: Location) -> str:
        """The place of what is at a location inside of the value."""
        if self.extensible or not location:
            return dotted(location, self.place)
        return f"{self.place}: {dotted(location)}"


@dataclass
class BlockFields:
    """The fields of a block, each with its values in order.

    skip: entries with their locations. repeat: the number of runs of each configuration; None: one for each
    value of `seed`.
    """

    place: str
    skip: list[tuple[Values, str]]
    fields: dict[str, list[FieldValue]] = field(default_factory=dict)
    repeat: FieldValue | None = None

    def write(self, name: str, values: Sequence[Any], place: str, *, axis: bool = False) -> None:
        """Set a field, replacing an earlier value. Raises InputError for an unknown field."""
        check_field(name, place)
        self.fields.pop(name, None)  # moves it to the end: axes vary in the order of the file
        places = [f"{place}.{name}[{i}]" if axis else f"{place}.{name}" for i in range(len(values))]
        self.fields[name] = [FieldValue(value, at) for value, at in zip(values, places, strict=True)]

    def write_at(self, places: Mapping[str, str]) -> None:
        """Say where fields are written that are in no file. Others are named by their keys alone."""
        self.place = ""
        for name, place in places.items():
            self.fields[name] = [
                FieldValue(item.value, place, extensible=False) for item in self.fields[name]
            ]

    def override(self, name: str, values: Sequence[Any], option: str) -> None:
        """Set a field from an option.

        Replacing a component also drops its parameters, and replacing the seed drops the repetitions.
        """
        if name == SEED:
            self.repeat = None
        for dependent in [other for other in self.fields if other.startswith(f"{name}.")]:
            del self.fields[dependent]
        self.fields[name] = [FieldValue(value, option, extensible=False) for value in values]

    def option(self, name: str, value: Any, flag: str = "") -> None:
        """Set a field from the value of an option: text is YAML. flag: default: that of the field."""
        place = f"{flag or '--' + name.replace('_', '-')} {value}"
        self.override(name, [parse_yaml(value, place) if isinstance(value, str) else value], place)

    def override_repeat(self, count: int, option: str) -> None:
        """Set the number of runs of each configuration from an option; the first seed is the smallest."""
        seeds = self.fields.get(SEED)
        if seeds and all(isinstance(seed.value, int) for seed in seeds):  # others fail their own check
            self.fields[SEED] = [min(seeds, key=lambda seed: seed.value)]
        self.repeat = FieldValue(count, option)

    def expanded_fields(self) -> dict[str, list[FieldValue]]:
        """The fields, with `repeat` expanded into seeds."""
        if self.repeat is None:
            return self.fields
        fields = {**self.fields}
        seeds = fields.pop(SEED, [FieldValue(RunSpec.model_fields[SEED].default, self.repeat.place)])
        if len(seeds) == 1 and isinstance(first := seeds[0].value, int):  # others fail their own check
            place = f"{self.repeat.place} (its seeds)"
            more = [FieldValue(first + i, place, extensible=False) for i in range(1, self.repeat.value)]
            seeds = [*seeds, *more]
        return {**fields, SEED: seeds}

    @property
    def combinations(self) -> int:
        """How many combinations of values the fields have, with those that skip leaves out."""
        return prod(len(values) for values in self.expanded_fields().values())


def check_field(name: str, place: str) -> None:
    """Raise InputError for an unknown field; `strategy.init` is a component's parameter."""
    if name == "repeat":
        raise InputError(
            f"{place}: {name!r} is not a field of a run; write it beside base, or use --repeat"
        )
    component, dot, _ = name.partition(".")
    if component not in RunSpec.model_fields or (dot and component not in REGISTRIES):
        known = RunSpec.model_fields
        raise InputError(
            f"{place}: unknown key {name!r}{suggestion(name, known)}; allowed: {', '.join(known)}"
        )


def expand(block: BlockFields, imports: Imports, *, every_skip_matches: bool = False) -> Iterator[RunSpec]:
    """One run for every combination that no skip entry matches. Raises InputError.

    imports: finds users' components. every_skip_matches: whether a skip entry that matches no combination
    is an error.
    """
    for entry, place in block.skip:
        _check_skip(entry, place)
    unused = dict.fromkeys(place for _, place in block.skip)
    fields = block.expanded_fields()
    for combination in product(*fields.values()):
        written = dict(zip(fields, combination, strict=True))
        values = _nested(written, block.place)
        filled = _filled(values) if block.skip else {}
        matching = [place for entry, place in block.skip if _matches(filled, entry)]
        for place in matching:
            unused.pop(place, None)
        if not matching:
            yield _checked(values, written, block.place, imports)
    if every_skip_matches and unused:
        raise InputError(
            f"{next(iter(unused))}: matches none of the block's {block.combinations} combinations"
        )


def matches(run: RunSpec, entry: Values) -> bool:
    """Whether a run matches every field of an entry, as in skip."""
    return _matches(run.model_dump(mode="json"), entry)


def _nested(written: Mapping[str, FieldValue], place: str) -> Values:
    """`strategy: one_shot` and `strategy.init: x` as `strategy: {name: one_shot, init: x}`."""
    values = {name: item.value for name, item in written.items() if "." not in name}
    for name, item in written.items():
        component, dot, parameter = name.partition(".")
        if not dot:
            continue
        info = RunSpec.model_fields[component]
        if component not in values and info.is_required():
            raise InputError(f"{item.place}: sets a parameter, but {place} has no {component}")
        form = values.get(component, info.default)
        values[component] = {**(form if isinstance(form, dict) else {"name": form}), parameter: item.value}
    return values


def _filled(values: Values) -> Values:
    """The values with all defaults and components in their long form; invalid values stay as they are.

    Does not validate: the combinations that skip leaves out need not be valid runs.
    """
    values = with_derived_defaults(values)
    filled: Values = {}
    for name, info in RunSpec.model_fields.items():
        value = values.get(name, info.default)
        if name in REGISTRIES:
            try:
                component = REGISTRIES[name].parse(value)
            except (ValidationError, PydanticCustomError):
                filled[name] = value if isinstance(value, dict) else {"name": value}
                continue
            value = REGISTRIES[name].dump(component)
        filled[name] = value
    return filled


def _matches(run: Values, entry: Values) -> bool:
    """Whether filled values match every field of a skip entry."""
    for name, wanted in entry.items():
        component, _, parameter = name.partition(".")
        if component not in run:  # the record of a results directory may name anything
            return False
        choices = _choices(name, wanted)
        if name == NODE_SPEED:  # in its normal form, which depends on the number of nodes
            forms = [{"nodes": run["nodes"], name: choice} for choice in choices]
            choices = [with_derived_defaults(form)[name] for form in forms]
        if component in REGISTRIES:
            form = run[component]
            value = form.get(parameter) if parameter else form
        else:
            value = run[name]
        fits = _same_links if name == "link" else _fits
        if not any(fits(value, choice) for choice in choices):
            return False
    return True


def _choices(name: str, wanted: Any) -> list[Any]:
    """The values that an entry allows: a list of them, or one. The speeds of nodes may be one list."""
    if not isinstance(wanted, list):
        return [wanted]
    one = name == NODE_SPEED and all(isinstance(each, int | float) for each in wanted)
    return [wanted] if one else wanted


def _same_links(value: Any, choice: Any) -> bool:
    """Whether two forms of links are equal; an invalid value, of a combination that is no run, is not."""
    try:
        one, other = (None if each is None else Links.of(each).canonical for each in (value, choice))
    except ValidationError:
        return False
    return one == other


def _fits(value: Any, choice: Any) -> bool:
    """Whether a filled value matches; a component matches by its name or by its parameters."""
    if isinstance(value, dict):
        wanted = choice if isinstance(choice, dict) else {"name": choice}
        return all(name in value and _fits(value[name], item) for name, item in wanted.items())
    return bool(value == choice) or (
        isinstance(value, str) and isinstance(choice, str) and short_path(value) == short_path(choice)
    )


def _check_skip(entry: Values, place: str) -> None:
    """Raise InputError for a field or value that no run can have: it would never match."""
    for name, wanted in entry.items():
        check_field(name, place)
        if "." in name:
            continue  # which values a parameter may have depends on the component
        for value in _choices(name, wanted):
            if name in REGISTRIES and is_users(name, value):
                continue  # it is compared as it is written
            try:
                RunSpec.model_validate({"strategy": "fault_injection", name: value})
            except ValidationError as error:
                # Report only errors of the value itself, not that fault_injection cannot have it.
                lines = error_lines(error, lambda at: f"{place}.{dotted(at)}", about=name)
                if lines:
                    raise InputError("\n".join(lines)) from error


def _checked(values: Values, written: Mapping[str, FieldValue], block: str, imports: Imports) -> RunSpec:
    def place(location: Location) -> str:
        for depth in (2, 1):  # `model.dropout` may be written in one or as a mapping
            item = written.get(".".join(map(str, location[:depth])))
            if item:
                return item.at(location[depth:])
        return dotted(location, block)

    def allowed(location: Location) -> Sequence[str]:
        if not location:
            return list(RunSpec.model_fields)
        name = str(location[0])
        if name not in REGISTRIES:
            if name == "link":
                return keys_of_link(*location[1:])
            if name == "byzantine":
                return keys_of_byzantine(values[name], *location[1:])
            return keys_of_fault(*location[2:]) if name == "faults" else []
        return REGISTRIES[name].parameters(_filled(values)[name], *location[1:]) or ["no parameters"]

    try:
        values = imports.resolve(values)
        return RunSpec.model_validate(values)
    except ComponentError as error:
        raise InputError("\n".join(error.lines(place))) from error
    except ValidationError as error:
        lines, types = error_lines(error, place, allowed), {each["type"] for each in error.errors()}
        if types <= {*CHECK_ERROR_TYPES}:
            lines = [f"{line}{_options(written, line)}" for line in lines]
        if "transport" in types:
            lines[-1] += _fitting_transport(values, written)
        raise InputError("\n".join(lines)) from error


def _fitting_transport(values: Values, written: Mapping[str, FieldValue]) -> str:
    """What else to set, where an option has set a strategy beside a transport of the file."""
    strategy, transport = written.get("strategy"), written.get("transport")
    if strategy is None or transport is None or strategy.extensible or not transport.extensible:
        return ""
    return f"; also use --set transport={STRATEGIES.parse(values['strategy']).transports[0]}"


def _options(written: Mapping[str, FieldValue], line: str) -> str:
    """` (with --set epochs=1)`: the options that changed the run, if a check's line names none of them.

    A value of the file may be valid there and invalid beside the value of an option.
    """
    options = dict.fromkeys(
        item.place for name, item in written.items() if name != SEED and item.place.startswith("--")
    )
    return "" if not options or line.startswith("--") else f" (with {', '.join(options)})"
