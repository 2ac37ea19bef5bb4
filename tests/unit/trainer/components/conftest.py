"""Users' code is where its source says, and torch has one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainer.components import written
from trainer.core.user_code import CODE
from trainer.launch.threads import threads_in_torch


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CODE, "")
    monkeypatch.setattr(written, "BUDGET_S", 100.0)  # on a busy machine, too
    with threads_in_torch(1):
        yield
