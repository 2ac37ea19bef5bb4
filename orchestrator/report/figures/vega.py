"""Vega-Lite specifications as files: SVG for Markdown and for the page, and the page's scripts.

Vega-Lite was compared with Plotly. Of both, one specification gives an interactive figure and an SVG. The
scripts of Vega-Lite take 0.9 MB of the page, Plotly's 4.8 MB, and Plotly needs a browser to write an SVG.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import stat
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import vl_convert

from orchestrator.report.figures.spec import Spec
from orchestrator.report.figures.svg import compact, with_heading
from orchestrator.report.figures.theme import with_light_colours
from orchestrator.results.store import make_private, write_atomic
from trainer.core.regular_files import read_below

VERSION = vl_convert.get_vegalite_versions()[-1]  # of Vega-Lite
MAX_BYTES = 2**24  # of the packed scripts, which have 0.4 MB


def svg_of(spec: Spec) -> str:
    """The figure as an `<svg>` element for the page, whose style sheet sets the colours."""
    written = json.dumps(spec)
    svg = str(vl_convert.vegalite_to_svg(written, vl_version=VERSION))
    return compact(svg, sha256(written.encode()).hexdigest()[:8])


def svg_file(svg: str, heading: str) -> str:
    """The figure of `svg_of` as a file with light colours on white, and with its heading.

    Writing it anew with the heading would take as long as all else that a figure takes.
    """
    return with_light_colours(with_heading(svg, heading)) + "\n"


def inline(svg: str, label: str) -> str:
    """The element for a page: sized by the page, with a label for screen readers.

    label: escaped HTML.
    """
    head, close, rest = svg.partition(">")
    size = re.search(r'viewBox="([^"]+)"', head)
    box = f' viewBox="{size.group(1)}"' if size else ""
    return f'<svg{box} role="img" aria-label="{label}"{close}{rest.strip()}'


def scripts() -> str:
    """Vega, Vega-Lite and vega-embed as one script, for a page without network."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION))


def library() -> str:
    """The packed scripts. Building them takes 2 s, so they are kept in the user's cache directory."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return packed(scripts())
    kept = home / "shardyard" / f"vega-{version('vl-convert-python')}-{VERSION}.txt"
    with suppress(OSError, UnicodeDecodeError):
        if _is_own(kept.parent) and _is_own(kept):
            digest, _, text = read_below(kept.parent, kept.name, MAX_BYTES).decode().partition("\n")
            if digest == sha256(text.encode()).hexdigest():
                return text
    text = packed(scripts())
    with suppress(OSError):  # a home that cannot be written to: they are built for each report
        make_private(kept.parent)
        write_atomic(kept, f"{sha256(text.encode()).hexdigest()}\n{text}")
        kept.chmod(0o600)
    return text


def _is_own(path: Path) -> bool:
    """Whether no other user can have written it: a report executes the scripts."""
    found = path.lstat()
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022


def packed(text: str) -> str:
    """The text as gzip in base64: most of a page would be Vega and the data of figures otherwise."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
