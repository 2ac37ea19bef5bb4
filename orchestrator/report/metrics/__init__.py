"""Metrics computed from a row, beyond those that the run recorded."""
