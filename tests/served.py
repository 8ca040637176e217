"""A server on a free port, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import torch
import uvicorn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from conftest import tiny_engine
from rlcd_lite.calibration_file import Calibration
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.serve.app import create_app
from rlcd_lite.serve.bodies import BodyLimits
from rlcd_lite.serve.worker import Limits, Worker

NAME = "tiny@0"
LIMITS = Limits(timeout_s=60)


@dataclass
class Served:
    """``url`` of a server and what runs behind it."""

    url: str
    engine: DecisionEngine
    worker: Worker

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)


def roomy_engine(tokenizer: PreTrainedTokenizerFast, window: int = 1 << 15) -> DecisionEngine:
    """An engine asked as `rlcd-lite serve` asks, whose window (in tokens) holds 255 options, which it answers in a second."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=window,
        initializer_range=0.15,
    )
    return tiny_engine(tokenizer, layout="context-first", model=LlamaForCausalLM(config).eval())


@contextmanager
def serving(
    engine: DecisionEngine,
    *,
    calibrations: Sequence[Calibration] = (),
    limits: Limits = LIMITS,
    bodies: BodyLimits | None = None,
    key: str | None = None,
) -> Iterator[Served]:
    worker = Worker(engine, calibrations, limits)
    app = create_app(worker, model=NAME, key=key, bodies=bodies)
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{bound.getsockname()[1]}", engine, worker)
    finally:
        server.should_exit = True
        thread.join()
