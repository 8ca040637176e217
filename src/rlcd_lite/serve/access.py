"""Who may ask, and what is kept of a request: an id that every response carries, a log line and counts. Never a text."""

from __future__ import annotations

import logging
import secrets
import time
import traceback
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlcd_lite.serve.failures import Failure, response
from rlcd_lite.serve.metrics import Metrics

logger = logging.getLogger(__name__)

REQUEST_ID_HEADERS = ("x-request-id", "x-typesafe-request-id")
GONE = 499  # in logs and metrics, for a client that went away before its answer


class Access:
    """ASGI middleware around everything else.

    ``routes``: the paths that logs and metrics name; all others are one. ``open_routes``: those that need no key. ``key``: that a
    client has to show as ``Authorization: Bearer KEY``; None: no key is asked for, and one that is shown is ignored.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Collection[str], open_routes: Collection[str], key: str | None
    ) -> None:
        self.app, self.metrics, self.routes, self.open_routes, self.key = app, metrics, routes, open_routes, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        start = time.perf_counter()
        status = received = sent = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def marked(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name in REQUEST_ID_HEADERS:
                    headers[name] = request_id
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
            sent += len(message.get("body", b""))
            await send(message)

        try:
            if self._allowed(scope):
                await self.app(scope, counted, marked)
            else:
                failure = Failure(
                    401, "the key is missing or wrong: send Authorization: Bearer KEY.", (), {"www-authenticate": "Bearer"}
                )
                await response(scope["path"], failure)(scope, receive, marked)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))  # without its message, which may hold a text
            logger.error("%s failed with %s:\n%s", request_id, type(error).__name__, where)
            if status:
                raise
            await response(scope["path"], Failure(500, f"the server failed; its log has more under {request_id}."))(
                scope, receive, marked
            )
        finally:
            seconds = time.perf_counter() - start
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.metrics.count(route, status, seconds, received, sent)
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
            logger.info("%s %s %s %d %d B in %d B out %.1f ms", request_id, method, route, status, received, sent, 1000 * seconds)

    def _allowed(self, scope: Scope) -> bool:
        if self.key is None or scope["path"] in self.open_routes:
            return True
        scheme, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(shown.strip().encode("latin-1"), self.key.encode())
