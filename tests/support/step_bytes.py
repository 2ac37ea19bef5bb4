"""The bytes that a rank sends in a step, by the formulas in the docstrings of the strategies.

Without what training adds: numbers for clipping, the loss and the accuracy, and zeros that pad parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from trainer.parallel.mesh import Mesh
from trainer.parallel.schedules import chunks_of
from trainer.spec.run_spec import RunSpec
from trainer.strategies.context_parallel import ContextParallel
from trainer.strategies.fsdp import Fsdp
from trainer.strategies.hybrid import Hybrid
from trainer.strategies.pipeline import Pipeline
from trainer.strategies.pipeline_torch import PipelineTorch
from trainer.strategies.tensor_parallel import TensorParallel
from trainer.strategies.zero3 import Zero3


def mean_step_bytes(run: RunSpec, samples: float, parameters: Sequence[int], whole: int) -> float | None:
    """The mean over ranks, in a run of gpt over a number of ranks; None: it depends on the tokens.

    Args:
        samples: of a step, the mean over steps.
        parameters: what each rank holds; of replicas with shards of the state, all.
        whole: the parameters of the model.
    """
    strategy, ranks = run.strategy, run.world_size
    model, tokens = run.model, run.dataset.shape[0]
    activations = 4 * samples * tokens * model.width  # of the tokens of all samples
    gradient = 4 * fmean(parameters)
    others = (ranks - 1) / ranks
    match strategy:
        case Hybrid():
            mesh = strategy.mesh_of(ranks)
            stages = mesh.pipeline * chunks_of(strategy.schedule, strategy.chunks)
            return of_mesh(mesh, stages, activations, model.layers, gradient)
        case Pipeline() | PipelineTorch():
            chunks = chunks_of(strategy.schedule, getattr(strategy, "chunks", None))
            return of_mesh(Mesh(pipeline=ranks), ranks * chunks, activations, model.layers, gradient)
        case TensorParallel():
            replicated = (sum(parameters) - whole) / (ranks - 1) if strategy.sequence_parallel else 0
            pairs = of_mesh(Mesh(tensor=ranks), 1, activations, model.layers, gradient)
            return pairs + 2 * 4 * replicated * others
        case ContextParallel():
            own = activations / ranks
            ring = (ranks - 1) * 2 * own + ranks * 4 * own
            attention = ring if strategy.attention == "ring" else 8 * own * others
            return model.layers * attention + 2 * gradient * others
        case Fsdp() | Zero3():
            gathers = run.accumulate * (2 if strategy.reshard else 1)
            copies, shards = strategy.replicate, ranks // strategy.replicate
            between = 2 * run.accumulate * gradient / shards * (copies - 1) / copies
            return (gathers + run.accumulate) * gradient * (shards - 1) / shards + between
    match run.name_of("strategy"):
        case "ddp" | "parameter_server":  # a server and its workers send what replicas send
            return 2 * gradient * others
        case "zero1":
            return 3 * gradient * others
        case "zero2":
            return (run.accumulate + 1) * gradient * others
    declared = [strategy.step_bytes(4 * whole, rank, ranks) for rank in range(ranks)]
    return None if None in declared else fmean(each for each in declared if each is not None)


def of_mesh(mesh: Mesh, stages: int, activations: float, layers: int, gradient: float) -> float:
    """That of `hybrid`. stages: of a replica. activations: bytes between two blocks, of all samples."""
    between_stages = mesh.tensor * (stages - 1) * 2 * activations
    pairs = 2 * layers * 2 * activations * 2 * (mesh.tensor - 1)  # two pairs of layers in a block
    return (between_stages + pairs) / mesh.size + 2 * gradient * (mesh.data - 1) / mesh.data
