"""One module for all ranks of a process: each rank has weights of its own, and its turn puts them in.

Ranks that have taken the same average, or have not trained yet, share the memory of their weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.training.replica import Replica, unflatten
from trainer.training.session import Session
from trainer.training.task import Task
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.copy_on_write import have_same_memory, is_shared, shared_copy

RECENT = 2  # vectors that ranks take in turn: around an evaluation an average, and the weights before it


class Weights(NamedTuple):
    """Weights that ranks share.

    Attributes:
        flat: the vector, see `Replica.weights`.
        values: the same as tensors of the module, in the order of the vector.
    """

    flat: Tensor
    values: Sequence[Tensor]


class SharedModule:
    """A module whose parameters, buffers and gradients are those of one replica at a time.

    Attributes:
        module: the torch module.
        initial_flat: the vector of its initial weights of seed 0.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.module = task.build_model(0)
        self._variables = _variables(self.module)
        # Of weights seed 0.
        self._initial = [each.detach().clone() for each in self._variables]
        self.initial_flat = Replica(self.module, task, Clock()).weights()
        self._recent: deque[Weights] = deque(maxlen=RECENT)
        self._holder: TurnReplica | None = None

    def initial(self, weights_seed: int) -> list[Tensor]:
        """The parameters and buffers of a new model, see Task.build_model."""
        if weights_seed:
            return [each.detach() for each in _variables(self._task.build_model(0, weights_seed))]
        return [shared_copy(each) for each in self._initial]

    def weights_of(self, flat: Tensor, like: Sequence[Tensor]) -> Weights:
        """The weights of a vector that is shared. like: tensors of the module, in its order."""
        for weights in self._recent:
            if have_same_memory(weights.flat, flat):
                return weights
        weights = Weights(shared_copy(flat), [torch.empty_like(each.data) for each in like])
        unflatten(flat, weights.values)
        self._recent.append(weights)
        return weights

    def give_to(self, replica: TurnReplica) -> None:
        """Put the values of a replica into the module, and keep those of the replica that has it now."""
        if self._holder is replica:
            return
        if self._holder is not None:
            self._holder.values = [each.data for each in self._variables]
            self._holder.gradients = [each.grad for each in self._variables]
        self._holder = replica
        for variable, value, gradient in zip(
            self._variables, replica.values, replica.gradients, strict=True
        ):
            variable.data = value
            variable.grad = gradient
        replica.use_generator(replica.dropout)


class TurnReplica(Replica):
    """A replica that has a shared module during its rank's turns.

    Attributes:
        values: its parameters and buffers, while another replica has the module.
        gradients: the gradients of `values`; None where there is none.
        dropout: the random generator of its dropout layers.
    """

    def __init__(
        self, shared: SharedModule, task: Task, clock: Clock, number: int, weights_seed: int
    ) -> None:
        super().__init__(shared.module, task, clock)
        self._shared = shared
        self.values: Sequence[Tensor] = shared.initial(weights_seed)
        # The vector of its weights, as long as they are shared.
        self._flat = None if weights_seed else shared.initial_flat
        self.gradients: Sequence[Tensor | None] = [None] * len(self.values)
        self.dropout = torch.Generator().manual_seed(task.rngs.torch_seed("dropout", number))
        shared.give_to(self)

    def weights(self) -> Tensor:
        if self._flat is None or not all(map(is_shared, self._state)):
            return super().weights()
        return shared_copy(self._flat)

    def set_weights(self, flat: Tensor) -> None:
        if not is_shared(flat):
            super().set_weights(flat)
            return
        self._flat, values = self._shared.weights_of(flat, self._state)
        for variable, value in zip(self._state, values, strict=True):
            variable.data = shared_copy(value)


class VirtualSession(Session):
    """One rank's training with the module that all ranks of the process share."""

    comm: VirtualCommunicator

    def __init__(
        self,
        context: NodeContext,
        task: Task,
        events: EventWriter,
        comm: Communicator,
        *,
        shared: SharedModule,
    ) -> None:
        super().__init__(context, task, events, comm)
        self._module: SharedModule | None = shared

    def replica(self, weights_seed: int = 0) -> Replica:
        module, self._module = self._module, None
        if module is None:  # this rank's second replica, which its turn must not replace
            return super().replica(weights_seed)
        replica = TurnReplica(module, self.task, self.clock, self._replica_number, weights_seed)
        self.comm.node.begins_turn = partial(module.give_to, replica)
        return replica


def _variables(module: nn.Module) -> list[Any]:
    return [*module.parameters(), *module.buffers()]
