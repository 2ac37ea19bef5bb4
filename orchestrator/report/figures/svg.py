"""From a matplotlib figure to SVG text that stands alone and can be set into a page."""

from __future__ import annotations

import io
import re

from matplotlib.figure import Figure

# What matplotlib would write into a file that a program and not a person reads.
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element and a newline. name: makes its ids differ from other figures'."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=_NO_METADATA, facecolor="white")
    element = written.getvalue()[written.getvalue().index("<svg") :]
    element = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', element)
    element = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', element)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", element)


def inline(svg: str, label: str) -> str:
    """The element as a page holds it: sized by the page, named for those who hear it.

    label: escaped HTML.
    """
    head, close, rest = svg.partition(">")
    size = re.search(r'viewBox="([^"]+)"', head)
    box = f' viewBox="{size.group(1)}"' if size else ""
    return f'<svg{box} role="img" aria-label="{label}"{close}{rest.replace("xlink:href=", "href=").strip()}'
