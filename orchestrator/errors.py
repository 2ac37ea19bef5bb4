"""Errors that are shown as a message: InputError with exit code 2, StorageError with exit code 1."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class InputError(Exception):
    """Bad input. The message names the file, the key, the value and what is allowed."""


class StorageError(Exception):
    """Something cannot be written. The message names the file or directory and the reason."""

    def __init__(self, place: Path | str, trouble: str) -> None:
        super().__init__(f"{place}: {trouble}")


def storage_trouble(error: OSError) -> str:
    """Why a file cannot be written, in words."""
    if is_full(error):
        return "the disk is full"
    return f"it cannot be written ({error.strerror or error})"


def is_full(error: OSError) -> bool:
    """Whether a disk is full, or a user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def output_error(directory: Path, error: OSError, option: str = "--out") -> InputError | StorageError:
    """The error for a directory that a user has chosen for output: a full disk is no bad input.

    option: where another directory can be named.
    """
    if is_full(error):
        return StorageError(directory, storage_trouble(error))
    if os.path.islink(directory) and not os.path.exists(directory):
        reason = f"is a link to {directory.readlink()}, which does not exist"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        reason = "is not a directory"
    else:
        reason = f"cannot be written ({error.strerror or error})"
    return InputError(f"{directory}: {reason}; choose another {option}")


def data_error(data_dir: Path, error: Exception) -> InputError | StorageError:
    """The error for a dataset that is missing or damaged, or for which the disk has no room."""
    if isinstance(error.__cause__, OSError) and is_full(error.__cause__):
        return StorageError(data_dir, storage_trouble(error.__cause__))
    return InputError(str(error))
