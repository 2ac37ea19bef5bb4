"""The files of data that come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trainer.data.base import DataError


def bundled_file(name: str) -> Path:
    """The path of a file. Raises DataError if scikit-learn or the file is missing.

    Does not import scikit-learn, which would take 0.7 s on every rank.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(f"{name} comes with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / name
    if not path.is_file():
        raise DataError(f"{path} is absent: pip install --force-reinstall scikit-learn")
    return path
