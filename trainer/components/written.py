"""The law that what a user brings is trained as it is written: compares a run with a loop of plain torch.

Some steps of plain torch equal as many of a run's, on one rank and on two with different samples: the
user's module called as it is, the optimizer as the user's function built it, and one loss over all samples
of a step. Both sides take the same samples and draw the same numbers.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.components import facts
from trainer.components.kind import Input, NotApplicable, Note, Verdict
from trainer.components.samples import TRIED_SAMPLES, spread, taken
from trainer.core.cgroup import memory_left
from trainer.core.failure import Failure
from trainer.core.registry import IMPORTED
from trainer.core.user_code import ImportFailure, located
from trainer.data.base import Data, Dataset, Split
from trainer.data.cache import DatasetCache
from trainer.models.shapes import noise
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainer.training.task import Task

Form = dict[str, Any]

LARGE = 4_000_000  # weights, from which a model is tried with less
LR = 0.05
# Of the change of a tensor, by its type: rounding of float32 and float64.
RTOL = {"float32": 1e-4, "float64": 1e-7}
NOISE = 30.0  # times the effect of one rounding of the initial weights
BUDGET_S = 1.5  # CPU seconds, from which the number of steps follows
COPIES = 12  # of the weights in memory: of ranks, gradients, optimizer state, and to compare
PIXELS = 64  # of a side of images, if the model takes smaller ones than those of the dataset


@dataclass(frozen=True)
class Length:
    """How much is compared. samples, batch: those of all ranks together, in an epoch and in a step."""

    samples: int
    batch: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.epochs * -(-self.samples // self.batch)} steps of {self.batch} samples"


SHORT = Length(8, 4, 1)
# Of 17 samples, ranks have 9 and 8, so batches are of unequal size, and never of one sample.
LONG = Length(TRIED_SAMPLES, 6, 2)


@dataclass(frozen=True)
class State:
    """What a training has changed: each tensor by name, before and after."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]

    def change(self, name: str) -> Tensor:
        return self.after[name] - self.before[name]


