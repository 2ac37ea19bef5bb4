"""A model's blocks and cuts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from orchestrator.commands.model import Cutting, measured, numbers_of_parts, proposal, run_of
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from trainer.training.profile import BlockProfile

_HEADINGS = (
    ("", "block"),
    ("", "output"),
    ("para-", "meters"),
    ("", "FLOPs"),
    ("out,", "bytes"),
    ("kept,", "bytes"),
    ("forward +", "back, ms"),
    ("of the", "time"),
)
_NONE = "·"
LEGEND = (
    "Per sample: FLOPs of the forward pass, two for a multiply-add, in convolutions",
    "and matrix products alone; bytes that come out, which would cross a cut here;",
    "bytes kept for the backward pass. Per batch: median time, on one thread, here.",
)


def pages(model: str, dataset: str, batch_size: int, parts: str | None, width: int) -> Iterator[str]:
    """What the command says, piece by piece: measuring takes its time. Raises InputError."""
    run = run_of(model, dataset, batch_size)
    numbers = numbers_of_parts(parts, run)
    yield heading(run)
    blocks = measured(run)
    for lines in (block_lines(blocks), LEGEND, cut_lines(blocks, run, numbers, width)):
        yield "\n" + "\n".join(lines)


def heading(run: RunSpec) -> str:
    """The model, and what it is measured on."""
    shape = "×".join(map(str, run.dataset.shape))
    return (
        f"{component_label(run, 'model')} on {component_label(run, 'dataset')}\n"
        f"images of {shape}, {run.dataset.class_count} classes, batch {run.batch_size}; "
        "they are noise, no data is read"
    )


def block_lines(blocks: Sequence[BlockProfile]) -> list[str]:
    """A row for each block, and their sums."""
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = [f"{'>' if at else '<'}{width}" for at, width in enumerate(widths)]
    return [" ".join(map(format, row, layout)).rstrip() for row in rows]


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
    """With a decimal prefix, as hardware is rated."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if flops >= factor:
            return f"{formats.significant(flops / factor)}{formats.JOIN}{prefix}"
    return f"{flops:.0f}" if flops else _NONE


def cut_lines(blocks: Sequence[BlockProfile], run: RunSpec, parts: Sequence[int], width: int) -> list[str]:
    """For each number of parts the cuts that balance time, as a sweep file takes them."""
    lines = ["Cuts with which the slowest part takes least time:"]
    for number in parts:
        cutting = proposal(blocks, number)
        split_points = f"  split_points: [{', '.join(cutting.split_points)}]"
        lines += ["", *wrap(split_points, width, subsequent_indent=" " * 9, break_on_hyphens=False)]
        for about in _about(cutting, run.batch_size):
            lines += wrap(about, width, initial_indent="  # ", subsequent_indent="  #   ")
    return lines


def _about(cutting: Cutting, batch_size: int) -> list[str]:
    parts, total = len(cutting.seconds), sum(cutting.seconds)
    shares = " + ".join(formats.percent(each / total) for each in cutting.seconds)
    crossing = formats.listed([formats.size(each * batch_size) for each in cutting.crossing])
    return [
        f"{parts} parts: {shares} of the time; largest {cutting.largest * parts:.2f} × an even share",
        f"parameters: {' + '.join(f'{each:,}' for each in cutting.parameters)}",
        f"across the cut{'s' if parts > 2 else ''} in each step: {crossing}, and as much back",
    ]
