"""Attacks from inside of containers are marked `containers`, and need an engine and an image."""

from __future__ import annotations

import time
from itertools import chain, repeat

import pytest

from orchestrator.sandbox.base import Sandbox
from tests.support.containers import containers_missing
from trainer.core.frames import frame


@pytest.fixture(autouse=True)
def engine_if_needed(request: pytest.FixtureRequest) -> None:
    """Skip attacks that need containers where none can be started."""
    if request.node.get_closest_marker("containers") and (missing := containers_missing()):
        pytest.skip(missing)


class Scripted(Sandbox):
    """A process that is ready, sends these bytes, and then nothing; or the last ones again and again."""

    def __init__(self, *sent: bytes, endless: bool = False) -> None:
        super().__init__()
        self._sent = chain([frame({"ready": True}), *sent], repeat(sent[-1]) if endless else ())
        self._data = b""

    def open(self) -> None: ...

    def read(self, count: int, timeout_s: float) -> bytes:
        self._data = self._data or next(self._sent, b"")
        if not self._data:
            time.sleep(min(timeout_s, 1.0))  # whoever waits for longer has waited too long
            raise TimeoutError
        data, self._data = self._data[:count], self._data[count:]
        return data

    def write(self, data: bytes, timeout_s: float) -> None: ...

    def ending(self) -> str:
        return "ended"

    def close(self) -> None: ...
