"""Models: a subclass of Model, or any nn.Module, whose children are its blocks if it is a chain of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval
from pydantic import Field

from trainer.components.facts import Imported, Source
from trainer.components.kind import Input, Kind, NotApplicable, Note, Verdict, counted, law
from trainer.components.parameters import POSITIONAL, checked, signature_of
from trainer.components.random_state import global_states, scatter_seeds
from trainer.components.samples import VECTORS, taken
from trainer.components.written import LARGE, WRITTEN, Together, written_on
from trainer.core.failure import Failure
from trainer.core.user_code import TORCHVISION, ImportFailure
from trainer.models.base import Model, Name
from trainer.optimizers.muon import hidden_matrices

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainer.models.base import Blocks

FEW = 4  # samples with which a model is tried when a sweep is loaded
CONDITIONS = 8  # batches, in which other parameters may get a gradient; 2 of a large model
TYPES = ("float32", "float64", "complex64", "complex128")  # that every transport adds up
WHOLE = "model"  # the name of the only block of a model that is no chain
SHARDS = (2, 3)
ATOL, RTOL = 1e-5, 1e-5  # of outputs that sums in another order give


class ModuleModel(Model):
    """A user's nn.Module as a model.

    function: the class or function that builds it. parameters: those of the sweep file. module: where the
    function is from. children: those into which it is split; empty: it is one block.
    """

    function: Any
    parameters: dict[str, Any]
    module: str = ""
    children: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [*self.children] or [WHOLE]

    @property
    def indivisible(self) -> str | None:
        return None if self.children else "it is one block"

    def arguments(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        """Those of the function, `shape`, of one input, and `classes` or `num_classes` among them."""
        given: dict[str, Any] = {"shape": shape, "classes": classes, "num_classes": classes}
        parameters = self.parameters
        if self.module == TORCHVISION:
            given = {"weights": None, "progress": False}
            parameters = {"num_classes": classes, **parameters}
        return checked(self.function, parameters, given)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new module. Raises ImportFailure or ParameterFailure."""
        from torch import nn

        module = self.function(**self.arguments(shape, classes))
        if not isinstance(module, nn.Module):
            raise ImportFailure(f"it gives {type(module).__name__}; it must be an nn.Module")
        needed = [each for each in signature_of(module.forward).values() if each.default is each.empty]
        if (inputs := sum(each.kind in POSITIONAL for each in needed)) > 1:
            raise ImportFailure(
                f"its forward takes {inputs} inputs, and a dataset has one array of inputs: join them in "
                "the dataset, and split them in forward"
            )
        if any(nn.parameter.is_lazy(each) for each in module.parameters()):
            raise ImportFailure("its lazy layers have no shapes before they are used; give them sizes")
        return module

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        return iter(blocks_of(self.build(shape, classes), divided=bool(self.children)))


def blocks_of(module: nn.Module, *, divided: bool) -> list[tuple[str, nn.Module]]:
    """The blocks of a module by name: its children, which may be there several times, or itself."""
    if not divided:
        return [(WHOLE, module)]
    children = module._modules.items()  # named_children leaves out repetitions
    return [(name, child) for name, child in children if child is not None]


def drawing(blocks: Iterable[tuple[str, nn.Module]], draws: bool, generator: torch.Generator) -> Blocks:
    """The blocks; if they draw from torch's global generator, with the stream of this one instead."""
    from trainer.models.layers.draws import Draws

    return ((name, Draws(block, generator) if draws else block) for name, block in blocks)


class Batch(Input):
    """So many samples of a dataset's shape."""

    size: Annotated[int, Interval(ge=1, le=64)]
    shape: tuple[int, ...] = Field(max_length=32)

    def __str__(self) -> str:
        return f"{counted(self.size, 'sample')} of shape {'×'.join(map(str, self.shape))}"


class Ranks(Batch):
    """A batch on so many ranks."""

    ranks: Annotated[int, Interval(ge=2, le=8)]

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.ranks} ranks"


class SplitPoint(Input):
    """The number and the name of a block that begins a stage."""

    number: Annotated[int, Interval(ge=1, le=10_000)]
    name: Name

    def __str__(self) -> str:
        return f"split before {self.name}"


