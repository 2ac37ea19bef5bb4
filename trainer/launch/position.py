"""Finds where a thread is, from its stack. Works while the thread is inside a C call."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import trainer
from trainer.comm import base, nonblocking
from trainer.comm.base import Communicator
from trainer.comm.nonblocking import Request
from trainer.core.position import MAX_NAME, MAX_PEER, PEERS, Exchange, Position
from trainer.core.record import one_line
from trainer.core.user_code import name_in_code

# Methods of the communicator that are not kinds of their own.
_KINDS = {"isend": "send", "irecv": "recv", "ishift": "shift", "iweighted_mean": "iall_reduce"}
KINDS = get_args(Exchange.model_fields["kind"].annotation)
PACKAGE = Path(trainer.__file__).parent
STRATEGIES = PACKAGE / "strategies"
# The parameters of a communicator's methods that name the peer.
PEER_PARAMETERS = ("root", "distance", "to", "source")


def position_of(frame: FrameType | None, code: Path | None = None) -> Position | None:
    """Where a thread is, by its innermost frame in users' code or a strategy, else in the trainer.

    code: a directory of users' code, see `name_in_code`. Returns None if none of its frames is there.
    """
    frames = [*_frames(frame)]
    named = [(each, *found) for each in frames if (found := _name(Path(each.f_code.co_filename), code))]
    if not named:
        return None
    at, name, _ = next((each for each in named if each[2]), named[0])
    exchange, waited_s = next(filter(None, map(_exchange, frames)), (None, None))
    return Position(
        file=one_line(name)[-MAX_NAME:],
        line=at.f_lineno or 0,
        function=one_line(at.f_code.co_name)[:MAX_NAME],
        exchange=exchange,
        waited_s=waited_s,
    )


def stacks() -> str:
    """The stacks of all threads but the caller's, as a traceback has them."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Stack of thread {names.get(thread, thread)}, most recent call last:\n"
        + "".join(traceback.format_stack(frame)).rstrip()
        for thread, frame in sys._current_frames().items()
        if thread != threading.get_ident()
    )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(path: Path, code: Path | None) -> tuple[str, bool] | None:
    """The name of a file, and whether it is of a user or a strategy. None for those of libraries."""
    if found := name_in_code(path, code):
        return str(found), True
    if not path.is_relative_to(PACKAGE) or path.is_relative_to(PACKAGE / "comm"):
        return None
    return str(path.relative_to(PACKAGE.parent)), path.is_relative_to(STRATEGIES)


def _exchange(frame: FrameType) -> tuple[Exchange, float | None] | None:
    """The exchange that a frame of the communicator performs, and seconds since the rank has entered it."""
    if frame.f_code.co_filename not in (base.__file__, nonblocking.__file__):
        return None
    found, kind = frame.f_locals, _KINDS.get(frame.f_code.co_name, frame.f_code.co_name)
    comm = found.get("self")
    if isinstance(comm, Request):
        found, kind, comm = {**found, **comm.details, "buffer": comm.buffer}, comm.kind, comm.comm
    if kind not in KINDS or not isinstance(comm, Communicator):
        return None
    entered = getattr(found.get("span"), "entered", None)
    waited_s = None if entered is None else max(0.0, comm.clock.wall() - entered)
    return _described(kind, comm, found), waited_s


def _described(kind: str, comm: Communicator, found: Mapping[str, Any]) -> Exchange:
    """The exchange of this kind, by the variables of the method. Users may have passed anything."""
    from torch import Tensor

    buffer, op = found.get("buffer"), found.get("op")
    fields: dict[str, Any] = {"kind": kind, "ranks": min(comm.size, MAX_PEER)}
    if isinstance(buffer, Tensor):
        dtype = str(buffer.dtype).removeprefix("torch.")
        fields |= {"elements": buffer.numel(), "dtype": dtype}
    if isinstance(op, str):
        fields["op"] = one_line(op)[:MAX_NAME]
    peer = next((found[name] for name in PEER_PARAMETERS if name in found), None)
    if kind in PEERS and isinstance(peer, int) and abs(peer) <= MAX_PEER:
        inside = kind != "shift" and 0 <= peer < len(comm.run_ranks)
        fields["peer"] = comm.run_ranks[peer] if inside else peer
    return Exchange(**fields)
