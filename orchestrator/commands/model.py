"""The command `model`: profiles a model's blocks, proposes split points, and shows the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.commands.mesh import degrees, mesh_lines
from orchestrator.errors import InputError
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label
from orchestrator.sweeps.expand import BlockFields, expand
from orchestrator.sweeps.imports import Imports, has_users
from orchestrator.sweeps.yaml import parse_yaml
from orchestrator.terminal import aligned
from trainer.core.registry import ImportedComponent
from trainer.core.whole_number import whole_number
from trainer.models.split_points import balanced_split_points, validation_error
from trainer.spec.node_speed import MAX_NODES
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.strategies.hybrid import Hybrid, shared_pairs

if TYPE_CHECKING:
    from trainer.models.base import ParallelPair
    from trainer.training.profile import BlockProfile

DEFAULT_STAGES = (2, 3, 4)

_HEADINGS = (
    ("", "block"),
    ("", "output"),
    ("para-", "meters"),
    ("", "FLOPs"),
    ("out,", "bytes"),
    ("saved,", "bytes"),
    ("forward +", "back, ms"),
    ("of the", "time"),
)
_NONE = "·"
LEGEND = (
    "Per sample: FLOPs of the forward pass in convolutions and matrix products (two",
    "per multiply-add); output bytes, sent to the next stage if split after the",
    "block; bytes saved for the backward pass. Per batch: median time, one thread.",
)


@dataclass(frozen=True)
class ModelSplit:
    """A model split into pipeline stages.

    Each list has one entry per stage, except sent_bytes: bytes per sample from each stage to the next.
    """

    split_points: list[str]
    seconds: list[float]
    parameters: list[int]
    sent_bytes: list[float]

    @property
    def largest(self) -> float:
        """The slowest stage's share of the time, 1/stages … 1."""
        return max(self.seconds) / sum(self.seconds)


def sections(
    model: str,
    dataset: str | None,
    batch_size: int,
    parts: str | None,
    width: int,
    imports: Imports,
    loss: str = "nll",
    mesh: str | None = None,
) -> Iterator[str]:
    """The command's output, section by section, since profiling takes time. Raises InputError."""
    if mesh is not None and parts is not None:
        raise InputError(f"--parts {parts}: not allowed with --mesh, which gives the number of stages")
    run = run_of(model, dataset, batch_size, imports, loss, mesh)
    if isinstance(run.strategy, Hybrid):
        yield from _of_mesh(run, run.strategy, width, imports)
        return
    numbers = stage_counts(parts, run)
    yield heading(run)
    blocks = profile_blocks(run, imports)
    for lines in (block_lines(blocks), LEGEND, split_lines(blocks, run, numbers, width)):
        yield "\n" + "\n".join(lines)


def _of_mesh(run: RunSpec, strategy: Hybrid, width: int, imports: Imports) -> Iterator[str]:
    """The output with `--mesh`: the ranks of the mesh."""
    own = strategy.mesh_of(run.world_size)
    yield f"{heading(run)}\nmesh {own}: {run.world_size} ranks"
    split_points: list[str] = []
    if own.pipeline > 1:
        pairs = shared_pairs(run.model, own)
        blocks = profile_blocks(run, imports)
        split_points = balanced_split(blocks, run.batch_size, own.pipeline, pairs).split_points
        yield f"split points by the measured time of blocks: {', '.join(split_points)}"
    yield "\n" + "\n".join(mesh_lines(run, strategy, split_points, width, imports))


def run_of(
    model: str,
    dataset: str | None,
    batch_size: int,
    imports: Imports,
    loss: str = "nll",
    mesh: str | None = None,
) -> RunSpec:
    """The run whose model is profiled: serial, or on a mesh. Raises InputError.

    model, dataset, loss: a name or YAML with parameters, as in a sweep file. dataset: None: one that the
    model takes. imports: finds users' ones. mesh: degrees, e.g. `data=2,tensor=2`.
    """
    dataset = dataset or ("pydoc_text" if takes_tokens(model) else "fashion_mnist")
    fields = BlockFields("model", skip=[])
    if mesh is None:
        fields.override("strategy", ["serial"], "model")
    else:
        option = f"--mesh {mesh}"
        fields.override("nodes", [prod(degrees(mesh).values())], option)
        fields.override("strategy", [{"name": "hybrid", "mesh": degrees(mesh)}], option)
    fields.option("model", model, "model")
    for field, value in (("dataset", dataset), ("loss", loss), ("batch_size", batch_size)):
        fields.option(field, value)
    (run,) = expand(fields, imports)
    return run


def takes_tokens(model: str) -> bool:
    """Whether a model takes windows of tokens; one that is not known is left to the check of the run."""
    with suppress(ValidationError, PydanticCustomError):
        return getattr(MODELS.parse(parse_yaml(model, f"model {model}")), "takes_tokens", False)
    return False


def stage_counts(text: str | None, run: RunSpec) -> list[int]:
    """The stage counts of `--parts`, e.g. `2,3`; None: 2, 3 and 4, as blocks allow. Raises InputError."""
    names = run.model.names
    if text is None:
        return [parts for parts in DEFAULT_STAGES if parts <= len(names)]
    option = f"--parts {text}"
    numbers = []
    for word in text.split(","):
        parts = whole_number(word.strip(), MAX_NODES)
        if parts is None or parts < 2:
            wrong = word.strip()
            raise InputError(f"{option}: {wrong!r} is not allowed; allowed: whole numbers from 2, e.g. 2,3")
        if reason := validation_error(names, None, parts):
            raise InputError(f"{option}: {reason}")
        numbers.append(parts)
    return list(dict.fromkeys(numbers))


