"""Advice: the layouts that fit into the memory of a node, the fastest first, and its regret."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from orchestrator.layouts.candidates import Impossible
from orchestrator.layouts.trials import Failed, Trial
from trainer.spec.run_spec import RunSpec

Try = Callable[[RunSpec], Trial | Failed]


@dataclass(frozen=True)
class Advice:
    """The layouts of a model on some nodes.

    Attributes:
        serial: the same training on one node, whatever the memory.
        fitting: those that fit, the fastest first.
        too_large: those that do not fit.
        failed: those that could not be tried.
        impossible: those that model or batch do not allow.
        real: those that were run for real.
    """

    serial: Trial
    fitting: Sequence[Trial]
    too_large: Sequence[Trial]
    failed: Sequence[Failed]
    impossible: Sequence[Impossible]
    real: Sequence[Trial | Failed] = ()

    def with_real(self, try_: Try, number: int) -> Advice:
        """The advice with the fastest layouts that fit run for real. number: how many."""
        return replace(self, real=[try_(each.run) for each in self.fitting[:number]])

    def real_of(self, trial: Trial) -> Trial | None:
        """The real nodes that ran a layout."""
        found = (each for each in self.real if isinstance(each, Trial) and each.run == trial.run)
        return next(found, None)

    @property
    def regret(self) -> float | None:
        """How much longer the advised layout took than the fastest of those run for real: 0 if it was that.

        None if fewer than two were run, or if the advised one has failed.
        """
        known = [each.step_s for each in self.real if isinstance(each, Trial)]
        advised = self.real_of(self.fitting[0]) if self.fitting else None
        return advised.step_s / min(known) - 1 if advised and len(known) > 1 else None


def advise(
    serial: Trial, found: Iterable[RunSpec | Impossible], try_: Try, memory_bytes: float | None
) -> Advice:
    """Try all layouts. One that does not fit is tried once more, with activations that are computed again.

    memory_bytes: of a node; None: any.
    """
    fitting, too_large = [], []
    failed: list[Failed] = []
    impossible: list[Impossible] = []
    for each in found:
        if isinstance(each, Impossible):
            impossible.append(each)
            continue
        tried = try_(each)
        if isinstance(tried, Failed):
            failed.append(tried)
            continue
        trials = [tried, *_smaller(tried, try_)] if _exceeds(tried, memory_bytes) else [tried]
        fits = [trial for trial in trials if not _exceeds(trial, memory_bytes)]
        fitting += fits
        too_large += [] if fits else [min(trials, key=lambda trial: trial.held_bytes)]
    fitting.sort(key=lambda trial: trial.step_s)
    too_large.sort(key=lambda trial: trial.held_bytes)
    return Advice(serial, fitting, too_large, failed, impossible)


def _smaller(trial: Trial, try_: Try) -> Iterator[Trial]:
    """The layout with `recompute: full`, if it permits that."""
    fields: dict[str, Any] = trial.run.model_dump(mode="json", exclude_defaults=True)
    if trial.run.recompute != "none":
        return
    try:
        run = RunSpec.model_validate({**fields, "recompute": "full"})
    except ValidationError:
        return
    if isinstance(again := try_(run), Trial):
        yield again


def _exceeds(trial: Trial, memory_bytes: float | None) -> bool:
    return memory_bytes is not None and trial.held_bytes * trial.run.processes_per_node > memory_bytes
