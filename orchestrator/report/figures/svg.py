"""Matplotlib figures as SVG text, stand-alone and for inclusion in a page."""

from __future__ import annotations

import io
import re

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
