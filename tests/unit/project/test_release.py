"""Mistakes that keep a version from being released, and decisions that are not in their list."""

from __future__ import annotations

from tests.unit.conftest import PROJECT
from tools.release import problems

CHANGES = "# Changelog\n\n## Unreleased\n\n## 1.0.0 - 2026-12-01\n"


def test_a_version_needs_its_changes_and_no_others() -> None:
    assert "\n## Unreleased\n" in (PROJECT / "CHANGELOG.md").read_text()
    assert problems("1.0.0", CHANGES, "") == []
    for version, changes, status, named in (
        ("1.0.0", CHANGES.replace(" - 2026-12-01", ""), "", "1.0.0"),
        ("1.0", CHANGES, "", "1.0 -"),
        ("1.0.0", CHANGES, " M README.md\n", "not committed"),
    ):
        (problem,) = problems(version, changes, status)
        assert named in problem


def test_every_decision_is_in_the_list() -> None:
    pages = {page.name: page.read_text() for page in (PROJECT / "docs" / "decisions").glob("*.md")}
    listed = pages.pop("README.md")
    assert pages
    assert [name for name in pages if f"]({name})" not in listed] == []
