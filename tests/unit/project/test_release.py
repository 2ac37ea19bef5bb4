"""What keeps a version from being released."""

from __future__ import annotations

from orchestrator.shipped import IMPORT_ROOT
from tools.release import problems

CHANGES = "# Changelog\n\n## Unreleased\n\n## 1.0.0 - 2026-12-01\n"


def test_a_version_needs_its_changes_and_no_others() -> None:
    assert problems("1.0.0", CHANGES, "") == []
    (undated,) = problems("1.0.0", CHANGES.replace(" - 2026-12-01", ""), "")
    (unlisted,) = problems("1.0", CHANGES, "")
    assert "1.0.0" in undated
    assert "1.0 -" in unlisted
    (uncommitted,) = problems("1.0.0", CHANGES, " M README.md\n")
    assert "not committed" in uncommitted


def test_the_changelog_is_one() -> None:
    text = (IMPORT_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith("# Changelog\n")
    assert "\n## Unreleased\n" in text


def test_every_decision_is_in_the_list() -> None:
    folder = IMPORT_ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in folder.glob("0*.md"))
    assert pages
    assert [page for page in pages if f"]({page})" not in listed] == []
