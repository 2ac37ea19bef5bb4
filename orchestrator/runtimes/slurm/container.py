"""Ranks in containers of the trainer image, where a site has Apptainer or pyxis. Pure."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.runtimes.slurm.options import Container
from trainer.core.sources import digest_of, own_digest

PYTHON = "/opt/venv/bin/python"  # docker/Dockerfile
SOURCES = "/opt/shardyard"  # has trainer/ and requirements.txt
OTHER_SOURCES = 67  # exit code of a job whose image has other sources than the orchestrator
NO_CONTAINER = 68  # exit code of a job that has a node on which the container does not start


def wrapped(
    container: Container, mounts: Mapping[Path, bool], argv: Sequence[str]
) -> tuple[list[str], list[str]]:
    """A command inside the image: the options of srun, and the command.

    Args:
        mounts: directories that the container has at the same paths, and whether it can write there.
    """
    # A directory may be inside another one, which has to be mounted first.
    binds = [f"{path}:{path}:{'rw' if writable else 'ro'}" for path, writable in sorted(mounts.items())]
    if container.engine == "pyxis":
        options = [
            f"--container-image={container.image}",
            f"--container-mounts={','.join(binds)}",
            "--no-container-mount-home",
            "--no-container-entrypoint",
        ]
        return options, list(argv)
    # Apptainer mounts the home directory by itself, with whatever packages it has.
    return [], ["apptainer", "exec", "--no-home", f"--bind={','.join(binds)}", container.image, *argv]


def unmountable(mounts: Mapping[Path, bool]) -> str | None:
    """Why directories cannot be mounted; None if they can. Both engines separate paths by `:` and `,`."""
    for path in mounts:
        if found := sorted({*":,"} & {*str(path)}):
            return f"slurm.container: {path} contains {found[0]!r}, so it cannot be mounted in a container"
    return None


def check_of_image(container: Container) -> list[str]:
    """A step on every node that compares the image's sources with those of the orchestrator."""
    expected, image = own_digest(), container.image
    program = "\n".join(
        [
            "import os, sys",
            inspect.getsource(digest_of),
            f"found = digest_of({SOURCES + '/trainer'!r}, {SOURCES + '/requirements.txt'!r})",
            f"if found != {expected!r}:",
            f'    print("shardyard: image has sources", found, "and not", {expected!r}, flush=True)',
            f"    sys.exit({OTHER_SOURCES})",
        ]
    )
    options, argv = wrapped(container, {}, [PYTHON, "-c", program])
    options = [option for option in options if not option.startswith("--container-mounts")]
    argv = [word for word in argv if not word.startswith("--bind=")]
    per_node = (
        "srun",
        '--nodes="$SLURM_JOB_NUM_NODES"',
        '--ntasks="$SLURM_JOB_NUM_NODES"',
        "--ntasks-per-node=1",
    )
    return [
        f"# Image {shlex.quote(image)} must have the sources of the orchestrator.",
        f"{' '.join(per_node)} \\\n    {shlex.join([*options, *argv])}",
        f"case $? in 0) ;; {OTHER_SOURCES}) exit {OTHER_SOURCES} ;; *) exit {NO_CONTAINER} ;; esac",
    ]
