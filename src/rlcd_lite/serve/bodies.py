"""Bodies of requests: how they are encoded, how large they may be, how long they may take, and what of JSON is read.

A body is read when a handler asks for it, whole; what is wrong with it is raised there as an HTTP error. Compressed bytes are
bounded as they arrive and what they unfold to as it is made, so a bomb never takes more memory than an honest body.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import zstandard
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlcd_lite.schema import unique_keys
from rlcd_lite.serve.failures import retry_after

_PIECE = 1 << 16
_WINDOW = 1 << 23  # of zstd, in bytes: what every decoder has to offer (RFC 8878)
_DEPTH = 100
_DISCARDED = 4  # times the bound: what a client may go on sending while it is not yet reading the refusal


@dataclass(frozen=True)
class BodyLimits:
    """``bytes``: of a body, as it is sent and unfolded. ``seconds``: until it has arrived. ``held_bytes``: of all at once."""

    bytes: int = 4 << 20
    seconds: float = 20.0
    held_bytes: int = 256 << 20


class Bodies:
    """ASGI middleware: the handler receives a body in one piece, unfolded."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self.app, self.limits = app, limits
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = 0
        done = False

        async def whole() -> Message:
            nonlocal held, done
            if done:
                return await receive()
            done = True
            headers = Headers(scope=scope)
            _check_type(headers.get("content-type", ""))
            unfold = _unfolding(headers.get("content-encoding", "identity"))
            try:
                async with asyncio.timeout(self.limits.seconds):
                    body = await self._arrived(receive, headers)
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self.limits.seconds:g} s.") from None
            if body is None:
                return {"type": "http.disconnect"}
            body = unfold(body, self.limits.bytes)
            held = len(body)
            self._held += held
            if self._held > self.limits.held_bytes:
                raise HTTPException(429, "too many bodies are being answered: try again in a second.", retry_after(1))
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self.app(scope, whole, send)
        finally:
            self._held -= held

    async def _arrived(self, receive: Receive, headers: Headers) -> bytes | None:
        """The body as it was sent; None if the client went away. Of a body that is too large nothing is kept."""
        declared = headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 19 and int(declared) > _DISCARDED * self.limits.bytes:
            _too_large(self.limits.bytes)
        body = bytearray()
        seen = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            seen += len(piece)
            if seen <= self.limits.bytes:
                body += piece
            else:
                body.clear()
            if not message.get("more_body", False) or seen > _DISCARDED * self.limits.bytes:
                break
        if seen > self.limits.bytes:
            _too_large(self.limits.bytes)
        return bytes(body)


def _check_type(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        raise HTTPException(422, "images can't be read, this server is for text alone: send JSON without assets.")
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, "the body's content type must be application/json.")


def _unfolding(encoding: str) -> Callable[[bytes, int], bytes]:
    match encoding.strip().lower():
        case "" | "identity":
            return lambda body, most: body
        case "gzip" | "x-gzip":
            return lambda body, most: _joined(_gunzipped(body), most)
        case "zstd":
            return lambda body, most: _joined(_unzstd(body, most), most)
    raise HTTPException(415, "the body's content encoding must be gzip, zstd or none.", {"accept-encoding": "gzip, zstd"})


def _joined(pieces: Iterator[bytes], most: int) -> bytes:
    """The pieces as one, as long as they are no more than ``most`` bytes."""
    out = bytearray()
    try:
        for piece in pieces:
            out += piece
            if len(out) > most:
                _too_large(most)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise HTTPException(400, "the body is damaged: it is not what its content encoding says.") from None
    return bytes(out)


def _gunzipped(body: bytes) -> Iterator[bytes]:
    while body:  # a file may have several members
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            piece = member.decompress(body, _PIECE)
            if not piece and not member.unconsumed_tail and not member.eof:
                raise EOFError
            yield piece
            body = member.unused_data if member.eof else member.unconsumed_tail


def _unzstd(body: bytes, most: int) -> Iterator[bytes]:
    if zstandard.frame_content_size(body) > most:
        _too_large(most)
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body, read_across_frames=True)
    while piece := reader.read(_PIECE):
        yield piece


def _too_large(most: int) -> NoReturn:
    raise HTTPException(413, f"the body has more than {most} bytes, which is what this server reads.")


class StrictRequest(Request):
    """A request whose JSON is read to the letter: no key twice, no NaN, no nesting beyond reason, only whole characters."""

    async def json(self) -> Any:
        return strict_json(await self.body())


def strict_json(body: bytes) -> Any:
    """The value; ``JSONDecodeError`` for anything that the standard, or sense, forbids."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=unique_keys, parse_constant=_constant, parse_float=_finite)
        _check_values(value)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"it is not UTF-8 (byte {error.start}).", "", error.start) from None
    except UnicodeEncodeError:
        raise json.JSONDecodeError("a string holds half of a surrogate pair.", "", 0) from None
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply.", "", 0) from None
    except ValueError as error:  # our own, and an integer of more than 4300 digits
        raise json.JSONDecodeError(str(error), "", 0) from None
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON.")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is too large.")
    return value


def _check_values(value: Any) -> None:
    """``ValueError`` for nesting beyond `_DEPTH` and for half a surrogate pair, which no answer could repeat."""
    layer = [value]
    for _ in range(_DEPTH):
        if not layer:
            return
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, str):
                item.encode()
            elif isinstance(item, dict):
                for key in item:
                    key.encode()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        layer = inner
    raise ValueError(f"it is nested more than {_DEPTH} levels deep.")
