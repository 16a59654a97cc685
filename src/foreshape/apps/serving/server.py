"""The server: uvicorn around the application, with limits on connections, and a stop after the present requests."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, Self

import uvicorn

from foreshape.apps.serving.app import make_app
from foreshape.apps.serving.repository import Repository
from foreshape.apps.serving.request_metrics import RequestMetrics
from foreshape.apps.serving.served_embedder import Embedders
from foreshape.apps.serving.served_model import ModelKind
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.served_writer import LanguageModels
from foreshape.apps.serving.server_limits import ServerLimits
from foreshape.apps.serving.service import Service
from foreshape.core.values.openmp import wait_as_server
from foreshape.errors import ExecutionError

log: Final = logging.getLogger("foreshape.serving")
_FILES: Final = 128
"""File descriptors not for connections."""
_HOST: Final = "127.0.0.1"


def make_service(sources: Sequence[str], limits: ServerLimits | None = None, kinds: Sequence[ModelKind] | None = None) -> Service:
    """Return the state of a server with all its models open.

    Args:
        sources: files and folders, as of `Repository`.
        limits: for the clients.
        kinds: of models; embedders, saved networks and language models by default.

    Raises:
        ForeshapeError: a model cannot be opened.
    """
    wait_as_server()
    limits, metrics = limits or ServerLimits(), RequestMetrics()
    repository = Repository(sources, kinds if kinds is not None else [Embedders(Networks()), Networks(), LanguageModels()], limits, metrics.ran, metrics.forget)
    repository.open_all()
    return Service(repository, limits, metrics)


class Server(uvicorn.Server):
    """A server of a service.

    The first signal to stop lets running requests end, and refuses new ones with 503; the second one ends it at once.

    Args:
        service: the state, with its models.
        host, port: where it listens; port 0 takes a free one.
        watch: look for changes of the models' files.
    """

    def __init__(self, service: Service, host: str = _HOST, port: int = 8000, watch: bool = True) -> None:
        limits, files = service.limits, resource.getrlimit(resource.RLIMIT_NOFILE)
        count = limits.connections + _FILES
        if files[0] != resource.RLIM_INFINITY and files[0] < count:
            limit = files[1] if files[1] != resource.RLIM_INFINITY else count
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, limit), files[1]))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        connections = limits.connections if soft == resource.RLIM_INFINITY else max(1, min(limits.connections, soft - _FILES))
        config = uvicorn.Config(
            make_app(service, watch),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            limit_concurrency=connections,
            lifespan="on",
            timeout_keep_alive=int(limits.keep_alive),
            timeout_graceful_shutdown=int(limits.stop_seconds),
            server_header=False,
            ws="none",
        )
        super().__init__(config)
        self.service = service
        self._stop_at: float | None = None
        self._states: dict[Any, tuple[Any, float, int]] = {}
        self._signalled: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; at the second signal stop at once. Signals within a second are one: a supervisor tells the process and its group."""
        if self._signalled is None:
            self._signalled = monotonic()
            log.info("stopping: %d requests are finished first", self.service.running)
            self.stop()
        elif monotonic() - self._signalled > 1.0:
            self.should_exit = self.force_exit = True

    def stop(self) -> None:
        """Refuse new requests, and stop when the present ones are answered."""
        self.service.stopping = True
        self._stop_at = monotonic() + self.service.limits.stop_seconds

    async def on_tick(self, counter: int) -> bool:
        if self._stop_at is not None and (not self.service.running or monotonic() > self._stop_at):
            self.should_exit = True
        if counter % 10 == 0:
            self._close_slow()
        return await super().on_tick(counter)

    def _close_slow(self) -> None:
        """Close connections whose client does not send the head of a request, or does not read its answer."""
        limits, moment = self.service.limits, monotonic()
        states: dict[Any, tuple[Any, float, int]] = {}
        for connection in list(self.server_state.connections):
            transport, cycle = getattr(connection, "transport", None), getattr(connection, "cycle", None)
            if transport is None:
                continue
            answered, unread = cycle is None or cycle.response_complete, transport.get_write_buffer_size()
            mark, since, unread_before = self._states.get(connection, (self, moment, 0))
            if mark is not cycle or (not answered and not unread) or (unread and unread != unread_before):
                since = moment  # something has happened
            limit = limits.header_seconds if unread or cycle is None else limits.keep_alive + limits.header_seconds
            if moment - since > limit:
                transport.abort()
            else:
                states[connection] = (cycle, since, unread)
        self._states = states

    @property
    def port(self) -> int:
        """Return its port."""
        return self.servers[0].sockets[0].getsockname()[1]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket with an address of this machine, and so know of a taken port before models are opened. Raises `ExecutionError`."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        out = socket.socket(family, kind, number)
        try:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            out.bind(address)
        except OSError:
            out.close()
            raise
    except OSError as error:
        raise ExecutionError(f"the server cannot listen on {host}:{port}: {error.strerror or error}") from None
    return out


def serve(service: Service, listener: socket.socket, say: Callable[[str], None] = print) -> None:
    """Serve until a signal to stop.

    Args:
        service: the state, with its models.
        listener: as `bound` gives it.
        say: is told the address and the models.

    Raises:
        ExecutionError: another process has begun to listen there.
    """
    server = Server(service)
    host, port = listener.getsockname()[:2]

    async def run() -> None:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            gc.freeze()  # modules and models stay: to look through them for garbage takes a tenth of a second of some request
            models = ", ".join(f"{n} ({', '.join(service.repository.versions(n))})" for n in service.repository.names())
            say(f"http://{f'[{host}]' if ':' in host else host}:{port}: {models}")
        await task

    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(run())
    except OSError as error:
        raise ExecutionError(f"the server cannot listen on {host}:{port}: {error.strerror or error}") from None


class BackgroundServer:
    """A server in a thread of this process, for tests and notebooks: a context manager.

    Args:
        sources, limits, kinds: as of `make_service`.
        port: 0 takes a free one.
        watch: look for changes of the models' files.
    """

    def __init__(
        self, sources: Sequence[str], limits: ServerLimits | None = None, kinds: Sequence[ModelKind] | None = None, port: int = 0, watch: bool = True
    ) -> None:
        self.service = make_service(sources, limits, kinds)
        self.server = Server(self.service, port=port, watch=watch)
        self._thread = threading.Thread(target=self.server.run, name="foreshape-server", daemon=True)

    @property
    def address(self) -> str:
        """Return its host and port, as ``127.0.0.1:8000``."""
        return f"{_HOST}:{self.server.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        until = monotonic() + 30
        while not self.server.started:
            if not self._thread.is_alive() or monotonic() > until:
                raise ExecutionError("the server did not start")
            threading.Event().wait(0.005)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.stop()
        self._thread.join(self.service.limits.stop_seconds + 30)


def log_to_stderr(access: bool) -> None:
    """Write the server's log, and a line for each request if ``access``, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("foreshape.serving", logging.INFO), ("foreshape.access", logging.INFO if access else logging.WARNING), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
