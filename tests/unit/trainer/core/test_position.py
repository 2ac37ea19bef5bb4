"""Where a rank is: found from its stack, and compared."""

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

USERS = """
import torch


def averages(comm):
    comm.all_reduce(torch.zeros(650), "mean")  # here


def broadcasts(comm):
    comm.broadcast(torch.zeros(5), root=1)  # here


def receives(comm):
    comm.recv(torch.zeros(7, dtype=torch.float64), 1)  # here


def shifts(comm):
    comm.shift(torch.zeros(3), 1)  # here


def splits(comm):
    comm.split(0)  # here


def asks_for_nonsense(comm):
    comm.all_reduce(torch.zeros(1), "x" * 500 + "\\n")  # here


def waits(comm):
    comm.waiting.wait()  # here
"""


def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Position, str]:
    """The position and the stack of rank 0 of two, which waits for rank 1 in this function of a user."""
    folder = tmp_path / tmp_path.name  # modules are named after their folder
    folder.mkdir()
    (folder / "mine.py").write_text(USERS)
    monkeypatch.setenv(CODE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    call: Callable[[Any], None] = load(folder, "mine.py", name)
    group = ThreadGroup(2)
    comm: Any = MemoryCommunicator(0, 2, Clock(), group)
    comm.waiting = threading.Event()

    def run() -> None:
        with suppress(CommunicationError):
            call(comm)

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
    assert found.file == "mine.py"
    assert USERS.splitlines()[found.line - 1].endswith("# here")
    assert found.function == name
    return found, text


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        ("averages", Exchange(kind="all_reduce", ranks=2, elements=650, op="mean")),
        ("broadcasts", Exchange(kind="broadcast", ranks=2, elements=5, peer=1)),
        ("receives", Exchange(kind="recv", ranks=2, elements=7, dtype="float64", peer=1)),
        ("splits", Exchange(kind="all_gather", ranks=2, elements=1)),
        ("waits", None),
    ],
)
def test_position_names_line_and_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, exchange: Exchange | None
) -> None:
    found, text = blocked(tmp_path, monkeypatch, name)
    assert found.exchange == exchange
    assert (found.waited_s is None) == (exchange is None)
    assert "mine.py" in text


def test_what_a_user_passes_fits_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = blocked(tmp_path, monkeypatch, "asks_for_nonsense")
    assert found.exchange is not None
    assert found.exchange.op == "x" * MAX_NAME
    assert Ended.model_validate({"cause": "", "position": found.model_dump()}).position == found


def test_position_in_a_strategy_and_in_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    def frame_of(file: str) -> Any:
        code = compile("import sys\nframe = sys._getframe()", str(PROJECT / file), "exec")
        variables: dict[str, Any] = {}
        exec(code, variables)
        return variables["frame"]

    for file in ("trainer/strategies/gossip.py", "trainer/training/session.py"):
        found = position_of(frame_of(file))
        assert found is not None
        assert (found.file, found.line, found.exchange) == (file, 2, None)
    assert position_of(None) is None


def at(kind: Any, **fields: Any) -> Position:
    exchange = Exchange(kind=kind, **{"ranks": 2, **fields})
    return Position(file="mine.py", line=3, function="train", exchange=exchange)


ALONE = Position(file="mine.py", line=3, function="train")


@pytest.mark.parametrize(
    ("positions", "different"),
    [
        ([at("barrier"), at("all_reduce", elements=5)], (0, 1)),
        ([at("all_reduce", elements=4), at("all_reduce", elements=5)], (0, 1)),
        ([at("all_reduce", op="sum"), at("all_reduce", op="mean")], (0, 1)),
        ([at("broadcast", peer=0), at("broadcast", peer=1)], (0, 1)),
        ([at("recv", peer=1), at("recv", peer=0)], (0, 1)),
        ([at("recv", peer=1, elements=4), at("send", peer=0, elements=5)], (0, 1)),
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
    ],
)
def test_different_exchanges(positions: list[Position], different: tuple[int, int] | None) -> None:
    assert different_exchanges(dict(enumerate(positions)), len(positions)) == different


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
    exec(
        compile("comm.recv(buffer, 1)", str(PROJECT / "trainer/strategies/x.py"), "exec"),
        {"comm": comm, "buffer": torch.zeros(1)},
    )
    assert seen[0] is not None
    assert seen[0].exchange == Exchange(kind="recv", ranks=2, elements=1, peer=5)
