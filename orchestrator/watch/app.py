"""What the server answers: the page, where the sweep is, its report, files of runs. It changes nothing."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from hmac import compare_digest
from math import inf
from pathlib import Path
from threading import Event, Lock
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.errors import InputError
from orchestrator.report.figures.theme import css_variables
from orchestrator.watch.follower import Follower
from trainer.core.record import one_line
from trainer.core.regular_files import open_below, why_unread

CHUNK = 2**16
# As in the report itself. Sandboxed, so that what it runs can read nothing else here.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
FILE_POLICY = "sandbox; default-src 'none'; frame-ancestors 'self'"
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

    def __init__(self, follower: Follower, ended: Event) -> None:
        """ended: set when the server is about to end."""
        self._follower, self._ended = follower, ended
        self._lock = Lock()  # the follower's
        self.asked_at = -inf  # when a page has asked last, by the monotonic clock

    def app(self, token: str) -> Starlette:
        routes = [
            Route("/{token}/", self._show_page),
            Route("/{token}/now", self._now),
            Route("/{token}/report.html", self._report),
            Route("/{token}/{key}/{name}", self._file),
        ]
        guards = [
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False),
            Middleware(Guard, token=token),
        ]
        return Starlette(routes=routes, middleware=guards)

    def _show_page(self, request: Request) -> Response:
        """The document with its script and style. It shows what `_now` answers, as text."""
        html, style, script = (
            (Path(__file__).parent / f"page.{kind}").read_text(encoding="utf-8")
            for kind in ("html", "css", "js")
        )
        light, dark = css_variables()
        style = f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{style}"
        policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src "
            "'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(
            html.replace("STYLE", style).replace("SCRIPT", script),
            headers={"Content-Security-Policy": policy},
        )

    def _now(self, request: Request) -> Response:
        """Where the sweep is, as JSON. last: the server is about to end, so pages need not ask again."""
        with self._lock:
            last = self._ended.is_set()  # before the files are read, so that the last answer has all
            self.asked_at = time.monotonic()
            try:
                return JSONResponse({**asdict(self._follower.poll()), "last": last})
            except (InputError, OSError) as error:
                return PlainTextResponse(one_line(str(error)), 503)

    def _report(self, request: Request) -> Response:
        return self._sent(self._follower.paths.html.name, "text/html; charset=utf-8", REPORT_POLICY)

    def _file(self, request: Request) -> Response:
        """A file to which the report refers, as plain text."""
        key, name = request.path_params["key"], request.path_params["name"]
        is_linked = name in ("result.json", "events.jsonl", "timeline.json") or name.endswith(".log")
        if key in self._follower.keys and is_linked:
            return self._sent(f"{key}/{name}", "text/plain; charset=utf-8", FILE_POLICY)
        return PlainTextResponse("There is no such file.\n", 404)

    def _sent(self, relative: str, media_type: str, policy: str) -> Response:
        """A file of the results directory as it is now. Whoever writes to it may have put links there."""
        try:
            file = open_below(self._follower.paths.directory, relative)
        except OSError as error:
            return PlainTextResponse(f"{why_unread(error)}\n", 404)
        headers = {"Content-Security-Policy": policy, "Content-Type": media_type}
        return StreamingResponse(_chunks(file), headers=headers)


def _hash(source: str) -> str:
    """The source in a content security policy."""
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read(CHUNK):
            yield data
