"""One module for all ranks of a process: each rank has weights of its own, and its turn puts them in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.training.replica import Replica
from trainer.training.session import Session
from trainer.training.task import Task
from trainer.virtual.communicator import VirtualCommunicator


class SharedModule:
    """A module whose parameters, buffers and gradients are those of one replica at a time.

    Attributes:
        module: the torch module.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.module = task.build_model(0)
        self._variables = _variables(self.module)
        self._initial = [each.detach().clone() for each in self._variables]  # of weights seed 0
        self._holder: TurnReplica | None = None

    def initial(self, weights_seed: int) -> list[Tensor]:
        """The parameters and buffers of a new model, see Task.build_model."""
        if weights_seed:
            return [each.detach() for each in _variables(self._task.build_model(0, weights_seed))]
        return [each.clone() for each in self._initial]

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
        self.values: Sequence[Tensor] = shared.initial(weights_seed)
        self.gradients: Sequence[Tensor | None] = [None] * len(self.values)
        self.dropout = torch.Generator().manual_seed(task.rngs.torch_seed("dropout", number))
        shared.give_to(self)


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
