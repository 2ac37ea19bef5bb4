"""How much CPU time a step takes where ranks share cores, relative to ranks with a core each.

Ranks that share cores lose their caches to each other at every switch, so the same work takes more CPU
seconds. The runs of a sweep whose ranks had a core each show how many it takes without that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from trainer.core.trace import Kind, Trace

LEAST, MOST = 0.5, 2.0  # CPU seconds per CPU second; ratios beyond have other reasons
Place = tuple[object, ...]


Steps = Sequence[float]  # CPU seconds of work per step, of each rank


class Work:
    """CPU seconds per step in the runs of a sweep, by what a step computes.

    A run with a core for each rank shows what its work takes. The ratio of a run that shared cores to such
    a run of the same work is its inflation. A run without such a run has the median inflation of the runs
    at the same place with as many ranks, or else of all runs there.
    """

    def __init__(self) -> None:
        self._undisturbed: defaultdict[str, dict[str, Steps]] = defaultdict(dict)
        self._shared: dict[str, tuple[str, Place, Steps]] = {}

    def add_undisturbed(self, key: str, work: str, steps: Steps) -> None:
        """Add a run with a core for each rank. work: equal for runs whose steps compute the same."""
        if steps and all(steps):
            self._undisturbed[work][key] = steps

    def add_shared(self, key: str, work: str, place: Place, steps: Steps) -> None:
        """Add a run whose ranks shared cores. place: runs with equal ones share cores."""
        if steps and all(steps):
            self._shared[key] = work, place, steps

    def inflation(self, key: str) -> list[float]:
        """CPU seconds of each rank of a run per second with a core for each rank; empty if unknown.

        Rank by rank if the undisturbed runs have as many ranks, otherwise by the mean over ranks.
        """
        if key not in self._shared:
            return []
        work, place, steps = self._shared[key]
        if own := self._own(work, steps):
            return own
        others = [
            (len(other), fmean(found))
            for other_work, other_place, other in self._shared.values()
            if other_place == place and (found := self._own(other_work, other))
        ]
        alike = [each for ranks, each in others if ranks == len(steps)]
        known = alike or [each for _, each in others]
        return [median(known)] * len(steps) if known else []

    def _own(self, work: str, steps: Steps) -> list[float]:
        """Like `inflation`, from undisturbed runs of the same work."""
        known = [*self._undisturbed.get(work, {}).values()]
        if not known:
            return []
        if {len(each) for each in known} == {len(steps)}:
            usual = [fmean(of_rank) for of_rank in zip(*known, strict=True)]
        else:
            usual, steps = [fmean(map(fmean, known))] * len(steps), [fmean(steps)] * len(steps)
        return [min(max(mine / each, LEAST), MOST) for mine, each in zip(steps, usual, strict=True)]


def step_cpu_s(traces: Sequence[Trace], batches: Sequence[int | None]) -> list[float]:
    """Mean CPU seconds of work of each rank in a step with a whole batch.

    Args:
        batches: whole batches of each rank in an epoch. A rank with fewer samples than others takes its
            further steps without a batch. None: unknown; then all steps but the last of each epoch count.
    """
    return [_mean_step_s(trace, whole) for trace, whole in zip(traces, batches, strict=True)]


def partial_step_cpu_s(trace: Trace, batches: int) -> float | None:
    """Mean CPU seconds of work in the step after the whole batches of an epoch; None without such steps."""
    seconds, number, _ = _steps(trace)
    partial = number == batches
    return float(seconds[partial].mean()) if partial.any() else None


def first_step_cpu_s(trace: Trace, batches: int | None) -> tuple[float, float]:
    """Mean CPU seconds of the steps with a whole batch after the first step, and how many more that takes.

    In its first step a rank allocates its buffers, and its caches are cold.

    Args:
        batches: see `step_cpu_s`.

    Returns:
        the mean of `step_cpu_s`, and 0, if no such step follows the first one.
    """
    seconds, number, steps = _steps(trace)
    later = _are_whole(number, steps, batches)
    later[:1] = False
    if not later.any():
        return _mean_step_s(trace, batches), 0.0
    usual_s = float(seconds[later].mean())
    return usual_s, max(float(seconds[0]) - usual_s, 0.0)


def _mean_step_s(trace: Trace, batches: int | None) -> float:
    seconds, number, steps = _steps(trace)
    if not len(seconds):
        return 0.0
    whole = _are_whole(number, steps, batches)
    return float(seconds[whole].mean() if whole.any() else seconds.mean())


def _are_whole(number: np.ndarray, steps: np.ndarray, batches: int | None) -> np.ndarray:
    """Which steps have a whole batch. number, steps: see `_steps`. batches: see `step_cpu_s`."""
    found: np.ndarray = number < (steps - 1 if batches is None else batches)
    return found


def _steps(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step: its CPU seconds of work, its number in its epoch, and the steps of this epoch."""
    kinds = trace.records["kind"]
    ends, epochs = np.flatnonzero(kinds == Kind.STEP), np.flatnonzero(kinds == Kind.EPOCH)
    work_s = np.where(kinds == Kind.WORK, trace.records["cpu_s"], 0.0)
    until = np.cumsum(work_s)[ends]
    seconds = np.diff(until, prepend=work_s[: epochs[0]].sum() if len(epochs) else 0.0)
    first = np.searchsorted(ends, epochs) if len(epochs) else np.zeros(1, int)  # step of each epoch
    epoch = np.maximum(np.searchsorted(first, np.arange(len(ends)), side="right") - 1, 0)
    return seconds, np.arange(len(ends)) - first[epoch], np.diff([*first, len(ends)])[epoch]
