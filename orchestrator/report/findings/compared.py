"""Two configurations compared: the difference, its interval, and what is claimed of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.report.model.groups import Group
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.contrasts import MIN_SEEDS, Contrast
from orchestrator.report.statistics.families import Decision
from orchestrator.report.statistics.power import can_be_decided, seeds_to_decide

Verdict = Literal["more", "less", "undecided", "equal", "too_few_seeds"]
Level = Literal["shown", "likely"]


@dataclass(frozen=True)
class Compared:
    """Two configurations compared in one quantity.

    Attributes:
        right: the left group itself where a difference was compared with 0.
        values: the two means that are printed, in the unit of the quantity; geometric for ratios.
        contrast: None if a side has too few seeds.
        level: what the comparison is called if it is decided.
        tolerated: the difference, on the scale of the comparison, that does not matter.
        together: the number of comparisons that were corrected together.
    """

    quantity: Quantity
    left: Group
    right: Group
    values: tuple[float, float]
    contrast: Contrast | None = None
    decision: Decision | None = None
    same: bool = False
    level: Level = "likely"
    tolerated: float = 0.0
    together: int = 0

    @property
    def verdict(self) -> Verdict:
        """`more`: the left value is larger. `equal`: the values are equal in every seed."""
        if self.same:
            return "equal"
        if self.contrast is None or self.decision is None:
            return "too_few_seeds"
        if not self.decision.decided:
            return "undecided"
        return "more" if self.contrast.estimate > 0 else "less"

    @property
    def decided(self) -> bool:
        """Whether a difference is claimed."""
        return self.verdict in ("more", "less")

    @property
    def left_is_better(self) -> bool:
        """Whether the left side is claimed to be better."""
        return self.verdict == ("less" if self.quantity.lower_is_better else "more")

    @property
    def right_is_better(self) -> bool:
        return self.verdict == ("more" if self.quantity.lower_is_better else "less")

    @property
    def within_tolerance(self) -> bool:
        """Whether the whole interval is of differences that do not matter."""
        return self.same or bool(
            self.decision and -self.tolerated <= self.decision.low and self.decision.high <= self.tolerated
        )

    @property
    def keeps(self) -> bool:
        """Whether the left side is at most so much worse that it does not matter."""
        if self.same:
            return True
        if self.decision is None:
            return False
        worst = -self.decision.high if self.quantity.lower_is_better else self.decision.low
        return worst > -self.tolerated

    @property
    def hopeless(self) -> bool:
        """Whether no number of seeds would probably decide it."""
        if self.verdict != "undecided" or not self.contrast or not self.decision:
            return False
        return not can_be_decided(self.contrast, self.decision.level)

    @property
    def swapped(self) -> Compared:
        """The same comparison with the sides exchanged."""
        contrast = self.contrast.swapped if self.contrast else None
        decision = replace(self.decision, contrast=contrast) if self.decision and contrast else None
        return replace(
            self,
            left=self.right,
            right=self.left,
            values=self.values[::-1],
            contrast=contrast,
            decision=decision,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference or ratio, at the corrected level."""
        bounds = self._bounds
        return (self.quantity.unscaled(bounds[0]), self.quantity.unscaled(bounds[1])) if bounds else None

    @property
    def _bounds(self) -> tuple[float, float] | None:
        """The interval on the scale of the comparison, within what is possible."""
        if self.decision is None:
            return None
        low, high = (
            self.quantity.possible(bound, self.right) for bound in (self.decision.low, self.decision.high)
        )
        return low, high

    @property
    def seeds_to_decide(self) -> int | None:
        """Seeds per configuration that would probably decide it; None if it is decided or hopeless."""
        if self.verdict != "undecided" or not self.contrast or not self.decision:
            return None
        return seeds_to_decide(self.contrast, self.decision.level)

    @property
    def written(self) -> str:
        """`+0.6 points (+0.2 to +1.0: likely)`: the difference, its interval and how sure it is."""
        return f"{self.quantity.write_difference(*self.values)}{self.remark}"

    @property
    def aside(self) -> str:
        """`, +0.6 points (+0.2 to +1.0)`; with too few seeds no difference, since it would be a claim."""
        return f", {self.written}" if self.contrast else self.remark

    @property
    def remark(self) -> str:
        """` (+0.2 to +1.0: likely)`, ` (−0.3 to +1.0: undecided)`: the interval and how sure it is."""
        if self.verdict == "equal":
            return " (equal in every seed)"
        bounds = self._bounds
        if bounds is None:
            return f" (fewer than {MIN_SEEDS} seeds)"
        low, high = map(self.quantity.write_bound, bounds)
        return f" ({low} to {high}{self.certainty})"

    @property
    def certainty(self) -> str:
        """`: likely`, `: undecided`, or that the difference does not matter; empty if it is shown."""
        if self.decided:
            return "" if self.level == "shown" else ": likely"
        return ": equal within the tolerance" if self.within_tolerance else ": undecided"

    def data(self) -> dict[str, Any]:
        """Its numbers, for findings.json."""
        return {
            "quantity": self.quantity.name,
            "left": [row.key for row in self.left.ok_rows],
            "right": None if self.right is self.left else [row.key for row in self.right.ok_rows],
            "values": list(self.values),
            "scale": "ratio" if self.quantity.ratio else "difference",
            "interval": self.interval,
            "p": self.decision.p if self.decision else None,
            "level": self.level,
            "compared_together": self.together,
            "between_sessions": self._between_sessions,
            "decision": self.verdict,
            "within_tolerance": self.within_tolerance,
            "keeps": self.keeps,
            "seeds_to_decide": self.seeds_to_decide,
            "hopeless": self.hopeless,
        }

    @property
    def _between_sessions(self) -> float:
        """The standard deviation of the difference that no number of seeds makes smaller."""
        return (self.contrast.left.between + self.contrast.right.between) ** 0.5 if self.contrast else 0.0
