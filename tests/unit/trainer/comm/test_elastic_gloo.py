"""Mistakes in groups over gloo that have lost a member: waits that do not end, connections of others."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore

from trainer.comm import elastic_gloo
from trainer.comm.base import CommunicationError
from trainer.comm.elastic_gloo import GlooGroup, GlooGroups
from trainer.comm.sockets import open_sockets
from trainer.core.clock import Clock
from trainer.core.context import NodeContext


def test_group_is_given_up_when_a_member_is_lost_before_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 has arrived, and is lost before it connects. Gloo itself would wait for it until a timeout."""
    monkeypatch.setattr(elastic_gloo, "CONNECT_S", 2.0)
    before = {*threading.enumerate()}
    rendezvous = str(tmp_path / "rendezvous")
    FileStore(f"{rendezvous}-view-1").set("here/1", "")
    context = NodeContext(0, 2, "gloo", tmp_path, timeout_s=120, rendezvous=rendezvous)
    asked = 0

    def give_up() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(CommunicationError, match="a member was lost"):
        GlooGroups(context, Clock()).form("view-1", [0, 1], 0, "", give_up)
    assert asked == 4
    for left_alone in {*threading.enumerate()} - before:  # gloo may abort a process that ends meanwhile
        left_alone.join(30)
        assert not left_alone.is_alive()


def test_interrupt_ends_the_connections_of_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection closes while the group is interrupted, and a new one gets its descriptor."""
    with ExitStack() as stack:
        pairs = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(3)]
        (kept, its_peer), (closed, _), (new, its_new_peer) = pairs
        names = open_sockets()
        sockets = {each.fileno(): names[each.fileno()] for each in (kept, closed)}
        duplicate = os.dup

        def dup(number: int) -> int:
            if number == closed.fileno():
                os.dup2(new.fileno(), number)
            return duplicate(number)

        monkeypatch.setattr(os, "dup", dup)
        GlooGroup(0, 2, Clock(), None, sockets).interrupt()
        its_peer.setblocking(False)
        its_new_peer.setblocking(False)
        assert its_peer.recv(1) == b""
        with pytest.raises(BlockingIOError):
            its_new_peer.recv(1)


def test_operation_ends_when_its_group_is_interrupted_in_the_middle_of_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo itself would wait for the rest of the message until a timeout."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def group(rank: int) -> GlooGroup:
        context = NodeContext(
            rank, 2, "gloo", tmp_path, timeout_s=60, rendezvous=str(tmp_path / "rendezvous")
        )
        formed = GlooGroups(context, Clock()).form("view-1", [0, 1], 0, "", lambda: False)
        assert isinstance(formed, GlooGroup)
        return formed

    message = torch.ones(40_000_000)
    with ThreadPoolExecutor(2) as threads:
        groups = [*threads.map(group, range(2))]
        shifts = [threads.submit(each._shift, message, 1 - each.rank, 1 - each.rank) for each in groups]
        time.sleep(0.02)
        for each in groups:
            each.interrupt()
        for shift in shifts:
            with pytest.raises(CommunicationError):
                shift.result(timeout=15)  # gloo's limit is 30 s
