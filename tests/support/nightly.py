"""Rows of tables of tests that only the nightly part runs."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*rows: Any) -> list[Any]:
    """Parameters marked `nightly`; a row is one value or a tuple of several."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly)
        for row in rows
    ]
