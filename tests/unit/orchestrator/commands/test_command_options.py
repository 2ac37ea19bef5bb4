"""Mistakes in options of `predict`, `replay`, `layout` and `compare`: units, limits, speeds of nodes."""

from __future__ import annotations

import pytest

from orchestrator.commands.layout import asked, parse_memory
from orchestrator.commands.predict import parse_nodes, parse_price
from orchestrator.commands.replay import Options, parse_link, parse_speeds
from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.limits import Limits
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link
from trainer.time_model.described import cluster_of_run


def test_values_are_read_in_their_units() -> None:
    assert parse_nodes("64, 8,8") == (8, 64)
    assert (parse_price("2.50/h"), parse_price(None)) == (2.5, None)
    assert (parse_memory("4gb"), parse_memory("1.5 GiB")) == (4e9, 1.5 * 2**30)
    assert parse_link("100mbit/50us") == Link(bytes_per_s=12.5e6, latency_s=50 * 1e-6)
    assert parse_speeds("1, 0.5") == (1, 0.5)
    assert Limits.parse("slower=10%,accuracy=1pt") == Limits(slower=0.1, accuracy=0.01)


LIMITS = ["", "slower", "slower=1", "slower=-1%", "fast=1%", "slower=1%,slower=2%"]


@pytest.mark.parametrize(
    ("parse", "option", "texts"),
    [
        (parse_nodes, "--nodes", ["", "8,", "0", "x", "1.5", "20000", "-1", "٣", "9" * 5000]),
        (parse_price, "--price", ["2.50", "2/s", "x/h", "nan/h", "-1/h", "inf/h"]),
        (parse_memory, "--memory", ["4", "0gb", "9" * 400 + "gb", "1025tib"]),
        (parse_link, "--link", ["fast", "0mbit/1ms", "1mbit", "1.2.3mbit/1ms", "1mbit/-1ms"]),
        (parse_speeds, "--node-speed", ["", "1,,1", "0", "-1", "x", "nan", "inf", "1e7"]),
        (Limits.parse, "--fail-on", LIMITS),
    ],
    ids=["nodes", "price", "memory", "link", "speeds", "limits"],
)
def test_other_values_are_refused(parse: object, option: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InputError, match=f"^{option} {text}: "):
            parse(text)  # type: ignore[operator]


# Replays


def run(**fields: object) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", "nodes": 3, "processes_per_node": 2, **fields})


def test_nodes_have_the_speeds_of_the_run_unless_others_are_given() -> None:
    for own, given, speeds in (
        ({0: 0.5}, (), [0.5, 1, 1]),
        ({-1: 0.25}, (), [1, 1, 0.25]),
        ({0: 0.5}, (1, 0.1, 2, 3), [1, 0.1, 2]),
        ({0: 0.5}, (1,), [1, 1, 1]),
    ):
        spec = run(node_speed=own)
        cluster = Options(parse_link("100mbit/1ms"), given).cluster(cluster_of_run(spec), spec)
        assert [cluster.speed_of(rank) for rank in range(6)] == [speeds[rank // 2] for rank in range(6)]


def test_too_few_speeds_are_an_error_and_no_link_is_faster_than_the_run_s() -> None:
    own, fast = cluster_of_run(run()), parse_link("9000gbit/1ms")
    with pytest.raises(InputError, match=r"--node-speed 1,0\.5: 2 speeds, and .* has 3 nodes"):
        Options(fast, (1, 0.5)).cluster(own, run())
    assert Options(fast).cluster(own, run()).link == Link(latency_s=1e-3, bytes_per_s=own.link.bytes_per_s)


# Layouts

LAYOUT = {"model": "gpt", "nodes": 4, "memory": None, "link": "10gbit/50us", "cluster": None}
LAYOUT |= {"dataset": None, "batch_size": 16, "sets": (), "transport": "gloo"}


def test_the_serial_run_has_a_few_steps_of_the_batch() -> None:
    found = asked(**LAYOUT | {"sets": ["optimizer=adamw"]}).serial  # type: ignore[arg-type]
    assert (found.dataset.train_samples, found.batch_size, found.name_of("optimizer")) == (64, 16, "adamw")
    other = asked(**LAYOUT | {"model": "lenet5", "link": "none"})  # type: ignore[arg-type]
    assert (other.serial.name_of("dataset"), other.network.link) == ("synthetic", None)


def test_a_wrong_option_of_layout_is_named() -> None:
    for field, value, named in (
        ("transport", "memory", "--transport memory"),
        ("model", "nosuch", "model nosuch"),
        ("dataset", "pydoc_text", "--dataset pydoc_text"),
        ("sets", ["nodes=3"], "--set nodes=3"),
        ("sets", ["nosuch=3"], "--set nosuch=3"),
        ("sets", ["optimizer=nosuch"], "--set optimizer=nosuch"),
    ):
        with pytest.raises(InputError, match=named):
            asked(**LAYOUT | {field: value})  # type: ignore[arg-type]
