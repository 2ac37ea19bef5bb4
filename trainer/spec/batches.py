"""Which batches of a run have too few samples for its model, and whether it outlasts a warm-up."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.spec.fields import RunFields

TRIED = 1000  # larger batch sizes, of which one may fit


def batch_error(run: RunFields, sizes: Sequence[int]) -> str | None:
    """Return why the model cannot train on parts of these sizes; or None.

    BatchNorm has no variance of one value. It has one for a channel if a forward pass in training has one
    sample, and the layer's inputs one pixel or none.
    """
    least, batch = run.model.fewest_samples, run.batch_per_replica
    if least == 1:
        return None
    small = _too_small(run, sizes, batch)
    if small is None:
        return None
    micro = f" and {_micro_batches(run)} micro-batches" if _micro_batches(run) > 1 else ""
    larger = range(batch + 1, batch + TRIED)
    fitting = next((size for size in larger if _too_small(run, sizes, size) is None), None)
    such = "" if fitting is None else f", such as {fitting * run.batch_size // batch}"
    return (
        f"{batch} samples per step{micro} leave 1 of the {sizes[small]} samples of part {small} for a "
        f"forward pass, and BatchNorm of {run.name_of('model')} needs {least} or more; allowed: another "
        f"batch_size{such}"
    )


def warm_up_error(run: RunFields, sizes: Sequence[int]) -> str | None:
    """Return why a warm-up would last to the end of the training on parts of these sizes; or None."""
    most = max if getattr(run.strategy, "uneven", "drop") != "drop" else min
    warm_up, steps = run.lr_schedule.warm_up[0], run.epochs * -(-most(sizes) // run.batch_per_replica)
    if warm_up < steps:
        return None
    return f"{warm_up} steps of warm-up leave none of the {steps} of a rank; allowed: 0 to {steps - 1}"


def _too_small(run: RunFields, sizes: Sequence[int], batch: int) -> int | None:
    """The first part with a forward pass of too few samples; None if no part has one."""
    uneven = getattr(run.strategy, "uneven", "join")
    for part, size in enumerate(sizes):
        samples = {"drop": min(sizes), "pad": max(sizes)}.get(uneven, size)
        batches = {min(samples, batch), samples % batch} - {0}
        if any(max(1, each // _micro_batches(run)) < run.model.fewest_samples for each in batches):
            return part
    return None


def _micro_batches(run: RunFields) -> int:
    return run.accumulate * run.strategy.micro_batch_count
