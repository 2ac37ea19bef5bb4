"""The error of traces that do not fit together."""


class ReplayError(Exception):
    """Traces cannot be replayed. The message names rank and record."""
