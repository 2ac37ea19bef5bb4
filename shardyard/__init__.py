"""Shardyard from Python: run strategies and sweeps, and read their results.

docs/python.md has examples.
"""

from orchestrator import __version__
from orchestrator.api import Figure, Results, Table, load, run, sweep
from orchestrator.errors import InputError, StorageError

__all__ = [
    "Figure",
    "InputError",
    "Results",
    "StorageError",
    "Table",
    "__version__",
    "load",
    "run",
    "sweep",
]
