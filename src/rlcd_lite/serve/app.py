"""The web application: routes for three wires around one worker."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from rlcd_lite.errors import TooLong, UserError
from rlcd_lite.schema import Schema
from rlcd_lite.serve import native, openai_decisions, systemone
from rlcd_lite.serve.access import GONE, Access
from rlcd_lite.serve.acting import kept
from rlcd_lite.serve.bodies import Bodies, BodyLimits, StrictRequest
from rlcd_lite.serve.failures import Failure, invalid, mistaken, response, retry_after
from rlcd_lite.serve.metrics import Metrics
from rlcd_lite.serve.wire import acted_on
from rlcd_lite.serve.worker import Answered, Overloaded, Stopped, TimedOut, Worker

OPEN_ROUTES = ("/", "/health", "/docs", "/openapi.json")  # need no key: nothing in them depends on a text
ALIAS = "jev-latest"  # the model that clients of System One ask for
_SOON = 1.0  # seconds after which a request that the server could not answer may be sent again


class ClientGone(Exception):  # noqa: N818
    """Nobody waits for the answer."""


class ModelList(BaseModel):
    """The served model in the words of both wires: ``models`` of System One, ``data`` of OpenAI."""

    models: list[dict[str, str]]
    object: str
    data: list[dict[str, str | int]]


class Health(BaseModel):
    status: str
    model: str
    version: str
    waiting: int
    running: int


class _StrictRoute(APIRoute):
    """A route whose body is read by `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def create_app(worker: Worker, *, model: str, key: str | None = None, bodies: BodyLimits | None = None) -> FastAPI:
    """The application; it starts the worker and, when it ends, closes it.

    ``model``: what responses call the model. ``key``: that clients have to show, if any.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await worker.close()

    app = FastAPI(
        title="rlcd-lite",
        version=version("rlcd-lite"),
        description="Calibrated decisions from a small language model, over the wires of hosted decision models.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.router.route_class = _StrictRoute
    metrics = Metrics(worker.state)
    started = datetime.datetime.now(datetime.UTC)
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    page_headers = {"content-security-policy": content_policy(page), "referrer-policy": "no-referrer", "x-frame-options": "DENY"}
    mistakes: dict[int | str, dict[str, Any]] = {
        code: {"description": what} for code, what in ((400, "Damaged body"), (401, "Missing or wrong key"), (413, "Too long"),
        (415, "Unknown type or encoding"), (422, "A mistake in the body"), (429, "Too much waits"), (503, "No answer in time"))
    }  # fmt: skip

    async def answered(request: Request, text: str, schemas: Sequence[Schema]) -> Answered:
        return await unless_gone(request, worker.decide(text, schemas))

    @app.post("/v1/systemone", response_model=systemone.SystemOneResponse, responses=mistakes, tags=["System One"])
    async def system_one(asked: systemone.SystemOneRequest, request: Request) -> Response:
        """Answer questions about a state."""
        wanted = asked.wanted()
        text, schemas = systemone.ask(asked)
        found = await answered(request, text, schemas)
        acted = [acted_on(d, worker.calibration(s), wanted) for d, s in zip(found.decisions, schemas, strict=True)]
        return _json(systemone.respond(asked, model, acted, found.input_tokens))

    @app.post("/v1/decisions", response_model=openai_decisions.DecisionsResponse, responses=mistakes, tags=["OpenAI Decisions"])
    async def decisions(asked: openai_decisions.DecisionsRequest, request: Request) -> Response:
        """Answer questions about an input."""
        wanted = asked.wanted()
        text, schemas = openai_decisions.ask(asked)
        found = await answered(request, text, schemas)
        acted = [acted_on(d, worker.calibration(s), wanted) for d, s in zip(found.decisions, schemas, strict=True)]
        return _json(openai_decisions.respond(asked, model, acted, found.input_tokens, found.cached_tokens))

    @app.post("/v1/decide", response_model=native.DecideResponse, responses=mistakes, tags=["rlcd-lite"])
    async def decide(asked: native.DecideRequest, request: Request) -> Response:
        """Decide a schema over a text."""
        wanted = asked.wanted()
        schema = Schema.of(asked.asked)
        found = await answered(request, asked.context, [schema])
        decision, reasons = kept(found.decisions[0], worker.calibration(schema), wanted)
        return JSONResponse(native.respond(decision, model, found.input_tokens, found.cached_tokens, reasons))

    @app.get("/v1/models", tags=["System One", "OpenAI Decisions"])
    async def models() -> ModelList:
        """The model that is served, and the alias that is accepted for it."""
        described: dict[str, str] = {"description": f"{model}, served by rlcd-lite", "release_date": started.date().isoformat()}
        created = int(started.timestamp())
        names = (ALIAS, model)
        return ModelList(
            models=[{"name": name, **described} for name in names],
            object="list",
            data=[{"id": name, "object": "model", "created": created, "owned_by": "rlcd-lite"} for name in names],
        )

    @app.get("/health", responses={503: {"description": "The worker has ended"}}, tags=["Operation"])
    async def health() -> Health:
        """Whether requests are answered, and how many wait."""
        state = worker.state()
        if not state.alive:
            raise HTTPException(503, "the thread that owns the model has ended.")
        return Health(status="ok", model=model, version=version("rlcd-lite"), waiting=state.waiting, running=state.running)

    @app.get("/metrics", tags=["Operation"])
    async def prometheus() -> Response:
        """Counts, sizes and times for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers=page_headers)

    _add_failures(app)
    app.add_middleware(Bodies, limits=bodies or BodyLimits())
    routes = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(Access, metrics=metrics, routes=routes, open_routes=OPEN_ROUTES, key=key)  # the outermost
    return app


def _add_failures(app: FastAPI) -> None:
    """What exceptions are to a client."""

    def add(kind: type[Exception], failure: Callable[[Any], Failure]) -> None:
        async def handle(request: Request, error: Exception) -> Response:
            return response(request.url.path, failure(error))

        app.add_exception_handler(kind, handle)

    add(RequestValidationError, lambda error: invalid(error.errors()))
    add(HTTPException, lambda error: Failure(error.status_code, error.detail, (), error.headers or {}))
    add(UserError, lambda error: mistaken(str(error)))
    add(TooLong, lambda error: Failure(413, str(error)))
    add(Overloaded, lambda error: Failure(429, str(error), (), retry_after(error.retry_after)))
    # the request was good, and may be answered when less waits: a client should try again
    add(TimedOut, lambda error: Failure(503, str(error), (), retry_after(_SOON)))
    add(Stopped, lambda error: Failure(503, str(error), (), retry_after(_SOON)))
    add(ClientGone, lambda error: Failure(GONE, "the client went away."))


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answered]) -> Answered:
    """What the work gives; it is cancelled, and `ClientGone` raised, when the client goes away first.

    A server tells a handler that its client has gone only where the handler listens; the body has been read, so there is nothing
    else to hear.
    """
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def content_policy(page: str) -> str:
    """A policy for a page that lets it run its own inline scripts and styles, by their hashes, and talk to this server alone."""

    def hashes(tag: str) -> str:
        inside = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
        digests = (hashlib.sha256(text.encode()).digest() for text in inside)
        return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests) or "'none'"

    sources = f"script-src {hashes('script')}; style-src {hashes('style')}; img-src data:; connect-src 'self'"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")
