"""Mistakes in what is let in of an answer about a user's component: depth, texts and names of files."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from trainer.component_trials.messages import MAX_DEPTH, TrialAnswer


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def test_facts_and_names_of_files_that_may_do_harm_are_refused() -> None:
    escape = "\x1b[2J"
    facts = [{"a": escape}, {escape: 1}, {"a": {escape: 1}}, {"a": ["two\nlines"]}, nested(MAX_DEPTH + 1)]
    files = ["/a.py", "../a.py", "a/../../b.py", "a//b.py", "", "a\n.py"]
    for harmful in (*({"facts": each} for each in facts), *({"files": [name]} for name in files)):
        with pytest.raises(ValidationError):
            TrialAnswer.model_validate(harmful)
    assert TrialAnswer(facts=nested(MAX_DEPTH), files=["a/b.py"]).files == ["a/b.py"]
