"""The server under load, on loopback, beside `decide_many` offline in the same run; or, with --soak, for minutes on end.

    uv run --all-extras python benchmarks/serve.py
    uv run --all-extras python benchmarks/serve.py --soak 10

The server is the command ``rlcd-lite serve`` in a process of its own, with as many threads as this one has. Every client sends its
next request when the last one was answered. Both sides answer as many texts with the same schema in the same layout; offline is
timed before and after the server. In the rows *repeated*, the texts are few and the server has met all of them; offline knows
nothing of earlier rows.
"""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
import psutil
import torch
import tyro

from rlcd_lite.engine import DecisionEngine

WORDS = ["the", "customer", "writes", "that", "since", "last", "week", "every", "order", "above", "a", "hundred", "euros", "fails"]
SCHEMA = {
    "fields": [
        {"name": "severity", "type": "choice", "options": ["low", "medium", "high", "critical"], "description": "how bad it is"},
        {"name": "needs_human", "type": "bool", "description": "whether a person has to answer"},
    ]
}
WAITING = 64  # requests that may wait at the server: more than there are clients, and few enough to overload it
TIMEOUT = 600  # seconds: a slow machine is measured too
REFUSALS = 50


@dataclass
class Args:
    model: str = "smollm2"
    """Model to serve."""
    n: int = 64
    """Requests of each row of the table."""
    clients: tuple[int, ...] = (1, 8, 16, 32)
    """Clients at a time."""
    words: int = 40
    """Words of a text."""
    soak: float = 0.0
    """Minutes of mixed load instead of the table: prints the server's memory, and fails if it grows or if a request fails."""


@dataclass(frozen=True)
class Server:
    url: str
    process: psutil.Process

    @property
    def mib(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss) / 2**20


@contextmanager
def serving(model: str) -> Iterator[Server]:
    """The server, until the block ends."""
    limits = ["--waiting-requests", str(WAITING), "--timeout", str(TIMEOUT)]
    command = [sys.executable, "-m", "rlcd_lite", "serve", "--model", model, "--port", "0", *limits]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"answers on (\S+)", line):
                    drain = threading.Thread(target=process.stderr.read, daemon=True)  # its log: a full pipe would hold it up
                    drain.start()
                    yield Server(found[1], psutil.Process(process.pid))
                    break
            else:
                raise SystemExit("the server did not start.")
        finally:
            process.terminate()


def texts(count: int, words: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=words)) for _ in range(count)]


async def ask(client: httpx.AsyncClient, text: str) -> httpx.Response:
    return await client.post("/v1/decide", json={"context": text, "schema": SCHEMA})


def connected(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT, limits=httpx.Limits(max_connections=None))


async def load(server: Server, contexts: Sequence[str], clients: int) -> tuple[float, list[float]]:
    """Requests a second, and the seconds of each."""
    waiting = iter(contexts)
    seconds: list[float] = []

    async def work(client: httpx.AsyncClient) -> None:
        for text in waiting:
            start = time.perf_counter()
            (await ask(client, text)).raise_for_status()
            seconds.append(time.perf_counter() - start)

    async with connected(server) as client:
        start = time.perf_counter()
        await asyncio.gather(*(work(client) for _ in range(clients)))
        return len(contexts) / (time.perf_counter() - start), seconds


def offline(engine: DecisionEngine, contexts: Sequence[str]) -> float:
    """Texts a second."""
    start = time.perf_counter()
    found = list(engine.decide_many(SCHEMA, contexts))
    return len(found) / (time.perf_counter() - start)


async def refusals(server: Server, words: int) -> list[float]:
    """Seconds in which a full server refuses a request; whoever fills it goes away afterwards."""
    async with connected(server) as client:
        crowd = [asyncio.create_task(ask(client, text)) for text in texts(2 * WAITING, words, seed=-1)]
        while not any(task.done() for task in crowd):  # the first of them to be refused
            await asyncio.sleep(0.01)
        seconds = []
        for text in texts(REFUSALS, words, seed=-2):
            start = time.perf_counter()
            if (await ask(client, text)).status_code == 429:
                seconds.append(time.perf_counter() - start)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return seconds


def table(server: Server, args: Args) -> None:
    engine = DecisionEngine.load(args.model, layout="context-first")
    print(f"model {args.model}, {engine.forward.dtype}, {torch.get_num_threads()} threads, {args.n} requests a row, ", end="")
    print(f"{args.words} words a text, {len(SCHEMA['fields'])} fields\n")
    print("| texts | clients | requests / s | of offline | p50 s | p95 s | p99 s |\n| --- | --: | --: | --: | --: | --: | --: |")
    few = texts(8, args.words, seed=0)
    offline(engine, few[:1])
    for kind in ("distinct", "repeated"):
        rows = {c: texts(args.n, args.words, seed=c) if kind == "distinct" else few * (args.n // len(few)) for c in args.clients}
        if kind == "repeated":
            asyncio.run(load(server, few, 1))
        before = offline(engine, rows[args.clients[-1]])
        measured = {clients: asyncio.run(load(server, contexts, clients)) for clients, contexts in rows.items()}
        rate = (before + offline(engine, rows[args.clients[-1]])) / 2
        print(f"| {kind} | offline | {rate:.2f} | | | | |")
        for clients, (served, seconds) in measured.items():
            p50, p95, p99 = np.percentile(seconds, [50, 95, 99])
            print(f"| {kind} | {clients} | {served:.2f} | {served / rate:.2f} | {p50:.2f} | {p95:.2f} | {p99:.2f} |", flush=True)
    refused = asyncio.run(refusals(server, args.words))
    p50, most = 1e3 * np.median(refused), 1e3 * max(refused)
    print(f"\nA full server refused {len(refused)} of {REFUSALS} requests, each within {most:.0f} ms (median {p50:.0f} ms).")


async def soak(server: Server, args: Args) -> bool:
    """Whether the server kept its memory and answered everything: 8 clients, new and known texts, mistakes, clients that leave."""
    rng = random.Random(0)
    few = texts(8, args.words, seed=0)
    statuses: Counter[int] = Counter()
    memory: list[float] = []
    end = time.monotonic() + 60 * args.soak

    async def work(client: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            (new,) = texts(1, rng.randint(1, 4 * args.words), rng.getrandbits(32))
            text = rng.choice([new, rng.choice(few), " "])
            try:
                async with asyncio.timeout(0.05 if rng.random() < 0.05 else TIMEOUT):
                    statuses[(await ask(client, text)).status_code] += 1
            except TimeoutError:
                statuses[0] += 1  # left

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(server.mib)
            await asyncio.sleep(1)

    async with connected(server) as client:
        await asyncio.gather(watch(), *(work(client) for _ in range(8)))
    fifth = max(1, len(memory) // 5)
    early, late = np.median(memory[fifth : 2 * fifth] or memory), np.median(memory[-fifth:])
    print(f"{args.soak:g} minutes: {statuses[200]} answered, {statuses[422]} mistakes refused, {statuses[0]} clients left")
    print(f"resident memory: {memory[0]:.0f} MiB at the start, {early:.0f} in the second fifth, {late:.0f} in the last, ", end="")
    print(f"{max(memory):.0f} at most")
    errors = {status: count for status, count in statuses.items() if status not in (0, 200, 422)}
    print(f"errors: {errors or 'none'}")
    return not errors and bool(late < 1.05 * early)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    with serving(args.model) as server:
        if args.soak:
            sys.exit(not asyncio.run(soak(server, args)))
        table(server, args)


if __name__ == "__main__":
    main()
