"""Mistakes in `cpus: equal`: the share of a node, where it may stand, impossible shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.sweeps.equal_cpus import EqualShare, equal_share
from orchestrator.sweeps.load import Sweep, load_sweep

SERIAL = "{base: {strategy: serial}}"
DATA_PARALLEL = "{base: {strategy: ddp}, axes: {nodes: [2, 4]}}"


def load(
    *blocks: str, base: str = "{cpus: equal}", cores: Any = lambda _: 2, sets: Sequence[str] = ()
) -> Sweep:
    text = f"name: s\nbase: {base}\nblocks: [{', '.join(blocks)}]\n"
    return load_sweep(Path("s.yml"), sets, cores=cores, text=text)


def test_quotas_of_the_largest_run_fit_in_four_fifths_of_the_cores() -> None:
    for cores, nodes, cpus in [(2, 4, 0.4), (2, 5, 0.32), (4, 3, 1.06), (1.5, 1, 1.2), (2, 16, 0.1)]:
        assert equal_share(cores, nodes).cpus == cpus
        assert nodes * cpus <= 0.8 * cores + 1e-9 < nodes * (cpus + 0.01)


def test_every_run_has_the_share_of_the_largest_one_wherever_it_is_written() -> None:
    sweep = load(SERIAL, DATA_PARALLEL)
    assert [(run.nodes, run.cpus) for run in sweep.runs] == [(1, 0.4), (2, 0.4), (4, 0.4)]
    assert sweep.equal_cpus == EqualShare(cpus=0.4, cores=2, nodes=4)
    by_option = load(SERIAL, DATA_PARALLEL, base="{cpus: 1}", sets=("cpus=equal",))
    assert by_option.runs == sweep.runs == load(SERIAL, DATA_PARALLEL, base="{cpus: 0.4}").runs
    assert load(SERIAL, DATA_PARALLEL, sets=("cpus=1",)).equal_cpus is None
    axis = load("{base: {strategy: ddp, nodes: 4}, axes: {cpus: [1, equal]}}", base="{}")
    assert [run.cpus for run in axis.runs] == [1, 0.4]
    skipped = load("{base: {strategy: ddp}, axes: {nodes: [2, 4, 8]}, skip: [{nodes: 8}]}")
    assert {run.cpus for run in skipped.runs} == {0.4}
    (slower,) = load("{base: {strategy: ddp, nodes: 4, node_speed: {0: 0.5}}}").runs
    assert [slower.container_cpus(node) for node in range(4)] == [0.2, 0.4, 0.4, 0.4]


def test_an_impossible_share_names_its_place() -> None:
    def refuses(_: object) -> float:
        raise InputError("not here")

    block = "{{base: {{strategy: ddp, nodes: {}, cpus: equal}}}}"
    for nodes, cores, reason in (
        (4, None, " is a share of a machine's cores, and no machine is known"),
        (200, lambda _: 2, " is less than 0.01 for each of 200 nodes on 2 cores; allowed: fewer nodes"),
        (4, refuses, ": not here"),
    ):
        with pytest.raises(InputError, match=rf"s\.yml: blocks\[1\]\.base\.cpus: 'equal'{reason}"):
            load(SERIAL, block.format(nodes), base="{}", cores=cores)
