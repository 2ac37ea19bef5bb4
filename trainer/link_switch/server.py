"""The switch: moves packets between the TUN devices of the nodes, when the shaper says so."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

from trainer.link_switch.control import (
    MAX_BYTES,
    SOCKET,
    Message,
    Plug,
    Setup,
    Stats,
    SwitchAnswer,
    dump,
    parse,
)
from trainer.link_switch.packets import addresses, limit_segments, opens_connection
from trainer.link_switch.shaping import MAX_MTU, Shaper

IDLE_S = 300.0  # after the last run or message, after which the switch ends
BATCH = 64  # packets that are read from one device before others get their turn


class Switch:
    """One switch, for one run after the other. `run` is its whole life."""

    def __init__(self, path: Path = SOCKET) -> None:
        """path: the path of the socket on which it listens."""
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        path.chmod(0o666)  # plugs have another user; nothing else mounts its directory
        self._listener.listen(64)
        self._clients: dict[int, socket.socket] = {}  # by descriptor
        self._devices: dict[int, bytes] = {}  # address by TUN device
        self._waiting: list[socket.socket] = []  # plugs, until all are connected
        self._setup: Setup | None = None
        self._shaper: Shaper | None = None
        self._nodes: dict[bytes, int] = {}  # number by address, of the run
        self._receivers: dict[int, int] = {}  # TUN device by number
        self._idle_from = time.monotonic()

    def run(self) -> None:
        """Serve until it is idle. It cannot notice the end of containers, whose devices it keeps."""
        while time.monotonic() < self._idle_from + IDLE_S:
            self.step(1.0)
        self.close()

    def close(self) -> None:
        """Let the devices of all nodes disappear."""
        for each in [self._listener, *self._clients.values(), *self._waiting]:
            each.close()
        for device in self._devices:
            os.close(device)

    def step(self, timeout_s: float) -> None:
        """Wait for messages, packets and the time of packets, at most this long, and handle them."""
        next_at = self._shaper.next_at if self._shaper else None
        if next_at is not None:
            timeout_s = min(timeout_s, max(0.0, next_at - time.monotonic()))
        listener = self._listener.fileno()
        ready, _, _ = select.select([listener, *self._clients, *self._devices], (), (), timeout_s)
        for each in ready:
            if each == listener:
                client, _ = self._listener.accept()
                self._clients[client.fileno()] = client
            elif each in self._clients:
                self._hear(self._clients.pop(each))
            elif each in self._devices:
                self._read(each)
        if self._shaper:
            for to, packet in self._shaper.due(time.monotonic()):
                self._write(to, packet)

    def _hear(self, client: socket.socket) -> None:
        """SwitchAnswer the only message of a client; that of a plug once all are connected."""
        line, descriptors, _, _ = socket.recv_fds(client, MAX_BYTES, 1)
        try:
            answer = self._handle(parse(line), descriptors)
        except (ValueError, OSError) as error:  # OSError: of an address
            answer = SwitchAnswer(error=str(error))
        self._idle_from = time.monotonic() + (self._setup.timeout_s if self._setup else 0.0)
        if answer is None:
            self._waiting.append(client)
        else:
            _reply(client, answer)
        if self._setup and {*self._setup.addresses} <= {
            _text(address) for address in self._devices.values()
        }:
            for each in self._waiting:
                _reply(each, SwitchAnswer())
            self._waiting.clear()

    def _handle(self, message: Message, descriptors: list[int]) -> Message | None:
        """The answer to a message; None if it comes later."""
        if isinstance(message, Plug):
            if len(descriptors) != 1:
                return SwitchAnswer(error="a plug comes with one descriptor")
            os.set_blocking(descriptors[0], False)
            self._devices[descriptors[0]] = socket.inet_aton(message.address)
            self._number()
            return None
        for each in descriptors:
            os.close(each)
        if isinstance(message, Setup):
            for address in message.addresses:
                socket.inet_aton(address)
            self._setup = message
            self._shaper = Shaper(message.link, message.nodes, message.seed)
            self._number()
            return SwitchAnswer()
        if isinstance(message, Stats) and self._shaper:
            shaper = self._shaper
            return Stats(
                delivered=shaper.delivered,
                lost=shaper.lost,
                overflowed=shaper.overflowed,
                cpu_s=time.process_time(),
            )
        return SwitchAnswer(error=f"a message of kind {message.kind} is not expected now")

    def _number(self) -> None:
        """Find the nodes of the run among the devices."""
        if self._setup is None:
            return
        run = self._setup.addresses[: self._setup.nodes]
        self._nodes = {socket.inet_aton(address): number for number, address in enumerate(run)}
        self._receivers = {
            self._nodes[address]: device
            for device, address in self._devices.items()
            if address in self._nodes
        }

    def _read(self, device: int) -> None:
        """Hand packets of a node over to the shaper."""
        source = self._nodes.get(self._devices[device])
        for _ in range(BATCH):
            try:
                packet = os.read(device, MAX_MTU)
            except BlockingIOError:
                return
            except OSError:  # the container has ended, and its devices with it
                self._unplug(device)
                return
            ends = addresses(packet)
            to = self._nodes.get(ends[1]) if ends else None
            # A node can only send as itself, and only to nodes of its run.
            if self._shaper is None or source is None or to is None or ends is None or to == source:
                continue
            if ends[0] != self._devices[device]:
                continue
            if opens_connection(packet):
                packet = limit_segments(packet, self._shaper.segment_bytes(to, source))
            self._shaper.offer(time.monotonic(), source, to, packet)

    def _write(self, to: int, packet: bytes) -> None:
        device = self._receivers.get(to)
        if device is not None:
            with suppress(OSError):  # the container has ended, or takes no packet now: TCP sends it again
                os.write(device, packet)

    def _unplug(self, device: int) -> None:
        self._devices.pop(device)
        os.close(device)
        self._number()


def _reply(client: socket.socket, answer: Message) -> None:
    with client, suppress(OSError):  # it has gone
        client.send(dump(answer))


def _text(address: bytes) -> str:
    return socket.inet_ntoa(address)
