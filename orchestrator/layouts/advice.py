"""The options of a plan: layouts by formula, by execution and for real, and where another is as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pydantic import ValidationError

from orchestrator.layouts.candidates import Impossible
from orchestrator.layouts.formula import Estimate, Sizes, estimate
from orchestrator.layouts.trials import Failed, Trial
from orchestrator.prediction.error_model import PRIOR
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link

Try = Callable[[RunSpec], Trial | Failed]
MOST_BATCHES = 7  # doublings of the batch, in which a crossing is looked for


@dataclass(frozen=True)
class Option:
    """A layout, and what is known of it.

    Attributes:
        formula: what it costs by formula.
        trial: on virtual nodes; None: it was not executed.
        real: on real nodes; None: it did not run there.
    """

    run: RunSpec
    formula: Estimate
    trial: Trial | Failed | None = None
    real: Trial | Failed | None = None

    @property
    def executed(self) -> Trial | None:
        """The trial on virtual nodes, if it did not fail."""
        return self.trial if isinstance(self.trial, Trial) else None

    @property
    def real_step_s(self) -> float | None:
        """Seconds of a step on real nodes, if it ran there and did not fail."""
        return self.real.step_s if isinstance(self.real, Trial) else None

    # By execution if there is one, else by formula:

    @property
    def step_s(self) -> tuple[float, float, float]:
        """Seconds of a step, and between which they are."""
        if trial := self.executed:
            factor = PRIOR.interval([], self.run.nodes, trial.communication)
            low, middle, high = (each * trial.step_s for each in (factor.low, 1.0, factor.high))
            return middle, min(low, middle), max(high, middle)
        return self.formula.middle_s, *self.formula.step_s

    @property
    def sent_bytes(self) -> float:
        """Sent by a rank in a step, the mean over ranks."""
        return self.executed.step_bytes if self.executed else self.formula.sent_bytes

    @property
    def held_bytes(self) -> float:
        """Held by the rank that holds most."""
        return self.executed.held_bytes if self.executed else self.formula.held_bytes


@dataclass(frozen=True)
class Plan:
    """The layouts of a model on some nodes.

    Attributes:
        serial: the same training on one node, whatever its memory.
        fitting: those that fit, the fastest first.
        too_large: those that do not fit, the smallest first.
        impossible: those that model or batch do not allow.
        memory_bytes: of a node; None: any.
    """

    serial: Option
    fitting: Sequence[Option]
    too_large: Sequence[Option]
    impossible: Sequence[Impossible]
    memory_bytes: float | None = None

    def executed(self, try_: Try, goes_on: Callable[[Option, int], bool], room_bytes: float = inf) -> Plan:
        """The plan with serial and its layouts executed, the fastest first.

        Args:
            goes_on: asked before each with its number; False ends it.
            room_bytes: what all ranks of a layout together may hold.
        """
        found, serial = [*self.fitting], replace(self.serial, trial=_tried(self.serial, try_, room_bytes))
        for at, each in enumerate(self.fitting):
            if not goes_on(each, at):
                break
            found[at] = replace(each, trial=_tried(each, try_, room_bytes))
        fitting = [each for each in found if not _exceeds(each, self.memory_bytes)]
        too_large = [*self.too_large, *(each for each in found if _exceeds(each, self.memory_bytes))]
        fitting, too_large = sorted(fitting, key=_order), sorted(too_large, key=_held)
        return replace(self, serial=serial, fitting=fitting, too_large=too_large)

    def for_real(self, try_: Try, number: int, room_bytes: float = inf) -> Plan:
        """The plan with its fastest layouts run for real. room_bytes: see `executed`."""
        found = [replace(each, real=_tried(each, try_, room_bytes)) for each in self.fitting[:number]]
        return replace(self, fitting=[*found, *self.fitting[number:]])

    def speedup(self, option: Option) -> float | None:
        """Relative to serial, both executed or both by formula; None if serial alone was not executed."""
        if option.executed is None:
            return self.serial.formula.middle_s / option.formula.middle_s
        serial = self.serial.executed
        return None if serial is None else serial.step_s / option.executed.step_s

    @property
    def regret(self) -> float | None:
        """How much longer the advised layout took than the fastest of those run for real: 0 if it was that.

        None if fewer than two were run, or if the advised one has failed.
        """
        known = [each.real_step_s for each in self.fitting if each.real_step_s is not None]
        advised = self.fitting[0].real_step_s if self.fitting else None
        return advised / min(known) - 1 if advised is not None and len(known) > 1 else None


def plan(
    serial: RunSpec,
    found: Iterable[RunSpec | Impossible],
    sizes: Sizes,
    link: Link,
    memory_bytes: float | None,
) -> Plan:
    """All layouts by formula. One that does not fit is there with activations that are computed again, too.

    memory_bytes: of a node; None: any.
    """
    fitting: list[Option] = []
    too_large: list[Option] = []
    impossible: list[Impossible] = []
    for each in found:
        if isinstance(each, Impossible):
            impossible.append(each)
            continue
        own = Option(each, estimate(each, sizes, link))
        tried = [own, *_smaller(own, sizes, link)] if _exceeds(own, memory_bytes) else [own]
        fits = [option for option in tried if not _exceeds(option, memory_bytes)]
        fitting += fits
        too_large += [] if fits else [min(tried, key=_held)]
    ordered = sorted(fitting, key=_order), sorted(too_large, key=_held)
    return Plan(Option(serial, estimate(serial, sizes, link)), *ordered, impossible, memory_bytes)


def _tried(option: Option, try_: Try, room_bytes: float) -> Trial | Failed:
    """The trial of a layout, if its ranks fit into the memory here."""
    needed = option.formula.held_bytes * option.run.world_size
    if needed <= room_bytes:
        return try_(option.run)
    reason = f"its ranks hold {needed / 1e9:.1f} GB, and {room_bytes / 1e9:.1f} GB are free here"
    return Failed(option.run, reason)


def _order(option: Option) -> tuple[bool, bool, float]:
    """Executed ones first, by time; those that failed last."""
    return isinstance(option.trial, Failed), option.trial is None, option.step_s[0]


def _held(option: Option) -> float:
    return option.held_bytes


def _smaller(option: Option, sizes: Sizes, link: Link) -> Iterator[Option]:
    """The layout with `recompute: full`, if it permits that."""
    fields: dict[str, Any] = option.run.model_dump(mode="json", exclude_defaults=True)
    if option.run.recompute != "none":
        return
    try:
        run = RunSpec.model_validate({**fields, "recompute": "full"})
    except ValidationError:
        return
    yield Option(run, estimate(run, sizes, link))


def _exceeds(option: Option, memory_bytes: float | None) -> bool:
    return memory_bytes is not None and option.held_bytes * option.run.processes_per_node > memory_bytes


def fastest(options: Sequence[Option], sizes: Sizes, link: Link, batch: int) -> Option:
    """The fastest layout by formula, over another link and with another batch."""

    def seconds(option: Option) -> float:
        return estimate(option.run, sizes, link, batch).middle_s

    return min(options, key=seconds)


def crossing(best: Option, rival: Option, sizes: Sizes, link: Link) -> int | None:
    """The batch from which on a rival is as fast by formula; None up to 2^7 times the batch."""

    def ahead(batch: float) -> bool:
        ours, theirs = (estimate(each.run, sizes, link, batch).middle_s for each in (best, rival))
        return ours < theirs

    low = float(best.run.batch_size)
    high = next((low * 2**k for k in range(1, MOST_BATCHES + 1) if not ahead(low * 2**k)), inf)
    if high == inf or not ahead(low):
        return None
    low = high / 2
    while high / low > 1.1:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if ahead(middle) else (low, middle)
    return round(high)
