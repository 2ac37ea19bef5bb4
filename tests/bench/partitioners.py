"""Time that each partitioner takes for 60 000 samples; every rank computes the whole split."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from trainer.spec.registries import PARTITIONERS

SAMPLES, CLASSES, PARTS = 60_000, 10, (10, 1000)
TURNS = 5
TARGET_S = 1.0
FORMS: list[dict[str, Any]] = [
    *({"name": name} for name in PARTITIONERS.entries),
    {"name": "dirichlet", "equal_sizes": True},
]


def main() -> None:
    labels = np.random.default_rng(0).integers(0, CLASSES, SAMPLES)
    print(
        f"splits of {SAMPLES} samples, milliseconds, median and slowest of {TURNS}, target {TARGET_S:g} s"
    )
    print("  partitioner                " + "".join(f"{parts:>11} parts      " for parts in PARTS))
    for form in FORMS:
        times = [seconds(form, labels, parts) for parts in PARTS]
        name = " ".join([form["name"], *(parameter for parameter in form if parameter != "name")])
        cells = "".join(
            f"{1e3 * statistics.median(of):10.1f}  ({1e3 * max(of):.1f})".ljust(23) for of in times
        )
        late = "  too slow" if max(statistics.median(of) for of in times) > TARGET_S else ""
        print(f"  {name:26} {cells}{late}".rstrip())


def seconds(form: dict[str, Any], labels: np.ndarray, parts: int) -> list[float]:
    """Seconds per split, each with a different seed."""
    partitioner, times = PARTITIONERS.parse(form), []
    for turn in range(TURNS):
        rng = np.random.default_rng(turn)
        started = time.perf_counter()
        partitioner.partition(labels, parts, rng)
        times.append(time.perf_counter() - started)
    return times
