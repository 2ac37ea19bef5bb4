"""Training for checks of strategies: a linear model in float64, with the interface of a session."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from orchestrator.course.network import Collective


class Training:
    """What ranks of a strategy train: w in R^d, by plain SGD on ½(x·w − y)², averaged over a batch.

    Attributes:
        weights: the weights of each rank, shape (d,). averages: steps of each rank before each average.
    """

    def __init__(self, samples: Sequence[int], batch: int = 2, epochs: int = 2, lr: float = 0.1) -> None:
        """
        Args:
            samples: number of samples of each rank.
            batch: samples per batch; the last one of an epoch may be smaller.
        """
        rng = np.random.default_rng(0)
        self.size, self.batch, self.epochs, self.lr = len(samples), batch, epochs, lr
        self._data = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in samples]
        self.steps_per_epoch = max(-(-n // batch) for n in samples)
        self.weights = [np.zeros(3) for _ in samples]
        self.averages: list[list[int]] = [[] for _ in samples]
        self._gradients = [np.zeros(3) for _ in samples]
        self._steps, self._since_average = [0] * self.size, [0] * self.size
        self._collective = Collective(self.size)

    def samples(self, rank: int, step: int) -> int:
        """Samples in a batch of a rank; 0 if it has none left. step: its number in all epochs, from 0."""
        return len(self._batch(rank, step)[1])

    def _batch(self, rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = self._data[rank]
        first = step % self.steps_per_epoch * self.batch
        return x[first : first + self.batch], y[first : first + self.batch]

    def gradient(self, rank: int, step: int, weights: np.ndarray) -> np.ndarray:
        """The gradient of a batch, shape (d,); 0 without samples."""
        x, y = self._batch(rank, step)
        return np.asarray(x.T @ (x @ weights - y) / max(1, len(y)))

    def session(self, rank: int) -> SimpleNamespace:
        """The part of trainer.training.session.Session that local strategies use, for one rank."""

        def weighted_mean(values: Any, weight: float) -> np.ndarray:
            array = np.asarray(values, dtype=float)
            if not np.isfinite(weight) or weight < 0:
                raise ValueError(f"weight {weight}: must be 0 or more")
            if array.ndim != 1:
                raise ValueError(f"values of shape {array.shape}: must have the shape (n,)")
            before = self._collective.calls[rank]
            try:
                total = self._collective.sum(rank, np.append(array * weight, weight))
            finally:
                if self._collective.calls[rank] > before:
                    self.averages[rank].append(self._steps[rank])
            return total[:-1] / total[-1] if total[-1] > 0 else array

        def batches(epoch: int, uneven: str = "join") -> list[SimpleNamespace]:
            if uneven != "join" or epoch not in range(1, self.epochs + 1):
                raise ValueError(f"no batches of epoch {epoch} with uneven {uneven!r}")
            steps = range((epoch - 1) * self.steps_per_epoch, epoch * self.steps_per_epoch)
            return [self._described(rank, step) for step in steps]

        def averaging_weight(weighting: str) -> int:
            if weighting not in ("equal", "size"):
                raise ValueError(f"weighting {weighting!r}: must be 'equal' or 'size'")
            return 1 if weighting == "equal" else self._since_average[rank]

        def averaged() -> None:
            self._since_average[rank] = 0

        return SimpleNamespace(
            rank=rank,
            size=self.size,
            steps_taken=0,
            comm=SimpleNamespace(rank=rank, size=self.size, weighted_mean=weighted_mean),
            replica=lambda weights_seed=0: self._replica(rank),
            start=lambda replica=None, init=None: None,
            epochs=lambda evaluate="replicas", weighting="equal": list(range(1, self.epochs + 1)),
            batches=batches,
            synchronous_batches=batches,
            averaging_weight=averaging_weight,
            averaged=averaged,
            catch_up_count=lambda count: count,
        )

    def _described(self, rank: int, step: int) -> SimpleNamespace:
        samples = self.samples(rank, step)
        share = samples / sum(self.samples(other, step) for other in range(self.size))
        return SimpleNamespace(samples=samples, share=share, step=step)

    def _replica(self, rank: int) -> SimpleNamespace:
        def backward(batch: SimpleNamespace, weight: float = 1.0) -> None:
            samples = self.samples(rank, batch.step)
            if not samples:
                raise ValueError("a batch without samples has no gradient")
            self._gradients[rank] = weight * self.gradient(rank, batch.step, self.weights[rank])
            self._since_average[rank] += samples

        def step() -> None:
            self.weights[rank] = self.weights[rank] - self.lr * self._gradients[rank]
            self._steps[rank] += 1

        def flat(values: Any) -> np.ndarray:
            array = np.array(values, dtype=float)
            if array.shape != (3,):
                raise ValueError(f"shape {array.shape}: must be (3,)")
            return array

        def set_weights(values: Any) -> None:
            self.weights[rank] = flat(values)

        def set_gradient(values: Any) -> None:
            self._gradients[rank] = flat(values)

        return SimpleNamespace(
            lr=self.lr,
            backward=backward,
            step=step,
            weights=lambda: self.weights[rank],
            set_weights=set_weights,
            gradient=lambda: self._gradients[rank],
            set_gradient=set_gradient,
            reset_optimizer=lambda: None,
        )
