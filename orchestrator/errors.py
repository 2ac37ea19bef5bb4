"""InputError: the error that a user can fix, shown as a message with exit code 2."""

from __future__ import annotations


class InputError(Exception):
    """Bad input. The message names the file, the key, the value and what is allowed."""
