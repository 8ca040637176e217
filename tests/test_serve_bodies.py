"""Bodies: every encoding unfolds to the same bytes, and nothing that a client sends takes more memory or time than it may."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from rlcd_lite.serve.bodies import Bodies, BodyLimits, strict_json

LIMITS = BodyLimits(bytes=1 << 16, seconds=0.2, held_bytes=1 << 17)
BODY = json.dumps({"state": "Ünïcode " * 500}).encode()
ENCODED = {
    "identity": BODY,
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:1000]) + gzip.compress(BODY[1000:]),
    "zstd": zstandard.compress(BODY),
    "ZSTD": zstandard.compress(BODY[:1000]) + zstandard.compress(BODY[1000:]),
    "": BODY,
}


def streamed(body: bytes) -> bytes:
    """A zstd frame that does not say how long it is."""
    made = zstandard.ZstdCompressor().compressobj()
    return made.compress(body) + made.flush()


def read(
    pieces: Iterable[bytes],
    encoding: str | None = None,
    kind: str = "application/json",
    wait: float = 0,
    limits: BodyLimits = LIMITS,
    declared: int | None = None,
) -> bytes:
    """What a handler receives of a body that arrives in pieces."""
    headers = {"content-type": kind} | ({} if encoding is None else {"content-encoding": encoding})
    headers |= {} if declared is None else {"content-length": str(declared)}
    left = [*pieces]

    async def receive() -> Message:
        await asyncio.sleep(wait)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        raise AssertionError

    found: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"]
        found.append(message["body"])

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(Bodies(app, limits)({"type": "http", "headers": raw}, receive, send))
    return found[0]


def refused(*args: Any, **more: Any) -> int:
    with pytest.raises(HTTPException) as error:
        read(*args, **more)
    assert str(error.value.detail).endswith(".")
    return error.value.status_code


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_every_encoding_gives_the_body(encoding: str, size: int) -> None:
    sent = ENCODED[encoding]
    limits = BodyLimits(bytes=1 << 16, seconds=20)
    assert read([sent[i : i + size] for i in range(0, len(sent), size)], encoding, limits=limits) == BODY
    assert read([streamed(BODY)], "zstd") == BODY


def test_an_empty_body_is_one() -> None:
    assert read([b""]) == read([b""], "gzip") == read([zstandard.compress(b"")], "zstd") == b""


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "zstd, zstd", "utf-8"])
def test_other_encodings_are_415_and_say_which_there_are(encoding: str) -> None:
    with pytest.raises(HTTPException) as error:
        read([BODY], encoding)
    assert error.value.status_code == 415
    assert error.value.headers == {"accept-encoding": "gzip, zstd"}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
def test_other_types_are_415(kind: str) -> None:
    assert refused([BODY], kind=kind) == 415


def test_json_goes_by_several_names_and_images_are_422() -> None:
    assert read([BODY], kind="Application/JSON; charset=utf-8") == read([BODY], kind="application/vnd.x+json") == BODY
    assert refused([BODY], kind="multipart/form-data; boundary=x") == 422


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "flip", "tail", "none of it", "empty"])
def test_damaged_bodies_are_400(encoding: str, damage: str) -> None:
    sent = ENCODED[encoding]
    bad = {
        "cut": sent[: len(sent) // 2],
        "flip": sent[:10] + bytes(b ^ 255 for b in sent[10:20]) + sent[20:],
        "tail": sent + b"rest of it, longer than a header",
        "none of it": BODY,
        "empty": b"\x00" * 50,
    }[damage]
    if (encoding, damage) == ("zstd", "cut"):  # the library gives what there is; it is JSON no longer
        assert BODY.startswith(read([bad], encoding))
        assert len(read([bad], encoding)) < len(BODY)
    else:
        assert refused([bad], encoding) == 400


@given(st.binary(max_size=300), st.sampled_from(["gzip", "zstd"]), st.booleans())
def test_no_bytes_break_it(body: bytes, encoding: str, wrapped: bool) -> None:
    sent = ENCODED[encoding][:20] + body if wrapped else body
    with suppress(HTTPException):
        assert len(read([sent], encoding)) <= LIMITS.bytes


@pytest.mark.parametrize("most", [0, 1])
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_the_bound_is_exact(encoding: str, most: int) -> None:
    body = b"x" * (LIMITS.bytes + most)
    sent = {"identity": body, "gzip": gzip.compress(body), "zstd": zstandard.compress(body)}[encoding]
    if most:
        assert refused([sent], encoding) == 413
        assert encoding != "zstd" or refused([streamed(body)], encoding) == 413
    else:
        assert read([sent], encoding) == body


@cache
def bombs() -> dict[str, tuple[bytes, str]]:
    zeros = bytes(1 << 20)
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    endless = b"".join(packer.compress(zeros) for _ in range(1000)) + packer.flush()
    # a frame that asks for a window of 2 GiB
    window = struct.pack("<I", 0xFD2FB528) + bytes([0x00, 0xA8]) + zstandard.compress(zeros)[6:]
    nested = gzip.compress(gzip.compress(bytes(50 << 20)))
    return {
        "zstd": (endless, "zstd"),
        "zstd that says its size": (zstandard.compress(bytes(100 << 20)), "zstd"),
        "zstd with a large window": (window, "zstd"),
        "gzip": (gzip.compress(bytes(50 << 20)), "gzip"),
        "gzip within gzip": (nested, "gzip"),
        "many empty members": (gzip.compress(b"") * 3000, "gzip"),
        "many empty frames": (zstandard.compress(b"") * 3000, "zstd"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "zstd",
        "zstd that says its size",
        "zstd with a large window",
        "gzip",
        "gzip within gzip",
        "many empty members",
        "many empty frames",
    ],
)
def test_a_bomb_takes_no_memory(name: str) -> None:
    sent, encoding = bombs()[name]
    assert len(sent) < LIMITS.bytes
    tracemalloc.start()
    try:
        status = 200
        try:
            read([sent], encoding)
        except HTTPException as error:
            status = error.status_code
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    expected = {"gzip within gzip": (200, 413), "many empty members": (200,), "many empty frames": (200,)}
    assert status in expected.get(name, (400, 413))
    assert peak < 20 * LIMITS.bytes


def test_of_a_body_that_is_too_large_nothing_is_kept_and_only_so_much_read() -> None:
    read_pieces = 0

    def endless() -> Iterable[bytes]:
        nonlocal read_pieces
        for _ in range(100):
            read_pieces += 1
            yield bytes(LIMITS.bytes // 2)

    pieces = [*endless()]
    assert refused(pieces) == 413
    assert refused([b""], declared=100 << 20) == 413


def test_a_slow_body_is_408() -> None:
    assert refused([b"x"] * 100, wait=0.01) == 408


def test_bodies_that_are_held_at_once_are_bounded() -> None:
    limits = BodyLimits(bytes=1000, held_bytes=2500)
    statuses: list[int] = []

    async def run() -> None:
        release = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await receive()
            except HTTPException as error:
                statuses.append(error.status_code)
                return
            await release.wait()
            statuses.append(200)

        middleware = Bodies(app, limits)

        async def one() -> None:
            async def receive() -> Message:
                return {"type": "http.request", "body": bytes(1000), "more_body": False}

            async def send(message: Message) -> None:
                pass

            await middleware({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive, send)

        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await asyncio.sleep(0.01)
        release.set()
        await asyncio.gather(*tasks, one())  # what was released can be held again

    asyncio.run(run())
    assert statuses == [429, 200, 200, 200]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'[{"b": {"a": 1, "a": 2}}]', "twice"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"1" * 5000, "4300"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'["\xff"]', "UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 101 + b"]" * 101, "deep"),
        (b"[" * 100000 + b"]" * 100000, "deep"),
        (b'{"a":' * 100000, "deep"),
        (b'["\x01"]', "control character"),
    ],
)
def test_json_is_read_to_the_letter(body: bytes, reason: str) -> None:
    with pytest.raises(json.JSONDecodeError, match=reason):
        strict_json(body)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_json_that_is_json_is_read(value: Any, ascii_alone: bool) -> None:
    assert strict_json(json.dumps(value, ensure_ascii=ascii_alone).encode()) == value


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reader_of_json(body: bytes) -> None:
    with suppress(json.JSONDecodeError):
        strict_json(body)
