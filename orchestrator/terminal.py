"""What the command line writes to a terminal or a file: its output, and messages about errors."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from textwrap import wrap
from typing import NoReturn

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from orchestrator.errors import StorageError, storage_trouble
from orchestrator.sweeps.validation import error_lines
from trainer.core.record import cut, printable
from trainer.core.registry import suggestion
from trainer.spec.run_spec import RunSpec

# Of a message: names and values may be as long as a file.
MAX_WORD, MAX_LINE, MAX_LINES = 300, 2000, 20


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Lines of columns, aligned to the right; left: the number of a column that is not."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = [f"{'<' if at == left else '>'}{width}" for at, width in enumerate(widths)]
    return [" ".join(map(format, row, layout)).rstrip() for row in rows]


def plain_table(headings: Sequence[str], first: str = "") -> Table:
    """A table without lines. headings: of columns of numbers; first: of a column of names before them."""
    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    if first:
        shown.add_column(Text(first), overflow="fold")
    for heading in headings:
        shown.add_column(Text(heading), justify="right", no_wrap=True)
    return shown


class _Output(io.TextIOWrapper):
    """Standard output that raises StorageError if it cannot be written."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        """Raise the error, and discard what is printed from now on, so that clean-up does not fail."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):  # as of `| head`, which has read enough
            raise SystemExit(1)
        raise StorageError("standard output", storage_trouble(error)) from error


def guard_output() -> None:
    """Let failed writes to standard output be a StorageError, and print `?` for what it cannot encode."""
    plain = sys.stdout
    if plain is not sys.__stdout__ or not isinstance(plain, io.TextIOWrapper):
        return  # closed, or replaced by a program that imports this one
    unable = plain.errors in ("strict", "surrogateescape")  # to print what the encoding lacks
    sys.stdout = _Output(
        plain.detach(),
        encoding=plain.encoding,
        errors="replace" if unable else plain.errors,
        line_buffering=plain.line_buffering,
        write_through=plain.write_through,
    )


def print_error(message: str) -> None:
    """Print a message to standard error, shortened where it repeats long input.

    A terminal gets lines that end between words.
    """
    text = f"error: {shortened(message)}"
    with suppress(OSError):  # the exit code remains
        print(_wrapped(text) if sys.stderr and sys.stderr.isatty() else text, file=sys.stderr)


def _wrapped(text: str) -> str:
    width = max(20, shutil.get_terminal_size().columns)
    lines = [
        wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines()
    ]
    return "\n".join(chain.from_iterable(lines))


def shortened(message: str) -> str:
    """The message with long words and lines cut in the middle, and without lines beyond the first 20."""
    every = printable(message).rstrip("\n").split("\n")
    lines = [
        cut(re.sub(rf"\S{{{MAX_WORD + 1},}}", lambda word: cut(word[0], MAX_WORD), line), MAX_LINE)
        for line in every[:MAX_LINES]
    ]
    if left_out := len(every) - len(lines):
        lines.append(f"and {left_out} more")
    return "\n".join(lines)


def _takes_fields(context: typer.Context | None) -> bool:
    """Whether the command's `--set` takes fields of runs: then it has `--nodes`, too."""
    options = {name for each in context.command.params for name in each.opts} if context else set()
    return {"--set", "--nodes"} <= options


def usage_message(error: typer.TyperException) -> str:
    """What is wrong with a command line, in one line; empty if its help was printed instead."""
    context = getattr(error, "ctx", None)
    if (
        isinstance(error, typer.BadParameter)
        and isinstance(error.__cause__, ValidationError)
        and error.param
    ):
        variable = f" (or {error.param.envvar})" if error.param.envvar else ""
        name = error.param.get_error_hint().replace("'", "") + variable
        return "; ".join(error_lines(error.__cause__, lambda _: name))
    text = " ".join(error.format_message().split()).rstrip(".")
    if hasattr(error, "possibilities"):  # there is no such option
        option = str(getattr(error, "option_name", ""))
        field = option.lstrip("-").replace("-", "_")
        if field in RunSpec.model_fields and _takes_fields(context):
            text = f"{error.message}; it is a field of a run: --set {field}=VALUE"
        elif error.possibilities:
            text = error.message + suggestion(option, error.possibilities)
    advice = f" (see {context.command_path} --help)" if text and context else ""
    return text[:1].lower() + text[1:] + advice
