"""The state shared by all requests: models, limits, figures, and the bytes of unanswered requests."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncGenerator
from time import monotonic
from typing import TYPE_CHECKING, Final

from foreshape.serving.server_limits import RequestError, ServerLimits

if TYPE_CHECKING:
    from starlette.requests import Request

    from foreshape.serving.repository import Repository
    from foreshape.serving.request_metrics import RequestMetrics

_PACKED: Final = ("gzip", "deflate")


class Service:
    """The shared state of a server.

    Attributes:
        stopping: True when no new requests are taken.
        running: the requests for results without an answer yet.
        pending: the bytes of these requests.
    """

    def __init__(self, repository: Repository, limits: ServerLimits, metrics: RequestMetrics) -> None:
        self.repository, self.limits, self.metrics = repository, limits, metrics
        self.stopping = False
        self.running = self.pending = 0

    def need_room(self, size: int) -> None:
        """Raise `RequestError` where a request has too many bytes, or all requests together."""
        if size > self.limits.body:
            raise RequestError(413, f"a request may have {self.limits.body:,} bytes, and this one has more")
        if self.pending + size > self.limits.pending:
            raise RequestError(503, "the requests that wait fill the server's memory", retry_after=1)

    @contextlib.asynccontextmanager
    async def body_of(self, request: Request, until: float) -> AsyncGenerator[bytes | bytearray]:
        """Return the body of a request, unpacked, within the server's limits; its bytes count as pending within.

        Args:
            until: the latest time of its end, of `time.monotonic`.

        Raises:
            RequestError: it is too large, too slow, or packed in an unknown way.
        """
        if self.stopping:
            raise RequestError(503, "the server stops", retry_after=5)
        stated, packing = request.headers.get("content-length"), request.headers.get("content-encoding", "identity").strip().lower()
        if packing not in (*_PACKED, "identity"):
            raise RequestError(415, f"the Content-Encoding of a request may be {' or '.join(_PACKED)}; seen {packing[:40]!r}")
        self.need_room(int(stated) if stated is not None and stated.isascii() and stated.isdecimal() and len(stated) < 20 else 0)
        held, self.running = 0, self.running + 1
        try:
            body = bytearray()
            try:
                async with asyncio.timeout(until - monotonic()):
                    async for chunk in request.stream():
                        self.need_room(len(chunk) if len(body) + len(chunk) <= self.limits.body else self.limits.body + 1)
                        body += chunk
                        held += len(chunk)
                        self.pending += len(chunk)
            except TimeoutError:
                raise RequestError(408, f"the request was not there within {self.limits.seconds:g} seconds") from None
            if packing != "identity":
                body = await asyncio.to_thread(_unpacked, bytes(body), min(self.limits.body, self.limits.pending - self.pending))
                held += len(body)
                self.pending += len(body)
            yield body
        finally:
            self.pending -= held
            self.running -= 1


def _unpacked(data: bytes, most: int) -> bytearray:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        out = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise RequestError(400, f"the request cannot be unpacked: {error}") from None
    if len(out) > most:
        raise RequestError(413, "the request is larger than it may be when it is unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError(400, "the packed request ends too early, or bytes follow it")
    return bytearray(out)
