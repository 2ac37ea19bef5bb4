"""Altair, loaded with the first figure: it takes a second, and most commands draw nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["alt"]

if TYPE_CHECKING:
    import altair as alt
else:

    class _Lazy:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("altair"), name)

    alt = _Lazy()
