"""Models of users: any nn.Module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from pydantic import Field

from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import POSITIONAL, checked, configured, signature_of
from trainer.components.random_state import global_states, scatter_seeds
from trainer.components.samples import taken
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.core.user_code import MAX_NAME, TORCHVISION, ImportFailure
from trainer.models.base import Model, ParallelPair

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainer.models.base import Blocks

CONDITIONS = 8  # batches, in which other parameters may get a gradient; 2 of a large model
LARGE = 4_000_000  # weights, from which a model is tried with less
TYPES = ("float32", "float64", "complex64", "complex128")  # that every transport adds up
FEW = 4  # samples with which a model is tried
WHOLE = "model"  # the name of the only block of a model that is no chain


Name = Annotated[str, Field(max_length=MAX_NAME)]
Names = Annotated[list[Name], Field(max_length=100_000)]


class ModelFacts(Source):
    """What is known of a model when a sweep is loaded. indivisible: why it cannot be split, or None.

    draws: whether its forward pass draws from torch's global generator. The others are those of Model.
    """

    blocks: list[Name] = Field(min_length=1, max_length=10_000)
    indivisible: str | None = None
    classifier: str | None = None
    batch_statistics: bool = False
    has_synchronous_layers: bool = False
    tensor_parallel_pairs: tuple[tuple[str, str, int], ...] = ()
    channels_last: bool = False
    draws: bool = False
    weights: int = Field(0, ge=0, le=2**50)
    scalar: Name | None = None
    types: dict[Name, Name] = Field({"float32": ""}, max_length=100)
    fewest_samples: int = Field(1, ge=1, le=2)
    conditional: Name | None = None
    unused: Names = Field([])
    statistics: Names = Field([])


class ImportedModel(ImportedComponent, Model):
    """A user's model: its children are its blocks if it is a chain of them, else it is one block."""

    imported: ModelFacts

    @property
    def names(self) -> list[str]:
        return self.imported.blocks

    @property
    def indivisible(self) -> str | None:
        return self.imported.indivisible

    @property
    def classifier(self) -> str | None:
        return self.imported.classifier

    @property
    def batch_statistics(self) -> bool:
        return self.imported.batch_statistics

    @property
    def has_synchronous_layers(self) -> bool:
        return self.imported.has_synchronous_layers

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        return [ParallelPair(*pair) for pair in self.imported.tensor_parallel_pairs]

    @property
    def channels_last(self) -> bool:  # type: ignore[override]
        return self.imported.channels_last

    @property
    def scalar(self) -> str | None:
        return self.imported.scalar

    @property
    def types(self) -> dict[str, str]:
        return self.imported.types

    @property
    def weights(self) -> int:
        return self.imported.weights

    @property
    def conditional(self) -> str | None:
        return self.imported.conditional

    @property
    def fewest_samples(self) -> int:
        return self.imported.fewest_samples

    @property
    def unused(self) -> list[str]:
        return self.imported.unused

    @property
    def statistics(self) -> list[str]:
        return self.imported.statistics

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        if self.is_plain:
            return self.divided(self.plain(shape, classes), generator)
        own = configured(self.imported.load(), self.parameters)
        return self._drawing(own.blocks(shape, classes, generator), generator)

    @property
    def is_plain(self) -> bool:
        """Whether the user's code builds a module; else it is a subclass of Model."""
        return not is_own(self.imported.load())

    def plain(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The module as the user's code builds it."""
        return build(self.imported.load(), self.parameters, self.imported, shape, classes)

    def divided(self, module: nn.Module, generator: torch.Generator) -> Blocks:
        """The blocks of a module that the user's code has built."""
        blocks = blocks_of(module, divided=not self.imported.indivisible)
        return self._drawing(iter(blocks), generator)

    def _drawing(self, blocks: Blocks, generator: torch.Generator) -> Blocks:
        from trainer.models.layers.draws import Draws

        draws = self.imported.draws
        return ((name, Draws(block, generator) if draws else block) for name, block in blocks)


def is_own(called: Any) -> TypeGuard[type[Model]]:
    """Whether the user's class is written against our interface."""
    return isinstance(called, type) and issubclass(called, Model)


def build(
    called: Callable[..., Any],
    parameters: Mapping[str, Any],
    source: Source,
    shape: tuple[int, ...],
    classes: int,
) -> nn.Module:
    """A new module of a user's class or function.

    It may have the parameters `shape`, of one input, and `classes` or `num_classes`. Raises ImportFailure
    or ParameterFailure.
    """
    from torch import nn

    given: dict[str, Any] = {"shape": shape, "classes": classes, "num_classes": classes}
    if source.module == TORCHVISION:
        given = {"weights": None, "progress": False}
        parameters = {"num_classes": classes, **parameters}
    if isinstance(called, nn.Module):
        raise ImportFailure(
            "it is a model that its file has built; name its class, or a function that builds it"
        )
    module = called(**checked(called, parameters, given))
    if not isinstance(module, nn.Module):
        raise ImportFailure(f"it gives {type(module).__name__}; it must be an nn.Module")
    if (inputs := _inputs_of(module)) > 1:
        raise ImportFailure(
            f"its forward takes {inputs} inputs, and a dataset has one array of inputs: join them in the "
            "dataset, and split them in forward"
        )
    if any(nn.parameter.is_lazy(each) for each in module.parameters()):
        raise ImportFailure("its lazy layers have no shapes before they are used; give them sizes")
    return module


def _inputs_of(module: nn.Module) -> int:
    """How many inputs the forward pass needs."""
    return sum(
        each.default is each.empty and each.kind in POSITIONAL
        for each in signature_of(module.forward).values()
    )


def blocks_of(module: nn.Module, *, divided: bool) -> list[tuple[str, nn.Module]]:
    """The blocks of a module by name: its children, which may be there several times, or itself."""
    if not divided:
        return [(WHOLE, module)]
    children = module._modules.items()  # named_children leaves out repetitions
    return [(name, child) for name, child in children if child is not None]


def facts(
    source: Source, parameters: Mapping[str, Any], shape: tuple[int, ...], classes: int, inputs: Tensor
) -> ModelFacts:
    """What a spec says about the model.

    Args:
        source: the source of the class.
        parameters: the parameters in the sweep file.
        shape: the shape of one input.
        classes: number of classes.
        inputs: some samples.

    Raises:
        ImportFailure: It cannot be built or used, or draws from random state that a run cannot seed.
    """
    import torch
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    from trainer.models.layers.draws import Draws

    called = source.load()
    own = configured(called, parameters) if is_own(called) else None
    if own and (reason := own.validation_error(shape)):
        raise ImportFailure(reason)

    def built(other: int) -> nn.Module:
        """The module, with torch seeded as always and every other global generator with `other`."""
        scatter_seeds(other)
        torch.manual_seed(0)
        if own is None:
            return build(called, parameters, source, shape, classes)
        blocks = [*own.blocks(shape, classes, torch.Generator().manual_seed(0))]
        refuse(names_error(own.names, blocks))
        return nn.Sequential(OrderedDict(blocks))

    samples, inputs = inputs, inputs[taken(len(inputs), FEW)]
    first, second = built(1), built(2)
    refuse(weights_error(first, second))
    refuse(types_error(first))
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    state, buffers = generators[0].get_state(), _Buffers(first)
    refuse(draws_error(Draws(first, generators[0]), Draws(second, generators[1]), inputs))
    refuse(buffers.replacement_error())
    draws = not torch.equal(state, generators[0].get_state())
    computed = _Computed.of(first, inputs)
    indivisible = own.indivisible if own else _indivisible(computed, second, inputs)
    blocks = blocks_of(first, divided=own is not None or not indivisible)
    chain = nn.Sequential(OrderedDict((n, Draws(b, generators[0]) if draws else b) for n, b in blocks))
    trained = [(name, each) for name, each in chain.named_parameters() if each.requires_grad]
    reached = {id(p) for p, gradient in computed.gradients if gradient is not None}
    found: dict[str, Any] = {
        "blocks": [name for name, _ in blocks],
        "indivisible": indivisible,
        "draws": draws,
        "weights": sum(each.numel() for _, each in trained),
        "scalar": next((name for name, each in trained if not each.dim()), None),
        "types": {_type_of(each): name for name, each in reversed(trained)},
        "unused": [name for name, each in trained if id(each) not in reached],
        "statistics": [name for name, each in chain.named_buffers() if each in buffers],
        "fewest_samples": _fewest_samples(first, inputs),
        "conditional": _conditional(chain, samples),
    }
    if own is None:
        norms = [module for module in first.modules() if isinstance(module, _BatchNorm)]
        return ModelFacts(**dict(source), **found, batch_statistics=any(each.training for each in norms))
    return ModelFacts(
        **dict(source),
        **found,
        classifier=own.classifier,
        batch_statistics=own.batch_statistics,
        has_synchronous_layers=own.has_synchronous_layers,
        tensor_parallel_pairs=tuple((*pair,) for pair in own.tensor_parallel_pairs),
        channels_last=own.channels_last,
    )


class _Buffers:
    """The buffers of a module, with their values before it is used. Contains those that have changed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = {name: (each, each.clone(), each._version) for name, each in module.named_buffers()}

    def replacement_error(self) -> Failure | None:
        """How the module has replaced a buffer, which ranks would not average then; or None."""
        for name, now in self._module.named_buffers():
            if name not in self._before or now is not self._before[name][0]:
                advice = f"change it in place, as in self.{name}.copy_(…)"
                return Failure("buffers that stay the same tensors", f"another tensor {name}: {advice}")
        return None

    def __contains__(self, buffer: object) -> bool:
        for each, before, version in self._before.values():
            if each is buffer:
                same = (each == before) | (each != each) & (before != before)  # nan is nan
                return each._version != version or not bool(same.all())
        return False


def types_error(module: nn.Module) -> Failure | None:
    """How the type of a trained parameter is none that ranks add up on every transport; or None."""
    for name, each in module.named_parameters():
        if each.requires_grad and _type_of(each) not in TYPES:
            advice = "`precision: bf16` computes in bfloat16"
            return Failure(
                f"parameters of type {', '.join(TYPES)}", f"{name} of type {_type_of(each)}; {advice}"
            )
    return None


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def names_error(stated: Sequence[str], blocks: Iterable[tuple[str, nn.Module]]) -> Failure | None:
    """How stated names are not those of the blocks, each once and without dots; or None."""
    found = [name for name, _ in blocks]
    for name, block in zip_longest(stated, found, fillvalue="no block"):
        if name != block:
            return Failure(f"{name}, as `names` states", f"{block} from `blocks`")
    if twice := next((name for name in found if found.count(name) > 1), None):
        return Failure("each name once", f"{twice} {found.count(twice)} times")
    wrong = next((name for name in found if "." in name or not name), None)
    return None if wrong is None else Failure("names without dots", repr(wrong))


def weights_error(first: nn.Module, second: nn.Module) -> Failure | None:
    """How initial values differ between models that torch's seed alone should make equal; or None."""
    import torch

    ours, theirs = ([*each.named_parameters(), *each.named_buffers()] for each in (first, second))
    for (name, one), (_, other) in zip(ours, theirs, strict=True):
        if not torch.equal(one, other):
            return Failure(
                "equal initial values for equal seeds of torch",
                f"other ones of {name} when `random` and numpy's generator differ: draw from torch's",
            )
    return None


def output_error(output: Any, samples: int) -> Failure | None:
    """How what a model returns is no tensor with an output for each sample; or None."""
    import torch

    expected = f"one tensor of shape ({samples}, …)"
    if isinstance(output, tuple | list | dict):
        return Failure(
            expected,
            f"a {type(output).__name__} of {len(output)}: return the output that the loss takes, or join "
            "several by torch.cat and let the loss of your own split them",
        )
    if not isinstance(output, torch.Tensor):
        return Failure(expected, f"an output of type {type(output).__name__}")
    fits = output.dim() and len(output) == samples
    return None if fits else Failure(expected, f"an output of shape {tuple(output.shape)}")


def draws_error(first: nn.Module, second: nn.Module, inputs: Tensor) -> Failure | None:
    """How the output of equal models in training depends on more than their generators; or None."""
    import torch

    outputs = []
    for seed, module in enumerate((first, second)):
        with torch.random.fork_rng(devices=[]):
            scatter_seeds(seed)
            before = global_states()
            outputs.append(module.train()(inputs.clone()))
            after = global_states()
        if failure := output_error(outputs[-1], len(inputs)):
            return failure
        if drawn := [name for name, state in after.items() if state != before[name]]:
            return Failure(
                "nothing drawn from global random state",
                f"drawn from {drawn[0]}: draw from torch's generator, as torch.rand does",
            )
    if torch.equal(*outputs):
        return None
    return Failure("equal outputs of equal models", "other outputs: draw from generators with a seed")


CALLED = ("__call__", "train", "eval")  # what a class may do with its children beside its forward pass
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class _Computed:
    """What a module computes in training: its output, and the gradient of each trained parameter."""

    module: nn.Module
    output: Tensor
    gradients: list[tuple[nn.Parameter, Tensor | None]]

    @classmethod
    def of(cls, module: nn.Module, inputs: Tensor) -> _Computed:
        import torch

        output = _output(module.train(), inputs)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        loss = (output * weights).sum().real
        trained = [each for each in module.parameters() if each.requires_grad]
        reached = torch.autograd.grad(loss, trained, allow_unused=True) if loss.requires_grad else ()
        return cls(module, output.detach(), [*zip(trained, reached or [None] * len(trained), strict=True)])

    def equals(self, other: _Computed) -> bool:
        """Whether both compute the same."""
        import torch

        ours, theirs = ([gradient for _, gradient in each.gradients] for each in (self, other))
        return torch.equal(self.output, other.output) and all(
            one is two if one is None or two is None else torch.equal(one, two)
            for one, two in zip(ours, theirs, strict=True)
        )


def _output(module: nn.Module, inputs: Tensor) -> Tensor:
    """The output of a module, which draws the same numbers in each call."""
    import torch

    from trainer.models.layers.draws import drawing_from

    with drawing_from(torch.Generator().manual_seed(0)):
        output: Tensor = module(inputs.clone())
    return output


def _indivisible(whole: _Computed, again: nn.Module, inputs: Tensor) -> str | None:
    """Why a module is no chain of its children; None if it is, as found by running both.

    again: an equal module, which has been used as often but for `whole`.
    """
    import torch
    from torch import nn

    module = whole.module
    children = [child for _, child in blocks_of(module, divided=True)]
    if not children:
        return "it has no children"
    own, held = _state(module), [each for child in children for each in _state(child)]
    if {*map(id, own)} - {*map(id, held)}:
        return "it has parameters or buffers that are in none of its children"
    if len(own) != len(held):
        return "some of its children share parameters or buffers"
    if name := next((each for each in CALLED if _overrides(module, each)), None):
        return f"it defines {name}, which its children do not have"
    if any(getattr(module, each) for each in HOOKS):
        return "it has hooks, which its children do not have"
    if type(module).forward is not nn.Sequential.forward:
        chain = nn.Sequential(*(child for _, child in blocks_of(again, divided=True)))
        try:
            same = whole.equals(_Computed.of(chain, inputs))
            with torch.no_grad():
                same = same and torch.equal(*(_output(each.eval(), inputs) for each in (module, chain)))
        except Exception:  # a child may need more than the output of the one before
            same = False
        if not same:
            return "its forward is not the chain of its children"
    if name := _other_output(module, inputs):
        return f"the output of its child {name} is of another type than float32, which ranks exchange"
    return None


def _other_output(module: nn.Module, inputs: Tensor) -> str | None:
    """The first child in a chain whose output is not float32; or None."""
    import torch

    x = inputs
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for name, child in blocks_of(module.eval(), divided=True):
            x = child(x)
            if x.dtype is not torch.float32:
                return name
    return None


def _overrides(module: nn.Module, method: str) -> bool:
    from torch import nn

    return getattr(type(module), method) is not getattr(nn.Module, method)


def _state(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _conditional(module: nn.Module, inputs: Tensor) -> str | None:
    """The first parameter that gets a gradient from some small batches alone; or None."""
    names = [name for name, each in module.named_parameters() if each.requires_grad]
    large = sum(each.numel() for each in module.parameters()) > LARGE
    reached = set[tuple[bool, ...]]()
    for start in range(2 if large else CONDITIONS):
        gradients = _Computed.of(module, inputs[taken(len(inputs), 2, start)]).gradients
        reached.add(tuple(gradient is not None for _, gradient in gradients))
    differing = (name for name, *each in zip(names, *reached, strict=True) if len({*each}) > 1)
    return next(differing, None)


def _fewest_samples(module: nn.Module, inputs: Tensor) -> int:
    """2 if BatchNorm of the module would normalise single values of one sample in training; else 1."""
    try:
        _output(module.train(), inputs[:1])
    except Exception as error:  # the run meets others, if it has such a batch
        return 2 if "more than 1 value per channel" in str(error) else 1
    return 1
