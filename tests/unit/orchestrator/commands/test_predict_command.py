"""Options of `predict`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.commands.predict import by_configuration, parse_nodes, parse_price
from orchestrator.errors import InputError
from orchestrator.prediction.evidence import Configuration, MeasuredRun
from orchestrator.prediction.forecast import Refused
from trainer.spec.run_spec import RunSpec


def test_nodes_are_sorted_numbers() -> None:
    assert parse_nodes("64, 8,8") == (8, 64)


@pytest.mark.parametrize("text", ["", "8,", "0", "x", "1.5", "20000", "-1"])
def test_other_nodes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--nodes"):
        parse_nodes(text)


def test_a_price_is_that_of_an_hour() -> None:
    assert parse_price("2.50/h") == 2.5
    assert parse_price(None) is None


@pytest.mark.parametrize("text", ["2.50", "2/s", "x/h", "nan/h", "-1/h", "inf/h"])
def test_other_prices_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--price"):
        parse_price(text)


def test_configurations_that_differ_in_their_rate_have_a_table_each() -> None:
    each_rate = [configuration(0.1), configuration(0.2)]
    found = [Refused(each, nodes, "") for each in each_rate for nodes in (8, 64)]
    names, groups = zip(*by_configuration(found), strict=True)
    assert [[each.nodes for each in group if isinstance(each, Refused)] for group in groups] == 2 * [
        [8, 64]
    ]
    assert "lr 0.1" in names[0]
    assert "lr 0.2" in names[-1]


def configuration(lr: float) -> Configuration:
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "lr": lr})
    return Configuration([cast("MeasuredRun", SimpleNamespace(run=run))], 0.001, 0.0)
