"""Becoming the user who started the run, so that what a container writes on the host is that user's.

Compose does not know who calls it. The run's spec file does: whoever wrote it, or cloned it, owns it. The
two services that write on the host (`head`: results, `data`: downloads) start as root with the
capabilities CHOWN, SETUID and SETGID alone, and take that user's number before they do anything else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def drop_privileges_to_owner(witness: Path, *directories: Path) -> None:
    """Take the user and group that own `witness`, for good, and give them the directories.

    The engine makes a directory that is mounted and not there, as root's: an empty one changes hands. Where
    the owner is root, or under a rootless engine the user who looks like root, all stays as it is.
    """
    if os.getuid() != 0:
        return
    owner = witness.stat()
    if owner.st_uid == 0:
        return
    for directory in directories:
        if directory.stat().st_uid == 0 and not any(directory.iterdir()):
            with suppress(OSError):  # mounted read-only: then nothing is to be written either
                os.chown(directory, owner.st_uid, owner.st_gid)
    os.setgroups([])
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)  # drops all capabilities with it


def make_writable_for_nodes(directory: Path) -> None:
    """Let every user write to a directory that is empty, as far as this one may allow it.

    Nodes are nobody in particular. One that is not empty is left as it is: it is no place for checkpoints,
    or has been opened before.
    """
    with suppress(OSError):
        if not any(directory.iterdir()):
            directory.chmod(0o777)
