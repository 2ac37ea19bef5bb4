"""The sizes of a model's blocks, and what they take on this machine or on one of the catalogue."""

from __future__ import annotations

from time import thread_time

from orchestrator.errors import InputError
from orchestrator.layouts.formula import PASSES, Block, Sizes
from orchestrator.layouts.hardware import Machine
from trainer.models.transformer import Transformer
from trainer.spec.run_spec import RunSpec

LAYERS = 2  # of a profiled transformer: its blocks are alike, and a large model would not fit here
SAMPLES = 2  # of a measured batch: larger ones take longer than a person waits for the first answer
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
    model = run.model
    if isinstance(model, Transformer):
        model = model.model_copy(update={"layers": min(LAYERS, model.layers)})
    small = run.model_copy(update={"model": model, "batch_size": min(SAMPLES, run.batch_size)})
    passes = {"warm_up": 0, "runs": 0} if machine else {"warm_up": 1, "runs": 2}
    profiles = {each.name: each for each in profile_model(small, **passes, clock=thread_time)}
    blocks = []
    for name in run.model.names:
        each = profiles.get(name) or profiles[model.names[LAYERS]]
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
