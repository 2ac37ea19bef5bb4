"""`make bench`: run all benchmarks, or only the named ones."""

from __future__ import annotations

import sys

from tests.bench import (
    augmentation,
    collectives,
    containers,
    model_partitioning,
    overhead,
    partitioners,
    step,
    traffic,
)

PARTS = {
    "step": step.main,
    "partitioners": partitioners.main,
    "augmentation": augmentation.main,
    "collectives": collectives.main,
    "overhead": overhead.main,
    "containers": containers.main,
    "bytes": traffic.main,
    "model": model_partitioning.main,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(PARTS)
    if unknown := set(names) - set(PARTS):
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    for name in names:
        PARTS[name]()
