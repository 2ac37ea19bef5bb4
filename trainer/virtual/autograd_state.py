"""What torch keeps for each thread, and coroutines of one thread must not share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from trainer.comm.errors import CommunicationError

Hooks = tuple[Callable[[Tensor], object], Callable[[object], Tensor]]


class AutogradState(NamedTuple):
    """The state of autograd while a coroutine is paused.

    Attributes:
        gradients: whether gradients are recorded.
        hooks: what packs and unpacks saved tensors; the innermost first.
    """

    gradients: bool
    hooks: list[Hooks]

    @classmethod
    def take(cls) -> Self:
        """Replace the state by that of a new thread.

        Raises CommunicationError where state beside it would be lost.
        """
        if doing := _running():
            raise CommunicationError(
                f"an exchange in {doing}; set needs_thread = True in the class of the strategy, and "
                "its virtual ranks have threads of their own"
            )
        state = cls(torch.is_grad_enabled(), [])
        torch._C._set_grad_enabled(True)
        while hooks := _innermost_hooks():
            state.hooks.append(hooks)
            torch._C._autograd._pop_saved_tensors_default_hooks()
        return state

    def restore(self) -> None:
        """Continue with this state."""
        torch._C._set_grad_enabled(self.gradients)
        for pack, unpack in reversed(self.hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _innermost_hooks() -> Hooks | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _running() -> str | None:
    """What torch is doing whose state cannot be taken; None: nothing of that kind."""
    if torch._C._current_graph_task_id() != -1:
        return "a backward pass"
    if torch.is_inference_mode_enabled():
        return "inference mode"
    return "autocast" if torch.is_autocast_enabled("cpu") else None
