"""The process of `Renderer`: draws the figures whose specifications are on standard input."""

from __future__ import annotations

import json
import sys

from orchestrator.report.figures.vega import library, svg_of


def main() -> None:
    """Print the SVGs and the page's library as JSON; nothing if the input is empty."""
    scripts = library()  # while the caller still reads results
    if specs := sys.stdin.read():
        svgs = [svg_of(spec) for spec in json.loads(specs)]
        json.dump({"svgs": svgs, "library": scripts}, sys.stdout)


if __name__ == "__main__":
    main()
