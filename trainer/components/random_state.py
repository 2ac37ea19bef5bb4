"""Global random state, which components must not depend on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from trainer.core.failure import Failure

T = TypeVar("T")


def scatter_seeds(seed: int) -> None:
    """Seed every global random generator: what depends on one differs from call to call."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def global_states() -> dict[str, Any]:
    """The state of each global random generator, by its name."""
    import torch

    _, keys, position, *_ = np.random.get_state()
    return {
        "torch's global generator": torch.get_rng_state().tolist(),
        "numpy's global generator": ([*keys], position),
        "random": random.getstate(),
    }


def repetition_error(
    first: T,
    compute: Callable[[], T],
    differing: Callable[[T, T], str],
    remedy: str,
    seeds: Sequence[int] = (1, 2),
) -> Failure | None:
    """How a component gives another result when it is called again; None if it gives the same.

    Args:
        first: a result, computed after `scatter_seeds(1)`.
        compute: computes the result again.
        differing: what differs between two results, in the plural; empty if they are equal.
        remedy: what to draw from instead of global random state.
        seeds: those of global random state for each repetition. Without 1, state that the component keeps
            cannot be distinguished from global random state.
    """
    for seed in seeds:
        scatter_seeds(seed)
        if what := differing(first, compute()):
            cause = f"when global random state differs: {remedy}"
            if seed == 1:
                cause = "in a second call: keep nothing from one call to the next"
            return Failure(f"equal {what}", f"other {what} {cause}")
    return None
