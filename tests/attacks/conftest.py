"""Attacks from inside of containers are marked `containers`, and need an engine and an image."""

from __future__ import annotations

import pytest

from tests.support.containers import containers_missing


@pytest.fixture(autouse=True)
def engine_if_needed(request: pytest.FixtureRequest) -> None:
    """Skip attacks that need containers where none can be started."""
    if request.node.get_closest_marker("containers") and (missing := containers_missing()):
        pytest.skip(missing)
