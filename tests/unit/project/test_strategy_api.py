"""The reference of what a strategy calls: every public member is on the page, with its own docstring."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tools import strategy_api
from tools.docs import stale
from tools.strategy_api import CLASSES, Described, parameters, reference
from trainer.comm.base import Communicator, SendRequest
from trainer.core.strategy import Strategy, Uneven
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.session import Session

CLASSES_ON_PAGE = (Strategy, Session, Batch, Replica, Communicator, SendRequest)
SOURCE = '''
class Tried:
    """A class.

    Attributes:
        first: one,
            on two lines.
        second, third: others.
    """

    @property
    def size(self) -> int:
        """The size."""

    def move(
        self, to: int, *, by: str = "a"
    ) -> None:
        """Move it.

        Returns:
            Nothing.
        """

    def close(self) -> None:  # noqa: B027
        """Close it.

        And more.
        """

    def _hidden(self) -> None: ...
'''


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "tried.py").write_text(SOURCE)
    monkeypatch.setattr(strategy_api, "IMPORT_ROOT", tmp_path)
    monkeypatch.setitem(CLASSES, "Tried", Described("tried.py", "it", {"All": "move size"}))
    return reference("Tried")(tmp_path)


@pytest.mark.parametrize("of", CLASSES_ON_PAGE)
def test_every_public_method_is_on_the_page(of: type) -> None:
    text = reference(of.__name__)(Path())
    variable = CLASSES[of.__name__].variable
    methods, _, others = text.partition("### Other methods")
    described = re.findall(rf"(?m)^```python\n{variable}\.(\w+)", methods) + re.findall(
        r"(?m)^- `(\w+)`:", others
    )
    own = [
        name
        for name, member in vars(of).items()
        if not name.startswith("_")
        and isinstance(member, (property, classmethod)) | inspect.isfunction(member)
    ]
    assert own
    assert [name for name in own if described.count(name) != 1] == []


def test_no_class_of_the_page_is_untested() -> None:
    assert set(CLASSES) == {of.__name__ for of in CLASSES_ON_PAGE}


def test_what_stands_for_docstrings_and_signatures(tried: str) -> None:
    assert "- `first`: one, on two lines.\n- `second, third`: others.\n" in tried
    assert (
        'it.move(\n    to: int, *, by: str = "a"\n) -> None\n```\n\nMove it.\n\nReturns: Nothing.\n'
        in tried
    )
    assert "```python\nit.size: int\n```\n\nThe size.\n" in tried
    assert tried.index("it.move") < tried.index("it.size") < tried.index("- `close`: Close it.")
    assert "hidden" not in tried
    assert "And more" not in tried


def test_types_of_parameters_have_their_values() -> None:
    of, description = Uneven.__metadata__[0], parameters(Path())
    assert f'- `Uneven`, `Literal["join", "drop", "pad"]`: {of.description}\n' in description


def test_a_changed_docstring_makes_the_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "strategy_api.md"
    head, end = "<!-- table: methods of Batch -->\n", "<!-- end of table -->\n"
    page.write_text(head + reference("Batch")(tmp_path) + end)
    assert stale(tmp_path) == {}
    source = (strategy_api.IMPORT_ROOT / "trainer" / "training" / "loader.py").read_text()
    (tmp_path / "trainer" / "training").mkdir(parents=True)
    changed = source.replace("The samples of this batch that count.", "Changed.")
    (tmp_path / "trainer" / "training" / "loader.py").write_text(changed)
    monkeypatch.setattr(strategy_api, "IMPORT_ROOT", tmp_path)
    assert [*stale(tmp_path)] == [page]
