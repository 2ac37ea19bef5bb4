"""Mistakes in where a rank is: the wrong line or exchange, an exchange that matches another by mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.event_schema import Ended
from trainer.core.position import MAX_NAME, Exchange, Position, different_exchanges
from trainer.core.user_code import CODE, load
from trainer.launch.position import position_of

# What a user's function calls, and the exchange in which it then is; peers are ranks of the run, 3 and 5.
CALLS: dict[str, dict[str, Any] | None] = {
    "all_reduce(torch.zeros(650), 'mean')": {"kind": "all_reduce", "elements": 650, "op": "mean"},
    "broadcast(torch.zeros(5), root=1)": {"kind": "broadcast", "elements": 5, "peer": 5},
    "shift(torch.zeros(5), -1)": {"kind": "shift", "elements": 5, "peer": -1},
    "recv(torch.zeros(7).double(), 1)": {"kind": "recv", "elements": 7, "dtype": "float64", "peer": 5},
    "split(0)": {"kind": "all_gather", "elements": 1},
    "all_reduce(None, 'x' * 500 + chr(10))": {"kind": "all_reduce", "op": "x" * MAX_NAME},
    "abort()": None,
}


class Looking(MemoryCommunicator):
    """Looks where the rank is, in place of each exchange."""

    seen: Position | None = None

    def _look(self, *_: Any) -> Any:
        self.seen = position_of(sys._getframe())
        raise InterruptedError

    _all_reduce = _all_gather = _broadcast = _shift = _recv = abort = _look


def test_a_position_is_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / tmp_path.name  # modules are named after their folder
    folder.mkdir()
    monkeypatch.setenv(CODE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    bodies = [f"def body{number}(comm):\n    comm.{call}\n" for number, call in enumerate(CALLS)]
    (folder / "mine.py").write_text("import torch\n" + "".join(bodies))
    for number, exchange in enumerate(CALLS.values()):
        comm = Looking(0, 2, Clock(), ThreadGroup(2))
        comm.run_ranks = [3, 5]
        body: Any = load(folder, "mine.py", f"body{number}")
        with pytest.raises(InterruptedError):
            body(comm)
        assert (found := comm.seen) is not None
        assert (found.file, found.line, found.function) == ("mine.py", 2 * number + 3, f"body{number}")
        assert found.exchange == (Exchange(ranks=2, **exchange) if exchange else None)
        assert (found.waited_s is None) == (exchange is None)
        assert Ended.model_validate({"cause": "", "position": found.model_dump()}).position == found


def at(kind: Any, **fields: Any) -> Position:
    exchange = Exchange(kind=kind, **{"ranks": 2, **fields})
    return Position(file="mine.py", line=3, function="train", exchange=exchange)


ALONE = Position(file="mine.py", line=3, function="train")
DIFFERENT: list[tuple[list[Position], tuple[int, int] | None]] = [
    ([at("barrier"), at("all_reduce", elements=5)], (0, 1)),
    ([at("all_reduce", op="sum"), at("all_reduce", op="mean")], (0, 1)),
    ([at("broadcast", peer=0), at("broadcast", peer=1)], (0, 1)),
    ([at("recv", peer=1), at("recv", peer=0)], (0, 1)),
    ([at("recv", peer=1, elements=4), at("send", peer=0, elements=5)], (0, 1)),
    ([at("recv", peer=1, dtype="float64"), at("send", peer=0)], (0, 1)),
    ([at("barrier"), at("recv", peer=0, elements=5)], (0, 1)),
    ([at("barrier"), at("barrier")], None),
    ([at("recv", peer=1, elements=5), at("send", peer=0, elements=5)], None),
    ([at("barrier"), ALONE], None),
    ([at("recv", peer=1), ALONE], None),
    ([at("recv", peer=0), at("barrier")], None),  # from itself
    ([at("recv", peer=1), at("recv", peer=2), at("barrier", ranks=3)], (1, 2)),
    ([at("barrier", ranks=3), ALONE, at("split", ranks=3)], (0, 2)),
    ([at("barrier", ranks=2), at("all_reduce", ranks=2), at("barrier", ranks=1)], None),  # of groups
]


def test_exchanges_differ_if_both_ranks_take_part_in_each() -> None:
    for positions, different in DIFFERENT:
        assert different_exchanges(dict(enumerate(positions)), len(positions)) == different, positions
