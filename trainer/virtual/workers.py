"""Worker processes: each runs a share of the virtual ranks and tells the others what it has done."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any, Self

from trainer.core.events import EventWriter, signal_name

_LENGTH = Struct("<Q")  # of a message, before it


class Peer:
    """The connection to another worker process. It never blocks: what does not fit into it is queued.

    Two processes that both wait until the other one has read would wait for ever.

    Attributes:
        ended: whether the other process has closed it, or has died.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.ended = False
        self._connection = connection
        self._unsent: deque[memoryview] = deque()
        self._header = bytearray()
        self._body: bytearray | None = None  # of the message that arrives
        self._arrived = 0  # bytes of it

    @property
    def number(self) -> int:
        """The file descriptor."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Send a message, or queue what does not fit."""
        if not self.ended:
            self._unsent += memoryview(_LENGTH.pack(len(message))), memoryview(message)
            self.flush()

    def flush(self) -> None:
        """Send as much as fits."""
        try:
            while self._unsent:
                rest = self._unsent[0][self._connection.send(self._unsent[0]) :]
                if rest:
                    self._unsent[0] = rest
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._end()

    def received(self) -> Iterator[bytearray]:
        """The messages that have arrived."""
        while not self.ended:
            try:
                body = self._receive()
            except BlockingIOError:
                return
            except ConnectionError:
                self._end()
                return
            if body is not None:
                yield body

    def _receive(self) -> bytearray | None:
        """Receive a part of a message. Returns the message if it is the last one."""
        if self._body is None:
            part = self._connection.recv(_LENGTH.size - len(self._header))
            self._header += part
            if len(self._header) == _LENGTH.size:
                self._body, self._arrived = bytearray(*_LENGTH.unpack(self._header)), 0
                self._header.clear()
            if not part:
                self._end()
            return None
        count = self._connection.recv_into(memoryview(self._body)[self._arrived :])
        self._arrived += count
        if not count:
            self._end()
        if self._arrived < len(self._body):
            return None
        whole, self._body = self._body, None
        return whole

    def close(self) -> None:
        """Disconnect. The other process finds the connection ended, once it has read what was sent."""
        self._connection.close()

    def _end(self) -> None:
        self.ended = True
        self._unsent.clear()


def has_ended(number: int) -> str:
    """What ranks report whose run has lost a worker process."""
    return f"worker process {number} of the virtual nodes has ended"


class Share:
    """The ranks of this process, and its connections to the other worker processes of the run.

    Attributes:
        ranks: those of this process.
        parent: the PID of the first worker process; None in that process itself.
    """

    def __init__(
        self, number: int, count: int, size: int, peers: Mapping[int, Peer], parent: int | None
    ) -> None:
        """
        Args:
            number: that of this process, from 0.
            count: the number of processes.
            size: the number of ranks of the run.
            peers: by the number of their process.
        """
        self.number, self.parent = number, parent
        self._count, self._size, self._peers = count, size, peers
        self._children: dict[int, int] = {}  # PID by number
        self._gifts: list[tuple[int | None, object]] = []  # to a process, or to all
        self.ranks = self._ranks_of(number)

    @classmethod
    def fork(cls, count: int, size: int) -> Self:
        """Fork so many processes, less this one. Every process returns, with its share.

        Call it while the process has one thread.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        pairs = {(one, other): socket.socketpair() for other in range(count) for one in range(other)}
        parent, number, children = os.getpid(), 0, dict[int, int]()
        for child in range(1, count):
            if not (pid := os.fork()):
                number = child
                break
            children[child] = pid
        peers = {}
        for pair, ends in pairs.items():
            for own, other, end in zip(pair, reversed(pair), ends, strict=True):
                if own == number:
                    peers[other] = Peer(end)
                else:
                    end.close()
        share = cls(number, count, size, peers, parent if number else None)
        share._children = {} if number else children
        return share

    def owner(self, rank: int) -> int:
        """The number of the process that runs a rank."""
        return rank * self._count // self._size

    def _ranks_of(self, number: int) -> range:
        first, after = (-(-each * self._size // self._count) for each in (number, number + 1))
        return range(first, after)

    def has_ended(self, number: int) -> bool:
        """Whether another process has ended, and everything that it has sent is taken."""
        return self._peers[number].ended

    def give(self, gift: object, to: int | None = None) -> None:
        """Add something to the next message to a process, or to all others."""
        self._gifts.append((to, gift))

    def tell(self, news: object) -> None:
        """Send all other processes what has happened here, with what `give` has added."""
        gifts, self._gifts = self._gifts, []
        for_all: bytes | None = None  # the message to those without gifts of their own
        for number, peer in self._peers.items():
            own = [gift for to, gift in gifts if to is None or to == number]
            if any(to == number for to, _ in gifts):
                peer.send(pickle.dumps((news, own), pickle.HIGHEST_PROTOCOL))
            else:
                for_all = for_all or pickle.dumps((news, own), pickle.HIGHEST_PROTOCOL)
                peer.send(for_all)

    def poll(self, take: Callable[[Any, list[Any]], object], wait: bool) -> None:
        """Send what is queued, and take the messages that have arrived.

        Args:
            take: gets the news and the gifts of each.
            wait: until another process has sent or received something.
        """
        if wait:
            poll = select.poll()
            for peer in self._peers.values():
                if not peer.ended:
                    poll.register(peer.number, select.POLLIN | (select.POLLOUT if peer.has_unsent else 0))
            poll.poll()
        for peer in self._peers.values():
            peer.flush()
            for message in peer.received():
                take(*pickle.loads(message))

    def run(self, train: Callable[[], bool], writer_of: Callable[[int], EventWriter]) -> bool:
        """Train the ranks of this process. Only the first process returns, when all others have ended.

        Args:
            train: returns whether all ranks of this process succeeded.
            writer_of: makes the writer of a rank, for the exit report of one whose process was killed.

        Returns:
            Whether all ranks of the run succeeded.
        """
        succeeded = False
        try:
            succeeded = train()
            while any(peer.has_unsent for peer in self._peers.values()):
                self.poll(lambda *_: None, wait=True)
        except Exception:
            if self.parent is None:
                raise
            traceback.print_exc()
        finally:
            if self.parent is not None:
                os._exit(0 if succeeded else 1)
            for peer in self._peers.values():
                peer.close()
        for number, pid in self._children.items():
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            succeeded = succeeded and code == 0
            if code < 0:
                signal = signal_name(-code)
                for rank in self._ranks_of(number):
                    writer_of(rank).write("died", cause=f"killed by {signal}", signal=signal)
        return succeeded
