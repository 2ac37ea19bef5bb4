"""Laws of models."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from trainer.components.random_state import scatter_seeds
from trainer.components.samples import taken
from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.data.base import Dataset
from trainer.models.base import Model
from trainer.models.shapes import noise
from trainer.user_components.model import draws_error, names_error, output_error, weights_error

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ATOL, RTOL = 1e-5, 1e-5  # of outputs that sums in another order give
SHARDS = (2, 3)


@dataclass(frozen=True)
class Batch:
    """So many samples of a dataset's shape. inputs: float32 noise unless they are given."""

    size: int
    dataset: Dataset

    def __str__(self) -> str:
        noun = "sample" if self.size == 1 else "samples"
        return f"{self.size} {noun} of shape {'×'.join(map(str, self.dataset.shape))}"


@dataclass(frozen=True)
class Ranks(Batch):
    """A batch on so many ranks."""

    ranks: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.ranks} ranks"


class Built:
    """A model for a dataset, built with seeds. samples: some inputs of the dataset; None: noise."""

    def __init__(self, model: Model, dataset: Dataset, samples: Tensor | None) -> None:
        self.model, self.dataset, self._samples = model, dataset, samples

    def blocks(
        self,
        seed: int = 0,
        other: int = 0,
        more_classes: int = 0,
        generator: torch.Generator | None = None,
    ) -> list[tuple[str, nn.Module]]:
        """New blocks whose weights and dropout follow the seed.

        other: seed of all generators but torch's. more_classes: classes beyond those of the
        dataset. generator: the generator of dropout; None: a new one.
        """
        import torch

        classes = self.dataset.outputs + more_classes
        with torch.random.fork_rng(devices=[]):
            scatter_seeds(other)
            torch.manual_seed(seed)
            generator = generator or torch.Generator().manual_seed(seed)
            return [*self.model.blocks(self.dataset.shape, classes, generator)]

    def chain(self, **changes: Any) -> nn.Sequential:
        """New blocks as one module. changes: the arguments of `blocks`."""
        from torch import nn

        return nn.Sequential(OrderedDict(self.blocks(**changes)))

    @cached_property
    def whole(self) -> tuple[Tensor, Tensor, list[tuple[str, nn.Module]]]:
        """A batch, the output of the whole model in evaluation, and the blocks of another equal one."""
        x = self.inputs(2)
        return x, self.chain().eval()(x), self.blocks()

    def inputs(self, size: int, seed: int = 1) -> Tensor:
        """A batch."""
        import torch

        if self._samples is not None:
            return self._samples[taken(len(self._samples), size, start=seed - 1)]
        return noise(self.dataset, size, torch.Generator().manual_seed(seed))


def laws(model: Model, dataset: Dataset, samples: Tensor | None = None) -> Iterator[Law[Any]]:
    """The laws of a model that takes inputs of a dataset. samples: some of its inputs; None: noise."""
    built = Built(model, dataset, samples)
    batches = [Batch(size, dataset) for size in (2, 6)]
    law = partial(Law[Batch], inputs=batches[:1])
    yield Law(
        "runs",
        "a batch gives a tensor, an output a sample",
        lambda batch: _runs(built, batch),
        batches,
        essential=True,
    )
    yield law(
        "classes", "it gives a score for each class of the dataset", lambda batch: _classes(built, batch)
    )
    names = "names are those of the blocks, each once"
    yield law("names", names, lambda batch: names_error(model.names, built.blocks()))
    yield Law(
        "splits",
        "its blocks in a chain give the same output",
        lambda at: _splits(built, at),
        [SplitPoint(number, name) for number, name in enumerate(model.names) if number],
        otherwise=f"it cannot be split: {model.indivisible or 'it has one block'}",
    )
    yield law("shapes", "it builds without memory, in the same shapes", lambda batch: _shapes(built, batch))
    yield law("weights", "initial weights follow torch's seed", lambda batch: _weights(built))
    yield law(
        "draws",
        "it draws from its own generator only",
        lambda batch: draws_error(built.chain(), built.chain(), built.inputs(batch.size)),
    )
    yield law("repeats", "the same batch twice gives the same output", lambda batch: _repeats(built, batch))
    yield law("parameters", "all weights that it uses are parameters", lambda at: _parameters(built, at))
    yield Law(
        "gradients",
        "a gradient reaches every parameter",
        lambda batch: _gradients(built, batch),
        batches[1:],
    )
    yield Law(
        "samples",
        "samples are independent, unless declared",
        lambda batch: _samples(built, batch),
        batches[1:],
    )
    yield law("norms", "BatchNorm and SyncBatchNorm are declared", lambda batch: _norms(built))
    yield Law(
        "pairs",
        "pairs sharded over ranks give the same output",
        lambda on: _pairs(built, on),
        [Ranks(2, dataset, ranks) for ranks in SHARDS],
    )


