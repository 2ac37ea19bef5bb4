"""Errors of the time model."""


class ReplayError(Exception):
    """What the ranks did does not fit together. The message names rank and record."""


class ClusterError(ValueError):
    """A description of a cluster names something that does not exist."""
