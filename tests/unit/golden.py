"""Reviewed texts in tests/golden: `assert_reviewed("report.md", text)`. `make golden` renews them."""

from __future__ import annotations

import difflib
import os

from tests.unit.conftest import PROJECT

GOLDEN = PROJECT / "tests/golden"


def assert_reviewed(name: str, text: str) -> None:
    """Compare a text with the file of this name, or renew the file."""
    path = GOLDEN / name
    if os.environ.get("RENEW_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    reviewed = path.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        reviewed.splitlines(), text.splitlines(), name, "now", lineterm="", n=0
    )
    assert text == reviewed, "\n".join(["`make golden` renews it:", *difference])