class SplitPoint(tuple[int, str]):
    """The number and the name of a block that begins a stage."""

    def __new__(cls, number: int, name: str) -> SplitPoint:
        return super().__new__(cls, (number, name))

    def __str__(self) -> str:
        return f"split before {self[1]}"


def _runs(built: Built, batch: Batch) -> Outcome:
    import torch

    output = built.chain().train()(built.inputs(batch.size))
    if failure := output_error(output, batch.size):
        return failure
    return None if torch.isfinite(output).all() else Failure("finite numbers", "nan or infinite ones")


def _classes(built: Built, batch: Batch) -> Outcome:
    """Too few scores are a mistake if their number follows that of the classes, as more classes show."""
    import torch

    classes, inputs = built.dataset.class_count, built.inputs(batch.size)
    if classes == 1:
        raise NotApplicable("the dataset has no classes")
    with torch.no_grad():
        output = built.chain().eval()(inputs)
    if output.dim() != 2:
        raise NotApplicable(f"its outputs have shape {tuple(output.shape)}, not (batch, classes)")
    scores = output.shape[1]
    if scores >= classes:
        return None
    with torch.no_grad():
        more = built.chain(more_classes=1).eval()(inputs).shape[1:]
    if more != output.shape[1:]:
        return Failure(f"{classes} scores a sample, as the dataset has classes", f"{scores}")
    return Note(
        f"it gives {scores} output{'s' * (scores != 1)} whatever the number of classes, and the dataset "
        f"has {classes}: a loss of classes refuses them"
    )


def _splits(built: Built, at: SplitPoint) -> Outcome:
    import torch

    x, whole, blocks = built.whole
    for _, block in blocks[: at[0]]:
        x = block.eval()(x)
    x = x.detach().clone()  # as another rank receives it
    for _, block in blocks[at[0] :]:
        x = block.eval()(x)
    return None if torch.equal(x, whole) else _difference("the output of the whole model", x, whole)


def _difference(of: str, found: Tensor, expected: Tensor) -> Failure:
    if found.shape != expected.shape:
        return Failure(f"shape {tuple(expected.shape)}", f"{tuple(found.shape)}")
    worst = int((found - expected).abs().argmax())
    return Failure(
        f"{of}: number {worst} is {expected.flatten()[worst].item():.6g}",
        f"{found.flatten()[worst].item():.6g}",
    )


def _shapes(built: Built, batch: Batch) -> Outcome:
    import torch

    from trainer.models.shapes import block_shapes

    stated = block_shapes(built.model, built.dataset)
    x = built.inputs(batch.size)
    found = [tuple(x.shape[1:])]
    with torch.no_grad():
        for _, block in built.blocks():
            x = block.eval()(x)
            found.append(tuple(x.shape[1:]))
    for name, ours, theirs in zip([*built.model.names, "the output"], stated, found, strict=True):
        if ours != theirs:
            return Failure(f"{name} takes {ours}, as on torch's meta device", f"{theirs}")
    return None


def _weights(built: Built) -> Outcome:
    import torch

    first, again = (built.chain(seed=1, other=other) for other in (1, 2))
    if failure := weights_error(first, again):
        return failure
    weights = [*first.parameters()]
    if weights and all(map(torch.equal, weights, built.chain(seed=2).parameters())):
        return Failure("other weights for other seeds of torch", "equal ones")
    return None


def _repeats(built: Built, batch: Batch) -> Outcome:
    """Call it twice. In training, buffers start as before: they may change, and checkpoints have them."""
    import torch

    inputs = built.inputs(batch.size)
    for mode in ("evaluation", "training"):
        generator = torch.Generator().manual_seed(0)
        chain = built.chain(generator=generator).train(mode == "training")
        state, buffers = generator.get_state(), {name: each.clone() for name, each in chain.named_buffers()}
        outputs = []
        for _ in range(2):
            generator.set_state(state)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                scatter_seeds(0)
                for name, buffer in chain.named_buffers():
                    if mode == "training" and name in buffers:
                        buffer.copy_(buffers[name])
                outputs.append(chain(inputs.clone()).clone())
        if not torch.equal(*outputs):
            off = _difference("as the first time", outputs[1], outputs[0])
            return Failure(off.expected, f"{off.got} in {mode}: keep nothing from one batch to the next")
    return None


def _parameters(built: Built, batch: Batch) -> Outcome:
    """Find the weights that gradients of two outputs reach: no optimizer or checkpoint has the others."""
    chain = built.chain().eval()
    outputs = [chain(built.inputs(batch.size)) for _ in range(2)]
    first, second = ({id(leaf): leaf for leaf in _leaves(output)} for output in outputs)
    kept = first.keys() & second.keys()  # the others were made in the forward pass
    outside = kept - {id(each) for each in chain.parameters()}
    weight = next((leaf for key, leaf in first.items() if key in outside), None)
    if weight is None:
        return None
    shape = "×".join(map(str, weight.shape)) or "1"
    found = (
        f"{len(outside)} of its weights {'is' if len(outside) == 1 else 'are'} none: one of shape {shape}"
    )
    for module in chain.modules():
        for name, value in vars(module).items():
            if name != "_modules" and any(held is weight for held in _held(value)):
                advice = f"use {_container(value)}"
                return Failure("parameters only", f"{found} in {type(module).__name__}.{name}: {advice}")
    return Failure("parameters only", f"{found}, which is in no attribute")


