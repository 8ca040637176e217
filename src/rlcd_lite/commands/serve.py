"""``rlcd-lite serve``: a local server for the wires of hosted decision models."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rlcd_lite.commands.act_flags import refuse_contexts
from rlcd_lite.commands.model_flags import AskFlags, ModelFlags
from rlcd_lite.contract import read_contract
from rlcd_lite.errors import UserError
from rlcd_lite.settings import Consistency

if TYPE_CHECKING:
    from fastapi import FastAPI

KEY = "RLCD_API_KEY"
_MIB = 1 << 20


@dataclass
class Serve:
    """Answer requests of TypeSafe's System One, of OpenAI's Decisions and of our own wire, and show a page to try it on.

    Questions are asked context-first, so that none of them sees another, unless the model was trained otherwise or --layout says
    so. If the environment variable RLCD_API_KEY is set, clients have to show it as a bearer token.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    ask: Annotated[AskFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=AskFlags)
    calibration: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """File that rlcd-lite calibrate wrote for this model and way of asking; applied to its schema. May be given several times."""
    consistency: Consistency = "enforce"
    """enforce (default) answers with the most probable values that keep a schema's rules; measure reports broken rules."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    timeout: float = 30.0
    """Seconds after which a request is given up."""
    waiting_requests: int = 1024
    """Requests that may wait; the next one is refused."""
    waiting_tokens: int = 1 << 20
    """Tokens that may wait, about."""
    batch_tokens: int | None = None
    """Tokens of a packed row; as many as decide_many takes if not given."""
    cache_mib: int = 256
    """Memory for what was computed of texts that may be asked about again; 0 keeps none."""
    body_mib: int = 4
    """Largest body of a request, unfolded."""

    def run(self) -> None:
        self._check()
        try:
            import uvicorn  # noqa: F401  # before the model is loaded
        except ImportError:
            raise UserError("the server is an extra that is not installed: use pip install 'rlcd-lite[serve]'.") from None
        with listening(self.host, self.port) as found:
            app, name = self._app()
            serve(app, found, name)

    def _check(self) -> None:
        self.ask.check()
        refuse_contexts(self.ask) if self.calibration else None
        if self.ask.prior == "contexts":
            raise UserError("--prior contexts is measured on the rows of a file: give a file that rlcd-lite prior wrote.")
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port is {self.port}: use 1 to 65535, or 0 for a free one.")
        if self.timeout <= 0:
            raise UserError(f"--timeout is {self.timeout:g}: use a number of seconds above 0.")
        for flag, value in (
            ("waiting-requests", self.waiting_requests),
            ("waiting-tokens", self.waiting_tokens),
            ("batch-tokens", self.batch_tokens),
            ("body-mib", self.body_mib),
        ):
            if value is not None and value < 1:
                raise UserError(f"--{flag} is {value}: use 1 or more.")
        if self.cache_mib < 0:
            raise UserError(f"--cache-mib is {self.cache_mib}: use 0 or more.")
        if os.environ.get(KEY, "x").strip() == "":
            raise UserError(f"the environment variable {KEY} is blank: give it a key, or unset it.")

    def _app(self) -> tuple[FastAPI, str]:
        """The application with the model in it, and what the model is called."""
        from rlcd_lite.calibration_file import read_calibration
        from rlcd_lite.serve.app import create_app
        from rlcd_lite.serve.bodies import BodyLimits
        from rlcd_lite.serve.worker import Limits, Worker

        flags = self._model_flags()
        calibrations = [read_calibration(path) for path in self.calibration]
        prior = self.ask.read(flags)
        engine = flags.load(prior=prior, permutations=self.ask.permutations, consistency=self.consistency)
        limits = Limits(
            waiting_tokens=self.waiting_tokens,
            waiting_requests=self.waiting_requests,
            batch_tokens=self.batch_tokens,
            cache_bytes=self.cache_mib * _MIB,
            timeout_s=self.timeout,
        )
        name = f"{Path(engine.name).name}@{engine.made_by()['weights'][:8]}"  # the weights: an alias would hide that they changed
        worker = Worker(engine, calibrations, limits)
        return create_app(worker, model=name, key=os.environ.get(KEY), bodies=BodyLimits(self.body_mib * _MIB)), name

    def _model_flags(self) -> ModelFlags:
        """The flags, with the layout in which no question sees another, where nothing else was trained or asked for."""
        folder = self.model.adapter or Path(self.model.model)
        trained = folder.is_dir() and read_contract(folder) is not None
        return self.model if trained or self.model.layout else replace(self.model, layout="context-first")


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; `UserError` if it can't be."""
    where = f"port {port} of {host!r}"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {host!r} is no address of this machine: use 127.0.0.1, or 0.0.0.0 for all.") from None
    found = socket.socket(family, kind, proto)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        raise UserError(f"{where} can't be listened on ({error.strerror}): give another --port or --host.") from None
    return found


def serve(app: FastAPI, found: socket.socket, name: str) -> None:
    """Serve until SIGINT or SIGTERM; what was accepted is finished."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            host, port = found.getsockname()[:2]
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            print(f"{name} answers on http://{place} (page /, API /docs); end with Ctrl-C.", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises what it has caught again when it has ended: that is no error
        signal.signal(number, signal.SIG_IGN)
    Server(uvicorn.Config(app, log_config=None, access_log=False, server_header=False)).run(sockets=[found])
    print("stopped.", file=sys.stderr)
