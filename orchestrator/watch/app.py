"""What the server answers: the page, its messages, the report, and files of runs. It changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from hmac import compare_digest
from threading import Event
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.errors import InputError
from orchestrator.watch.files import log_names
from orchestrator.watch.follower import Follower, View
from orchestrator.watch.messages import Updates
from orchestrator.watch.page import Page
from trainer.core.regular_files import RefusedFile, open_below

POLL_S = 1.0  # between two looks at the files, while a page is open
END_S = 0.1  # until pages get to know that the sweep has ended
KEEP_ALIVE_S = 5.0  # without news, after which a page hears that the server is there
CHUNK = 2**16
# As in the report itself. Sandboxed, so that what it runs can read nothing else here.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
FILE_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Answers only requests whose path starts with the token, and sets headers that all answers have."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", FILE_POLICY)
            await send(message)

        given = str(scope["path"]).split("/")[1:2]
        if not compare_digest("".join(given).encode(errors="replace"), self._token):
            refusal = PlainTextResponse("The address lacks its token: see the terminal.\n", 403)
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


class Watch:
    """The answers for one sweep."""

    def __init__(self, follower: Follower, page: Page, ended: Event) -> None:
        """ended: set when the server is about to end."""
        self._follower, self._page, self._ended = follower, page, ended
        self._lock = asyncio.Lock()
        self._view: View | None = None
        self._polled_at = 0.0

    def app(self, token: str) -> Starlette:
        routes = [
            Route("/{token}/", self._show_page),
            Route("/{token}/messages", self._messages),
            Route("/{token}/report.html", self._report),
            Route("/{token}/{key}/{name}", self._file),
        ]
        guards = [
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False),
            Middleware(Guard, token=token),
        ]
        return Starlette(routes=routes, middleware=guards)

    async def _show_page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": self._page.policy}
        return Response(self._page.text, media_type="text/html", headers=headers)

    async def _messages(self, request: Request) -> Response:
        """Server-sent events for one page. run and log: what it shows in detail."""
        chosen, log = (request.query_params.get(name, "") for name in ("run", "log"))
        updates = Updates(self._follower, chosen, log)
        return StreamingResponse(self._stream(updates), media_type="text/event-stream")

    async def _stream(self, updates: Updates) -> AsyncIterator[str]:
        sent_at = time.monotonic()
        while True:
            last = self._ended.is_set()  # before the files are read, so that the last message has all
            try:
                text = await self._message(updates)
            except (InputError, OSError) as error:
                yield _event("trouble", str(error))
                return
            if text or time.monotonic() - sent_at > KEEP_ALIVE_S:
                yield _event("message" if text else "alive", text)
                sent_at = time.monotonic()
            if last:
                yield _event("end")
                return
            await self._pause()

    async def _message(self, updates: Updates) -> str:
        """The next message of a page. All pages share one look at the files."""
        async with self._lock:
            if (
                self._view is None
                or self._ended.is_set()
                or time.monotonic() - self._polled_at >= POLL_S / 2
            ):
                self._view = await run_in_threadpool(self._follower.poll)
                self._polled_at = time.monotonic()
            return await run_in_threadpool(updates.message, self._view)

    async def _pause(self) -> None:
        until = time.monotonic() + POLL_S
        while time.monotonic() < until and not self._ended.is_set():
            await asyncio.sleep(END_S)

    async def _report(self, request: Request) -> Response:
        return self._sent(self._follower.paths.html.name, "text/html; charset=utf-8", REPORT_POLICY)

    async def _file(self, request: Request) -> Response:
        """A file to which the report or the page refers, as plain text."""
        key, name = request.path_params["key"], request.path_params["name"]
        if key in self._follower.keys:
            directory = self._follower.paths.run(key).directory
            logs = [f"{each}.log" for each in log_names(directory)]
            if name in ("result.json", "events.jsonl", "timeline.json", *logs):
                return self._sent(f"{key}/{name}", "text/plain; charset=utf-8", FILE_POLICY)
        return PlainTextResponse("There is no such file.\n", 404)

    def _sent(self, relative: str, media_type: str, policy: str) -> Response:
        """A file of the results directory as it is now. Whoever writes to it may have put links there."""
        try:
            file = open_below(self._follower.paths.directory, relative)
        except RefusedFile as error:
            return PlainTextResponse(f"{relative} {error.strerror}\n", 404)
        except OSError:
            return PlainTextResponse("There is no such file yet.\n", 404)
        headers = {"Content-Security-Policy": policy, "Content-Type": media_type}
        return StreamingResponse(_chunks(file), headers=headers)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read(CHUNK):
            yield data


def _event(kind: str, data: str = "") -> str:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {kind}\n{lines}\n"
