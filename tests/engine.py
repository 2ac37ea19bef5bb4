"""What tests with containers share: whether they can run here, and what is left of a project."""

from __future__ import annotations

import subprocess
from functools import cache

from orchestrator.engine import EngineError, reach
from orchestrator.image import image_trouble


@cache
def containers_missing() -> str | None:
    """Why no container can be started here, in doctor's words, or None."""
    try:
        return image_trouble(reach())
    except EngineError as error:
        return str(error)


def leftovers(label: str) -> list[str]:
    """Containers, networks and volumes that carry a label: kind and name of each."""
    found = []
    for kind, name in (("container", "Names"), ("network", "Name"), ("volume", "Name")):
        every = ["--all"] if kind == "container" else []
        show = ["--format", f"{{{{.{name}}}}}", "--filter", f"label={label}"]
        listed = subprocess.run(
            ["docker", kind, "ls", *every, *show], capture_output=True, text=True, check=True
        )
        found += [f"{kind} {line}" for line in listed.stdout.split()]
    return found
