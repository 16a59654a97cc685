"""The routes of texts, Triton's generate extension: whole texts, and words as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from foreshape.apps.generation.text_settings import TextSettings, seen
from foreshape.apps.serving.infer_route import Target, refuse, start, target_of
from foreshape.apps.serving.protocol import need_short
from foreshape.apps.serving.request_json import parse_object
from foreshape.apps.serving.served_writer import ServedWriter, TextEvent, TextJob
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.apps.serving.service import ClientGone, Service
from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WAYS: Final = ("generate", "generate_stream")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_GONE: Final = 499
_STOPS: Final = 1024


class TextRequest(NamedTuple):
    """A request for a text."""

    id: str | None
    prompt: list[int]
    settings: dict[str, Any]


def _whole(name: str, value: object) -> int:
    if type(value) is not int:
        raise RequestError(400, f"{name} must be a whole number; seen {seen(value)}")
    return value


def _number(name: str, value: object) -> int | float:
    if type(value) not in (int, float):
        raise RequestError(400, f"{name} must be a number; seen {seen(value)}")
    return cast("int | float", value)


def _stopping(name: str, value: object) -> bool | str:
    if not isinstance(value, bool) and value != "never":
        raise RequestError(400, f'{name} must be true, false or "never"; seen {seen(value)}')
    return cast("bool | str", value)


def _words(name: str, value: object) -> list[int]:
    if not isinstance(value, list):
        raise RequestError(400, f"{name} must be a list of whole numbers; seen {type(value).__name__}")
    return [_whole(f"each of {name}", word) for word in cast("list[object]", value)]


def _stops(name: str, value: object) -> list[list[int]]:
    if not isinstance(value, list):
        raise RequestError(400, f"{name} must be a list of lists of whole numbers")
    stops = [_words(name, stop) for stop in cast("list[object]", value)]
    if len(stops) > _STOPS or sum(map(len, stops)) > _STOPS:
        raise RequestError(400, f"{name} may have {_STOPS} words in all: each text is compared with them at each word")
    return stops


_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str, object], Any]]]] = {
    "max_tokens": ("most", _whole),
    "min_tokens": ("min_new_tokens", _whole),
    "temperature": ("temperature", _number),
    "top_k": ("top_k", _whole),
    "top_p": ("top_p", _number),
    "min_p": ("min_p", _number),
    "typical_p": ("typical_p", _number),
    "repetition_penalty": ("repetition_penalty", _number),
    "frequency_penalty": ("frequency_penalty", _number),
    "presence_penalty": ("presence_penalty", _number),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", _whole),
    "seed": ("seed", _whole),
    "stop": ("stop", _stops),
    "beams": ("beams", _whole),
    "length_penalty": ("length_penalty", _number),
    "early_stopping": ("early_stopping", _stopping),
}
"""The parameters of a request, with the names in `TextWriter.add` and the readers of their types."""


def read_text_request(body: bytes | bytearray, limits: ServerLimits) -> TextRequest:
    """Return the request in a body. Raises `RequestError` if it is none, or too long for ``limits``."""
    need_short(len(body), limits)
    request = parse_object(body)
    id, parameters = request.get("id"), request.get("parameters", {})
    if id is not None and not isinstance(id, str):
        raise RequestError(400, "id must be a text")
    if not isinstance(parameters, dict):
        raise RequestError(400, "parameters must be a JSON object")
    if unknown := request.keys() - {"id", "input_ids", "parameters"}:
        raise RequestError(400, f"a request for a text has id, input_ids and parameters; seen {sorted(unknown)[0][:100]!r}")
    settings: dict[str, Any] = {}
    for name, value in cast("dict[str, object]", parameters).items():
        if name not in _SETTINGS:
            raise RequestError(400, f"there is no parameter {name[:100]!r}; there are {', '.join(_SETTINGS)}")
        field, read = _SETTINGS[name]
        settings[field] = read(name, value)
        if field != "stop":
            try:
                settings[field] = TextSettings.bounded(field, settings[field], name)
            except SchemaError as error:
                raise RequestError(422, str(error)) from None
    return TextRequest(id, _words("input_ids", request.get("input_ids")), settings)


class GenerateRoute:
    """A layer around an application: it answers requests for texts, and hands on all others."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = None
        if scope["type"] == "http":
            match = next(((way, target) for way in _WAYS if (target := target_of(scope["path"], way)) is not None), None)
        if match is None:
            await self._app(scope, receive, send)
            return
        way, target = match
        scope["counted_as"], scope["path_params"] = f"/v2/models/{{model}}/{way}", target._asdict()
        sender = EventSender(send)
        try:
            if scope["method"] != "POST":
                raise RequestError(405, f"{scope['method'][:20]}: texts are asked for with POST")
            await self._answer(way == "generate_stream", target, scope, receive, sender)
        except RequestError as error:
            if sender.started:
                await sender.event({"error": str(error), **error.facts})
                await sender.end()
            else:
                await refuse(send, error)
        except ClientGone:
            if not sender.started:
                await start(send, _GONE, [], b"")

    async def _answer(self, streams: bool, target: Target, scope: Scope, receive: Receive, sender: EventSender) -> None:
        service = self._service
        until = monotonic() + service.limits.seconds
        service.repository.find(*target)  # before the body is read
        with service.request_of(scope["headers"]) as reading:
            try:
                async with asyncio.timeout(service.limits.seconds):
                    body = await reading.body(receive)
            except TimeoutError:
                raise RequestError(408, f"the request was not there within {service.limits.seconds:g} seconds") from None
            request = await service.aside(len(body), read_text_request, body, service.limits)
            served, version = service.repository.find(*target)
            if not isinstance(served, ServedWriter):
                raise RequestError(400, f"{target.model[:100]} writes no texts; ask for its results with .../infer")
            head: dict[str, Any] = {"model_name": target.model, "model_version": version, **({} if request.id is None else {"id": request.id})}
            words, end = list[int](), dict[str, str]()
            with TextEvents(served, receive) as texts:
                texts.write(request.prompt, request.settings, until)
                while not end:
                    _, event = await texts.next()
                    end = _end_of(event)
                    if not streams:
                        words += event.words
                    elif event.words or end:
                        await sender.event({**head, "output_ids": event.words, **end})
            if streams:
                await sender.end()
            else:
                await sender.whole({**head, "output_ids": words, **end})


