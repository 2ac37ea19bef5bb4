"""Mistakes in the catalogue of deliberate mistakes: entries that do not fit the sources or the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mutants.catalogue import CatalogueError, read_catalogue

ENTRY = {
    "name": "one-third",
    "mistake": "It is wrong.",
    "file": "trainer/data/partitioners/contiguous.py",
    "find": "np.array_split(",
    "replace": "np.array_split(*",
    "tests": ["tests/unit/trainer/data/test_partitioners.py"],
}


def test_the_catalogue_fits_sources_and_tests() -> None:
    assert len(read_catalogue()) >= 110


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mistake": "wrong"}, "one-third: mistake: "),
        ({"test": "x"}, "one-third: test: "),
        ({"file": "trainer/gone.py"}, "one-third: file: trainer/gone.py does not exist"),
        ({"find": "np.array("}, "one-third: find: trainer/data/partitioners/contiguous.py has the text 0 "),
        ({"find": "import"}, " times, not once"),
        ({"replace": "np.array_split)"}, "would be no Python: "),
        ({"replace": "np.array_split("}, "one-third: replace: changes nothing"),
        ({"tests": ["tests/unit/test_gone.py"]}, "one-third: tests: tests/unit/test_gone.py does not "),
        ({"tests": ["tests/unit/project/test_mutants.py::test_gone"]}, "does not define test_gone"),
        ({}, "one-third: the name of 2 entries"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named_with_its_problem(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    entries = [{**ENTRY, **changed}] if changed else [ENTRY, ENTRY]
    (tmp_path / "catalogue.yml").write_text(yaml.safe_dump(entries))
    with pytest.raises(CatalogueError, match=named.replace("(", r"\(")):
        read_catalogue(tmp_path / "catalogue.yml")
