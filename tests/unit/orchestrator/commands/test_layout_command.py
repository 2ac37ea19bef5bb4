"""The options of `layout`."""

from __future__ import annotations

import pytest

from orchestrator.commands.layout import asked, parse_memory
from orchestrator.errors import InputError

OPTIONS = {
    "model": "gpt",
    "nodes": 4,
    "memory": None,
    "link": "10gbit/50us",
    "cluster": None,
    "dataset": None,
    "batch_size": 16,
    "sets": (),
    "transport": "gloo",
}


def test_sizes() -> None:
    assert (parse_memory("4gb"), parse_memory("1.5 GiB")) == (4e9, 1.5 * 2**30)


def test_the_serial_run_has_a_few_steps_of_the_batch() -> None:
    found = asked(**OPTIONS | {"sets": ["optimizer=adamw"]}).serial  # type: ignore[arg-type]
    assert (found.dataset.samples, found.batch_size, found.name_of("optimizer")) == (64, 16, "adamw")  # type: ignore[attr-defined]
    assert asked(**OPTIONS | {"model": "lenet5"}).serial.name_of("dataset") == "synthetic"  # type: ignore[arg-type]
    assert asked(**OPTIONS | {"link": "none"}).network.link is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"memory": "4"}, "--memory 4"),
        ({"memory": "0gb"}, "--memory 0gb"),
        ({"memory": f"{'9' * 400}gb"}, "--memory 9+gb: .*at most 1024tib"),
        ({"memory": "1025tib"}, "--memory 1025tib"),
        ({"link": "fast"}, "--link fast"),
        ({"transport": "memory"}, "--transport memory"),
        ({"model": "nosuch"}, "model nosuch"),
        ({"dataset": "pydoc_text"}, "--dataset pydoc_text"),
        ({"sets": ["nodes=3"]}, "--set nodes=3"),
        ({"sets": ["nosuch=3"]}, "--set nosuch=3"),
        ({"sets": ["optimizer=nosuch"]}, "--set optimizer=nosuch"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, object], names: str) -> None:
    with pytest.raises(InputError, match=names):
        asked(**OPTIONS | wrong)  # type: ignore[arg-type]
