"""Mistakes in where a rank is: the wrong line or exchange, an exchange that matches another by mistake."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.conftest import PROJECT
from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.event_schema import Ended
from trainer.core.position import MAX_NAME, Exchange, Position, different_exchanges
from trainer.launch.position import position_of, stacks
from trainer.user_components.source import CODE, load

# A function of a user's, with what it does, and the exchange in which it waits for rank 1 of two.
BLOCKED = {
    "averages": (
        "all_reduce(torch.zeros(650), 'mean')",
        {"kind": "all_reduce", "elements": 650, "op": "mean"},
    ),
    "broadcasts": ("broadcast(torch.zeros(5), root=1)", {"kind": "broadcast", "elements": 5, "peer": 1}),
    "receives": (
        "recv(torch.zeros(7, dtype=torch.float64), 1)",
        {"kind": "recv", "elements": 7, "dtype": "float64", "peer": 1},
    ),
    "splits": ("split(0)", {"kind": "all_gather", "elements": 1}),
    "waits": ("waiting.wait()", None),
    "nonsense": (
        "all_reduce(torch.zeros(1), 'x' * 500 + chr(10))",
        {"kind": "all_reduce", "elements": 1, "op": "x" * MAX_NAME},
    ),
}


def blocked(folder: Path, name: str, call: str) -> tuple[Position, str]:
    """The position and the stack of rank 0 of two, which waits for rank 1 in this function of a user."""
    (folder / "mine.py").write_text(f"import torch\n\n\ndef {name}(comm):\n    comm.{call}  # here\n")
    body: Callable[[Any], None] = load(folder, "mine.py", name)
    group = ThreadGroup(2)
    comm: Any = MemoryCommunicator(0, 2, Clock(), group)
    comm.waiting = threading.Event()

    def run() -> None:
        with suppress(CommunicationError):
            body(comm)

    thread = threading.Thread(target=run, name="rank 0")
    thread.start()
    deadline = time.monotonic() + 60
    while True:
        frame = sys._current_frames()[thread.ident or 0]
        stack = traceback.extract_stack(frame)
        if stack[-1].name == "wait" and any(each.filename.endswith("mine.py") for each in stack):
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found, text = position_of(frame), stacks()
    comm.waiting.set()
    group.abort()
    thread.join()
    assert found is not None
    return found, text


@pytest.mark.parametrize("name", BLOCKED)
def test_a_position_names_line_and_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / tmp_path.name  # modules are named after their folder
    folder.mkdir()
    monkeypatch.setenv(CODE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    call, exchange = BLOCKED[name]
    found, text = blocked(folder, name, call)
    assert (found.file, found.line, found.function) == ("mine.py", 5, name)
    assert found.exchange == (Exchange(ranks=2, **exchange) if exchange else None)  # type: ignore[arg-type]
    assert (found.waited_s is None) == (exchange is None)
    assert "mine.py" in text
    assert Ended.model_validate({"cause": "", "position": found.model_dump()}).position == found


def frame_in(file: str, code: str, **variables: Any) -> Any:
    """What `frame` is after code that runs as if it were in a file of the project."""
    exec(compile(f"import sys\n{code}", str(PROJECT / file), "exec"), variables)
    return variables.get("frame")


def test_a_position_may_be_in_a_strategy_and_outside() -> None:
    for file in ("trainer/strategies/gossip.py", "trainer/training/session.py"):
        found = position_of(frame_in(file, "frame = sys._getframe()"))
        assert found is not None
        assert (found.file, found.line, found.exchange) == (file, 2, None)
        assert ("outside" in found.text) is ("strategies" not in file)
    assert position_of(None) is None


def test_a_peer_is_named_by_its_rank_in_the_run() -> None:
    comm: Communicator = MemoryCommunicator(0, 2, Clock(), group := ThreadGroup(2))
    comm.run_ranks = [3, 5]
    seen: list[Position | None] = []
    group.mailbox(1, 0).put(torch.zeros(1))
    inner = comm._recv

    def recv(buffer: Any, source: int) -> None:
        seen.append(position_of(sys._getframe()))
        inner(buffer, source)

    comm._recv = recv  # type: ignore[method-assign]
    frame_in("trainer/strategies/x.py", "comm.recv(buffer, 1)", comm=comm, buffer=torch.zeros(1))
    assert seen[0] is not None
    assert seen[0].exchange == Exchange(kind="recv", ranks=2, elements=1, peer=5)


def at(kind: Any, **fields: Any) -> Position:
    exchange = Exchange(kind=kind, **{"ranks": 2, **fields})
    return Position(file="mine.py", line=3, function="train", exchange=exchange)


ALONE = Position(file="mine.py", line=3, function="train")
DIFFERENT: list[tuple[list[Position], tuple[int, int] | None]] = [
    ([at("barrier"), at("all_reduce", elements=5)], (0, 1)),
    ([at("all_reduce", elements=4), at("all_reduce", elements=5)], (0, 1)),
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
    ([at("recv", peer=7), at("barrier")], None),
    ([at("recv", peer=1), at("recv", peer=2), at("barrier", ranks=3)], (1, 2)),
    ([at("barrier", ranks=3), ALONE, at("split", ranks=3)], (0, 2)),
    ([at("barrier", ranks=2), at("all_reduce", ranks=2), at("barrier", ranks=1)], None),  # of groups
]


def test_exchanges_differ_if_both_ranks_take_part_in_each() -> None:
    for positions, different in DIFFERENT:
        assert different_exchanges(dict(enumerate(positions)), len(positions)) == different, positions


def test_texts_of_exchanges() -> None:
    exchange = {"kind": "broadcast", "ranks": 2, "elements": 650, "peer": 0}
    assert Exchange.model_validate(exchange).text == "broadcast of 650 elements from rank 0"
    assert (
        at("recv", elements=1, dtype="int8", peer=3).text
        == "recv of 1 int8 element from rank 3 at mine.py:3"
    )
    assert at("barrier").text == "barrier at mine.py:3"