def _container(value: object) -> str:
    """What to use instead of this value of an attribute, so that its weights are parameters."""
    import torch

    inner = [*value.values()] if isinstance(value, dict) else value
    if isinstance(value, torch.Tensor) or not isinstance(inner, list | tuple | set):
        return "nn.Parameter"
    holds = "Parameter" if any(isinstance(each, torch.Tensor) for each in inner) else "Module"
    return f"nn.{holds}{'Dict' if isinstance(value, dict) else 'List'}"


def _leaves(output: Tensor) -> Iterator[Tensor]:
    """The tensors that gradients of an output reach, each once."""
    pending, seen = [output.grad_fn], set[Any]()
    while pending:
        node: Any = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending.extend(before for before, _ in node.next_functions)


def _held(value: object) -> Iterator[Tensor]:
    """The weights in the value of an attribute: a tensor, a module, or a container of them."""
    import torch
    from torch import nn

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict | list | tuple | set):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _held(each)


def _gradients(built: Built, batch: Batch) -> Outcome:
    import torch

    whole = built.chain().eval()  # without dropout, which may hide a unit
    parameters = dict(whole.named_parameters())
    if not parameters:
        raise NotApplicable("it has no parameters")
    output = whole(built.inputs(batch.size))
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (output * weights).sum().backward()
    without = [name for name, each in parameters.items() if each.requires_grad and each.grad is None]
    zero = [
        name for name, each in parameters.items() if each.grad is not None and not each.grad.abs().sum() > 0
    ]
    for names, what in ((without, "none reaches"), (zero, "a gradient of 0 reaches")):
        if names:
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            return Failure(f"a gradient for {len(parameters)} parameters", f"{what} {shown}")
    return None


def _samples(built: Built, batch: Batch) -> Outcome:
    """The output of sample 0 beside two different sets of others, in training but without dropout."""
    import torch

    from trainer.models.layers.dropout import Dropout

    model = built.model
    if model.batch_statistics or model.has_synchronous_layers:
        raise NotApplicable("it declares that they are not")
    first, second = built.inputs(batch.size), built.inputs(batch.size, seed=3)
    second[0] = first[0]
    outputs = []
    for inputs in (first, second):
        chain = built.chain().train()
        for module in chain.modules():
            if isinstance(module, Dropout):
                module.eval()
        with torch.no_grad():
            outputs.append(chain(inputs)[0])
    if torch.allclose(outputs[0], outputs[1], rtol=RTOL, atol=ATOL):
        return None
    return Failure(
        "an output that does not depend on the other samples", "it depends: declare batch_statistics"
    )


def _norms(built: Built) -> Outcome:
    from torch.nn.modules.batchnorm import _BatchNorm

    from trainer.models.layers.sync_batch_norm import SyncBatchNorm

    modules = [*built.chain().modules()]
    sync = any(isinstance(module, SyncBatchNorm) for module in modules)
    own = any(
        isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm) for module in modules
    )
    if own and not built.model.batch_statistics:
        return Failure("batch_statistics is True, since it has BatchNorm", "False")
    if sync and not built.model.has_synchronous_layers:
        return Failure("has_synchronous_layers is True, since it has SyncBatchNorm", "False")
    return None


def _pairs(built: Built, on: Ranks) -> Outcome:
    """Shard the pairs over ranks that are threads, and compare their outputs with the whole model's."""
    import torch

    from trainer.comm.base import Communicator
    from trainer.launch.threads import together
    from trainer.parallel.tensor_layers import ModelSharder
    from trainer.strategies.tensor_parallel import column_parallel, row_parallel

    pairs = built.model.tensor_parallel_pairs
    if not pairs:
        raise NotApplicable("it declares no pairs for tensor parallelism")
    if on.ranks > min(pair.units for pair in pairs):
        raise NotApplicable("its pairs have too few units")
    inputs = built.inputs(on.size)
    whole = built.chain().eval()(inputs)
    blocks = [built.blocks() for _ in range(on.ranks)]  # not in the threads, which share torch's generator

    def output(comm: Communicator) -> Tensor:
        shard = ModelSharder(pairs, comm, column_parallel, row_parallel)
        x = inputs
        with torch.no_grad():
            for name, block in blocks[comm.rank]:
                x = shard(name, block).eval()(x)
        return x

    for rank, found in enumerate(together(on.ranks, output)):
        if isinstance(found, Exception):
            raise found
        if not torch.allclose(found, whole, rtol=1e-4, atol=1e-5):
            return _difference(f"the output of the whole model on rank {rank}", found, whole)
    return None