class Loaded(DatasetCache):
    """Loads a few samples in place of a dataset."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self._given = data

    def load(self, dataset: Dataset, data_dir: Path) -> Data:
        return self._given


def compare(components: Mapping[str, Any], inputs: Tensor, targets: Tensor) -> str:
    """Compare steps of plain torch with those of a run.

    Args:
        components: the forms of dataset, model, loss and optimizer, with what a spec knows of them.
        inputs, targets: some samples of the dataset, over which they are spread.

    Returns:
        What was compared.

    Raises:
        ImportFailure: They differ, or only one of them fails. The message names what differs.
    """
    error: Exception = ImportFailure("")
    for kind, data in _forms(components, inputs, targets):
        with default_type(kind):
            run, few = run_of(components, 2, SHORT), _some(data, SHORT.samples)
            started = time.process_time()
            try:
                plain = _plain(run, few)
            except Exception as raised:
                error = raised
                continue
            compare_run(run, few, plain=plain)
            seconds = time.process_time() - started
            if 8 * seconds > BUDGET_S:
                return f"{SHORT} on 2 ranks"
            for ranks in (1, 2):
                compare_run(run_of(components, ranks, LONG), _some(data, LONG.samples))
            return f"{LONG} on 1 and 2 ranks"
    raise ImportFailure(located(error)) from error


def _forms(
    components: Mapping[str, Any], inputs: Tensor, targets: Tensor
) -> Iterator[tuple[torch.dtype, Data]]:
    """The types of numbers and the sizes of images with which a model is tried, the best first.

    Rounding is small in float64, and small models and images take less time. A model may take neither. One
    with types of its own is tried with these.
    """
    import torch

    run, kinds = run_of(components, 2, SHORT), [torch.float32]
    if {*run.model.types} == {"float32"} and run.model.weights < LARGE:
        kinds.insert(0, torch.float64)
    for kind in kinds:
        if inputs.dim() == 4 and max(inputs.shape[2:]) > PIXELS:
            top, left = (max(0, side - PIXELS) // 2 for side in inputs.shape[2:])
            images = inputs[:, :, top : top + PIXELS, left : left + PIXELS]
            yield kind, _in_type(_data(images, targets), kind)
        yield kind, _in_type(_data(inputs, targets), kind)


def _data(inputs: Tensor, targets: Tensor) -> Data:
    """The samples as both splits of a dataset, in the order of their classes."""
    at = spread(targets.numpy(), len(targets))
    classes = targets.dim() == 1 and not targets.is_floating_point()
    labels = targets.numpy()[at] if classes else np.zeros(len(targets), np.int64)
    split = Split(inputs.numpy()[at], labels, None if classes else targets.numpy()[at])
    return Data(split, split, int(labels.max()) + 1, None)


def _in_type(data: Data, kind: torch.dtype) -> Data:
    """The data with floating-point numbers of this type."""
    name = str(kind).removeprefix("torch.")

    def converted(array: Any) -> Any:
        return array.astype(name) if array is not None and array.dtype.kind == "f" else array

    split = replace(
        data.train, inputs=converted(data.train.inputs), other_targets=converted(data.train.other_targets)
    )
    return replace(data, train=split, test=split)


def _some(data: Data, samples: int) -> Data:
    """So many samples, spread over all of them and repeated if there are fewer."""
    split = data.train
    at = taken(len(split.labels), samples)
    other = None if split.other_targets is None else split.other_targets[at]
    few = Split(split.inputs[at], split.labels[at], other)
    return replace(data, train=few, test=few)


@contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def described(samples: int, **stated: Any) -> Form:
    """The form of a dataset that is known by its samples alone: no process loads others."""
    source = {"module": "samples.py", "attribute": "samples", "data": ""}
    return {"name": "samples", IMPORTED: {**stated, **source, "train_samples": samples}}


def run_of(components: Mapping[str, Any], ranks: int, length: Length, **fields: Any) -> RunSpec:
    """A run of so many replicas. fields: others than those of `serial` and `all_reduce`."""
    on = REGISTRIES["dataset"].parse(components["dataset"])
    components = {**components, "dataset": described(length.samples, **facts.values(on, Dataset, ranks))}
    return RunSpec.model_validate(
        {
            **components,
            "strategy": "all_reduce" if ranks > 1 else "serial",
            "nodes": ranks,
            "transport": "memory",
            "partitioner": "contiguous",  # of samples in the order of their classes
            "batch_size": length.batch // ranks,
            "epochs": length.epochs,
            "warm_up_epochs": min(ranks, length.epochs) - 1,
            "lr": LR,
            "save_weights": True,
            **fields,
        }
    )


def compare_run(spec: RunSpec, data: Data, plain: State | None = None) -> None:
    """Raise ImportFailure unless a run does what plain torch does.

    Args:
        spec: the run.
        data: its samples.
        plain: what plain torch does; None: find out.
    """
    from trainer.launch.threads import weights_of
    from trainer.training.task import Task

    where = "on one rank" if spec.nodes == 1 else f"on {spec.nodes} ranks"
    plain = plain or _plain(spec, data)
    try:
        weights = weights_of(Task(spec, Path(), Loaded(data)))
    except Exception as error:
        reason = f"{located(error)}, and does not in a loop of plain torch"
        raise ImportFailure(f"a training {where} fails with {reason}") from error
    sizes = [each.numel() for each in plain.after.values()]
    if len(weights) != sum(sizes):
        raise ImportFailure(
            f"{len(weights)} numbers are trained {where}, and {sum(sizes)} in a loop of plain torch: "
            "parameters() and buffers() of the model must be those of its layers"
        )
    found = dict(zip(plain.after, weights.split(sizes), strict=True))
    if not any(_difference(plain, name, found[name]) for name in found):
        return
    moved = _plain(spec, data, moved=True)
    for name, values in found.items():
        difference, change = _difference(plain, name, values), plain.change(name)
        if difference > NOISE * _norm(moved.change(name) - change):
            raise ImportFailure(
                f"trained {where}, {name} differs by {difference:.2g} from a loop of plain torch, which "
                f"changes it by {_norm(change):.2g}{ADVICE if spec.nodes > 1 else ''}"
            )


ADVICE = (
    "; on several ranks the loss of a batch must be the mean over its samples, with a weight for each if "
    "the loss has the parameter `weight`"
)


def _difference(plain: State, name: str, values: Tensor) -> float:
    """By how much a tensor differs from that of plain torch; 0 if by rounding at most."""
    import torch

    expected = plain.after[name]
    found = values.view(expected.shape)
    same = (found == expected) | (found != found) & (expected != expected)
    difference = _norm(torch.where(same, torch.zeros_like(found), found - expected))
    kind = str(expected.real.dtype).removeprefix("torch.")
    return difference if difference > RTOL.get(kind, 1e-2) * _norm(plain.change(name)) else 0.0


def _norm(values: Tensor) -> float:
    """The L2 norm; very large if a number is infinite or nan."""
    import torch

    size: float = torch.linalg.vector_norm(values).nan_to_num(nan=1e30, posinf=1e30).item()
    return size


def _plain(spec: RunSpec, data: Data, moved: bool = False) -> State:
    """The user's loop, with a copy of the module for each rank.

    moved: start from weights that are moved by one rounding. The result shows how much rounding matters.
    """
    import torch

    from trainer.models.layers.draws import drawing_from
    from trainer.training.lr_schedule import learning_rate
    from trainer.training.task import Task

    task = Task(spec, Path(), Loaded(data))
    modules = [_module(task, 0)]
    _check_memory(modules[0])
    modules += [_module(task, rank) for rank in range(1, spec.num_replicas)]
    generators = [
        torch.Generator().manual_seed(task.rngs.torch_seed("dropout", rank)) for rank in range(len(modules))
    ]
    copies = [[*module.parameters()] for module in modules]
    if moved:
        _move(copies)
    before, constant = _changing(spec, modules[0]), _constant(spec, modules[0])
    optimizer = spec.optimizer.of_model(modules[0], spec.lr)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: learning_rate(spec, epoch + 1) / spec.lr
    )
    for module in modules:
        module.train()
    for batches in _epochs(task):
        for step in batches:
            for module in modules:
                module.zero_grad()
            outputs = []
            for module, generator, (inputs, _) in zip(modules, generators, step, strict=True):
                with drawing_from(generator):
                    outputs.append(module(inputs))
            targets = torch.cat([targets for _, targets in step])
            spec.loss.of(torch.cat(outputs), targets).backward()
            _add_gradients(modules)
            optimizer.step()
            with torch.no_grad():
                for first, *others in zip(*copies, strict=True):
                    for other in others:
                        other.copy_(first)
        for module in modules:
            module.eval()
            module.train()
        _average_buffers(
            modules, [sum(len(step[rank][1]) for step in batches) for rank in range(len(modules))]
        )
        rates.step()
    for name, each in _constant(spec, modules[0]).items():
        if not torch.equal(each.nan_to_num(), constant[name].nan_to_num()):
            raise ImportFailure(f"the buffer {name} changes in training, but not in its first batch")
    after = _changing(spec, modules[0])
    if before.keys() != after.keys():
        name = next(iter(before.keys() ^ after.keys()))
        raise ImportFailure(f"{name} is frozen in a part of the training, which a run does not follow")
    return State(before, after)


def _check_memory(module: nn.Module) -> None:
    """Raise ImportFailure if the memory cannot hold the copies of the weights that are compared."""
    needed, left = COPIES * sum(each.nbytes for each in module.parameters()), memory_left()
    if needed > left:
        raise ImportFailure(
            f"to compare its steps with plain torch takes {needed / 2**20:.0f} MiB of memory, and "
            f"{left / 2**20:.0f} are left; a larger memory_mb has room"
        )


def _module(task: Task, rank: int) -> nn.Module:
    """The module as the user's code builds it, with the weights and the dropout of a rank in a run."""
    import torch
    from torch import nn

    spec, on = task.spec, task.spec.dataset
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.rngs.torch_seed("weights", 0))
        if plain := _plain_model(spec):
            module: nn.Module = plain.plain(on.shape, on.outputs)
            return module
        generator = torch.Generator().manual_seed(task.rngs.torch_seed("dropout", rank))
        return nn.Sequential(OrderedDict(spec.model.blocks(on.shape, on.outputs, generator)))


