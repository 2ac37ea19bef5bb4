"""`make bench`: run all benchmarks but those on request, or only the named ones."""

from __future__ import annotations

import sys

from tests.bench import (
    augmentation,
    claims,
    collectives,
    containers,
    flower,
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
    "claims": claims.main,
    "collectives": collectives.main,
    "overhead": overhead.main,
    "containers": containers.main,
    "bytes": traffic.main,
    "model": model_partitioning.main,
}
ON_REQUEST = {
    "flower": flower.main,  # installs another package
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(PARTS)
    parts = PARTS | ON_REQUEST
    if unknown := set(names) - set(parts):
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    for name in names:
        parts[name]()
