"""The one kind of error that a user can mend: exit code 2 and one clear message."""

from __future__ import annotations


class InputError(Exception):
    """Bad input. The message names the file, the key, the bad value and what is allowed."""
