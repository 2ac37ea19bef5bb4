"""`cpus: equal`: what share of a machine's cores it gives to each node of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.store import SweepPaths, read_record
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.sweeps.equal_cpus import EqualShare, equal_share
from orchestrator.sweeps.load import Sweep, SweepSpec, load_sweep
from tests.support.runs import RecordingDisplay

Load = Callable[..., Sweep]
SERIAL = "{base: {strategy: serial}}"
DATA_PARALLEL = "{base: {strategy: ddp}, axes: {nodes: [2, 4]}}"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(
        *blocks: str, base: str = "{cpus: equal}", cores: float | None = 2, sets: tuple[str, ...] = ()
    ) -> Sweep:
        path = tmp_path / "s.yml"
        path.write_text(f"name: s\nbase: {base}\nblocks: [{', '.join(blocks)}]\n")
        return load_sweep(path, sets, cores=None if cores is None else lambda _: cores)

    return load


@pytest.mark.parametrize(
    ("cores", "nodes", "cpus"), [(2, 4, 0.4), (2, 5, 0.32), (4, 3, 1.06), (1.5, 1, 1.2), (2, 16, 0.1)]
)
def test_quotas_of_the_largest_run_fit_in_four_fifths_of_the_cores(
    cores: float, nodes: int, cpus: float
) -> None:
    assert equal_share(cores, nodes).cpus == cpus
    assert nodes * cpus <= 0.8 * cores + 1e-9 < nodes * (cpus + 0.01)


def test_every_run_has_the_share_of_the_largest_one(load: Load) -> None:
    sweep = load(SERIAL, DATA_PARALLEL)
    assert [(run.nodes, run.cpus) for run in sweep.runs] == [(1, 0.4), (2, 0.4), (4, 0.4)]
    assert sweep.equal_cpus == EqualShare(cpus=0.4, cores=2, nodes=4)


def test_runs_that_skip_leaves_out_do_not_count(load: Load) -> None:
    block = "{base: {strategy: ddp}, axes: {nodes: [2, 4, 8]}, skip: [{nodes: 8}]}"
    assert {run.cpus for run in load(block).runs} == {0.4}


def test_an_option_sets_it_for_all_runs(load: Load) -> None:
    sweep = load(SERIAL, DATA_PARALLEL, base="{cpus: 1}", sets=("cpus=equal",))
    assert {run.cpus for run in sweep.runs} == {0.4}
    assert sweep.overrides == ["--set cpus=equal"]
    assert load(SERIAL, DATA_PARALLEL, sets=("cpus=1",)).equal_cpus is None


def test_it_is_a_value_of_an_axis(load: Load) -> None:
    sweep = load("{base: {strategy: ddp, nodes: 4}, axes: {cpus: [1, equal]}}", base="{}")
    assert [run.cpus for run in sweep.runs] == [1, 0.4]


def test_slower_nodes_have_a_part_of_the_share(load: Load) -> None:
    (run,) = load("{base: {strategy: ddp, nodes: 4, node_speed: {0: 0.5}}}").runs
    assert [run.container_cpus(node) for node in range(4)] == [0.2, 0.4, 0.4, 0.4]


def test_runs_on_machines_with_other_cores_are_other_runs(load: Load) -> None:
    two, four = ({run.key for run in load(SERIAL, DATA_PARALLEL, cores=cores).runs} for cores in (2, 4))
    assert not two & four
    assert two == {run.key for run in load(SERIAL, DATA_PARALLEL, base="{cpus: 0.4}").runs}


@pytest.mark.parametrize(
    ("nodes", "cores", "named"),
    [(4, None, "no machine is known"), (200, 2, "200 nodes on 2 cores; allowed: fewer nodes")],
)
def test_impossible_share_names_its_place(load: Load, nodes: int, cores: float | None, named: str) -> None:
    with pytest.raises(InputError) as caught:
        load(f"{{base: {{strategy: ddp, nodes: {nodes}}}}}", cores=cores)
    assert "s.yml: base.cpus: 'equal' " in str(caught.value)
    assert named in str(caught.value)


def test_machine_that_cannot_share_its_cores_names_the_place(tmp_path: Path) -> None:
    def cores(_: SweepSpec) -> float:
        raise InputError("not here")

    path = tmp_path / "s.yml"
    path.write_text(f"name: s\nblocks: [{SERIAL}, {{base: {{strategy: ddp, cpus: equal}}}}]\n")
    with pytest.raises(InputError, match=r"s\.yml: blocks\[1\]\.base\.cpus: 'equal': not here$"):
        load_sweep(path, cores=cores)


def test_the_record_of_a_sweep_has_the_share(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerRuntime, "unsupported_reason", lambda self, run: None)
    monkeypatch.setattr(DockerRuntime, "kind", lambda self, run: None)
    monkeypatch.setattr(DockerRuntime, "environment", lambda self: {})
    paths = SweepPaths(tmp_path / "results")
    sweep = load(SERIAL, DATA_PARALLEL)
    clusters, data = Clusters(DockerRuntime()), tmp_path / "data"
    SweepRunner(clusters, "docker", paths, data, RecordingDisplay()).prepare(sweep)
    record = read_record(paths)
    assert record.equal_cpus == sweep.equal_cpus
    assert "cpus: equal" in record.source
