"""What benchmarks share: alternatives in turns, ratios, and medians as text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles

import torch

Call = Callable[[], object]
Turns = dict[str, list[float]]  # seconds per call: one value per turn, by contender


def pinned_to_a_core() -> None:
    """Compute with one thread, pinned to one core where the system supports it."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def seconds(call: Call, times: int = 1) -> float:
    """Mean wall time of a call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def in_turns(
    contenders: Mapping[str, Call], turns: int, calls: int = 1, warm_up: int = 1, before: Call | None = None
) -> Turns:
    """Let contenders take turns, so that other load on the machine affects all of them.

    Args:
        calls: of a contender in a turn.
        warm_up: turns that do not count.
        before: is called before each contender, and is not measured.
    """
    found: Turns = {name: [] for name in contenders}
    for turn in range(-warm_up, turns):
        for name, call in contenders.items():
            if before:
                before()
            took = seconds(call, calls)
            if turn >= 0:
                found[name].append(took)
    return found


def ratio(numerator: Sequence[float], denominator: Sequence[float], digits: int = 2) -> str:
    """Median of the turns' ratios, with their quartiles."""
    low, middle, high = quantiles([a / b for a, b in zip(numerator, denominator, strict=True)], n=4)
    return f"{middle:6.{digits}f}   ({low:.{digits}f} … {high:.{digits}f})"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, lowest and highest value."""
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:6.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def errors(what: str, off: Sequence[float]) -> str:
    """Median and largest absolute error."""
    absolute = [abs(each) for each in off]
    return f"{what}: median {median(absolute):.1%}, worst {max(absolute):.1%}"
