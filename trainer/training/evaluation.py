"""Evaluation on the test split, by one rank or by all of them together."""

from __future__ import annotations

from math import isfinite

import numpy as np
import torch

from trainer.comm.base import Communicator
from trainer.core.result import Diverged
from trainer.data.base import Split
from trainer.losses.base import Loss
from trainer.training.replica import Replica

BATCH = 1000


class Evaluation:
    """The test split on the model's device, divided among the ranks.

    part: index of this rank's part of the test split, and number of parts. Ranks that hold partitions of
    one model take the same part. None: one part for each rank of `comm`.
    """

    def __init__(
        self, test: Split, loss: Loss, comm: Communicator, part: tuple[int, int] | None = None
    ) -> None:
        self._inputs = torch.from_numpy(test.inputs).to(comm.device)
        self._targets = torch.from_numpy(test.targets).to(comm.device)
        self._comm, self._part, self._loss = comm, part, loss
        self.samples = len(test.labels)
        # Of the most frequent class as the answer for all samples; None where accuracy is something else.
        self.chance: float | None = None
        if test.other_targets is None and loss.accuracy_is is None:
            self.chance = float(np.bincount(test.labels).max()) / self.samples

    @torch.no_grad()
    def __call__(self, replica: Replica, *, alone: bool) -> tuple[float, float]:
        """Accuracy (0 … 1) and mean loss on the whole test split, exact: no padding, no dropped samples.

        alone: evaluate on this rank only; otherwise each evaluates its part, and the counts are summed.
        """
        total = self.samples
        while True:
            share, of = (0, 1) if alone else self._part or (self._comm.rank, self._comm.size)
            members = self._comm.parent_ranks
            counts = self._counts(replica, slice(share * total // of, (share + 1) * total // of))
            if not alone and self._comm.size > 1:
                self._comm.all_reduce(counts, "sum")
            if alone or members == self._comm.parent_ranks:  # else the part of a lost rank is missing
                break
        check_loss(counts[1].item(), "on the test split")
        return counts[0].item() / total, counts[1].item() / self._loss.total(self._targets)

    def _counts(self, replica: Replica, part: slice) -> torch.Tensor:
        """How many answers are right, and the sum of losses, on a part of the test split.

        A part without samples calls neither model nor loss: few take a batch of none.
        """
        counts = torch.zeros(2, device=self._comm.device)
        with replica.evaluating():
            for start in range(part.start, part.stop, BATCH):
                batch = slice(start, min(start + BATCH, part.stop))
                x, y = self._inputs[batch], self._targets[batch]
                output = replica.predict(replica.in_format(x))
                if output is not None:  # of the ranks that hold one model, one has the output
                    counts[0] += self._loss.right(output, y).float().sum()
                    counts[1] += self._loss.of(output, y, "sum")
        return counts


def check_loss(loss: float, where: str) -> None:
    """Raises Diverged if the loss is not finite."""
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss} {where}; a smaller lr may help")
