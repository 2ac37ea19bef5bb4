"""Errors that are shown as a message: InputError with exit code 2, StorageError with exit code 1."""

from __future__ import annotations

import errno
from pathlib import Path


class InputError(Exception):
    """Bad input. The message names the file, the key, the value and what is allowed."""


class StorageError(Exception):
    """Results cannot be written any more, so the sweep stops. The message names directory and reason."""

    def __init__(self, directory: Path, error: OSError) -> None:
        """error: of the first file that could not be written."""
        super().__init__(
            f"{directory}: {storage_trouble(error)}. Repair that, then run the same command to resume"
        )


def storage_trouble(error: OSError) -> str:
    """Why a file cannot be written, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno == errno.ENOENT:
        return "it was removed"
    return f"it cannot be written ({error.strerror or error})"
