"""Options of `predict`."""

from __future__ import annotations

import pytest

from orchestrator.commands.predict import parse_nodes, parse_price
from orchestrator.errors import InputError


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
