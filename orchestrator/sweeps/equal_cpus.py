"""`cpus: equal`: the same share of the machine's cores for every node of every run of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import InputError
from orchestrator.sweeps.expand import BlockFields
from trainer.spec.run_spec import RunSpec

CPUS, EQUAL = "cpus", "equal"
SHARED = 0.8  # of the cores: the rest is for the engine, the orchestrator and the system
LEAST = 0.01  # the least quota of a container; quotas are multiples of it


class EqualShare(BaseModel):
    """What `cpus: equal` means on a machine: `cpus` for each node.

    cores: the cores of the machine. nodes: the nodes of the sweep's largest run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: float
    cores: float
    nodes: int

    @property
    def label(self) -> str:
        """One sentence for the user."""
        return (
            f"cpus: equal is {self.cpus:g} for each node: {SHARED:.0%} of {self.cores:g} cores, divided by "
            f"the {self.nodes} nodes of the largest run"
        )


def equal_share(cores: float, nodes: int) -> EqualShare:
    """The share of each node, rounded down."""
    return EqualShare(cpus=floor(round(SHARED * cores / nodes / LEAST, 6)) / 100, cores=cores, nodes=nodes)


def resolve_equal(
    blocks: Sequence[BlockFields], runs: Callable[[], Sequence[RunSpec]], cores: Callable[[], float] | None
) -> EqualShare | None:
    """Replace `equal` by a number wherever it is a value of `cpus`; None if it is nowhere.

    Args:
        blocks: the fields of the sweep's blocks.
        runs: expands the blocks.
        cores: returns the cores of the machine that the nodes share; raises InputError if nodes cannot
            have quotas. None: no machine is known.

    Raises:
        InputError: the message names file, key, value and what is allowed.
    """
    found = [
        (block.fields[CPUS], number, value)
        for block in blocks
        for number, value in enumerate(block.fields.get(CPUS, ()))
        if value.value == EQUAL
    ]
    if not found:
        return None
    place = f"{found[0][2].place}: {EQUAL!r}"
    if cores is None:
        raise InputError(
            f"{place} is a share of a machine's cores, and no machine is known; allowed: a number"
        )
    try:
        available = cores()
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    for values, number, value in found:
        values[number] = replace(value, value=1.0)  # any number: only the runs' nodes matter
    share = equal_share(available, max((run.nodes for run in runs()), default=1))
    if share.cpus < LEAST:
        raise InputError(
            f"{place} is less than {LEAST:g} for each of {share.nodes} nodes on {available:g} cores; "
            "allowed: fewer nodes, or a number"
        )
    for values, number, value in found:
        values[number] = replace(value, value=share.cpus)
    return share
