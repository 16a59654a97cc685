"""The route of requests for results, as an ASGI application before the others: the layers of FastAPI would take as long as all the rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import Future
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foreshape.apps.serving.protocol import HEADER_LENGTH, InferRequest, Response, read_request, write_response
from foreshape.apps.serving.served_model import ServedModel
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.apps.serving.service import ClientGone, Headers, Service
from foreshape.apps.serving.trouble import server_error
from foreshape.interop.batch_queue import QueueEnded

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


_PATH: Final = "/v2/models/{model}/infer"
_GONE: Final = 499
"""The status, in the log alone, of a request whose client went away."""
_LENGTH: Final = HEADER_LENGTH.lower().encode()
_COPIED: Final = 5
"""To copy bytes takes less than such a power of two of the time of writing them as JSON."""
_JSON: Final = (b"content-type", b"application/json")
_BYTES: Final = (b"content-type", b"application/octet-stream")


class Target(NamedTuple):
    """A model, and its version if one is asked for."""

    model: str
    version: str | None


def target_of(path: str, last: str) -> Target | None:
    """Return the model in a path of the protocol with this last part; None for another path."""
    parts = path.split("/")
    if parts[:3] != ["", "v2", "models"] or parts[-1] != last or not all(parts[3:]):
        return None
    if len(parts) == 5:
        return Target(parts[3], None)
    return Target(parts[3], parts[5]) if len(parts) == 7 and parts[4] == "versions" else None


class InferRoute:
    """A layer around an application: it answers requests for results, and hands on all others."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (target := target_of(scope["path"], "infer")) is None:
            await self._app(scope, receive, send)
            return
        scope["counted_as"], scope["path_params"] = _PATH, target._asdict()
        try:
            if scope["method"] != "POST":
                raise RequestError(405, f"{scope['method'][:20]}: results are asked for with POST")
            await self._answer(target, scope, receive, send)
        except RequestError as error:
            await refuse(send, error)
        except ClientGone:
            await start(send, _GONE, [], b"")

    async def _answer(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        service, loop = self._service, asyncio.get_running_loop()
        until = monotonic() + service.limits.seconds
        service.repository.find(*target)  # before the body is read
        with service.request_of(scope["headers"]) as reading:
            try:
                async with asyncio.timeout(service.limits.seconds) as limit:
                    body = await reading.body(receive)
                    request = await self._read(target, body, reading.header(_LENGTH))
                    microseconds = request.request.timeout
                    if 0 < microseconds < (until - monotonic()) * 1e6:
                        until = monotonic() + microseconds / 1e6
                        limit.reschedule(loop.time() + microseconds / 1e6)
                    response = await self._results(target, request, until)
                    while response is None:  # another model took its place
                        response = await self._results(target, await self._read(target, body, reading.header(_LENGTH)), until)
            except TimeoutError:
                if not reading.ended:
                    raise RequestError(408, f"the request was not there within {service.limits.seconds:g} seconds") from None
                raise RequestError(504, "the answer was not there in time", retry_after=1) from None
            reading.hold(response.size)
            headers: Headers = [_JSON]
            if response.header_length is not None:
                headers = [_BYTES, (_LENGTH, b"%d" % response.header_length)]
            await start(send, 200, headers, *response.pieces)

    async def _read(self, target: Target, body: bytearray, header_length: str | None) -> _Asked:
        """Return the request in a body, for the model of this moment: no await from here to its queue."""
        service = self._service
        while True:
            served, version = service.repository.find(*target)
            request, feed = await service.aside(len(body), _feed_of, served, body, header_length, service.limits)
            if service.repository.find(*target)[0] is served:  # not exchanged meanwhile
                return _Asked(served, version, request, feed)

    async def _results(self, target: Target, entry: _Asked, until: float) -> Response | None:
        """Return the response; None if the model was closed for another one before its queue had the request."""
        service, loop, (served, version, request, feed) = self._service, asyncio.get_running_loop(), entry
        try:
            results = await result_of(served.submit(feed, until, loop.call_soon), loop)
            tensors = served.tensors(request, results)
            size = sum(t.array.nbytes >> (_COPIED if request.wants_bytes(t.name) else 0) for t in tensors)
            return await service.aside(size, write_response, target.model, version, request, tensors, service.limits)
        except RequestError:
            raise
        except QueueEnded:
            if service.repository.find(*target)[0] is served:
                raise RequestError(503, "the model is closed", retry_after=1) from None
            return None
        except Exception as error:
            raise _translated(served, request, error) from error


class _Asked(NamedTuple):
    """A request, its model, and its feed."""

    served: ServedModel
    version: str
    request: InferRequest
    feed: Any


def _feed_of(served: ServedModel, body: bytearray, header_length: str | None, limits: ServerLimits) -> tuple[InferRequest, Any]:
    request = read_request(body, header_length, limits, served.inputs)
    return request, served.feed(request)


async def start(send: Send, status: int, headers: Headers, *pieces: bytes) -> None:
    """Send a whole answer, piece by piece."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % sum(map(len, pieces))), *headers]})
    for number, piece in enumerate(pieces, 1):
        await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


async def refuse(send: Send, error: RequestError) -> None:
    """Send an answer in place of results."""
    headers = [_JSON, *((name.lower().encode(), value.encode()) for name, value in error.headers().items())]
    await start(send, error.status, headers, json.dumps(error.content()).encode())


async def result_of(future: Future[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Return the result of a future of any thread. One of this thread does not wake the loop through its pipe."""
    waited, thread = loop.create_future(), get_ident()

    def wake() -> None:
        if not waited.done():
            waited.set_result(None)

    def done(_: Any) -> None:
        if get_ident() == thread:
            wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(wake)

    future.add_done_callback(done)
    try:
        await waited
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()


def _translated(served: ServedModel, request: InferRequest, error: Exception) -> RequestError:
    refusal = served.refusal(request, error)
    if refusal is None:
        return server_error("a request failed", error)
    return refusal