class ModelKind(Kind[Model]):
    """A model that is tried on a dataset, with samples of it or noise."""

    name = "model"
    base = Model
    torch_base = "torch.nn:Module"
    datasets = (
        {"name": "digits"},  # grey images
        {"name": VECTORS},
        {"name": "synthetic", "channels": 3, "height": 32, "width": 32},
    )
    dataset = property(lambda self: self.on.dataset)

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Model:
        from torch import nn

        if isinstance(called, nn.Module):
            raise ImportFailure(
                "it is a model that its file has built; name its class, or a function that builds it"
            )
        whole = getattr(source, "indivisible", "it is not known yet")
        own = ModuleModel(
            function=called,
            parameters={**parameters},
            module=source.module,
            children=() if whole else tuple(getattr(source, "names", ())),
        )
        own.arguments((), 1)
        return own

    @property
    def inputs(self) -> Sequence[Batch]:
        return self.of(FEW if self.on.loading else 2)

    def of(self, *sizes: int) -> Sequence[Batch]:
        """Batches of these sizes."""
        return [Batch(size=size, shape=self.dataset.shape) for size in sizes]

    def fits(self) -> None:
        if reason := self.own.validation_error(self.dataset.shape):
            raise ImportFailure(reason)
        _chain((str(number), each) for number, (_, each) in enumerate(self.blocks(raw=True)))(self.batch(2))

    def batch(self, size: int, seed: int = 1) -> Tensor:
        """Some inputs of the dataset, or noise in their shape."""
        from trainer.models.shapes import noise

        if self.on.few is not None:
            return self.on.few.inputs[taken(len(self.on.few.inputs), size, start=seed - 1)]
        return noise(self.dataset, size, _seeded(seed))

    @property
    def is_users(self) -> bool:
        """Whether a run has it as an ImportedModel, which may draw from torch's global generator."""
        return self.on.loading or bool(self.on.source.module) or isinstance(self.own, ModuleModel)

    @cached_property
    def known(self) -> dict[str, Any]:
        """What a run knows of it. While a sweep is loaded, and if it cannot be run: what it declares."""
        measured = dict[str, Any]()
        if self.is_users and not self.on.loading:
            with suppress(Exception):  # of users' code; a law says what is wrong
                measured = self.measured
        return {**super().facts(), **measured}

    @cached_property
    def model(self) -> Model:
        """The model, a module split as in a run."""
        divided = isinstance(self.own, ModuleModel) and not self.known["indivisible"]
        return self.own.model_copy(update={"children": (*self.known["names"],)}) if divided else self.own

    def blocks(
        self,
        seed: int = 0,
        other: int = 0,
        more_classes: int = 0,
        generator: torch.Generator | None = None,
        raw: bool = False,
    ) -> list[tuple[str, nn.Module]]:
        """New blocks whose weights and dropout follow the seed.

        other: seed of all generators but torch's. more_classes: classes beyond those of the dataset.
        generator: the generator of dropout; None: a new one. raw: as the user's code gives them.
        """
        import torch

        model, draws = (self.own, False) if raw else (self.model, self.known["draws"])
        shape, classes = self.dataset.shape, self.dataset.outputs + more_classes
        with torch.random.fork_rng(devices=[]):
            scatter_seeds(other)
            torch.manual_seed(seed)
            generator = generator or _seeded(seed)
            return [*drawing(model.blocks(shape, classes, generator), draws, generator)]

    def chain(self, **changes: Any) -> nn.Sequential:
        """New blocks as one module. changes: the arguments of `blocks`."""
        return _chain(self.blocks(**changes))

    @cached_property
    def pair(self) -> Sequence[list[tuple[str, nn.Module]]]:
        """Blocks that torch's seed alone should make equal."""
        return self.blocks(other=1), self.blocks(other=2)

    @cached_property
    def twins(self) -> tuple[nn.Sequential, nn.Sequential]:
        """`pair` as chains, used equally often."""
        return _chain(self.pair[0]), _chain(self.pair[1])

    @cached_property
    def whole(self) -> tuple[Tensor, Tensor, list[tuple[str, nn.Module]]]:
        """A batch, the output of the whole model in evaluation, and the blocks of another equal one."""
        x = self.batch(2)
        return x, _evaluated(self.chain(), x), self.blocks()

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), **self.measured}

    @cached_property
    def measured(self) -> dict[str, Any]:
        """What a run must know of a user's model beside what it declares. Raises what its code raises."""
        from torch.nn.modules.batchnorm import _BatchNorm

        blocks, again = (self.blocks(other=other, raw=True) for other in (1, 2))
        whole, inputs, found = _chain(blocks), self.batch(FEW), dict[str, Any]()
        before = {id(each): (each.clone(), each._version) for each in whole.buffers()}
        computed = Computed.of(whole, inputs)
        draws = self.own.draws or computed.draws
        if isinstance(self.own, ModuleModel):
            module, other = blocks[0][1], again[0][1]
            norms = [each.training for each in module.modules() if isinstance(each, _BatchNorm)]
            reason = _indivisible(module, computed, other, inputs)
            blocks = blocks_of(module, divided=not reason)
            found = {
                "names": [name for name, _ in blocks],
                "indivisible": reason,
                "batch_statistics": any(norms),
                "fixed_weights": bool(getattr(module, "fixed_weights", False)),
            }
        chain = _chain(drawing(blocks, draws, _seeded(0)))
        trained, gradients = _trained(chain), zip(_trained(whole).values(), computed.gradients, strict=True)
        reached = {id(each) for each, gradient in gradients if gradient is not None}
        return {
            **found,
            "draws": draws,
            "weights": sum(each.numel() for each in trained.values()),
            "scalar": next((name for name, each in trained.items() if not each.dim()), None),
            "hidden_matrices": bool(hidden_matrices(whole)),
            "types": {_type_of(each): name for name, each in reversed(trained.items())},
            "unused": [name for name, each in trained.items() if id(each) not in reached],
            "statistics": [
                name for name, each in chain.named_buffers() if _changed(each, *before[id(each)])
            ],
            "fewest_samples": _fewest_samples(whole, inputs),
            "conditional": self._conditional(chain),
        }

    def _conditional(self, chain: nn.Module) -> str | None:
        """The first parameter that gets a gradient from some small batches alone; or None."""
        large = sum(each.numel() for each in chain.parameters()) > LARGE
        seeds = range(1, 1 + (2 if large else CONDITIONS))
        computed = [Computed.of(chain, self.batch(2, seed)) for seed in seeds]
        of_batches = zip(*(each.gradients for each in computed), strict=True)
        for name, gradients in zip(_trained(chain), of_batches, strict=True):
            if len({each is None for each in gradients}) > 1:
                return name
        return None

    @law(
        "a batch gives a tensor, an output a sample",
        lambda self: self.inputs if self.on.loading else self.of(2, 6),
        essential=True,
        at_loading=True,
    )
    def runs(self, batch: Batch) -> Verdict:
        """As the user's code builds it; its blocks may have wrong names."""
        if reason := self.own.validation_error(self.dataset.shape):
            return Failure("it takes such inputs", reason)
        blocks = self.blocks(raw=True)
        for block, each in blocks:
            for name, weight in _trained(each).items():
                if _type_of(weight) not in TYPES:
                    found = f"{block}.{name} of type {_type_of(weight)}"
                    advice = "`precision: bf16` computes in bfloat16"
                    return Failure(f"parameters of type {', '.join(TYPES)}", f"{found}; {advice}")
        before = [dict(each.named_buffers()) for _, each in blocks]
        output = _chain((str(id(each)), each) for _, each in blocks).train()(self.batch(batch.size))
        if failure := _output_error(output, batch.size):
            return failure
        for held, (_, each) in zip(before, blocks, strict=True):
            for name, now in each.named_buffers():
                if held.get(name) is not now:  # ranks would not average it
                    advice = f"change it in place, as in self.{name}.copy_(…)"
                    return Failure("buffers that stay the same tensors", f"another tensor {name}: {advice}")
        if self.on.loading or output.isfinite().all():
            return None
        return Failure("finite numbers", "nan or infinite ones")

    @law("it gives a score for each class of the dataset")
    def classes(self, batch: Batch) -> Verdict:
        """Too few are a mistake if their number follows that of the classes, as more classes show."""
        classes, inputs = self.dataset.class_count, self.batch(batch.size)
        if classes == 1:
            raise NotApplicable("the dataset has no classes")
        output = _evaluated(self.chain(), inputs)
        if output.dim() != 2:
            raise NotApplicable(f"its outputs have shape {tuple(output.shape)}, not (batch, classes)")
        scores = output.shape[1]
        if scores >= classes:
            return None
        if _evaluated(self.chain(more_classes=1), inputs).shape[1:] != output.shape[1:]:
            return Failure(f"{classes} scores a sample, as the dataset has classes", f"{scores}")
        return Note(
            f"it gives {counted(scores, 'output')} whatever the number of classes, and the dataset has "
            f"{classes}: a loss of classes refuses them"
        )

    @law("names are those of the blocks, each once", at_loading=True)
    def names(self, _: Batch) -> Verdict:
        found = [name for name, _ in self.pair[0]]
        for name, block in zip_longest(self.known["names"], found, fillvalue="no block"):
            if name != block:
                return Failure(f"{name}, as `names` states", f"{block} from `blocks`")
        if twice := next((name for name in found if found.count(name) > 1), None):
            return Failure("each name once", f"{twice} {found.count(twice)} times")
        wrong = next((name for name in found if "." in name or not name), None)
        return None if wrong is None else Failure("names without dots", repr(wrong))

    @property
    def split_points(self) -> Sequence[SplitPoint]:
        """Where it may be split. Raises NotApplicable."""
        names = enumerate(self.known["names"])
        if points := [SplitPoint(number=number, name=name) for number, name in names if number]:
            return points
        raise NotApplicable(f"it cannot be split: {self.known['indivisible'] or 'it has one block'}")

    @law("its blocks in a chain give the same output", lambda self: self.split_points)
    def splits(self, at: SplitPoint) -> Verdict:
        x, whole, blocks = self.whole
        for part in (blocks[: at.number], blocks[at.number :]):
            x = _evaluated(_chain(part), x)  # which it does not change, as if another rank had sent it
        return None if x.equal(whole) else _difference("the output of the whole model", x, whole)

    @law("it builds without memory, in the same shapes")
    def shapes(self, batch: Batch) -> Verdict:
        from trainer.models.shapes import block_shapes

        stated = block_shapes(self.model, self.dataset)
        x = self.batch(batch.size)
        found = [tuple(x.shape[1:])]
        for _, block in self.blocks():
            x = _evaluated(block, x)
            found.append(tuple(x.shape[1:]))
        for name, ours, theirs in zip([*self.known["names"], "the output"], stated, found, strict=True):
            if ours != theirs:
                return Failure(f"{name} takes {ours}, as on torch's meta device", f"{theirs}")
        return None

    @law("initial weights follow torch's seed", at_loading=True)
    def weights(self, _: Batch) -> Verdict:
        ours, theirs = ([*each.named_parameters(), *each.named_buffers()] for each in self.twins)
        for (name, one), other in zip(ours, theirs, strict=True):
            if not one.equal(other[1]):
                return Failure(
                    "equal initial values for equal seeds of torch",
                    f"other ones of {name} when `random` and numpy's generator differ: draw from torch's",
                )
        if self.on.loading or self.known["fixed_weights"]:
            return None
        pairs = [*zip(self.twins[0].parameters(), self.chain(seed=1).parameters(), strict=True)]
        if pairs and all(one.equal(other) for one, other in pairs):
            return Failure(
                "other weights for other seeds of torch",
                "equal ones; if they are meant to be, as pretrained ones are, its class has "
                "fixed_weights = True",
            )
        return None

    @law("it draws from its own generator only", at_loading=True)
    def draws(self, batch: Batch) -> Verdict:
        """What a user's model draws from torch's global generator comes from a stream of its own."""
        import torch

        from trainer.models.layers.draws import drawing_from

        inputs, outputs = self.batch(batch.size), list[Any]()
        for seed, module in enumerate(self.twins):
            with torch.random.fork_rng(devices=[]):
                scatter_seeds(seed)
                before = global_states()
                with drawing_from(_seeded(0)) if self.is_users else nullcontext():
                    outputs.append(module.train()(inputs.clone()))
                after = global_states()
            if drawn := [name for name, state in after.items() if state != before[name]]:
                return Failure(
                    "nothing drawn from global random state",
                    f"drawn from {drawn[0]}: draw from torch's generator, as torch.rand does",
                )
        if outputs[0].equal(outputs[1]):
            return None
        return Failure("equal outputs of equal models", "other outputs: draw from generators with a seed")

    @law("the same batch twice gives the same output")
    def repeats(self, batch: Batch) -> Verdict:
        """In training, buffers start as before: they may change, and checkpoints have them."""
        import torch

        inputs = self.batch(batch.size)
        for mode in ("evaluation", "training"):
            generator = _seeded(0)
            chain = self.chain(generator=generator).train(mode == "training")
            state = generator.get_state()
            buffers = {name: each.clone() for name, each in chain.named_buffers()}
            outputs = []
            for _ in range(2):
                generator.set_state(state)
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    scatter_seeds(0)
                    for name, buffer in chain.named_buffers():
                        if mode == "training" and name in buffers:
                            buffer.copy_(buffers[name])
                    outputs.append(chain(inputs.clone()).clone())
            if not outputs[1].equal(outputs[0]):
                off = _difference("as the first time", outputs[1], outputs[0])
                found = f"{off.got} in {mode}: keep nothing from one batch to the next"
                return Failure(off.expected, found)
        return None

    @law("all weights that it uses are parameters")
    def parameters(self, batch: Batch) -> Verdict:
        """Those that gradients of two outputs reach: no optimizer or checkpoint has the others."""
        chain = self.chain().eval()
        outputs = [chain(self.batch(batch.size)) for _ in range(2)]
        first, second = ({id(leaf): leaf for leaf in _leaves(output)} for output in outputs)
        kept = first.keys() & second.keys()  # the others were made in the forward pass
        outside = kept - {id(each) for each in chain.parameters()}
        weight = next((leaf for key, leaf in first.items() if key in outside), None)
        if weight is None:
            return None
        shape, verb = "×".join(map(str, weight.shape)) or "1", "is" if len(outside) == 1 else "are"
        found = f"{len(outside)} of its weights {verb} none: one of shape {shape}"
        for module in chain.modules():
            for name, value in vars(module).items():
                if name != "_modules" and any(held is weight for held in _held(value)):
                    place = f"{type(module).__name__}.{name}: use {_container(value)}"
                    return Failure("parameters only", f"{found} in {place}")
        return Failure("parameters only", f"{found}, which is in no attribute")

    @law("a gradient reaches every parameter", lambda self: self.of(6))
    def gradients(self, batch: Batch) -> Verdict:
        whole = self.chain().eval()  # without dropout, which may hide a unit
        parameters = dict(whole.named_parameters())
        if not parameters:
            raise NotApplicable("it has no parameters")
        _weighted(whole(self.batch(batch.size)), seed=2).backward()
        without = [name for name, each in parameters.items() if each.requires_grad and each.grad is None]
        reached = {name: each.grad for name, each in parameters.items() if each.grad is not None}
        zero = [name for name, gradient in reached.items() if not gradient.abs().sum() > 0]
        for names, what in ((without, "none reaches"), (zero, "a gradient of 0 reaches")):
            if names:
                shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                return Failure(f"a gradient for {len(parameters)} parameters", f"{what} {shown}")
        return None

    @law("samples are independent, unless declared", lambda self: self.of(6))
    def samples(self, batch: Batch) -> Verdict:
        """The output of sample 0 beside two different sets of others, in training but without dropout."""
        from trainer.models.layers.dropout import Dropout

        if self.known["batch_statistics"] or self.known["has_synchronous_layers"]:
            raise NotApplicable("it declares that they are not")
        first, second = self.batch(batch.size), self.batch(batch.size, seed=3)
        second[0] = first[0]
        outputs = []
        for inputs in (first, second):
            chain = self.chain().train()
            for module in chain.modules():
                if isinstance(module, Dropout):
                    module.eval()
            outputs.append(chain(inputs)[0])
        if outputs[0].allclose(outputs[1], rtol=RTOL, atol=ATOL):
            return None
        return Failure(
            "an output that does not depend on the other samples", "it depends: declare batch_statistics"
        )

    @law("BatchNorm and SyncBatchNorm are declared")
    def norms(self, _: Batch) -> Verdict:
        from torch.nn.modules.batchnorm import _BatchNorm

        from trainer.models.layers.sync_batch_norm import SyncBatchNorm

        modules = [each for each in self.chain().modules() if isinstance(each, _BatchNorm)]
        sync = [isinstance(each, SyncBatchNorm) for each in modules]
        if not all(sync) and not self.known["batch_statistics"]:
            return Failure("batch_statistics is True, since it has BatchNorm", "False")
        if any(sync) and not self.known["has_synchronous_layers"]:
            return Failure("has_synchronous_layers is True, since it has SyncBatchNorm", "False")
        return None

    @law(
        "pairs sharded over ranks give the same output",
        lambda self: [Ranks(size=2, shape=self.dataset.shape, ranks=ranks) for ranks in SHARDS],
    )
    def pairs(self, on: Ranks) -> Verdict:
        """Shard the pairs over ranks that are threads, and compare their outputs with the whole model's."""
        import torch

        from trainer.comm.base import Communicator
        from trainer.launch.threads import together
        from trainer.parallel.tensor_layers import ModelSharder
        from trainer.strategies.tensor_parallel import column_parallel, row_parallel

        pairs = self.model.tensor_parallel_pairs
        if not pairs:
            raise NotApplicable("it declares no pairs for tensor parallelism")
        if on.ranks > min(pair.units for pair in pairs):
            raise NotApplicable("its pairs have too few units")
        inputs = self.batch(on.size)
        whole = _evaluated(self.chain(), inputs)
        # Not built in the threads, which share torch's generator; as they are, since none draws here.
        blocks = [self.blocks(raw=True) for _ in range(on.ranks)]

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
            if not found.allclose(whole, rtol=1e-4, atol=1e-5):
                return _difference(f"the output of the whole model on rank {rank}", found, whole)
        return None

    @law(WRITTEN, lambda self: [Together(shape=self.dataset.shape)])
    def written(self, _: Together) -> Verdict:
        few = self.on.few
        return written_on({"model": self.in_run()}, self.dataset, few.inputs if few else None)


