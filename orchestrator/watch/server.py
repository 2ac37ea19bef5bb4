"""The server: a thread of this process, on the loopback interface only."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import uvicorn

from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.watch.app import Watch
from orchestrator.watch.connections import MAX_WAITING, Connection
from orchestrator.watch.follower import Follower
from orchestrator.watch.page import page

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
LAST_MESSAGE_S = 5  # time for pages to get the last state of the sweep


@contextmanager
def serve(paths: SweepPaths, port: int, is_active: Callable[[], bool] | None = None) -> Iterator[str]:
    """Serve the page of a results directory; yields its address, which has a secret token.

    At the end of the block, open pages get the last state.

    Args:
        paths: the paths of the sweep.
        port: the port to listen on; 0: any free one.
        is_active: whether the sweep runs; default: until the block ends.

    Raises:
        InputError: the port cannot be used.
    """
    token, ended = secrets.token_urlsafe(TOKEN_BYTES), Event()
    if is_active:
        follower = Follower(paths, is_active)
    else:
        follower = Follower(paths, lambda: not ended.is_set(), since_ns=time.time_ns())
    watch = Watch(follower, page(paths.directory.name), ended)
    with _listening(port) as listener:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the terminal belongs to the sweep
        config = uvicorn.Config(
            watch.app(token),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("Connection", "close")],  # one request each, so that none is held after its answer
            backlog=MAX_WAITING,
            timeout_graceful_shutdown=LAST_MESSAGE_S,
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listener],), name="watch", daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
        finally:
            ended.set()
            server.should_exit = True
            thread.join(LAST_MESSAGE_S + 1)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = {errno.EADDRINUSE: "in use", errno.EACCES: "not permitted"}.get(error.errno or 0, str(error))
        raise InputError(f"--port {port}: {why}; choose another, or 0 for any free one") from error
