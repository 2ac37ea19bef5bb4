"""The rules of a split: what a partitioner must return. Every run and `check` use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainer.core.failure import Failure

Rule = Literal["count", "indices", "filled", "repeats", "disjoint", "covers"]


@dataclass(frozen=True)
class BrokenRule(Failure):
    """How a split breaks a rule."""

    rule: Rule

    def __str__(self) -> str:
        declared = f", since it declares {self.rule}" if self.rule in ("disjoint", "covers") else ""
        return super().__str__() + declared


def broken_rules(
    split: Sequence[Any], samples: int, parts: int, disjoint: bool, covers: bool
) -> Iterator[BrokenRule]:
    """The rules that a split breaks, each once. Without valid indices, the other rules are not tried.

    Args:
        split: what `partition` returned.
        samples: the number of samples in the training set.
        parts: the number of partitions that were asked for.
        disjoint, covers: what the partitioner declares.
    """
    if len(split) != parts:
        yield BrokenRule(f"{parts} parts", f"{len(split)} parts", "count")
    for number, part in enumerate(split):
        if wrong := _indices_error(part, samples):
            yield BrokenRule(f"integers from 0 to {samples - 1}", f"part {number} {wrong}", "indices")
            return
    if empty := [number for number, part in enumerate(split) if not len(part)]:
        numbers = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
        yield BrokenRule("a sample in each part, or a DataError", f"no sample in part {numbers}", "filled")
    unique = [np.unique(part, return_counts=True) for part in split]
    for number, (indices, counts) in enumerate(unique):
        if len(indices) < len(split[number]):
            at = counts.argmax()
            got = f"part {number} has sample {indices[at]} {counts[at]} times"
            yield BrokenRule("each sample once", got, "repeats")
            break
    holders = _count([indices for indices, _ in unique], samples)
    if disjoint and holders.max(initial=0) > 1:
        twice = int(holders.argmax())
        first, second, *_ = (number for number, part in enumerate(split) if twice in part)
        got = f"sample {twice} in parts {first} and {second}"
        yield BrokenRule("each sample in one part", got, "disjoint")
    if covers and not holders.min(initial=1):
        missing = np.flatnonzero(holders == 0)
        got = f"{samples - len(missing):,}; sample {missing[0]} is in none"
        yield BrokenRule(f"{samples:,} samples in parts", got, "covers")


def _indices_error(part: Any, samples: int) -> str | None:
    """Why a part is no array of indices; None if it is."""
    if not isinstance(part, np.ndarray):
        return f"is of type {type(part).__name__}, not an array"
    if part.ndim != 1:
        return f"has shape {part.shape}"
    if not len(part):
        return None
    if part.dtype.kind not in "iu":
        return f"is of type {part.dtype}"
    outside = part[(part < 0) | (part >= samples)]
    return f"has {outside[0]}" if len(outside) else None


def holders_of(split: Sequence[npt.NDArray[Any]], samples: int) -> npt.NDArray[np.int64]:
    """In how many parts each sample is; int64, shape (samples,)."""
    return _count([np.unique(part) for part in split], samples)


def _count(parts: Sequence[npt.NDArray[Any]], samples: int) -> npt.NDArray[np.int64]:
    """In how many parts each sample is, if it is once in each of them."""
    whole = [part.astype(np.int64) for part in parts]
    return np.bincount(np.concatenate([*whole, np.zeros(0, np.int64)]), minlength=samples)
