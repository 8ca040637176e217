"""Send a server of rlcd-lite what it should refuse, and print what it did: no 5xx, no hang, bounded memory.

    uv run --all-extras python scripts/fuzz_serve.py --model smollm2 --bodies 5000 --examples 300

Bodies are mutations of valid ones (bytes, values, types, nesting, numbers, keys), encodings that lie, bombs, and connections that
are slow or end early; `schemathesis` draws more from the OpenAPI description. Exit code 1 where something failed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
import zstandard
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis.core.result import Err

STATE = "I was charged twice for March; please refund one of the payments. Ünïcode 환불 🙂"
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/systemone",
        {
            "model": "jev-latest",
            "state": {"subject": "Charged twice", "body": STATE, "tags": ["a", None, 1.5]},
            "questions": {
                "refund": {"type": "noul", "instructions": "Refund?", "criteria": {"true": "money back", "false": None}},
                "team": {"type": "choice", "instructions": ["Team?"], "criteria": {"Billing": "money", "환불": None}},
                "anger": {"type": "score", "criteria": ["Calm", {"label": "Angry"}]},
            },
            "x_max_risk": 0.1,
        },
    ),
    (
        "/v1/decisions",
        {
            "model": "m",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": STATE}]}, {"role": "assistant", "content": "hm"}],
            "questions": [
                {"type": "predicate", "instructions": "Refund?", "name": "refund"},
                {"type": "choice", "instructions": "Team?", "choices": [{"value": "Billing"}, {"value": True, "description": "d"}]},
                {"type": "score", "instructions": "Anger?", "levels": [{"label": "Calm"}, {"label": "Angry"}]},
            ],
        },
    ),
    (
        "/v1/decide",
        {
            "context": STATE,
            "schema": {
                "properties": {"team": {"enum": ["billing", "auth"]}, "sure": {"$ref": "#/$defs/Yes"}, "tags": {"const": 1}},
                "$defs": {"Yes": {"type": "boolean"}},
            },
        },
    ),
]
ODD: list[Any] = [
    *(None, True, -1, 0, 10**400, 1e308, -0.0, float("nan"), float("inf")),
    *("", " ", "\x00", "\u202e", "\ud800", "a" * 10_000, "type", "noul", "object"),
    *([], {}, [[]], {"": ""}, [None] * 300, {str(i): i for i in range(2000)}),
    *({"type": "box"}, {"$ref": "#"}, {"type": "choice", "criteria": {str(i): None for i in range(256)}}),
]


@dataclass
class Figures:
    """What a server did with one kind of request. ``slowest``: in seconds; ``failures``: what should not have happened."""

    kind: str
    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, status: int | str, seconds: float, what: str) -> None:
        self.requests += 1
        self.statuses[str(status)] += 1
        self.slowest = max(self.slowest, seconds)
        if isinstance(status, int) and status >= 500:
            self.failures.append(f"{status} for {what}")

    def __str__(self) -> str:
        statuses = ", ".join(f"{status} x {count}" for status, count in sorted(self.statuses.items()))
        return f"{self.kind:<24} {self.requests:>6} requests, slowest {self.slowest:6.2f} s: {statuses}"


# ---- bodies ----


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside another."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def wrong_values(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    changed: Any = body
    for _ in range(rng.choice((1, 1, 2, 5))):
        changed = put(changed, rng.choice(list(places(changed))[1:] or [()]), rng.choice(ODD))
    return json.dumps(changed).encode(), {}


def wrong_keys(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    raw = json.dumps(body)
    names = [
        name for name in ("model", "state", "questions", "type", "criteria", "input", "choices", "schema") if f'"{name}"' in raw
    ]
    name = rng.choice([*names, "x"])
    other = rng.choice(["", "a" * 500_000, "\\ud800", "\\u0000", "model", "Type", "__proto__"])
    if rng.random() < 0.3:  # twice
        return raw.replace("{", f'{{"{name}": 1, ', 1).encode(), {}
    return raw.replace(f'"{name}"', f'"{other}"').encode(), {}


def wrong_bytes(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    raw = bytearray(json.dumps(body, ensure_ascii=rng.random() < 0.5).encode())
    for _ in range(rng.choice((1, 1, 3, 30))):
        at = rng.randrange(len(raw))
        match rng.randrange(4):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                del raw[at : at + rng.choice((1, 1, 20))]
            case 2:
                raw[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 1, 20))))
            case 3:
                raw[at:at] = rng.choice(
                    (b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 20000, b'{"a":' * 20000, b"\\u0000", b"//")
                )
        if not raw:
            break
    return bytes(raw), {}


def wrong_encoding(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    raw = json.dumps(body).encode()
    encoding = rng.choice(("gzip", "zstd"))
    sent = bytearray(gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw))
    match rng.randrange(6):
        case 0:
            sent[rng.randrange(len(sent))] ^= 1 << rng.randrange(8)
        case 1:
            del sent[rng.randrange(len(sent)) :]
        case 2:
            sent += bytes(rng.randrange(256) for _ in range(20))
        case 3:
            encoding = rng.choice(("gzip", "zstd", "br", "deflate", "gzip, zstd", "identity", "x" * 3000, "\x7f"))
        case 4:
            sent = bytearray(rng.randrange(256) for _ in range(rng.randrange(300)))
        case 5:
            sent[4:4] = bytes(rng.randrange(256) for _ in range(3))
    return bytes(sent), {"content-encoding": encoding}


def bomb(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    size = rng.choice((5, 50, 200)) << 20
    inner = rng.choice((b"\x00", b"[", b'["",', b" "))
    match rng.randrange(4):
        case 0:
            return gzip.compress(inner * (size // 4), 1), {"content-encoding": "gzip"}
        case 1:
            return zstandard.compress(inner * (size // 4)), {"content-encoding": "zstd"}
        case 2:
            packer = zstandard.ZstdCompressor().compressobj()
            pieces = [packer.compress(inner * (1 << 18)) for _ in range(size >> 20)]
            return b"".join(pieces) + packer.flush(), {"content-encoding": "zstd"}
    return inner * (6 << 20), {}


def big_but_fair(rng: random.Random, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Bodies that hold as much as a body may, of one thing."""
    match rng.randrange(7):
        case 0:
            body = body | {"questions": {str(i): {"type": "noul"} for i in range(60_000)}}
        case 1:
            body = body | {
                "questions": {str(i): {"type": "choice", "criteria": {str(j): 1 for j in range(255)}} for i in range(900)}
            }
        case 2:
            body = body | {"questions": [1] * 1_000_000, "input": [[]] * 500_000}
        case 3:
            body = body | {"questions": {"q": {"type": "score", "criteria": [1] * 1_000_000}}}
        case 4:
            body = body | {"state": "word " * 700_000, "input": "word " * 1, "context": "word " * 700_000}
        case 5:
            body = body | {"input": [{"role": "user", "content": [1] * 4000}] * 4}
        case 6:  # twice as many leaves at every level
            doubling = {f"d{i}": {"properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}} for i in range(40)}
            body = body | {"schema": {"$ref": "#/$defs/d0", "$defs": doubling | {"d40": {"type": "boolean"}}}}
    return json.dumps(body).encode(), {}


KINDS: dict[str, tuple[Callable[[random.Random, dict[str, Any]], tuple[bytes, dict[str, str]]], float]] = {
    "values": (wrong_values, 0.35),
    "keys": (wrong_keys, 0.1),
    "bytes": (wrong_bytes, 0.25),
    "encodings": (wrong_encoding, 0.25),
    "bombs": (bomb, 0.02),
    "large": (big_but_fair, 0.03),
}


def fuzz_bodies(url: str, count: int, start: int = 0) -> Iterator[Figures]:
    """Send ``count`` bodies of all kinds, several at once."""
    routes = VALID
    with httpx.Client(base_url=url, timeout=900) as client, ThreadPoolExecutor(4) as pool:
        for kind, (make, share) in KINDS.items():
            figures = Figures(kind)

            def one(number: int, make: Any = make, figures: Figures = figures, kind: str = kind) -> None:
                rng = random.Random(f"{kind} {number}")
                route, body = rng.choice(routes)
                raw, headers = make(rng, body)
                begin = time.perf_counter()
                try:
                    status: int | str = client.post(
                        route, content=raw, headers={"content-type": "application/json"} | headers
                    ).status_code
                except httpx.HTTPError as error:
                    status = type(error).__name__  # the server closes a connection that goes on after it was refused
                except (UnicodeEncodeError, ValueError):
                    status = "not sent"
                figures.add(status, time.perf_counter() - begin, f"{kind} {number} to {route}")
                if status in ("ReadTimeout", "ConnectTimeout"):
                    figures.failures.append(f"no answer to {kind} {number}")

            list(pool.map(one, range(start, start + max(4, round(count * share)))))
            yield figures


def fuzz_connections(url: str, count: int, patience: float) -> Figures:
    """Connections that are slow, lie about their length or end early, all at once; a slow body is given up within ``patience``."""
    figures = Figures("connections")
    host, _, port = url.removeprefix("http://").partition(":")
    raw = json.dumps(VALID[0][1]).encode()

    def one(number: int) -> None:
        rng = random.Random(f"connection {number}")
        begin = time.perf_counter()
        status: int | str = "closed"
        with socket.create_connection((host, int(port)), timeout=patience) as connection:
            length = len(raw) + rng.choice((0, 0, 1000, 10**9, 10**30))
            head = b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            head += b"transfer-encoding: chunked\r\n\r\n" if rng.random() < 0.2 else f"content-length: {length}\r\n\r\n".encode()
            match rng.randrange(4):
                case 0:  # ends early
                    connection.sendall((head + raw)[: rng.randrange(len(head + raw))])
                    figures.add("left", time.perf_counter() - begin, "")
                    return
                case 1:  # byte by byte
                    connection.sendall(head)
                    with suppress(OSError):
                        for byte in raw:
                            connection.sendall(bytes([byte]))
                            time.sleep(patience / 100)
                            connection.settimeout(0.001)
                            with suppress(TimeoutError):
                                if connection.recv(1, socket.MSG_PEEK):
                                    break
                case 2:  # stops in the middle
                    connection.sendall((head + raw)[: len(head) + rng.randrange(len(raw))])
                case 3:  # all of it, and then it leaves
                    connection.sendall(head + raw)
                    figures.add("left", time.perf_counter() - begin, "")
                    return
            connection.settimeout(patience)
            try:
                answer = connection.recv(1 << 16)
                status = int(answer.split(b" ")[1]) if answer else "closed"
            except TimeoutError:
                figures.failures.append(f"no answer to connection {number} within {patience:g} s")
            except OSError:
                status = "reset"
        figures.add(status, time.perf_counter() - begin, f"connection {number}")

    with ThreadPoolExecutor(min(64, count)) as pool:
        list(pool.map(one, range(count)))
    return figures


def fuzz_description(url: str, examples: int) -> Iterator[Figures]:
    """What `schemathesis` draws from the OpenAPI description, valid and not."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for found in schema.get_all_operations():
        assert not isinstance(found, Err)
        operation = found.ok()
        for mode in schemathesis.GenerationMode if operation.method == "post" else [schemathesis.GenerationMode.POSITIVE]:
            yield _drawn(url, operation.as_strategy(generation_mode=mode), examples, f"{operation.path} {mode.value}")


def _drawn(url: str, cases: SearchStrategy[schemathesis.Case[Any]], examples: int, kind: str) -> Figures:
    figures = Figures(kind)

    @seed(0)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(case=cases)
    def run(case: schemathesis.Case[Any]) -> None:
        begin = time.perf_counter()
        try:
            status: int | str = case.call(base_url=url, timeout=900).status_code
        except (requests.RequestException, UnicodeError) as error:  # what can't be sent
            status = type(error).__name__
        figures.add(status, time.perf_counter() - begin, f"{case.method} {case.path} {str(case.body)[:200]}")

    run()
    return figures


def memory_mib(process: int | str = "self") -> float:
    """The most memory that a process has had (Linux)."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


@contextmanager
def server(model: str) -> Iterator[tuple[str, int]]:
    """A server of its own process: its URL and process id."""
    command = [sys.executable, "-m", "rlcd_lite", "serve", "--model", model, "--port", "0", "--timeout", "900"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = ""
        while " answers on " not in line:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server did not start.")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(process.stderr.read)  # so that its log does not fill the pipe
            try:
                yield line.split(" answers on ")[1].split()[0], process.pid
            finally:
                process.terminate()
                process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="smollm2", help="what is served")
    parser.add_argument("--bodies", type=int, default=2000, help="mutated bodies")
    parser.add_argument("--connections", type=int, default=64, help="slow, lying and early-ending connections")
    parser.add_argument("--examples", type=int, default=100, help="per operation and kind, drawn from the OpenAPI description")
    flags = parser.parse_args()
    failures: list[str] = []
    with server(flags.model) as (url, process):
        before = memory_mib(process)

        def tell(figures: Figures) -> None:
            print(figures, flush=True)
            failures.extend(figures.failures)

        for figures in fuzz_bodies(url, flags.bodies):
            tell(figures)
        tell(fuzz_connections(url, flags.connections, patience=40))
        for figures in fuzz_description(url, flags.examples):
            tell(figures)
        health = httpx.get(url + "/health", timeout=60)
        print(f"health {health.status_code}; peak memory {before:.0f} MiB before, {memory_mib(process):.0f} MiB after")
    print("\n".join(failures) or "no 5xx, no request without an answer.")
    raise SystemExit(bool(failures) or health.status_code != 200)


if __name__ == "__main__":
    main()