def _plain_model(spec: RunSpec) -> Any:
    """The model if a user's code builds it as a module; else None."""
    return spec.model if getattr(spec.model, "is_plain", False) else None


def _epochs(task: Task) -> Iterator[list[list[tuple[Tensor, Tensor]]]]:
    """The steps of each epoch: inputs and targets of each rank."""
    from trainer.training.loader import BatchLoader

    spec, size = task.spec, task.spec.num_replicas
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, size) for rank in range(size)]
    for epoch in range(1, spec.epochs + 1):
        of_ranks = [loader.synchronous_batches(epoch) for loader in loaders]
        steps = zip(*of_ranks, strict=True)
        yield [[(batch.inputs, batch.targets) for batch, _ in step] for step in steps]


def _move(copies: Sequence[Sequence[nn.Parameter]]) -> None:
    """Move the weights of each copy by one rounding, up or down."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for same in zip(*copies, strict=True):
        kind = same[0].dtype
        if kind.is_floating_point or kind.is_complex:
            signs = torch.randint(2, same[0].shape, generator=generator) * 2 - 1
            for each in same:
                each.data.mul_((1 + signs * torch.finfo(kind).eps).to(kind))


def _add_gradients(modules: Sequence[nn.Module]) -> None:
    """Add the gradients of all copies to those of the first; where no copy has one, it stays None."""
    for (name, first), *others in zip(*(module.named_parameters() for module in modules), strict=True):
        gradients = [
            each.grad for each in (first, *(other for _, other in others)) if each.grad is not None
        ]
        if any(each.is_sparse for each in gradients):
            raise ImportFailure(
                f"{name} has a sparse gradient, which ranks cannot exchange; leave out sparse=True"
            )
        if gradients:
            first.grad = sum(gradients[1:], gradients[0])


def _average_buffers(modules: Sequence[nn.Module], samples: Sequence[int]) -> None:
    """Let floating-point buffers in which the copies differ be their mean, weighted by samples."""
    import torch

    for same in zip(*(module.buffers() for module in modules), strict=True):
        if same[0].is_floating_point() and any(not torch.equal(same[0], each) for each in same[1:]):
            mean = sum(each * count for each, count in zip(same, samples, strict=True)) / sum(samples)
            for each in same:
                each.copy_(mean)


def _changing(spec: RunSpec, module: nn.Module) -> dict[str, Tensor]:
    """Copies of what a run trains, by name, in the order of its weights."""
    from trainer.training.trained import trained_parameters

    trained = {id(each) for each in trained_parameters(module)}
    parameters = {name: each for name, each in module.named_parameters() if id(each) in trained}
    buffers = {name: each for name, each in module.named_buffers() if id(each) in _statistics(spec, module)}
    return {name: each.detach().clone() for name, each in {**parameters, **buffers}.items()}


def _constant(spec: RunSpec, module: nn.Module) -> dict[str, Tensor]:
    """Copies of the floating-point buffers that training does not change, by name."""
    changing = _statistics(spec, module)
    return {
        name: each.clone()
        for name, each in module.named_buffers()
        if each.is_floating_point() and id(each) not in changing
    }


def _statistics(spec: RunSpec, module: nn.Module) -> set[int]:
    """The floating-point buffers that training changes, as objects."""
    import torch
    from torch import nn

    from trainer.training.trained import statistics

    chain = module
    if plain := _plain_model(spec):
        chain = nn.Sequential(OrderedDict(plain.divided(module, torch.Generator())))
    return {id(each) for each in statistics(chain, spec.model.statistics)}


# The law, for each kind that is a part of a training.

WRITTEN = "a run takes the steps of plain torch"
MODEL: Form = {"name": "mlp", "hidden": [8, 8]}
OPTIMIZER: Form = {"name": "momentum"}
# For targets that are classes, of samples or of tokens, and for numbers.
OF_CLASSES: Form = {"name": "cross_entropy", "label_smoothing": 0.0}
OF_NUMBERS: Form = {"name": "mse"}
CLASSES = 3


class Together(Input):
    """Samples on which components are trained together: of a dataset, or vectors with drawn targets."""

    shape: tuple[int, ...]
    targets: Literal["of the dataset", "classes", "numbers", "labels"] = "of the dataset"

    def __str__(self) -> str:
        return f"{TRIED_SAMPLES} samples of shape {'×'.join(map(str, self.shape)) or '1'}"


VECTORS = [Together(shape=(4,), targets=targets) for targets in ("classes", "numbers", "labels")]


def written_on_vectors(component: Form, together: Together) -> Verdict:
    """The law of a loss or an optimizer. component: it, by its field. Raises NotApplicable."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TRIED_SAMPLES, 4, generator=generator)
    targets, count = torch.arange(TRIED_SAMPLES) % CLASSES, CLASSES
    if together.targets != "classes":
        numbers = torch.randn(TRIED_SAMPLES, 1, generator=generator)
        targets, count = (numbers if together.targets == "numbers" else (numbers > 0).long()), 1
    on = described(TRIED_SAMPLES, shape=(4,), class_count=count)
    others = {"dataset": on, "model": MODEL, "loss": OF_CLASSES, "optimizer": OPTIMIZER}
    return trains_as_written({**others, **component}, inputs, targets)


