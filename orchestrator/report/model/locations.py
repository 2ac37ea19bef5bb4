"""Locations: the runtime and image in which nodes ran. Rows of different locations are never compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.report.formats import JOIN, listed
from orchestrator.report.model.labels import LIMIT_LABELS
from orchestrator.report.model.rows import Row
from orchestrator.results.limits import written
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import NODE_LIMITS

MAX_VALUES = 3  # of a limit; more than these are written as a range


def location_names(results: Sequence[RunResult]) -> list[str]:
    """A name for the location of each result; empty if all have the same one, and have trained.

    `runtime docker`, or `image 4c3e83f9` (the beginning of its sources' hash) if there are several images,
    and `not trained` where steps were charged instead of computed.
    """
    runtimes = {result.runtime for result in results}
    images = {image for result in results if (image := _image(result))}
    tags = {name for name, _ in images}
    names = []
    for result in results:
        parts = [f"runtime {result.runtime}"] if len(runtimes) > 1 else []
        if len(images) > 1 and (image := _image(result)):
            parts.append(" ".join(filter(None, ["image", image[0] if len(tags) > 1 else "", image[1][:8]])))
        parts += [] if result.runtime_info.trains else ["not trained"]
        names.append(", ".join(parts))
    return names


def _image(result: RunResult) -> tuple[str, str] | None:
    """The image's name and the hash of its sources; None if nodes were not containers."""
    name, _, sources = str(result.environment.get("image", "")).partition(" from sources ")
    return (name, sources) if name else None


def describe_nodes(rows: Iterable[Row]) -> str:
    """`containers of Docker 26.1.5 with 0.4 cpus and 2,048 MiB memory per node`, or `local processes`."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.result.node_kind, []).append(row)
    descriptions = []
    for kind, members in kinds.items():
        limits = " and ".join(node_limits(members, ("cpus", "memory_mb")))
        descriptions.append(f"{kind} with {limits} per node" if limits else kind)
    return "; ".join(descriptions)


def node_limits(rows: Sequence[Row], names: Sequence[str] = NODE_LIMITS) -> list[str]:
    """The limits that were enforced on each node; empty if any run was not limited."""
    if not rows or not all(row.result.runtime_info.enforces_limits for row in rows):
        return []
    return [_limit(name, sorted({getattr(row.run, name) for row in rows})) for name in names]


def _limit(name: str, values: Sequence[float]) -> str:
    """`cpus 0.4`, `cpus 0.4 or 1`, `64 to 2,048 MiB memory`."""
    each = [written(value) if isinstance(value, float) else f"{value:,}" for value in values]
    several = f"{each[0]} to {each[-1]}" if len(each) > MAX_VALUES else listed(each, "or")
    return LIMIT_LABELS[name].format(several).replace(" MiB", f"{JOIN}MiB")
