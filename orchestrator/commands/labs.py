"""The published experiments that are shipped: where they are, and what each needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.shipped import LABS
from orchestrator.sweeps.load import Sweep, load_sweep

IN_THE_BOX = "digits"  # what a quick look is taken on where a lab's own data is not there


def names() -> list[str]:
    """The labs, in the order of the alphabet."""
    return sorted(path.stem for path in LABS.glob("*.yml"))


def names_wanted(asked: Sequence[str] | None, everything: bool) -> list[str]:
    """The labs that a command line asks for. Raises InputError for one that there is not."""
    known = names()
    if everything and asked:
        raise InputError(f"lab {asked[0]} --all: name labs, or --all; not both")
    if everything:
        return known
    if not asked:
        raise InputError(f"lab: name at least one, or --all; known: {', '.join(known)}")
    if unknown := [name for name in asked if name not in known]:
        raise InputError(f"lab {unknown[0]}: there is no such lab; known: {', '.join(known)}")
    return list(asked)


def load_lab(
    name: str, data_dir: Path, sets: Sequence[str] = (), nodes: str | None = None, quick: bool = False
) -> Sweep:
    """The lab's sweep. A quick look downloads nothing: it is on `digits` where files are not there yet."""
    path = LABS / f"{name}.yml"
    sweep = load_sweep(path, sets, nodes, quick)
    if quick and (missing := absent(sweep, data_dir)):
        if any(assignment.startswith("dataset") for assignment in sets):
            raise InputError(
                f"--quick: {missing[0]} is not in {data_dir}/, and a quick look downloads nothing"
            )
        sweep = load_sweep(path, [f"dataset={IN_THE_BOX}", *sets], nodes, quick)
    return sweep


def absent(sweep: Sweep, data_dir: Path) -> list[str]:
    """Names of the datasets that the sweep needs and `data_dir` does not have."""
    wanted = {run.name_of("dataset"): run.dataset for run in sweep.runs}
    return [
        name
        for name, dataset in wanted.items()
        if not all((data_dir / file).exists() for file in dataset.files)
    ]


def listing(data_dir: Path, width: int) -> Iterator[str]:
    """Every lab with what it is about, its source, how many runs it has, and on which data."""
    for name in names():
        sweep = load_lab(name, data_dir)
        missing = absent(sweep, data_dir)
        data = ", ".join(dict.fromkeys(run.name_of("dataset") for run in sweep.runs))
        there = f"to be downloaded into {data_dir}/" if missing else "there"
        lab = sweep.spec.lab
        facts = [lab.title, f"Source: {lab.source}."] if lab else [sweep.spec.description]
        facts.append(f"{len(sweep.runs)} runs on {data} ({there}).")
        yield name
        for fact in facts:
            yield from textwrap.wrap(fact, width, initial_indent="    ", subsequent_indent="    ")
        yield ""
    yield "python -m orchestrator lab NAME runs one, with --quick in a few minutes."
