"""The command `run`: one configuration without a sweep file, alone or beside its serial run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.report.model.rows import SERIAL
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.load import Sweep, SweepSpec, check_not_set, configuration, load_sweep
from orchestrator.sweeps.validation import excerpt
from orchestrator.sweeps.yaml import parse_yaml
from trainer.spec.node_speed import MAX_NODES
from trainer.spec.registries import STRATEGIES

COMMAND = Path("shardyard run")  # what messages name instead of a sweep file
# Fields that a serial run does not have, or that say how a run is split over nodes.
NOT_OF_SERIAL = (
    "strategy",
    "transport",
    "nodes",
    "processes_per_node",
    "node_speed",
    "link",
    "partitioner",
    "faults",
    "on_loss",
    "restarts",
    "debug",
    "byzantine",
)


def load_run(
    strategy: str,
    nodes: int | None = None,
    sets: Sequence[str] = (),
    repeat: int | None = None,
    compare: bool = False,
    cores: Callable[[SweepSpec], float] | None = None,
    imports: Imports | None = None,
    places: Mapping[str, str] | None = None,
) -> Sweep:
    """The sweep of one configuration.

    Args:
        strategy: name, or YAML with parameters.
        nodes: None: the fewest on which the strategy runs, and at least 2 unless it runs on one alone.
        sets: `key=value`, as in `load_sweep`. Those that a serial run can have hold for it, too.
        compare: also run the serial reference.
        cores: see `load_sweep`.
        imports: finds users' components; None: tries them in processes of this machine.
        places: what messages call strategy and nodes; None: the names on the command line.

    Raises:
        InputError: names the option, the value and what is allowed.
    """
    places = places or {"strategy": "STRATEGY", "nodes": "nodes" if nodes is None else f"--nodes {nodes}"}
    given = {field: place for field, place in places.items() if field != "nodes" or nodes is not None}
    check_not_set(sets, given)
    if isinstance(nodes, int) and abs(nodes) > MAX_NODES:
        raise InputError(f"{places['nodes']}: {excerpt(nodes)} is not allowed; it must be 1 to {MAX_NODES}")
    form = parse_yaml(strategy, places["strategy"])
    block = {"base": {"strategy": form, "nodes": _fewest_nodes(form) if nodes is None else nodes}}
    imports = imports or Imports(Path())
    sweep = _loaded([block], sets, repeat, cores, imports, places)
    first = sweep.runs[0]
    strategy = first.key.partition("-")[0]  # without the characters of a path
    name = f"{strategy}-{first.transport}-n{first.nodes}"
    if not compare:
        return _named(sweep, name, [block])
    if first.name_of("strategy") == SERIAL:
        raise InputError(f"{COMMAND} {SERIAL} --compare: a serial run is the reference itself")
    reference = {"base": {"strategy": SERIAL}}
    shared = [each for each in sets if each.partition("=")[0].partition(".")[0] not in NOT_OF_SERIAL]
    serial = _loaded([reference], shared, repeat, cores, imports, {"strategy": "--compare"})
    return _named(replace(sweep, runs=[*serial.runs, *sweep.runs]), name, [reference, block])


def directory_of(sweep: Sweep) -> Path:
    """The results directory of a sweep of `load_run`: another one for other fields, whatever the seeds."""
    configs = {configuration(run) for run in sweep.runs}
    digest = sha256("\n".join(sorted(configs)).encode()).hexdigest()[:8]
    return Path("results") / "run" / f"{sweep.spec.name}-{digest}"


def _fewest_nodes(form: Any) -> int:
    """2 for a user's strategy; one that is not known is left to the check of the run."""
    with suppress(ValidationError, PydanticCustomError):
        strategy = STRATEGIES.parse(form)
        return strategy.min_nodes if strategy.max_nodes == 1 else max(2, strategy.min_nodes)
    return 2


def _loaded(
    blocks: list[dict[str, Any]],
    sets: Sequence[str],
    repeat: int | None,
    cores: Callable[[SweepSpec], float] | None,
    imports: Imports,
    places: Mapping[str, str],
) -> Sweep:
    text = _text("run", blocks)
    return load_sweep(
        COMMAND, sets, repeat=repeat, cores=cores, text=text, imports=lambda _: imports, places=places
    )


def _named(sweep: Sweep, name: str, blocks: list[dict[str, Any]]) -> Sweep:
    """The sweep under this name, with the text of a file that has these blocks."""
    return replace(sweep, spec=sweep.spec.model_copy(update={"name": name}), source=_text(name, blocks))


def _text(name: str, blocks: list[dict[str, Any]]) -> str:
    """The sweep file."""
    return yaml.safe_dump({"name": name, "blocks": blocks}, sort_keys=False, allow_unicode=True)
