"""Tensor-parallel replica: one rank's shards of the sharded layers, and a copy of the other layers."""

from __future__ import annotations

from torch import Tensor

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.parallel.tensor_layers import LayerForward, ModelSharder
from trainer.parallel.token_part import TokenPart
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.task import Task


class TensorParallelReplica(Replica):
    """A rank's shard of the model and the optimizer of its parameters.

    Replicated layers stay equal on all ranks without communication: they start from equal weights, and
    their gradients result from activations and gradients that the all-reduce has made bitwise equal. This
    is checked, not assumed: `full_weights` takes replicated layers from each rank, and the digests of the
    ranks are compared.
    """

    def __init__(
        self, task: Task, clock: Clock, comm: Communicator, column: LayerForward, row: LayerForward
    ) -> None:
        """column, row: forward functions of column- and row-parallel layers."""
        sharder = ModelSharder(task.spec.model.tensor_parallel_pairs, comm, column, row)
        # Replica 0 on all ranks: dropout of replicated activations must draw the same masks.
        super().__init__(task.build_model(0, device=comm.device, take=sharder), task, clock)
        self._sharder, self._comm = sharder, comm
        self._replicated = [each for each in self._parameters if each not in sharder.shardings]

    def squared_gradient_norm(self) -> Tensor:
        """As `Replica.squared_gradient_norm`: shards count on each rank, replicated layers once."""
        return self._sharder.squared_norm(self._squares(), self._sharder.sharded(self._parameters))

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Log-probabilities of the whole model, on rank 0 only. Every rank calls it."""
        output = super().predict(inputs)
        return output if self._comm.rank == 0 else None

    def full_weights(self) -> Tensor:
        """Weights of the whole model: gathered shards, and this rank's replicated layers.

        Every rank calls it.
        """
        return self._sharder.full(self._state)


class SequenceParallelReplica(TensorParallelReplica):
    """A tensor-parallel replica whose ranks have some of the tokens between the pairs of layers."""

    def __init__(
        self, task: Task, clock: Clock, comm: Communicator, column: LayerForward, row: LayerForward
    ) -> None:
        super().__init__(task, clock, comm, column, row)
        self._part = TokenPart(comm, task.spec.dataset.shape[0])
        self._part.adapt(self.model)
        self._accuracy = 0.0

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """As `Replica.backward`, of the whole batch."""
        super().backward(self._part.of_batch(batch), weight / self._comm.size)
        if self.loss is not None:
            # Replicated layers see this rank's tokens alone. The shards of a pair see all tokens.
            self.loss, self._accuracy = self._part.sum(self._replicated, self.loss, super().batch_accuracy)

    @property
    def batch_accuracy(self) -> float:
        """Accuracy on all tokens of the last batch, 0 … 1."""
        return self._accuracy

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Log-probabilities for all tokens, on rank 0 only. Every rank calls it."""
        output: Tensor = self.model(self._part.of(inputs))
        return self._part.gather(output)
