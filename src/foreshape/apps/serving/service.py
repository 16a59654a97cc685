"""The state shared by all requests: models, limits, figures, and the bytes of unanswered requests."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar

from foreshape.apps.serving.server_limits import RequestError, ServerLimits

if TYPE_CHECKING:
    from starlette.types import Receive

    from foreshape.apps.serving.repository import Repository
    from foreshape.apps.serving.request_metrics import RequestMetrics

Headers = Sequence[tuple[bytes, bytes]]
"""Names in small letters, and values."""
_PACKED: Final = ("gzip", "deflate")
_SHORT: Final = 1 << 15
"""The most bytes for the thread of all clients: to change threads takes longer than to read or write them."""
_READERS: Final = 2
"""The threads for more bytes: so many such requests take memory beside their bytes."""

P = ParamSpec("P")
T = TypeVar("T")


class ClientGone(Exception):
    """The end of a connection before its request's."""


class Service:
    """The shared state of a server.

    Attributes:
        stopping: True when no new requests are taken.
        running: the requests for results without an answer yet.
        pending: the bytes of these requests, and of answers on their way.
    """

    def __init__(self, repository: Repository, limits: ServerLimits, metrics: RequestMetrics) -> None:
        self.repository, self.limits, self.metrics = repository, limits, metrics
        self.stopping = False
        self.running = self.pending = 0
        self._readers = ThreadPoolExecutor(_READERS, "foreshape-reader")

    async def aside(self, size: int, function: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T:
        """Return the result of a function on so many bytes. Many do not keep other clients waiting: a thread works on them."""
        if size <= _SHORT:
            return function(*args, **kw)
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(function, *args, **kw))

    def close(self) -> None:
        """Close all models, and end the threads."""
        self.repository.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def need_room(self, size: int) -> None:
        """Raise `RequestError` where a request has too many bytes, or all requests together."""
        if size > self.limits.body:
            raise RequestError(413, f"a request may have {self.limits.body:,} bytes, and this one has more")
        if self.pending + size > self.limits.pending:
            raise RequestError(503, "the requests that wait fill the server's memory", retry_after=1)

    def request_of(self, headers: Headers) -> RequestReading:
        """Return the reading of a request with these headers, a context manager.

        Raises:
            RequestError: it is too large, packed in an unknown way, or the server stops.
        """
        if self.stopping:
            raise RequestError(503, "the server stops", retry_after=5)
        return RequestReading(self, headers)


class RequestReading:
    """A context manager for one request: within it counts as running, and its bytes as pending.

    Attributes:
        ended: True once all of its body is there.
    """

    def __init__(self, service: Service, headers: Headers) -> None:
        self._service, self._headers, self._held, self.ended = service, headers, 0, False
        stated, self._packing = self.header(b"content-length"), (self.header(b"content-encoding") or "identity").strip().lower()
        if self._packing not in (*_PACKED, "identity"):
            raise RequestError(415, f"the Content-Encoding of a request may be {' or '.join(_PACKED)}; seen {self._packing[:40]!r}")
        service.need_room(int(stated) if stated is not None and stated.isascii() and stated.isdecimal() and len(stated) < 20 else 0)

    def header(self, name: bytes) -> str | None:
        """Return a header of the request, by its name in small letters."""
        return next((value.decode("latin-1") for n, value in self._headers if n == name), None)

    def __enter__(self) -> Self:
        self._service.running += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._service.pending -= self._held
        self._service.running -= 1

    async def body(self, receive: Receive) -> bytearray:
        """Return the body, unpacked, within the server's limits. Raises `RequestError` if it is too large, `ClientGone`."""
        service, limits = self._service, self._service.limits
        body, continues = bytearray(), True  # of its own: numbers in it may be fed as they lie
        while continues:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk, continues = message.get("body", b""), message.get("more_body", False)
            service.need_room(len(chunk) if len(body) + len(chunk) <= limits.body else limits.body + 1)
            body += chunk
            self.hold(len(chunk))
        self.ended = True
        if self._packing != "identity":
            body = await service.aside(_SHORT + 1, _unpacked, body, limits.body)
            service.need_room(len(body))
            self.hold(len(body))
        return body

    def hold(self, size: int) -> None:
        """Count more bytes as pending until the end."""
        self._held += size
        self._service.pending += size


def _unpacked(data: bytearray, limit: int) -> bytearray:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        out = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise RequestError(400, f"the request cannot be unpacked: {error}") from None
    if len(out) > limit:
        raise RequestError(413, "the request is larger than it may be when it is unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError(400, "the packed request ends too early, or bytes follow it")
    return bytearray(out)
