"""SweepSpec: a sweep file, and its expansion into runs. Pure: nothing is started here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import InputError
from orchestrator.validation import Location, complaints, dotted
from orchestrator.yaml import parse_yaml, read_yaml
from trainer.spec import REGISTRIES, RunSpec

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
        raise InputError(
            f"{path}: a sweep file is a mapping with the keys {', '.join(SweepSpec.model_fields)}"
        )
    try:
        spec = SweepSpec.model_validate(content)
    except ValidationError as error:
        raise InputError(
            "\n".join(complaints(error, lambda at: f"{path}: {dotted(at)}", _keys_at))
        ) from error
    origins = _Origins(str(path))
    for assignment in sets:
        _set(spec, assignment, origins)
    if nodes is not None:
        _set_nodes(spec, nodes, origins)
    overrides = [f"--set {assignment}" for assignment in sets] + ([f"--nodes {nodes}"] if nodes else [])
    return Sweep(spec, text, overrides, list(_expand(spec, origins)))


def _keys_at(location: Location) -> Sequence[str]:
    return list(Block.model_fields if location[:1] == ("blocks",) else SweepSpec.model_fields)


class _Origins:
    """Remembers where a field's value was written, to name the place when it is wrong."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._options: dict[str, str] = {}

    def from_option(self, field: str, option: str) -> None:
        self._options[field] = option

    def option(self, field: str) -> str | None:
        return self._options.get(field)


def _set(spec: SweepSpec, assignment: str, origins: _Origins) -> None:
    """`key=value` goes over whatever base or axis says about the key."""
    key, equals, text = assignment.partition("=")
    option = f"--set {assignment}"
    if not equals or not key:
        raise InputError(f"{option}: is written key=value")
    _check_field(key, option)
    value = parse_yaml(text, option)
    for block in spec.blocks:
        block.axes.pop(key, None)
        if "." not in key:
            # A component that is replaced takes the parameters that were set for it along.
            for dependent in [field for field in (*block.base, *block.axes) if field.startswith(f"{key}.")]:
                block.base.pop(dependent, None)
                block.axes.pop(dependent, None)
        block.base[key] = value
    origins.from_option(key, option)


def _set_nodes(spec: SweepSpec, text: str, origins: _Origins) -> None:
    option = f"--nodes {text}"
    try:
        nodes = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: is written as whole numbers with commas, e.g. --nodes 1,2,4") from None
    varied = [block for block in spec.blocks if "nodes" in block.axes]
    if not varied:
        raise InputError(f"{option}: no block of {origins.file} varies nodes; use --set nodes=N")
    for block in varied:
        block.axes["nodes"] = nodes
    origins.from_option("nodes", option)


def _check_field(field: str, where: str) -> None:
    name, dot, _ = field.partition(".")
    if name not in RunSpec.model_fields or (dot and name not in REGISTRIES):
        raise InputError(f"{where}: unknown key {field!r}; allowed: {', '.join(RunSpec.model_fields)}")


def _expand(spec: SweepSpec, origins: _Origins) -> Iterator[RunSpec]:
    seen: set[str] = set()
    for number, block in enumerate(spec.blocks):
        at = f"{origins.file}: blocks[{number}]"
        for part, fields in [("base", spec.base), ("base", block.base), ("axes", block.axes)]:
            for field in fields:
                where = f"{origins.file}: base" if fields is spec.base else f"{at}.{part}"
                _check_field(field, where)
        for entry in block.skip:
            for field in entry:
                _check_field(field, f"{at}.skip")
        for field, axis in block.axes.items():
            if not axis:
                raise InputError(f"{at}.axes.{field}: the list is empty; name at least one value")
        for choice in product(*(range(len(axis)) for axis in block.axes.values())):
            chosen = dict(zip(block.axes, choice, strict=True))
            values = spec.base | block.base | {field: block.axes[field][i] for field, i in chosen.items()}
            values = _nested(values)
            if any(_matches(values, entry) for entry in block.skip):
                continue
            run = _checked(values, spec, number, chosen, origins)
            if run.key not in seen:
                seen.add(run.key)
                yield run


def _nested(values: Values) -> Values:
    """`strategy: one_shot` and `strategy.init: x` as `strategy: {name: one_shot, init: x}`."""
    plain = {field: value for field, value in values.items() if "." not in field}
    for field, value in values.items():
        name, dot, parameter = field.partition(".")
        if dot:
            component = plain.get(name, RunSpec.model_fields[name].default)
            form = dict(component) if isinstance(component, dict) else {"name": component}
            plain[name] = {**form, parameter: value}
    return plain


def _matches(run: Values, entry: Values) -> bool:
    """Whether a run's values match all fields of a skip entry; a component matches by its name."""
    for field, wanted in entry.items():
        name, _, parameter = field.partition(".")
        value = run.get(name, RunSpec.model_fields[name].default)
        if name in REGISTRIES:
            form = value if isinstance(value, dict) else {"name": value}
            value = form.get(parameter or "name")
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def _checked(
    values: Values, spec: SweepSpec, number: int, chosen: dict[str, int], origins: _Origins
) -> RunSpec:
    def place(location: Location) -> str:
        field, rest = str(location[0]) if location else "", location[1:]
        written = next((f for f in (".".join(map(str, location[:2])), field) if origins.option(f)), None)
        if written:
            return f"{origins.option(written)}"
        if field in chosen:
            path = dotted(("blocks", number, "axes", field, chosen[field], *rest))
        elif field in spec.blocks[number].base:
            path = dotted(("blocks", number, "base", field, *rest))
        elif field in spec.base:
            path = dotted(("base", field, *rest))
        else:
            path = dotted(("blocks", number, field, *rest))
        return f"{origins.file}: {path}"

    def allowed(location: Location) -> Sequence[str]:
        if not location:
            return list(RunSpec.model_fields)
        form = values.get(str(location[0]))
        name = form.get("name") if isinstance(form, dict) else form
        return list(REGISTRIES[str(location[0])].load(str(name)).model_fields) or ["no parameters"]

    try:
        return RunSpec.model_validate(values)
    except ValidationError as error:
        raise InputError("\n".join(complaints(error, place, allowed))) from error
