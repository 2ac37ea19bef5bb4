"""Where nodes ran, and what tells one place from another: rows of two places are never set side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.report.formats import JOIN, listed
from orchestrator.report.model.labels import LIMIT_LABELS
from orchestrator.report.model.rows import Row
from orchestrator.results.limits import written
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import NODE_LIMITS

MOST_VALUES = 3  # of a limit; more of them are told as a range


def names_of(results: Sequence[RunResult]) -> list[str]:
    """What each result's place is called among the others; empty where all ran alike.

    `runtime docker`; `image 4c3e83f9`, the beginning of its sources' hash, where there are several images.
    """
    runtimes = {result.runtime for result in results}
    images = {image for result in results if (image := _image(result))}
    tags = {name for name, _ in images}
    names = []
    for result in results:
        parts = [f"runtime {result.runtime}"] if len(runtimes) > 1 else []
        if len(images) > 1 and (image := _image(result)):
            parts.append(" ".join(filter(None, ["image", image[0] if len(tags) > 1 else "", image[1][:8]])))
        names.append(", ".join(parts))
    return names


def _image(result: RunResult) -> tuple[str, str] | None:
    """The image's name and the hash of its sources; None where nodes were no containers."""
    name, _, sources = str(result.environment.get("image", "")).partition(" from sources ")
    return (name, sources) if name else None


def nodes_were(rows: Iterable[Row]) -> str:
    """`containers of Docker 26.1.5 with 0.4 cpus and 2,048 MiB memory per node`, or `local processes`."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.result.node_kind, []).append(row)
    told = []
    for kind, members in kinds.items():
        limits = " and ".join(limits_of(members, ("cpus", "memory_mb")))
        told.append(f"{kind} with {limits} per node" if limits else kind)
    return "; ".join(told)


def limits_of(rows: Sequence[Row], names: Sequence[str] = NODE_LIMITS) -> list[str]:
    """The limits of a node, one by one; empty where the runtime does not enforce them."""
    if not rows or not all(row.result.runtime_info.enforces_limits for row in rows):
        return []
    return [_limit(name, sorted({getattr(row.run, name) for row in rows})) for name in names]


def _limit(name: str, values: Sequence[float]) -> str:
    """`cpus 0.4`, `cpus 0.4 or 1`, `64 to 2,048 MiB memory`."""
    each = [written(value) if isinstance(value, float) else f"{value:,}" for value in values]
    several = f"{each[0]} to {each[-1]}" if len(each) > MOST_VALUES else listed(each, "or")
    return LIMIT_LABELS[name].format(several).replace(" MiB", f"{JOIN}MiB")
