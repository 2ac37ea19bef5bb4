"""The catalogue of deliberate mistakes fits the sources and the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mutants.catalogue import CatalogueError, read_catalogue

ENTRY: dict[str, Any] = {
    "name": "one-third",
    "mistake": "It is wrong.",
    "file": "trainer/data/partitioners/contiguous.py",
    "find": "np.array_split(",
    "replace": "np.array_split(*",
    "tests": [
        "tests/unit/trainer/data/test_partitioners.py::test_each_node_has_the_given_number_of_classes[any]"
    ],
}


def test_the_catalogue_fits_sources_and_tests() -> None:
    assert len(read_catalogue()) >= 110


def read(path: Path, *entries: Any) -> str:
    """What is wrong with a catalogue of these entries; empty if nothing is."""
    (path / "catalogue.yml").write_text(yaml.safe_dump(entries))
    try:
        read_catalogue(path / "catalogue.yml")
    except CatalogueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"name": "One third"}, "One third: name: "),
        ({"mistake": "wrong"}, "one-third: mistake: "),
        ({"test": "x"}, "one-third: test: "),
        ({"tests": []}, "one-third: tests: "),
        ({"file": "trainer/gone.py"}, "one-third: file: trainer/gone.py does not exist"),
        ({"find": "np.array("}, "one-third: find: trainer/data/partitioners/contiguous.py has the text 0 "),
        ({"find": "import"}, " times, not once"),
        ({"replace": "np.array_split)"}, "would be no Python: "),
        ({"replace": "np.array_split("}, "one-third: replace: changes nothing"),
        ({"tests": ["tests/unit/test_gone.py"]}, "one-third: tests: tests/unit/test_gone.py does not "),
        ({"tests": ["tests/unit/project/test_mutants.py::test_gone"]}, "does not define test_gone"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named_with_its_problem(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    assert named in read(tmp_path, {**ENTRY, **changed})


def test_names_are_unique_and_entries_are_mappings(tmp_path: Path) -> None:
    assert read(tmp_path, ENTRY) == ""
    assert read(tmp_path, ENTRY, ENTRY) == "catalogue.yml: one-third: the name of 2 entries"
    assert "entry 0: " in read(tmp_path, "x")
