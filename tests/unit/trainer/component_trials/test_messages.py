"""Mistakes in what is let in of an answer about a user's component: depth, texts and names of files."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.component_trials.messages import MAX_DEPTH, TrialAnswer


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    "facts",
    [{"a": "\x1b[2J"}, {"\x1b[2J": 1}, {"a": {"\x1b[2J": 1}}, {"a": ["two\nlines"]}, nested(MAX_DEPTH + 1)],
    ids=["value", "key", "inner key", "list", "depth"],
)  # fmt: skip
def test_facts_that_may_do_harm_are_refused(facts: Any) -> None:
    with pytest.raises(ValidationError):
        TrialAnswer(facts=facts)


def test_facts_and_names_of_files_that_do_no_harm_are_let_in() -> None:
    assert TrialAnswer(facts=nested(MAX_DEPTH)).facts == nested(MAX_DEPTH)
    assert TrialAnswer(files=["a/b.py"]).files == ["a/b.py"]
    for name in ("/a.py", "../a.py", "a/../../b.py", "a//b.py", "", "a\n.py"):
        with pytest.raises(ValidationError):
            TrialAnswer(files=[name])
