"""`make bench`: run all benchmarks but those on request, or only the named ones."""

from __future__ import annotations

import sys
from importlib import import_module

PARTS = (
    "step",
    "claims",
    "clock",
    "collectives",
    "replay",
    "report",
    "traffic",
    "links",
    "overlap",
    "engines",
)
ON_REQUEST = ("overlap", "predict", "ladder", "plan")  # take minutes
OTHER_NAMES = {"bytes": "traffic"}

if __name__ == "__main__":
    names = [OTHER_NAMES.get(name, name) for name in sys.argv[1:]] or PARTS
    if unknown := set(names) - {*PARTS, *ON_REQUEST}:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join((*PARTS, *ON_REQUEST))}")
    for name in names:
        import_module(f"tests.bench.{name}").main()
