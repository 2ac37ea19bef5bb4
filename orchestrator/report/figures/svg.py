"""Matplotlib figures as SVG text, stand-alone and for inclusion in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from matplotlib.figure import Figure

# Metadata that matplotlib would write, such as dates.
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element and a newline. name: a unique prefix for its ids."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=_NO_METADATA, facecolor="white")
    element = written.getvalue()[written.getvalue().index("<svg") :]
    element = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', element)
    element = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', element)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", element)


def inline(svg: str, label: str) -> str:
    """The element for a page: sized by the page, with a label for screen readers.

    label: escaped HTML.
    """
    head, close, rest = svg.partition(">")
    size = re.search(r'viewBox="([^"]+)"', head)
    box = f' viewBox="{size.group(1)}"' if size else ""
    return f'<svg{box} role="img" aria-label="{label}"{close}{rest.replace("xlink:href=", "href=").strip()}'


def grid(figures: Sequence[str], columns: int) -> str:
    """One SVG that holds several, row by row. A row is as high as its highest figure, in points."""
    sizes = [_size(svg) for svg in figures]
    width = max(wide for wide, _ in sizes)
    placed, top = [], 0.0
    for first in range(0, len(figures), columns):
        row = range(first, min(first + columns, len(figures)))
        for at in row:
            wide, high = sizes[at]
            inner = re.sub(r'\b(width|height)="[\d.]+pt"', "", figures[at], count=2)  # in points, not units
            position = f'<svg x="{(at - first) * width:g}" y="{top:g}" width="{wide:g}" height="{high:g}"'
            placed.append(inner.replace("<svg", position, 1).strip())
        top += max(sizes[at][1] for at in row)
    name_spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {name_spaces} viewBox="0 0 {columns * width:g} {top:g}">'
    background = f'<rect width="{columns * width:g}" height="{top:g}" fill="white"/>'
    return "\n".join([head, background, *placed, "</svg>", ""])


def _size(svg: str) -> tuple[float, float]:
    """Width and height of an SVG, in points."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if not size:
        raise ValueError("an SVG without a viewBox")
    return float(size[1]), float(size[2])
