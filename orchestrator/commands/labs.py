"""The commands `lab` and `labs`: sweeps that reproduce published experiments."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.results.environment import cores as machine_cores
from orchestrator.shipped import LABS
from orchestrator.sweeps.imports import Imports
from orchestrator.sweeps.load import Sweep, SweepSpec, load_sweep
from trainer.core.registry import suggestion

NONE_KNOWN = "nothing is known, apart from the hardware"  # of a lab's runs from the published ones


def names() -> list[str]:
    """The names of the labs, sorted."""
    return sorted(path.stem for path in LABS.glob("*.yml"))


def names_wanted(asked: Sequence[str] | None, everything: bool) -> list[str]:
    """The labs named on the command line. Raises InputError for an unknown one."""
    known = names()
    if everything and asked:
        raise InputError(f"lab {asked[0]} --all: use either names or --all")
    if everything:
        return known
    if not asked:
        raise InputError(f"lab: a name or --all is required; known labs: {', '.join(known)}")
    if unknown := [name for name in asked if name not in known]:
        hint = suggestion(unknown[0], known)
        raise InputError(f"lab {unknown[0]}: unknown lab{hint}; known labs: {', '.join(known)}")
    return list(asked)


def load_lab(
    name: str,
    sets: Sequence[str] = (),
    nodes: str | None = None,
    quick: bool = False,
    repeat: int | None = None,
    cores: Callable[[SweepSpec], float] | None = None,
    imports: Callable[[SweepSpec], Imports] | None = None,
) -> Sweep:
    """The lab's sweep. Arguments are as in `load_sweep`."""
    return load_sweep(LABS / f"{name}.yml", sets, nodes, quick, repeat, cores, imports=imports)


def absent(sweep: Sweep, data_dir: Path) -> list[str]:
    """Names of the sweep's datasets that are not in `data_dir`."""
    wanted = {run.name_of("dataset"): run.dataset for run in sweep.runs}
    return [
        name
        for name, dataset in wanted.items()
        if not all((data_dir / file).exists() for file in dataset.files)
    ]


def listing(data_dir: Path, width: int) -> Iterator[str]:
    """Every lab with its title, source, number of runs and datasets."""
    for name in names():
        sweep = load_lab(name, cores=lambda _: machine_cores())
        missing = absent(sweep, data_dir)
        data = ", ".join(dict.fromkeys(run.name_of("dataset") for run in sweep.runs))
        here = "downloaded" if any(run.dataset.files for run in sweep.runs) else "no download"
        there = f"will be downloaded to {data_dir}/" if missing else here
        lab = sweep.spec.lab
        facts = [lab.title, f"Source: {lab.source}."] if lab else [sweep.spec.description]
        if lab:
            facts.append(f"Differs: {'; '.join(lab.differences(sweep.runs)) or NONE_KNOWN}.")
        facts.append(f"{len(sweep.runs)} runs on {data} ({there}).")
        yield name
        for fact in facts:
            yield from textwrap.wrap(fact, width, initial_indent="    ", subsequent_indent="    ")
        yield ""
    yield "shardyard lab NAME runs one; --quick takes a few minutes each."