def _chain(blocks: Iterable[tuple[str, nn.Module]]) -> nn.Sequential:
    from torch import nn

    return nn.Sequential(OrderedDict(blocks))


def _seeded(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed)


def _evaluated(module: nn.Module, inputs: Tensor) -> Tensor:
    """The output of a module in evaluation, which draws the same numbers in each call."""
    import torch

    from trainer.models.layers.draws import drawing_from

    with drawing_from(_seeded(0)), torch.no_grad():
        output: Tensor = module.eval()(inputs.clone())
    return output


def _weighted(output: Tensor, seed: int) -> Tensor:
    """The sum of an output's numbers with weights, so that each has another gradient."""
    import torch

    return (output * torch.randn(output.shape, generator=_seeded(seed))).sum().real


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters, by name."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _output_error(output: Any, samples: int) -> Failure | None:
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


def _difference(of: str, found: Tensor, expected: Tensor) -> Failure:
    if found.shape != expected.shape:
        return Failure(f"shape {tuple(expected.shape)}", f"{tuple(found.shape)}")
    worst = int((found - expected).abs().argmax())
    return Failure(
        f"{of}: number {worst} is {expected.flatten()[worst].item():.6g}",
        f"{found.flatten()[worst].item():.6g}",
    )


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


def _changed(buffer: Tensor, before: Tensor, version: int) -> bool:
    """Whether a buffer has been written to, or other numbers are in its place."""
    same = (buffer == before) | (buffer != buffer) & (before != before)  # nan is nan
    return buffer._version != version or not bool(same.all())


