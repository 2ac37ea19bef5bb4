"""Where a rank is in its code, and which exchange it is in. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainer.core.record import Amount, Count, Record, printable

MAX_NAME = 100  # characters of a name in a position
MAX_PEER = 2**16
POINT_TO_POINT = ("send", "recv")
# How the peer of each kind is named; the other kinds have none.
PEERS = {
    "broadcast": "from rank",
    "ibroadcast": "from rank",
    "gather": "to rank",
    "shift": "by",
    "send": "to rank",
    "recv": "from rank",
}


def _checked(text: str) -> str:
    text = printable(text)
    if len(text) > MAX_NAME or "\n" in text or "\t" in text:
        raise ValueError(f"must be one line of at most {MAX_NAME} characters")
    return text


Name = Annotated[str, AfterValidator(_checked)]


class Exchange(Record):
    """An exchange that a rank has entered.

    Attributes:
        kind: the communicator's method.
        ranks: how many take part, or could.
        elements, dtype: size and type of this rank's buffer; 0 elements: it has none.
        op: the operation of a reduction.
        peer: the root, the receiver or the sender, as a rank of the run; the distance of a shift.
    """

    kind: Literal[
        "all_reduce",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "iall_reduce",
        "iall_gather",
        "ireduce_scatter",
        "ibroadcast",
        "gather",
        "broadcast",
        "shift",
        "send",
        "recv",
        "barrier",
        "split",
    ]
    ranks: Annotated[int, Field(ge=1, le=MAX_PEER)]
    elements: Count = 0
    dtype: Name = "float32"
    op: Name | None = None
    peer: Annotated[int, Field(ge=-MAX_PEER, le=MAX_PEER)] | None = None

    @property
    def text(self) -> str:
        """`broadcast of 650 elements from rank 0`."""
        kind = f"{self.kind}({self.op})" if self.op else self.kind
        dtype = "" if self.dtype == "float32" else f"{self.dtype} "
        of = (
            f" of {self.elements} {dtype}element{'' if self.elements == 1 else 's'}"
            if self.elements
            else ""
        )
        peer = "" if self.peer is None or self.kind not in PEERS else f" {PEERS[self.kind]} {self.peer}"
        return f"{kind}{of}{peer}"

    def agrees(self, other: Exchange) -> bool:
        """Whether two ranks that enter these exchanges take part in the same one."""
        if {self.kind, other.kind} == {*POINT_TO_POINT}:
            return (self.elements, self.dtype) == (other.elements, other.dtype)
        return self == other


class Position(Record):
    """Where a rank is.

    Attributes:
        file, line, function: the innermost frame in users' code or in a strategy, if there is one.
        exchange: the exchange that it is in. waited_s: the seconds for which it has waited.
    """

    file: Name
    line: Annotated[int, Field(ge=0, lt=2**31)]
    function: Name
    exchange: Exchange | None = None
    waited_s: Amount | None = None

    @property
    def text(self) -> str:
        """`barrier at mine.py:40`, or `train at mine.py:40` outside of exchanges."""
        outside = self.file.startswith("trainer/") and not self.file.startswith("trainer/strategies/")
        place = f"{self.file}:{self.line}{', outside of the strategy' if outside else ''}"
        return f"{self.exchange.text if self.exchange else self.function} at {place}"


def different_exchanges(positions: Mapping[int, Position], size: int) -> tuple[int, int] | None:
    """Two ranks of a run of `size` ranks that are in different exchanges, in each of which both take part.

    A momentary difference is no error: a rank may leave an exchange before another one does.
    """
    exchanges = {rank: each.exchange for rank, each in sorted(positions.items()) if each.exchange}
    for rank, other in _pairs(exchanges, size):
        if not exchanges[rank].agrees(exchanges[other]):
            return min(rank, other), max(rank, other)
    return None


def _pairs(exchanges: Mapping[int, Exchange], size: int) -> Iterator[tuple[int, int]]:
    """Ranks of which each takes part in the exchange of the other."""
    collective = [
        rank for rank, each in exchanges.items() if each.kind not in POINT_TO_POINT and each.ranks == size
    ]
    yield from ((collective[0], rank) for rank in collective[1:])
    for rank, each in exchanges.items():
        peer = each.peer
        if each.kind in POINT_TO_POINT and peer is not None and peer in exchanges and peer != rank:
            back = exchanges[peer].kind in POINT_TO_POINT and exchanges[peer].peer == rank
            if back or peer in collective:
                yield rank, peer
