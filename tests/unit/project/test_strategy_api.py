"""Mistakes in the reference of what a strategy calls: a public member that its page lacks or has twice."""

from __future__ import annotations

import re
from pathlib import Path
from types import FunctionType

from tools.strategy_api import CLASSES, reference
from trainer.comm.base import Communicator, SendRequest
from trainer.core.strategy import Strategy
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.session import Session

ON_PAGE = {of.__name__: of for of in (Strategy, Session, Batch, Replica, Communicator, SendRequest)}


def test_every_public_method_is_on_the_page_once() -> None:
    assert CLASSES.keys() == ON_PAGE.keys()
    for name, of in ON_PAGE.items():
        methods, _, others = reference(name)(Path()).partition("### Other methods")
        described = re.findall(rf"(?m)^```python\n{CLASSES[name].variable}\.(\w+)", methods)
        described += re.findall(r"(?m)^- `(\w+)`:", others)
        kinds = (property, classmethod, FunctionType)
        own = [each for each, member in vars(of).items() if each[0] != "_" and isinstance(member, kinds)]
        assert own
        assert [each for each in own if described.count(each) != 1] == [], name
