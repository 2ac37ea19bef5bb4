"""Mistakes in the catalogue of deliberate mistakes: entries that do not fit the sources or the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.mutants.catalogue import CATALOGUE, CatalogueError, read_catalogue


def test_the_catalogue_fits_sources_and_tests(tmp_path: Path) -> None:
    assert len(read_catalogue()) >= 110
    entry = yaml.safe_load(CATALOGUE.read_text())[0]
    for wrong in (
        {"find": "no such text"},
        {"file": "trainer/gone.py"},
        {"tests": ["tests/gone.py::test"]},
    ):
        (tmp_path / "wrong.yml").write_text(yaml.safe_dump([{**entry, **wrong}]))
        with pytest.raises(CatalogueError, match=f"{entry['name']}: {next(iter(wrong))}: "):
            read_catalogue(tmp_path / "wrong.yml")
