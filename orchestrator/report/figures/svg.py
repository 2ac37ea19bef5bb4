"""Vega's SVG in less than half of its bytes: the same picture, for a page that holds many figures.

Vega names and styles every mark, and writes coordinates with 17 digits.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET  # of our own SVG only
from xml.sax.saxutils import escape

from orchestrator.report.figures.theme import FONT, colour

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
XLINK = ' xmlns:xlink="http://www.w3.org/1999/xlink"'
INHERITED = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "font-family",
    "font-size",
    "font-weight",
    "text-anchor",
)
GEOMETRY = ("d", "transform", "x", "y", "x1", "y1", "x2", "y2", "width", "height", "points", "opacity")
# For interaction and screen readers; a page labels the figure as a whole.
UNUSED = ("class", "role", "aria-hidden", "aria-label", "aria-roledescription", "pointer-events")
HEADING_HEIGHT = 22
DIGITS = 2  # after the point, of pixels and of opacities

_NUMBER = re.compile(r"-?\d*\.\d+(?:e-?\d+)?")


def compact(svg: str, name: str) -> str:
    """The same picture.

    Args:
        svg: the picture as Vega writes it.
        name: the name of the figure, for ids that are unique in a page.
    """
    plain = svg.replace(NAMESPACE, "", 1).replace(XLINK, "", 1).replace("xlink:href=", "href=")
    root = ET.fromstring(plain)
    _rename(root, name)
    _drop_unused(root)
    _lift(root)
    written = ET.tostring(root, encoding="unicode").replace(" />", "/>")
    return written.replace("<svg", f"<svg{NAMESPACE}", 1)


def with_heading(svg: str, heading: str) -> str:
    """The picture on white paper, with a heading above it if there is one."""
    head, close, rest = svg.partition(">")
    width, height = (float(size) for size in re.findall(r' (?:width|height)="([\d.]+)"', head))
    room = HEADING_HEIGHT if heading else 0
    head = head.replace(f'height="{height:g}"', f'height="{height + room:g}"')
    head = re.sub(r'viewBox="[^"]+"', f'viewBox="0 {-room} {width:g} {height + room:g}"', head)
    paper = f'<rect y="{-room}" width="{width:g}" height="{height + room:g}" fill="#FFFFFF"/>'
    style = f'font-family="{FONT}" font-size="13px" font-weight="bold" fill="{colour("ink")}"'
    text = f'<text x="5" y="-6" {style}>{escape(heading)}</text>' if heading else ""
    return f"{head}{close}{paper}{text}{rest}"


def _rename(root: ET.Element, name: str) -> None:
    """Begin ids, and references to them, with a name."""
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{name}-{element.get('id')}")
        for attribute in ("clip-path", "fill", "stroke"):
            if (value := element.get(attribute, "")).startswith("url(#"):
                element.set(attribute, value.replace("#", f"#{name}-"))


def _drop_unused(element: ET.Element) -> None:
    """Drop what draws nothing, and digits too small to see."""
    for name in UNUSED:
        element.attrib.pop(name, None)
    for name in GEOMETRY:
        if name in element.attrib:
            element.set(name, _NUMBER.sub(_rounded, element.attrib[name]))
    if element.get("opacity") == "1":
        del element.attrib["opacity"]
    for child in [*element]:
        _drop_unused(child)
        if _draws_nothing(child):
            element.remove(child)


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), DIGITS):g}"


def _draws_nothing(element: ET.Element) -> bool:
    """Whether it is an empty group, or a path without colours: the root's fill is none."""
    if element.tag == "g":
        return len(element) == 0
    styled = "fill" in element.attrib or "stroke" in element.attrib
    return element.get("display") == "none" or (element.tag == "path" and not styled)


def _lift(group: ET.Element) -> None:
    """State a style that all parts of a group share at the group."""
    for child in group:
        _lift(child)
    if group.tag != "g":
        return
    for name in INHERITED:
        values = {child.get(name) for child in group if child.tag != "defs"}
        if len(values) == 1 and None not in values and name not in group.attrib:
            group.set(name, values.pop() or "")
            for child in group:
                child.attrib.pop(name, None)
