"""Dropping root for the user who started the run, so that files written on the host belong to that user.

Compose does not know which user runs it, but that user owns the run's spec file. The two services that
write on the host (`coordinator`: results, `data`: downloads) start as root with only the capabilities
CHOWN, SETUID and SETGID, and switch to the spec's owner before they do anything else.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path

CAPABILITY_VERSION = 0x20080522  # the third version of capset(2), with 64 capabilities
CAPABILITY_SETS_BYTES = 24  # effective, permitted and inheritable, twice 32 bits of each


def drop_privileges_to_owner(file: Path, *directories: Path) -> None:
    """Switch permanently to the user and group that own `file`, and give them the directories.

    The engine creates a missing mount source as root, so only empty directories of root change hands.
    Where the owner is root, which under a rootless engine is the user, only the capabilities go.
    """
    if os.getuid() != 0:
        return
    owner = file.stat()
    if owner.st_uid == 0:
        drop_capabilities()
        return
    for directory in directories:
        if directory.stat().st_uid == 0 and not any(directory.iterdir()):
            with suppress(OSError):  # mounted read-only, so nothing will be written there
                os.chown(directory, owner.st_uid, owner.st_gid)
    os.setgroups([])
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)  # drops all capabilities with it


def drop_capabilities() -> None:
    """Clear this process's capabilities; `no-new-privileges` keeps them from coming back.

    Raises OSError if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(CAPABILITY_SETS_BYTES)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def make_writable_for_nodes(directory: Path) -> None:
    """Make an empty directory world-writable, if this user may. Nodes run under a fixed unprivileged UID.

    A directory with content is left alone: it is not meant for checkpoints, or is writable already.
    """
    with suppress(OSError):
        if not any(directory.iterdir()):
            directory.chmod(0o1777)  # sticky: only the owner of a file can remove it
