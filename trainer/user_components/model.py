"""Models of users: any nn.Module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from pydantic import Field

from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.models.base import Model, ParallelPair
from trainer.user_components.random_state import global_states, scatter_seeds
from trainer.user_components.signature import checked, configured
from trainer.user_components.source import MAX_NAME, TORCHVISION, ImportFailure, Source, refuse

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainer.models.base import Blocks

WHOLE = "model"  # the name of the only block of a model that is no chain


class ModelFacts(Source):
    """What is known of a model when a sweep is loaded. indivisible: why it cannot be split, or None."""

    blocks: list[Annotated[str, Field(max_length=MAX_NAME)]] = Field(min_length=1, max_length=10_000)
    indivisible: str | None = None
    classifier: str | None = None
    batch_statistics: bool = False
    has_synchronous_layers: bool = False
    tensor_parallel_pairs: tuple[tuple[str, str, int], ...] = ()


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

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        called = self.imported.load()
        if is_own(called):
            return configured(called, self.parameters).blocks(shape, classes, generator)
        module = build(called, self.parameters, self.imported, shape, classes, generator)
        return iter([(WHOLE, module)] if self.imported.indivisible else [*module.named_children()])


def is_own(called: Any) -> TypeGuard[type[Model]]:
    """Whether the user's class is written against our interface."""
    return isinstance(called, type) and issubclass(called, Model)


def build(
    called: Callable[..., Any],
    parameters: Mapping[str, Any],
    source: Source,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
) -> nn.Module:
    """A new module of a user's class or function, whose dropout layers draw from `generator`.

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
    if any(nn.parameter.is_lazy(each) for each in module.parameters()):
        raise ImportFailure("its lazy layers have no shapes before they are used; give them sizes")
    return _seeded(module, generator)


def _seeded(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """The module with Shardyard's dropout, whose random numbers do not depend on other ranks."""
    from torch import nn

    from trainer.models.layers.dropout import ChannelDropout, Dropout

    if type(module) is nn.Dropout:
        return Dropout(module.p, generator)
    if type(module) is nn.Dropout2d:
        return ChannelDropout(module.p, generator)
    for name, child in module.named_children():
        setattr(module, name, _seeded(child, generator))
    return module


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
        ImportFailure: It cannot be built or used, or draws from global random state.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    called = source.load()
    if is_own(called):
        own = configured(called, parameters)
        if reason := own.validation_error(shape):
            raise ImportFailure(reason)
        refuse(names_error(own.names, own.blocks(shape, classes, torch.Generator())))
        return ModelFacts(
            **dict(source),
            blocks=own.names,
            indivisible=own.indivisible,
            classifier=own.classifier,
            batch_statistics=own.batch_statistics,
            has_synchronous_layers=own.has_synchronous_layers,
            tensor_parallel_pairs=tuple((*pair,) for pair in own.tensor_parallel_pairs),
        )

    def built(other: int) -> nn.Module:
        """The module, with torch seeded as always and every other global generator with `other`."""
        scatter_seeds(other)
        torch.manual_seed(0)
        return build(called, parameters, source, shape, classes, torch.Generator().manual_seed(0))

    first, second = built(1), built(2)
    refuse(weights_error(first, second))
    refuse(draws_error(first, second, inputs))
    indivisible = _indivisible(first, second, inputs)
    return ModelFacts(
        **dict(source),
        blocks=[WHOLE] if indivisible else [name for name, _ in first.named_children()],
        indivisible=indivisible,
        batch_statistics=any(isinstance(module, _BatchNorm) for module in first.modules()),
    )


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
    if not isinstance(output, torch.Tensor):
        return Failure(expected, f"an output of type {type(output).__name__}")
    fits = output.dim() and len(output) == samples
    return None if fits else Failure(expected, f"an output of shape {tuple(output.shape)}")


def draws_error(first: nn.Module, second: nn.Module, inputs: Tensor) -> Failure | None:
    """How the output of equal models in training depends on more than the generator of dropout; or None."""
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
                f"drawn from {drawn[0]}: use nn.Dropout or nn.Dropout2d, which the run seeds",
            )
    if torch.equal(*outputs):
        return None
    return Failure("equal outputs of equal models", "other outputs: draw from generators with a seed")


def _indivisible(first: nn.Module, second: nn.Module, inputs: Tensor) -> str | None:
    """Why the module is no chain of its children; None if it is, as found by running both."""
    import torch
    from torch import nn

    children = dict(first.named_children())
    if not children:
        return "it has no children"
    outside = {id(p) for p in first.parameters()} - {
        id(p) for c in children.values() for p in c.parameters()
    }
    if outside:
        return "it has parameters that are in none of its children"
    own = sum(1 for _ in first.parameters())
    if own != sum(1 for child in children.values() for _ in child.parameters()):
        return "some of its children share parameters"
    if isinstance(first, nn.Sequential):
        return None
    try:
        x = inputs
        for child in second.children():
            x = child(x)
        whole = first(inputs)
    except Exception:  # a child may need more than the output of the one before
        return "its forward is not the chain of its children"
    same = x.shape == whole.shape and torch.equal(x, whole)
    return None if same else "its forward is not the chain of its children"
