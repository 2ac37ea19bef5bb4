"""Number formats: one per quantity, so that values compare at a glance.

A no-break space joins a number and its unit. An en dash stands for an absent value.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10

ABSENT = "–"
JOIN = "\N{NO-BREAK SPACE}"
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without an exponent: 1.20, 0.0123, 1,230."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")  # first, since 9.996 becomes 10.0 and not 10.00
    decimals = max(0, digits - 1 - floor(log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}".replace("-", "−")


def seconds(value: float | None) -> str:
    """A time in s; below 1 ms in µs, below 10 ms in ms."""
    if value is None:
        return ABSENT
    if value and abs(value) < 0.001:
        return f"{significant(value * 1e6)}{JOIN}µs"
    if value and abs(value) < 0.01:
        return f"{significant(value * 1e3)}{JOIN}ms"
    return f"{significant(value)}{JOIN}s"


def ratio(value: float | None) -> str:
    """A speedup, or another number without a unit."""
    return ABSENT if value is None else significant(value)


def whole(value: float) -> str:
    """A count, rounded to a whole number: `1,875`."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A count, or a mean of counts: `12.5`."""
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share or an accuracy between 0 and 1."""
    return ABSENT if value is None else f"{value:.1%}"


def probability(value: float) -> str:
    """A probability: `97%`, `over 99%`. None is certain."""
    return "over 99%" if value > 0.99 else "under 1%" if value < 0.01 else f"{value:.0%}"


def bits(value: float | None) -> str:
    """A Jensen–Shannon divergence in bits, without the unit."""
    return ABSENT if value is None else f"{value:.3f}"


def distance(value: float | None) -> str:
    """An earth mover's distance, 0 … 2, without a unit."""
    return ABSENT if value is None else f"{value:.2f}"


def points(value: float | None) -> str:
    """A difference of two shares, −1 … 1, in signed percentage points."""
    if value is None:
        return ABSENT
    shown = round(value * 100, 1)
    sign = "+" if shown > 0 else "−" if shown < 0 else "±"
    return f"{sign}{abs(shown):.1f}{JOIN}points"


def points_bound(value: float) -> str:
    """A bound of a difference in percentage points, without the unit: `+0.6`.

    `−0.01` rather than `±0.0`, since it must show whether an interval excludes 0.
    """
    written = points(value).partition(JOIN)[0]
    if not value or written[0] != "±":
        return written
    return f"{'+' if value > 0 else '−'}{significant(abs(value) * 100, 1)}"


def size(value: float | None) -> str:
    """An amount of data in bytes, with decimal prefixes, as links are rated."""
    if value is None:
        return ABSENT
    power = 0
    while value >= 999.5 and power < len(_BYTES) - 1:
        value, power = value / 1000, power + 1
    return f"{significant(value) if power else round(value)}{JOIN}{_BYTES[power]}"


def mbit(bytes_per_s: float | None) -> str:
    """A bandwidth in Mbit/s, in which links are requested."""
    return ABSENT if bytes_per_s is None else f"{significant(bytes_per_s * 8 / 1e6)}{JOIN}Mbit/s"


def memory(value: float | None) -> str:
    """An amount of memory in MiB."""
    return ABSENT if value is None else f"{significant(value)}{JOIN}MiB"


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,}{JOIN}{noun}{'' if number == 1 else 's'}"


def listed(items: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def first_few(items: list[str], most: int = 4) -> str:
    """`a, b, c, d and 3 more`: the first `most`, and the number of the rest if these are several."""
    more = len(items) - most
    return listed(items if more <= 1 else [*items[:most], f"{more} more"])


def by_value(names: Mapping[str, list[str]]) -> str:
    """`32 (serial), 96 (ddp and gossip)`: each value with the names that have it."""
    return ", ".join(f"{value} ({listed(of)})" for value, of in names.items())
