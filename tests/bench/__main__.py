"""`make bench`: run all benchmarks but those on request, or only the named ones."""

from __future__ import annotations

import sys

from tests.bench import (
    augmentation,
    claims,
    clock,
    collectives,
    containers,
    engines,
    flower,
    gpt_reference,
    ladder,
    layout,
    links,
    model_partitioning,
    overhead,
    partitioners,
    predict,
    replay,
    report,
    sessions,
    slow_motion,
    splits,
    step,
    traffic,
    virtual,
    virtual_error,
    vtrain,
    written,
)

PARTS = {
    "step": step.main,
    "partitioners": partitioners.main,
    "augmentation": augmentation.main,
    "claims": claims.main,
    "clock": clock.main,
    "collectives": collectives.main,
    "overhead": overhead.main,
    "replay": replay.main,
    "report": report.main,
    "containers": containers.main,
    "bytes": traffic.main,
    "links": links.main,
    "model": model_partitioning.main,
    "engines": engines.main,
    "virtual": virtual.main,
}
ON_REQUEST = {
    "flower": flower.main,  # installs another package
    "gpt_reference": gpt_reference.main,  # installs another package
    "allocation": engines.many,  # takes minutes
    "virtual_error": virtual_error.main,  # takes ten minutes
    "predict": predict.main,  # takes half an hour
    "splits": splits.main,  # takes minutes
    "layout": layout.main,  # takes minutes
    "written": written.main,  # takes minutes
    "ladder": ladder.main,  # takes an hour, in three calls
    "vtrain": vtrain.main,  # reads files that are not shipped
    "slow_motion": slow_motion.main,  # needs a machine without other load
    "sessions": sessions.main,  # rests between its runs
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(PARTS)
    parts = PARTS | ON_REQUEST
    if unknown := set(names) - set(parts):
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    for name in names:
        parts[name]()
