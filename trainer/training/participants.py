"""The parts that take part in each step of a run."""

from __future__ import annotations

from collections.abc import Callable

from trainer.core.participation import Round, Rounds
from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.training.partition import Partition, StepSizes

KEPT = 64  # rounds; each can be drawn again


class Participants:
    """Draws the rounds of a run, for all ranks of a process. Every rank of a run gets the same ones."""

    def __init__(self, rounds: Rounds, rngs: RngFactory, partition: Callable[[int], Partition]) -> None:
        """partition: the partition of an epoch (1-based)."""
        self._rounds, self._rngs, self._partition = rounds, rngs, partition
        self._sizes = partition(1).sizes
        self._first_steps = {1: 0}  # of each epoch, counted from the start of the run
        self._drawn: dict[int, Round] = {}
        self._in_step: dict[tuple[int, int], StepSizes] = {}  # of the present epoch

    def round(self, epoch: int, step: int, uneven: Uneven) -> Round:
        """The round of a step (0-based) of `epoch` (1-based)."""
        length = self._rounds.steps
        number = 0 if length is None else (self._first_step(epoch, uneven) + step) // length
        found = self._drawn.get(number)
        if found is None:
            if len(self._drawn) == KEPT:
                self._drawn.clear()
            rng = self._rngs.generator("participation", number)
            found = Round(number, self._rounds.participation.draw(number, self._sizes, rng))
            self._drawn[number] = found
        return found

    def _first_step(self, epoch: int, uneven: Uneven) -> int:
        for before in range(max(self._first_steps), epoch):
            steps = self._partition(before).synchronous_steps(uneven)
            self._first_steps[before + 1] = self._first_steps[before] + steps
        return self._first_steps[epoch]

    def in_step(self, epoch: int, step: int, uneven: Uneven) -> StepSizes:
        """The samples of each part in a step: 0 for the parts that do not take part in its round."""
        if (epoch, step) not in self._in_step:
            present = self.round(epoch, step, uneven).ranks
            samples = self._partition(epoch).in_step(step, uneven)
            if step == 0:
                self._in_step.clear()
            self._in_step[epoch, step] = StepSizes(
                each if part in present else 0 for part, each in enumerate(samples)
            )
        return self._in_step[epoch, step]
