"""The container in which users' components are tried before a sweep. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.sweeps.imports import SAMPLES, Inspection
from trainer.imported.source import CODE

USER = "10001:10001"  # as of the nodes
MODULE = ("-m", "trainer.inspection")


def inspection_container(inspection: Inspection, image: str, orchestrator: str) -> tuple[str, ...]:
    """Arguments of `docker` that start it: confined as a node, without a network.

    Args:
        inspection: what it must see.
        image: of the nodes.
        orchestrator: value of the label `shardyard.orchestrator`.
    """
    confined = ("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true")
    limits = ("--pids-limit=512", "--tmpfs=/tmp:mode=1777,size=256m", "--init")
    labels = ("--label", f"shardyard.orchestrator={orchestrator}")
    variables = ("-e", f"{CODE}={inspection.stage}", "-e", f"SHARDYARD_DATA={inspection.data_dir}")
    started = (
        "run",
        "--rm",
        "-i",
        "--pull=never",
        f"--user={USER}",
        *confined,
        *limits,
        *labels,
        *variables,
    )
    return (*started, *_mounts(inspection), "--entrypoint=python", image, *MODULE)


def _mounts(inspection: Inspection) -> Iterator[str]:
    """Every directory under its own path, so that paths mean the same inside and outside."""
    for path in inspection.directories:
        yield f"--mount=type=bind,source={path},target={path},readonly"
    samples = inspection.stage / SAMPLES  # after its parent: the only one that is written to
    yield f"--mount=type=bind,source={inspection.stage},target={inspection.stage},readonly"
    yield f"--mount=type=bind,source={samples},target={samples}"
    if inspection.data_dir.is_dir():
        yield f"--mount=type=bind,source={inspection.data_dir},target={inspection.data_dir},readonly"
