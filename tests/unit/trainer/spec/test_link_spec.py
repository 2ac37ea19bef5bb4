"""The field `link` of a run: its forms, what applies between two nodes, and which links are impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.report.model.labels import Workload, strategy_label
from orchestrator.sweeps.load import load_sweep
from trainer.spec.link import Links
from trainer.spec.run_spec import RunSpec

FAST = {"bandwidth_mbit": 100, "latency_ms": 1}


def spec(link: Any, nodes: int = 4, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": nodes, "link": link, **fields})


def error_of(link: Any, **fields: Any) -> tuple[str, str]:
    """The location, or the field to change, and the message of the only error."""
    with pytest.raises(ValidationError) as caught:
        spec(link, **fields)
    (error,) = caught.value.errors()
    return ".".join(map(str, error["loc"])) or error["type"], error["msg"]


def test_short_form_is_the_default() -> None:
    assert spec(FAST) == spec({"default": FAST})
    assert spec(FAST).key == spec({"default": {**FAST, "loss": None}}).key


def test_node_numbers_may_be_texts() -> None:
    assert spec({"nodes": {2: FAST}}) == spec({"nodes": {"2": FAST}})


@pytest.mark.parametrize(
    "link", [None, FAST, {"default": FAST, "nodes": {1: FAST}, "pairs": {"0>1": FAST}}]
)
def test_specs_survive_their_file(link: Any) -> None:
    run = spec(link)
    assert RunSpec.model_validate(run.model_dump(mode="json")) == run
    assert RunSpec.model_validate_json(run.model_dump_json()) == run


def test_more_specific_values_apply() -> None:
    link = Links.of(
        {
            "default": {"bandwidth_mbit": 1000, "latency_ms": 1},
            "nodes": {2: {"bandwidth_mbit": 100, "latency_ms": 5}, 3: {"latency_ms": 7}},
            "pairs": {"1-0": {"latency_ms": 3}, "1>0": {"loss": 0.1, "bandwidth_mbit": 5000}},
        }
    )
    assert [link.path(1, 4).latency_ms, link.path(2, 4).latency_ms, link.path(2, 3).latency_ms] == [1, 5, 7]
    assert [link.path(1, 4).bandwidth_mbit, link.path(4, 2).bandwidth_mbit] == [1000, 100]
    there, back = link.path(0, 1), link.path(1, 0)
    assert (there.latency_ms, there.loss, there.bandwidth_mbit, there.separate) == (3, 0, 1000, False)
    assert (back.latency_ms, back.loss, back.bandwidth_mbit, back.separate) == (3, 0.1, 5000, True)
    assert link.interface_mbit(2) == 100


def test_nothing_stated_is_not_limited() -> None:
    path = Links.of({"loss": 0.5}).path(0, 1)
    assert (path.bandwidth_mbit, path.latency_ms, path.jitter_ms, path.loss) == (None, 0, 0, 0.5)


@pytest.mark.parametrize(
    ("link", "where"),
    [
        ({"bandwidth_mbit": 0}, "link.default.bandwidth_mbit"),
        ({"bandwidth_mbit": "100"}, "link.default.bandwidth_mbit"),
        ({"latency_ms": float("nan")}, "link.default.latency_ms"),
        ({"latency_ms": -1}, "link.default.latency_ms"),
        ({"loss": 1}, "link.default.loss"),
        ({"bandwith_mbit": 1}, "link.default.bandwith_mbit"),
        ({"default": FAST, "bandwidth_mbit": 1}, "link.bandwidth_mbit"),
        ({"pairs": {"0:1": FAST}}, "link.pairs.0:1.[key]"),
        ({"nodes": {-1: FAST}}, "link.nodes.-1.[key]"),
        (5, "link"),
    ],
)
def test_values_out_of_range(link: Any, where: str) -> None:
    assert error_of(link)[0] == where


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ({}, "states nothing"),
        ({"nodes": {4: FAST}}, "nodes.4"),
        ({"pairs": {"0-4": FAST}}, "pairs.0-4"),
        ({"pairs": {"1>1": FAST}}, "pairs.1>1"),
        ({"pairs": {"0-1": FAST, "1-0": FAST}}, "pairs.1-0"),
        ({"jitter_ms": 1}, "jitter_ms is 1"),
        ({"default": {"latency_ms": 1}, "nodes": {3: {"jitter_ms": 2}}}, "node 3"),
        ({"default": {"latency_ms": 2}, "pairs": {"2>3": {"jitter_ms": 3}}}, "from node 2 to node 3"),
    ],
)
def test_links_that_cannot_exist(link: Any, named: str) -> None:
    where, message = error_of(link)
    assert where == "link"
    assert named in message


@pytest.mark.parametrize(
    ("strategy", "transport"), [("hogwild", "memory"), ("all_reduce", "memory"), ("ddp", "nccl")]
)
def test_ranks_without_a_network_have_no_links(strategy: str, transport: str) -> None:
    where, message = error_of(FAST, strategy=strategy, transport=transport)
    assert where == "link"
    assert transport in message


def test_a_serial_run_has_no_links_and_one_key() -> None:
    serial = [spec(link, strategy="serial", nodes=1) for link in (None, FAST, {"loss": 0.1})]
    assert len({run.key for run in serial}) == 1
    assert not any(run.has_links for run in serial)
    assert spec(None).key != spec(FAST).key
    assert "link" not in spec(None).canonical()


def test_runs_over_different_links_are_different_workloads_of_one_serial_run() -> None:
    runs = [spec(link) for link in (None, FAST, {"default": FAST, "pairs": {"0>1": {"loss": 0.1}}})]
    workloads = [Workload.of(run) for run in runs]
    assert len(set(workloads)) == len({workload.label for workload in workloads}) == 3
    assert len({strategy_label(run) for run in runs}) == 1
    serial = Workload.of(spec(FAST, strategy="serial", nodes=1))
    assert {workload.without_links for workload in workloads} == {serial}


def sweep_file(directory: Path, link: str, skip: str = "") -> Path:
    path = directory / "links.yml"
    path.write_text(
        "name: links\nblocks:\n"
        "  - base: {strategy: serial}\n    axes: {link: [null, {loss: 0.1}]}\n"
        f"  - base: {{strategy: ddp}}\n    axes: {{nodes: [2, 4], link: {link}}}\n{skip}"
    )
    return path


def test_axes_vary_links(tmp_path: Path) -> None:
    runs = load_sweep(sweep_file(tmp_path, "[null, {bandwidth_mbit: 10}, {bandwidth_mbit: 100}]")).runs
    assert len(runs) == 1 + 2 * 3
    skip = "    skip: [{nodes: 4, link: {default: {bandwidth_mbit: 10}}}]\n"
    kept = load_sweep(sweep_file(tmp_path, "[null, {bandwidth_mbit: 10}]", skip)).runs
    assert len(kept) == 1 + 2 * 2 - 1


@pytest.mark.parametrize(
    "link", ["[{pairs: {0-3: {loss: 0.1}}}]", "[{bandwith_mbit: 1}]", "[{bandwidth_mbit: 0}]"]
)
def test_errors_in_a_sweep_name_the_key(tmp_path: Path, link: str) -> None:
    with pytest.raises(InputError, match=r"link"):
        load_sweep(sweep_file(tmp_path, link))