@dataclass(frozen=True)
class Computed:
    """What a module computes in training.

    gradients: that of each trained parameter. draws: whether it draws from torch's global generator.
    """

    output: Tensor
    gradients: Sequence[Tensor | None]
    draws: bool

    @classmethod
    def of(cls, module: nn.Module, inputs: Tensor) -> Computed:
        """What it computes of these inputs; it draws the same numbers in each call."""
        import torch

        from trainer.models.layers.draws import drawing_from

        generator = _seeded(0)
        before = generator.get_state()
        with drawing_from(generator):
            output = module.train()(inputs.clone())
        loss, trained = _weighted(output, seed=1), [*_trained(module).values()]
        gradients: Sequence[Tensor | None] = [None] * len(trained)
        if trained and loss.requires_grad:
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return cls(output.detach(), gradients, not before.equal(generator.get_state()))

    def equals(self, other: Computed) -> bool:
        """Whether both compute the same."""
        gradients = zip(self.gradients, other.gradients, strict=True)
        return self.output.equal(other.output) and all(
            one is two if one is None or two is None else one.equal(two) for one, two in gradients
        )


CALLED = ("__call__", "train", "eval")  # what a class may do with its children beside its forward pass
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _indivisible(module: nn.Module, whole: Computed, again: nn.Module, inputs: Tensor) -> str | None:
    """Why a module is no chain of its children; None if it is, as found by running both.

    whole: what it has computed. again: an equal module, which has been used as often but for `whole`.
    """
    import torch
    from torch import nn

    children = blocks_of(module, divided=True)
    if not children:
        return "it has no children"
    own = [*module.parameters(), *module.buffers()]
    held = [each for _, child in children for each in (*child.parameters(), *child.buffers())]
    if {*map(id, own)} - {*map(id, held)}:
        return "it has parameters or buffers that are in none of its children"
    if len(own) != len(held):
        return "some of its children share parameters or buffers"
    overridden = (each for each in CALLED if getattr(type(module), each) is not getattr(nn.Module, each))
    if name := next(overridden, None):
        return f"it defines {name}, which its children do not have"
    if any(getattr(module, each) for each in HOOKS):
        return "it has hooks, which its children do not have"
    if type(module).forward is not nn.Sequential.forward:
        chain = nn.Sequential(*(child for _, child in blocks_of(again, divided=True)))
        try:
            same = whole.equals(Computed.of(chain, inputs))
            same = same and _evaluated(module, inputs).equal(_evaluated(chain, inputs))
        except Exception:  # a child may need more than the output of the one before
            same = False
        if not same:
            return "its forward is not the chain of its children"
    for name, child in children:
        if (inputs := _evaluated(child, inputs)).dtype is not torch.float32:
            return f"the output of its child {name} is of another type than float32, which ranks exchange"
    return None


def _fewest_samples(module: nn.Module, inputs: Tensor) -> int:
    """2 if BatchNorm of the module would normalise single values of one sample in training; else 1."""
    try:
        Computed.of(module, inputs[:1])
    except Exception as error:  # the run meets others, if it has such a batch
        return 2 if "more than 1 value per channel" in str(error) else 1
    return 1


class ImportedModel(Imported, Model):
    """A user's model: its children are its blocks if it is a chain of them, else it is one block."""

    kind = ModelKind

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        return drawing(self.own.blocks(shape, classes, generator), self.draws, generator)

    @property
    def is_plain(self) -> bool:
        """Whether the user's code builds a module; else it is a subclass of Model."""
        return isinstance(self.own, ModuleModel)

    def plain(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The module as the user's code builds it."""
        module: nn.Module = self.own.build(shape, classes)
        return module

    def divided(self, module: nn.Module, generator: torch.Generator) -> Blocks:
        """The blocks of a module that the user's code has built."""
        return drawing(blocks_of(module, divided=not self.indivisible), self.draws, generator)