def written_on(component: Form, on: Dataset, inputs: Tensor | None) -> Verdict:
    """The law of a model. inputs: samples of a user's dataset; None: noise. Raises NotApplicable."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = noise(on, TRIED_SAMPLES, generator) if inputs is None else inputs
    shape, loss = (len(inputs), *on.target_shape), OF_CLASSES
    targets = torch.arange(len(inputs)) % on.outputs
    if on.target_shape:
        targets = torch.randint(on.outputs, shape, generator=generator)
    elif on.class_count == 1:
        targets, loss = torch.randn(*shape, 1, generator=generator), OF_NUMBERS
    dataset = described(len(inputs), **facts.values(on, Dataset, 1))
    others = {"dataset": dataset, "loss": loss, "optimizer": OPTIMIZER}
    return trains_as_written({**others, **component}, inputs, targets)


def trains_as_written(components: Form, inputs: Tensor, targets: Tensor) -> Verdict:
    """Whether components are trained as written. Raises NotApplicable if they do not fit together."""
    import torch
    from torch import nn

    try:
        fields = ("dataset", "model", "loss")
        on, model, loss = (REGISTRIES[field].parse(components[field]) for field in fields)
        with torch.random.fork_rng(devices=[]):
            blocks = model.blocks(on.shape, on.outputs, torch.Generator())
            output = nn.Sequential(*(block for _, block in blocks))(inputs)
            reason = loss.output_error(output, targets)
            fits = reason is None and bool(torch.isfinite(loss.of(output, targets)))
    except Exception as error:  # the model or the loss takes other samples
        raise NotApplicable(f"no loss of classes or numbers fits: {error}") from error
    if not fits:
        raise NotApplicable(f"no loss of classes or numbers fits: {reason or 'the loss is not finite'}")
    try:
        compared = compare(components, inputs, targets)
    except ImportFailure as error:
        return Failure("the weights of a loop of plain torch", str(error))
    return None if str(LONG) in compared else Note(f"compared in {compared}")
