"""JSON files that others may have written: a parser makes 100 bytes and more of two bytes of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.core.regular_files import RefusedFile, read_below, read_regular


@dataclass(frozen=True)
class JsonLimits:
    """The most that a kind of file may have. values: those in lists and objects, and these themselves."""

    bytes: int
    values: int


def read_json_below(directory: Path, relative: str, limits: JsonLimits) -> bytes:
    """The text of a file, opened as by `open_below`. Raises RefusedFile also for one above the limits."""
    return _limited(read_below(directory, relative, limits.bytes), relative, limits)


def read_json(path: Path, limits: JsonLimits) -> bytes:
    """The text of a file, opened as by `open_regular`. Raises RefusedFile also for one above the limits."""
    return _limited(read_regular(path, limits.bytes), path, limits)


def value_count(text: bytes) -> int:
    """About how many values a text of JSON has. Commas and brackets in strings count, too."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _limited(text: bytes, path: Path | str, limits: JsonLimits) -> bytes:
    """The text, unless it has too many values."""
    if value_count(text) > limits.values:
        raise RefusedFile(path, f"has more than {limits.values:,} values")
    return text