def _end_of(event: TextEvent) -> dict[str, str]:
    return {} if event.reason is None else {"finish_reason": {"most": "length"}.get(event.reason, event.reason)}


class TextEvents:
    """A context manager for texts of one client: when the client goes away, or the context ends, they end early.

    Args:
        served: writes them.
        receive: of the client's request, after its body.
    """

    def __init__(self, served: ServedWriter, receive: Receive) -> None:
        self._served, self._receive = served, receive
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[tuple[TextJob, TextEvent] | None]()
        self._jobs: list[TextJob] = []

    def __enter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *exception: object) -> None:
        self._watcher.cancel()
        for job in self._jobs:
            self.give_up(job)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(None)

    def write(self, prompt: list[int], settings: Mapping[str, Any], until: float) -> TextJob:
        """Begin a text, as of `TextJob`. Raises `RequestError` if the model has no place for it."""

        def tell(event: TextEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (job, event))

        job = TextJob(prompt, settings, until, tell)
        self._served.write(job)
        self._jobs.append(job)
        return job

    def give_up(self, job: TextJob) -> None:
        """End a text as it is; some of its events may still come."""
        self._served.give_up(job)

    async def next(self) -> tuple[TextJob, TextEvent]:
        """Return the next event of any text. Raises `RequestError`, the error of a text; `ClientGone`."""
        event = await self._queue.get()
        if event is None:
            raise ClientGone
        if event[1].error is not None:
            raise event[1].error
        return event


class EventSender:
    """The answer to a request: whole, or as server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def event(self, content: Mapping[str, Any] | str) -> None:
        """Send one event, JSON or a word; before the first one the head."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [_EVENTS, (b"cache-control", b"no-store")]})
        data = content if isinstance(content, str) else json.dumps(content)
        message: Message = {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}
        await self._send(message)

    async def end(self) -> None:
        """End the events."""
        await self._send({"type": "http.response.body", "body": b""})

    async def whole(self, content: Mapping[str, Any]) -> None:
        """Send all at once."""
        await start(self._send, 200, [(b"content-type", b"application/json")], json.dumps(content).encode())
