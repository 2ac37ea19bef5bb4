"""Mistakes in links of a spec: which value applies in which direction, impossible links, and keys."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.sweeps.validation import dotted, error_lines
from trainer.spec.link import Links
from trainer.spec.run_spec import RunSpec

FAST = {"bandwidth_mbit": 100, "latency_ms": 1}


def spec(link: Any, nodes: int = 4, **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": nodes, "link": link, **fields})


def test_forms_of_equal_links_are_one_run_and_survive_their_file() -> None:
    assert spec(FAST) == spec({"default": FAST})
    assert spec(FAST).key == spec({"default": {**FAST, "loss": None}}).key != spec(None).key
    assert spec({"nodes": {2: FAST}}) == spec({"nodes": {"2": FAST}})
    for link in (None, FAST, {"default": FAST, "nodes": {1: FAST}, "pairs": {"0>1": FAST}}):
        run = spec(link)
        assert RunSpec.model_validate_json(run.model_dump_json()) == run
    serial = [spec(link, strategy="serial", nodes=1) for link in (None, FAST, {"loss": 0.1})]
    assert len({run.key for run in serial}) == 1  # a single node has no links
    assert not any(run.has_links for run in serial)


def test_more_specific_values_apply() -> None:
    link = Links.of({
        "default": {"bandwidth_mbit": 1000, "latency_ms": 6, "jitter_ms": 1},
        "nodes": {2: {"bandwidth_mbit": 2000, "latency_ms": 5, "jitter_ms": 0, "loss": 0.1},
                  3: {"bandwidth_mbit": 10, "latency_ms": 2, "loss": 0.2}},
        "pairs": {"1-0": {"latency_ms": 3, "loss": 0.3}, "1>0": {"loss": 0.1, "bandwidth_mbit": 5000}},
    })  # fmt: skip
    for (source, to), expected in {
        (1, 4): (1000, 6, 1, 0, False),
        (2, 4): (1000, 5, 0, 0.1, False),  # of both ends the slower interface
        (4, 2): (1000, 5, 0, 0.1, False),
        (3, 4): (10, 2, 1, 0.2, False),
        (2, 3): (10, 5, 0, 0.2, False),  # of both nodes the larger latency and loss
        (0, 1): (1000, 3, 1, 0.3, False),
        (1, 0): (5000, 3, 1, 0.1, True),  # a direction comes before its pair
    }.items():
        path = link.path(source, to)
        found = path.bandwidth_mbit, path.latency_ms, path.jitter_ms, path.loss, path.separate
        assert found == expected, (source, to)
    assert [link.interface_mbit(node) for node in (0, 2)] == [1000, 2000]
    assert "; ".join(link.texts()) == (
        "1000 Mbit/s, 6 ± 1 ms; node 2: 2000 Mbit/s, 5 ms, 10 % loss; node 3: 10 Mbit/s, 2 ms, 20 % loss; "
        "1-0: 3 ms, 30 % loss; 1>0: 5000 Mbit/s, 10 % loss"
    )
    unlimited = Links.of({"nodes": {0: {"bandwidth_mbit": 5}}, "default": {"loss": 0.5}})
    assert [unlimited.path(*pair).bandwidth_mbit for pair in ((1, 2), (0, 1))] == [None, 5]
    assert (unlimited.path(1, 2).latency_ms, unlimited.path(1, 2).loss) == (0, 0.5)


def test_links_that_cannot_exist() -> None:
    for limit in (
        {"nodes": {3: FAST}, "pairs": {"3-0": FAST, "0>3": FAST}},
        {"latency_ms": 1, "jitter_ms": 1},
        {"latency_ms": 0, "loss": 0.999},
    ):
        assert spec(limit).has_links
    for link, named in (
        ({"bandwidth_mbit": 0}, "link.default.bandwidth_mbit: "),
        ({"latency_ms": float("nan")}, "link.default.latency_ms: "),
        ({"loss": 1}, "link.default.loss: "),
        ({"bandwith_mbit": 1}, "link.default.bandwith_mbit: "),
        ({"default": FAST, "bandwidth_mbit": 1}, "link.bandwidth_mbit: "),
        ({"pairs": {"0:1": FAST}}, "link.pairs.0:1"),
        ({"nodes": {-1: FAST}}, "link.nodes.-1"),
        (5, "link: "),
        ({}, "link: states nothing"),
        ({"nodes": {4: FAST}}, "link: nodes.4: there is no node 4; allowed: 0 to 3"),
        ({"pairs": {"0-4": FAST}}, "link: pairs.0-4: "),
        ({"pairs": {"1>1": FAST}}, "link: pairs.1>1: "),
        ({"pairs": {"0-1": FAST, "1-0": FAST}}, "link: pairs.1-0: the same pair as 0-1"),
        ({"latency_ms": 1, "jitter_ms": 1.5}, "link: from node 0 to node 1, jitter_ms is 1.5; allowed: at"),
        ({"default": {"latency_ms": 1}, "nodes": {3: {"jitter_ms": 2}}}, "link: from node 3 to node 0"),
        ({"default": {"latency_ms": 2}, "pairs": {"2>3": {"jitter_ms": 3}}}, "link: from node 2 to node 3"),
    ):
        with pytest.raises(ValidationError) as caught:
            spec(link)
        (line,) = error_lines(caught.value, dotted)
        assert line.startswith(named)
    for strategy, transport in (("hogwild", "memory"), ("all_reduce", "memory"), ("ddp", "nccl")):
        with pytest.raises(ValidationError, match=f"over {transport} "):
            spec(FAST, strategy=strategy, transport=transport)
