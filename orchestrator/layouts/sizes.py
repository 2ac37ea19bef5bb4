"""The sizes of a model's blocks, and what they take on this machine or on one of the catalogue."""

from __future__ import annotations

from time import thread_time

from orchestrator.errors import InputError
from orchestrator.layouts.formula import PASSES, Block, Sizes
from orchestrator.layouts.hardware import Machine
from trainer.spec.run_spec import RunSpec

SAMPLES = 2  # of a batch that is measured first
PASS_S = 0.1  # of a second, larger batch: longer ones take more time than a person waits for an answer
# A larger batch takes at best so much less for a sample, and a busier core so much more.
MEASURED_RANGE = (0.7, 1.15)


def sizes_of(run: RunSpec, machine: Machine | None) -> Sizes:
    """Build the run's model, and profile its blocks on a small batch.

    Args:
        machine: gives the seconds of operations; None: as measured on one core of this machine.

    Raises:
        InputError: torch is missing.
    """
    try:
        from trainer.training.profile import profile_model
    except ModuleNotFoundError as error:
        raise InputError(f"a plan needs {error.name}; run: make venv") from error
    model = run.model.shallow()  # a large model would not fit here
    small = run.model_copy(update={"model": model, "batch_size": min(SAMPLES, run.batch_size)})
    passes = {"warm_up": 0, "runs": 0} if machine else {"warm_up": 1, "runs": 2}
    found = profile_model(small, **passes, clock=thread_time)
    if machine is None:
        number = int(small.batch_size * PASS_S / sum(each.seconds for each in found))
        if (larger := min(number, run.batch_size)) > small.batch_size:
            small = small.model_copy(update={"batch_size": larger})
            found = profile_model(small, **passes, clock=thread_time)
    profiles = {each.name: each for each in found}
    blocks = []
    for name in run.model.names:
        each = profiles.get(name) or profiles[model.names[-2]]
        if machine is None:
            low, high = (each.seconds / small.batch_size * factor for factor in MEASURED_RANGE)
        else:
            low, high = (
                PASSES * each.flops / machine.flops / efficiency
                for efficiency in reversed(machine.efficiency)
            )
        own = name, each.parameters, each.largest_tensor, each.output_bytes, each.saved_bytes
        blocks.append(Block(*own, (low, high)))
    return Sizes(blocks, run.model.tensor_parallel_pairs, len(run.optimizer.state_names))
