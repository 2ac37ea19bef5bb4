"""The exception of predictions."""


class NoPrediction(Exception):
    """There is no prediction for a configuration; the message says why, as a clause."""
