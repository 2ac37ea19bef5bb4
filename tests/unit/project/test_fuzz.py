"""A sample of `make soak ARGS=fuzz`: no document from outside raises what its reader does not handle."""

from __future__ import annotations

import pytest

from tests.soak.fuzz import TIMES, fuzz


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMES)
def test_changed_documents_are_read_or_rejected(name: str) -> None:
    fuzz(name, 60)
