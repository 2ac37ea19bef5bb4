"""Options of `predict`."""

from __future__ import annotations

import pytest
from rich.table import Table
from rich.text import Text

from orchestrator.commands.predict import lines, parse_nodes, parse_price
from orchestrator.errors import InputError
from orchestrator.results.predictions import Asked, Predictions
from tests.unit.orchestrator.report.test_report_predicted import prediction
from tests.unit.report_support import a_run


def test_nodes_are_sorted_numbers() -> None:
    assert parse_nodes("64, 8,8") == (8, 64)


@pytest.mark.parametrize("text", ["", "8,", "0", "x", "1.5", "20000", "-1", "٣", "9" * 5000])
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
    found = [
        prediction(
            a_run("all_reduce", nodes=2, transport="gloo", lr=lr), nodes, 1.0, configuration=f"lr {lr}"
        )
        for lr in (0.1, 0.2)
        for nodes in (8, 64)
    ]
    asked = Asked(nodes=[8, 64], link=None, node_speed=1, price_per_h=None)
    shown = [*lines(Predictions(asked=asked, made_from={}, forecasts=found, refused=[], unused=[]))]
    names = [str(each) for each in shown if isinstance(each, Text) and "measured on" in each]
    assert [name.partition(" (")[0] for name in names] == ["lr 0.1", "lr 0.2"]
    assert [each.row_count for each in shown if isinstance(each, Table)] == [2, 2]
