"""Cost of containers: the image's size, and rebuilding it. The cost of a run is in overhead.py."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.runtimes.docker.engine import reach
from orchestrator.runtimes.docker.image import image_name
from tests.support.command_line import PROJECT
from tests.support.containers import containers_missing

SCRATCH = "shardyard-bench"


def main() -> None:
    if reason := containers_missing():
        print(f"containers: skipped, {reason}")
        return
    engine = reach()
    size = engine.client.images.get(image_name()).attrs["Size"]
    print(f"image {image_name()}: {size / 1e9:.2f} GB")
    seconds = rebuild()
    print(f"rebuild after a one-line change in trainer/: {statistics.median(seconds):.1f} s")
    subprocess.run(engine.command("image", "rm", "--force", SCRATCH), check=True, capture_output=True)


def rebuild() -> list[float]:
    """Seconds of `make image` in a copy of the project, after each of three one-line changes."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in ("trainer", "shardyard", "orchestrator", "compose", "docker"):
            shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PROJECT / ".dockerignore", copy)
        command = [sys.executable, "-m", "orchestrator", "image"]
        environment = {**os.environ, "SHARDYARD_IMAGE": SCRATCH}
        seconds = []
        for number in range(4):
            with open(copy / "trainer" / "__main__.py", "a") as file:
                file.write(f"# {number}\n")
            started = time.perf_counter()
            subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
        return seconds[1:]  # the first build may not find all layers cached
