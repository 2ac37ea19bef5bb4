"""Aggregation: one rank's part in making one vector of the vectors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer.aggregation.base import Aggregation, Total, whole
from trainer.aggregation.mean import MeanAggregation
from trainer.attacks.base import Knowledge
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch
from trainer.training.replica import Replica


class Aggregator:
    """Combines vectors with the rule of a strategy. On a Byzantine node, replaces what the rank sends.

    Attributes:
        without_effect: aggregations in training for which too few vectors counted.
    """

    def __init__(
        self, comm: Communicator, spec: RunSpec, rngs: RngFactory, classes: int, rank: int
    ) -> None:
        """
        Args:
            classes: the number of classes of the dataset.
            rank: this rank in the run.
        """
        self._comm, self._spec, self._rngs = comm, spec, rngs
        self._classes, self._rank = classes, rank
        self._attackers = spec.byzantine_ranks
        self._attack = spec.byzantine.attack if spec.byzantine else None
        self._attacks = rank in self._attackers
        self._start: Tensor | None = None  # the weights at the start of the round, on an attacker
        self.without_effect = 0

    def plain(self, rule: Aggregation) -> bool:
        """Whether the run takes the mean of vectors that no attack changes."""
        return isinstance(rule, MeanAggregation) and self._attack is None

    def begin_round(self, replica: Replica) -> None:
        """Note the weights with which the ranks begin a round, if an attack needs them."""
        if self._attacks:
            self._start = replica.weights()

    def trained_on(self, batch: Batch) -> Batch:
        """The batch with the targets on which this rank trains."""
        if not self._attacks or self._attack is None:
            return batch
        return replace(batch, targets=self._attack.targets(batch.targets, self._classes))

    def weights(
        self, values: Tensor, weight: float, trained: bool, steps: int, rule: Aggregation
    ) -> Tensor:
        """What the weights of all ranks become, the same bits on every rank; every rank calls it.

        Each rank combines one slice of all vectors. An all-to-all brings it the slices, with the weights,
        and an all-gather returns the results. For n float32 weights on P ranks that is 8n(P−1)/P bytes, as
        in an all-reduce, and a rank holds n values of others.

        Args:
            values: the weights of this rank, shape (n,).
            weight: its weight, ≥ 0.
            trained: whether it has trained on samples since the last aggregation.
            steps: the steps that it has taken.
        """
        sent = self._sent(values, weight if trained else 0, steps, self._start)
        if isinstance(rule, MeanAggregation):
            return self._comm.weighted_mean(sent, weight)
        size, n = self._comm.size, len(values)
        slices = pad(sent, (0, -n % size)).view(size, -1)
        own = values.new_full((size, 1), weight if trained else 0)
        received = self._comm.all_to_all(torch.cat([slices, own], dim=1))
        total = self._total_in_order if rule.breaks_ties else self._total
        combined = self._combined(received[:, :-1], received[:, -1], rule, total)
        return self._comm.all_gather(combined).view(-1)[:n]

    def gradient(self, own: Tensor, samples: int, steps: int) -> Tensor:
        """What this rank sends as its gradient; every rank calls it.

        Args:
            own: the mean gradient over its samples of the step, shape (n,); 0 without samples.
            samples: how many samples these are.
            steps: the steps that it has taken.
        """
        return self._sent(own, samples, steps, None)

    def of_gradients(self, gradients: Tensor, samples: Sequence[int], rule: Aggregation) -> Tensor:
        """What the gradients of ranks, shape (P, n), become. samples: of each rank in the step."""
        return self._combined(gradients, gradients.new_tensor(samples), rule, whole)

    def _combined(self, rows: Tensor, weights: Tensor, rule: Aggregation, total: Total) -> Tensor:
        """Apply a rule to the rows that count. Without enough of them, nothing changes."""
        counts = weights > 0
        with self._comm.clock.phase("compute") as span:
            if len(rows) < rule.least:
                raise CommunicationError(f"the aggregation needs {rule.least} vectors, not {len(rows)}")
            if counts.sum() < rule.least:
                self.without_effect += span.counted
                # The row of a rank without samples: weights of the last aggregation, or a gradient of 0.
                return rows[int(counts.int().argmin())].contiguous()
            return rule.combine(rows[counts], weights[counts], total)

    def _total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the slices of all ranks."""
        flat = tensor.reshape(-1).clone()
        self._comm.all_reduce(flat, "sum")
        return flat.view(tensor.shape)

    def _total_in_order(self, tensor: Tensor) -> Tensor:
        """As `_total`: numbers that are equal in every slice have equal sums.

        Each is summed in the order of ranks, which differs within an all-reduce by a ring. An all-to-all
        and an all-gather send as many bytes.
        """
        size, n = self._comm.size, tensor.numel()
        received = self._comm.all_to_all(pad(tensor.reshape(-1), (0, -n % size)).view(size, -1))
        own = torch.zeros_like(received[0])
        for part in received:
            own += part
        return self._comm.all_gather(own).view(-1)[:n].view(tensor.shape)

    def _sent(self, values: Tensor, weight: float, steps: int, start: Tensor | None) -> Tensor:
        """The values that leave this rank. One without samples sends its own, and so attacks nothing."""
        if self._attack is None:
            return values
        mean = std = None
        if self._attack.knows_honest:
            mean, std = self._honest(values, counts=weight > 0 and not self._attacks)
        if not self._attacks or not weight:
            return values
        start = torch.zeros_like(values) if start is None else start
        rng = self._rngs.generator("attack", self._rank, steps)
        vectors, byzantine = self._spec.num_replicas, len(self._attackers)
        mean = None if mean is None else mean - start
        knowledge = Knowledge(vectors, byzantine, rng, mean, std)
        return start + self._attack.vector(values - start, knowledge)

    def _honest(self, values: Tensor, counts: bool) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Mean and standard deviation over the ranks that count; None if there are none.

        Attackers know them, so that no byte and no second of this exchange belongs to training. As before
        an evaluation, all ranks wait for the slowest inside the measured time.
        """
        self._comm.barrier()
        with self._comm.clock.phase("evaluate"):
            nothing = torch.zeros_like(values)
            sums = torch.cat([values if counts else nothing, values.new_tensor([float(counts)])])
            self._comm.all_reduce(sums, "sum")
            if not sums[-1]:
                return None, None
            mean = sums[:-1] / sums[-1]
            squares = (values - mean).square() if counts else nothing
            self._comm.all_reduce(squares, "sum")
            return mean, (squares / sums[-1]).sqrt()