def profile_blocks(run: RunSpec, imports: Imports) -> list[BlockProfile]:
    """Profile the blocks of the run's model on this machine. Raises InputError, also without torch.

    Users' components run in a process of their own.
    """
    try:
        from trainer.training.profile import BlockProfile, profile_model
    except ModuleNotFoundError as error:
        reason = f"profiling needs {error.name}; run: make venv"
        raise InputError(reason) from error
    if not has_users(run):
        return profile_model(run)
    found = [each.model_dump() for each in imports.figures("profile", run).blocks]
    if [each["name"] for each in found] != run.model.names:
        raise InputError(f"{component_label(run, 'model')}: its profile has other blocks than the model")
    return [BlockProfile(**{**each, "output_shape": tuple(each["output_shape"])}) for each in found]


def balanced_split(
    blocks: Sequence[BlockProfile], batch_size: int, parts: int, pairs: Sequence[ParallelPair] = ()
) -> ModelSplit:
    """The split with the fastest slowest stage. Needs at least as many blocks as parts.

    Args:
        blocks: profiled on a batch of batch_size.
        pairs: the pairs of layers that must be in one stage.
    """
    names, seconds = [block.name for block in blocks], [block.seconds for block in blocks]
    output_bytes = [block.output_bytes * batch_size for block in blocks]
    chosen = balanced_split_points(names, seconds, output_bytes, parts, pairs)
    starts = [0, *(names.index(point) for point in chosen), len(blocks)]
    held = [blocks[start:end] for start, end in pairwise(starts)]
    return ModelSplit(
        chosen,
        [sum(block.seconds for block in part) for part in held],
        [sum(block.parameters for block in part) for part in held],
        [part[-1].output_bytes for part in held[:-1]],
    )


def heading(run: RunSpec) -> str:
    """The model and the input it is profiled with."""
    shape, classes = run.dataset.shape, run.dataset.class_count
    inputs = "images" if len(shape) == 3 else "inputs"
    loss = "" if run.name_of("loss") == "nll" else f", loss {component_label(run, 'loss')}"
    read = isinstance(run.dataset, ImportedComponent)
    return (
        f"{component_label(run, 'model')} on {component_label(run, 'dataset')}{loss}\n"
        f"{inputs} of {'×'.join(map(str, shape))}, {f'{classes} classes, ' if classes > 1 else ''}"
        f"batch {run.batch_size}; "
        f"{'samples of the training split' if read else 'random input, no data is read'}"
    )


def block_lines(blocks: Sequence[BlockProfile]) -> list[str]:
    """A row for each block, and the sums."""
    total = sum(block.seconds for block in blocks)
    sums = [
        "sum",
        "",
        _count(sum(block.parameters for block in blocks)),
        _flops(sum(block.flops for block in blocks)),
        "",
        _size(sum(block.saved_bytes for block in blocks)),
        formats.significant(total * 1e3),
        "",
    ]
    rows = [*zip(*_HEADINGS, strict=True), *(_cells(block, total) for block in blocks), sums]
    return aligned(rows, left=0)


def _cells(block: BlockProfile, total_s: float) -> list[str]:
    return [
        block.name,
        "×".join(map(str, block.output_shape)),
        _count(block.parameters),
        _flops(block.flops),
        _size(block.output_bytes),
        _size(block.saved_bytes),
        formats.significant(block.seconds * 1e3),
        formats.percent(block.seconds / total_s),
    ]


def _count(number: int) -> str:
    return f"{number:,}" if number else _NONE


def _size(size: float) -> str:
    return formats.size(size) if size else _NONE


def _flops(flops: float) -> str:
    """FLOPs with a decimal prefix, as in hardware ratings."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if flops >= factor:
            return f"{formats.significant(flops / factor)}{formats.JOIN}{prefix}"
    return f"{flops:.0f}" if flops else _NONE


def split_lines(
    blocks: Sequence[BlockProfile], run: RunSpec, parts: Sequence[int], width: int
) -> list[str]:
    """Balanced split points for each number of stages, as a sweep file takes them."""
    if reason := run.model.indivisible:
        return wrap(f"It cannot be split: {reason}.", width)
    lines = ["Split points that minimise the slowest stage's time, with sending at 1 Gbit/s:"]
    for number in parts:
        split = balanced_split(blocks, run.batch_size, number)
        # A name such as 2, of a child of nn.Sequential, is a number in YAML.
        quoted = [f"'{name}'" if name.isdigit() else name for name in split.split_points]
        split_points = f"  split_points: [{', '.join(quoted)}]"
        lines += ["", *wrap(split_points, width, subsequent_indent=" " * 9, break_on_hyphens=False)]
        for about in _about(split, run.batch_size):
            lines += wrap(about, width, initial_indent="  # ", subsequent_indent="  #   ")
    return lines


def _about(split: ModelSplit, batch_size: int) -> list[str]:
    parts, total = len(split.seconds), sum(split.seconds)
    shares = " + ".join(formats.percent(each / total) for each in split.seconds)
    crossing = formats.listed([formats.size(each * batch_size) for each in split.sent_bytes])
    return [
        f"{parts} stages: {shares} of the time; slowest {split.largest * parts:.2f} × an even share",
        f"parameters: {' + '.join(f'{each:,}' for each in split.parameters)}",
        f"sent between stages per step: {crossing} forward, the same backward",
    ]
