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

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
QUIET_S = 2  # in which an open page asks again
LAST_S = 5  # time for answers that have begun


@contextmanager
def serve(paths: SweepPaths, port: int, is_active: Callable[[], bool] | None = None) -> Iterator[str]:
    """Serve the page of a results directory; yields its address, which has a secret token.

    Args:
        paths: the paths of the sweep.
        port: the port to listen on; 0: any free one.
        is_active: whether the sweep runs. Default: until the block ends, and then open pages get its last
            state.

    Raises:
        InputError: the port cannot be used.
    """
    token, ended = secrets.token_urlsafe(TOKEN_BYTES), Event()
    watch = Watch(Follower(paths, is_active or (lambda: not ended.is_set())), ended)
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
            timeout_graceful_shutdown=LAST_S,
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listener],), name="watch", daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
        finally:
            ended.set()
            if not is_active and time.monotonic() - watch.asked_at < QUIET_S:
                time.sleep(QUIET_S)
            server.should_exit = True
            thread.join(LAST_S + 1)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = {errno.EADDRINUSE: "in use", errno.EACCES: "not permitted"}.get(error.errno or 0, str(error))
        raise InputError(f"--port {port}: {why}; choose another, or 0 for any free one") from error
