"""The order in which a sweep executes its runs, and the run before the first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from trainer.spec.run_spec import RunSpec


def execution_order(name: str, groups: Sequence[Sequence[RunSpec]]) -> list[RunSpec]:
    """The runs in the order of their execution: a randomised complete block design.

    All runs of a seed come before those of the next, so that a configuration's runs are spread over the
    whole sweep. Within a seed the groups are in random order, and so are the runs of a group. The order of
    two runs follows from their keys alone: it is the same when a sweep is resumed or extended.

    Args:
        name: the name of the sweep, which seeds the order.
        groups: runs that stay together because their nodes can be warm at the same time.
    """
    numbered = [(run, number) for number, group in enumerate(groups) for run in group]

    def position(item: tuple[RunSpec, int]) -> tuple[int, bytes, bytes]:
        run, group = item
        return run.seed, _draw(f"{name} {run.seed} {group}"), _draw(f"{name} {run.key}")

    return [run for run, _ in sorted(numbered, key=position)]


def _draw(text: str) -> bytes:
    """A random number for a text, the same in every version of Python."""
    return sha256(text.encode()).digest()


def warm_up_run(runs: Sequence[RunSpec]) -> RunSpec | None:
    """The shortest run that warms up a machine for these; None if all have one seed or none trains.

    It is the run of one node, or of the fewest, with one epoch: caches are cold in the first epoch only.
    """
    candidates = [run for run in runs if run.strategy.trains]
    if not candidates or len({run.seed for run in runs}) < 2:
        return None
    shortest = min(
        candidates,
        key=lambda run: (run.name_of("strategy") != "serial", run.world_size, run.dataset.train_samples),
    )
    one_epoch: dict[str, Any] = {
        "epochs": 1,
        "target_accuracy": None,
        "patience": 1,
        "warm_up_epochs": 0,
        "lr_schedule": "constant",
        "checkpoint_epochs": None,
        "checkpoint_steps": None,
        "faults": [],
        "save_weights": False,
        "trace": "none",
    }
    return RunSpec.model_validate({**shortest.model_dump(mode="json"), **one_epoch})
