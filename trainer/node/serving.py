"""The agent of a node from its start to its end: in a container, or at the end of a stream."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from trainer.core.sources import own_digest
from trainer.launch.launchers import free_port
from trainer.node.agent import Agent, CoordinatorGone, pass_health_check
from trainer.node.clean_up import empty, remove_traces, settings
from trainer.node.home import CONTAINER, PREFIX, Home, lock, remove_homes
from trainer.node.protocol import FROM_COORDINATOR, over_stdio
from trainer.node.rank_assignment import AssignmentError
from trainer.warm.process import ParentError, ParentProcess

RETRY_S = 0.5  # of a warm agent that the coordinator has rejected


def serve_container(role: str, topology: str, warm: bool = False) -> int:
    """Run the agent of one container. Returns its exit code.

    warm: take one run after the other, whose ranks are forked from a process that holds torch.
    """
    try:
        if warm:
            _serve_runs(role, topology)
        return asyncio.run(Agent(role, topology).run())
    except CoordinatorGone:
        print(f"{role}: the coordinator has ended", file=sys.stderr)
        return 0 if warm else 1  # the coordinator's own exit code says why
    except (AssignmentError, ParentError) as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 1


def _serve_runs(role: str, topology: str) -> NoReturn:
    """Take one run after the other. Raises CoordinatorGone when there are no more."""
    parent = ParentProcess("shardyard", {})
    while True:
        pass_health_check(CONTAINER)  # importing torch takes long on a node with a tenth of a core
        replaced = None if role == "launcher" else parent.ensure()  # it runs no ranks
        kept = settings([os.getpid(), *([parent.pid] if parent.pid else [])])
        clean_up = partial(remove_traces, kept, parent.refuse_waiting)
        try:
            asyncio.run(Agent(role, topology, parent, replaced, clean_up).run())
        except AssignmentError as error:
            print(f"{role}: {error}", file=sys.stderr)
            time.sleep(RETRY_S)


def serve_stream(role: str, address: str, directory: Path | None = None) -> int:
    """Take runs from the coordinator at the other end of the standard streams, until it closes them.

    Args:
        role: node or launcher.
        address: where other nodes reach this one.
        directory: of the agent's files; it must not exist. None: one of its own.
    """
    try:
        remove_homes()
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        else:
            directory.mkdir(mode=0o700)
        lock(Home(directory))
    except OSError as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 1
    os.chdir(directory)  # `python -m` would import a trainer of the current directory
    try:
        return asyncio.run(_take_runs(role, Home(directory), address))
    finally:
        os.chdir("/")
        shutil.rmtree(directory, ignore_errors=True)


async def _take_runs(role: str, home: Home, address: str) -> int:
    parent = ParentProcess(home.path.name, {})
    connection = await over_stdio(FROM_COORDINATOR)
    try:
        while message := await connection.receive():
            if message["kind"] != "begin":
                continue  # of the last run
            replaced = refusal = None
            try:
                replaced = parent.ensure() if message["warm"] and role == "node" else None
            except ParentError as error:
                refusal = str(error)
            clean_up = partial(_clean, home, parent)
            agent = Agent(role, "", parent if message["warm"] else None, replaced, clean_up, home)
            hello = {"address": address, "port": free_port(), "sources": own_digest(), "refusal": refusal}
            await agent.take(connection, **hello)
            if agent.stopped:
                return 1
    except CoordinatorGone:
        return 0
    finally:
        parent.close()
    return 0


def _clean(home: Home, parent: ParentProcess) -> str | None:
    """Wait for the end of a run's ranks, and remove its files. Returns what cannot be removed."""
    parent.wait_until_idle()
    try:
        empty(home.path, home.lock)
    except (OSError, RecursionError) as error:
        return str(error)
    return None
