"""Whole numbers in names, labels and options: `str.isdigit` and `int` accept more than the ASCII digits."""

from __future__ import annotations

MAX_PID = 2**31 - 1


def whole_number(text: str, most: int) -> int | None:
    """The number that ASCII digits write; None above `most` and for anything else, signs and spaces too.

    `int` also reads the digits of other scripts, and `str.isdigit` accepts `²`, which `int` does not read.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None  # before `int`, which refuses very long numbers with an error of its own
    number = int(text)
    return number if number <= most else None
