"""The routes of embedders and rerankers: OpenAI's ``/v1/embeddings``, ``/rerank`` as text-embeddings-inference, Jina and Cohere have it, and ``/tokenize``."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy
from msgspec import UNSET, Raw, Struct, UnsetType, json

from foreshape.apps.embedding.embedder import TextRun
from foreshape.apps.embedding.model_folder import normalized
from foreshape.apps.serving.infer_route import result_of, start
from foreshape.apps.serving.protocol import need_short
from foreshape.apps.serving.request_json import decoded
from foreshape.apps.serving.served_embedder import ServedEmbedder
from foreshape.apps.serving.served_model import ServedModel
from foreshape.apps.serving.served_writer import ServedWriter
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.service import ClientGone, Headers, Service
from foreshape.apps.serving.trouble import server_error
from foreshape.apps.tokenization.text_tokenizer import Tokenized
from foreshape.interop.batch_queue import QueueEnded

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_TEXTS: Final = 2048
"""The most texts of a request, as of OpenAI."""
_GONE: Final = 499
_AHEAD: Final = 2
"""The parts of a request in the queue together: a large request leaves the place between its parts to others, and the queue is not idle meanwhile."""
_COST: Final = 8
"""To tokenize a byte takes so many times as long as to read one."""
_BLANK: Final = b" \t\r\n"
_RERANK: Final = ("/rerank", "/v1/rerank", "/v2/rerank")

T = TypeVar("T")


class EmbeddingsRequest(Struct):
    """A request for vectors, with ``normalize`` and ``prompt_name`` beside OpenAI's fields."""

    input: Raw = Raw()
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class RerankRequest(Struct):
    """A request for scores: ``texts`` and ``return_text`` of text-embeddings-inference, ``documents`` and ``return_documents`` of Jina and Cohere."""

    query: str | UnsetType = UNSET
    documents: Raw = Raw()
    texts: Raw = Raw()
    model: str | None = None
    top_n: int | None = None
    raw_scores: bool | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None


class TokenizeRequest(Struct):
    """A request for tokens."""

    inputs: Raw = Raw()
    model: str | None = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class _Document(Struct):
    text: str


_embeddings: Final = json.Decoder(EmbeddingsRequest)
_reranking: Final = json.Decoder(RerankRequest)
_tokenizing: Final = json.Decoder(TokenizeRequest)
_text: Final = json.Decoder(str)
_texts: Final = json.Decoder(list[str])
_numbers: Final = json.Decoder(list[int])
_lists: Final = json.Decoder(list[list[int]])
_documents: Final = json.Decoder(list[str | _Document])


def read_texts(field: str, raw: Raw, ids: bool = False) -> list[str] | list[list[int]]:
    """Return the texts of a field: of a text, or of a list of texts; with ``ids`` also of a list of tokens, or of several.

    Raises:
        RequestError: it is none of them, has no text or an empty one, or more than `MAX_TEXTS`.
    """
    data = bytes(raw)
    if not data:
        raise RequestError(400, f"{field} is missing")
    first = data[1:].lstrip(_BLANK)[:1] if data[:1] == b"[" else b""
    if data[:1] == b'"':
        return _not_empty(field, [decoded(field, _text, data)])
    if ids and first == b"[":
        if data.count(b"[") > MAX_TEXTS + 1:
            raise _too_many(field, data.count(b"[") - 1)
        return _not_empty(field, decoded(field, _lists, data))
    if ids and first and first in b"-0123456789":
        return _not_empty(field, [decoded(field, _numbers, data)])
    if not first or first not in b'"]':
        kinds = "a text, a list of texts, a list of tokens or a list of such lists" if ids else "a text or a list of texts"
        raise RequestError(400, f"{field} must be {kinds}")
    return _not_empty(field, decoded(field, _texts, data))


def _too_many(field: str, count: int) -> RequestError:
    return RequestError(413, f"{field} may have {MAX_TEXTS:,} texts; it has {count:,}")


def _not_empty(field: str, texts: list[T]) -> list[T]:
    if len(texts) > MAX_TEXTS:
        raise _too_many(field, len(texts))
    if not texts:
        raise RequestError(400, f"{field} must have at least one text")
    if not all(texts):
        raise RequestError(400, f"{field} has an empty text, at place {next(i for i, text in enumerate(texts) if not text)}")
    return texts


class TextRoutes:
    """A layer around an application: it answers requests for vectors, scores and tokens of texts, and hands on all others."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._answers = {"/v1/embeddings": self._embeddings, "/tokenize": self._tokenize, **dict.fromkeys(_RERANK, self._rerank)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        models = path == "/v1/models" or path.startswith("/v1/models/")
        if path not in self._answers and not models:
            await self._app(scope, receive, send)
            return
        scope["counted_as"] = "/v1/models" if models else path
        method = "GET" if models else "POST"
        try:
            if scope["method"] != method:
                raise RequestError(405, f"{scope['method'][:20]}: the method of {path[:100]} is {method}")
            pieces = [json.encode(self._models(path.removeprefix("/v1/models")[1:]))] if models else await self._answer(path, scope, receive)
        except ClientGone:
            await start(send, _GONE, [], b"")
        except RequestError as error:
            await refuse_by_path(send, error, path)
        except Exception as error:  # in the form of the route too
            await refuse_by_path(send, server_error(f"a request to {path}", error), path)
        else:
            await start(send, 200, [_JSON], *pieces)

    async def _answer(self, path: str, scope: Scope, receive: Receive) -> list[bytes]:
        service = self._service
        until = monotonic() + service.limits.seconds
        with service.request_of(scope["headers"]) as reading:
            try:
                async with asyncio.timeout(service.limits.seconds):
                    body = await reading.body(receive)
                    need_short(len(body), service.limits)
                    pieces = await self._answers[path](scope, bytes(body), until)
            except TimeoutError:
                if not reading.ended:
                    raise RequestError(408, f"the request was not there within {service.limits.seconds:g} seconds") from None
                raise RequestError(504, "the answer was not there in time", retry_after=1) from None
            reading.hold(sum(map(len, pieces)))
            return pieces

    # --- the routes

    async def _embeddings(self, scope: Scope, body: bytes, until: float) -> list[bytes]:
        request = decoded("the request", _embeddings, body)
        model, served = self._model(scope, request.model, "embedder")
        if request.encoding_format not in (None, "float", "base64"):
            raise RequestError(400, f"encoding_format must be float or base64; seen {request.encoding_format[:40]!r}")
        width = served.width or 0
        if request.dimensions is not None and not 1 <= request.dimensions <= width:
            raise RequestError(400, f"dimensions must be from 1 to {width}; seen {str(request.dimensions)[:40]}")
        run = served.run_of(request.prompt_name)

        def read() -> list[Tokenized]:
            texts: Any = read_texts("input", request.input, ids=True)
            return served.numbered(texts) if isinstance(texts[0], list) else served.tokenized(texts, request.prompt_name)

        texts = await self._service.aside(len(body) * _COST, read)
        vectors = await self._rows(served, texts, run, until)
        return await self._service.aside(vectors.nbytes, _write_vectors, model, request, vectors, _usage(texts))

    async def _rerank(self, scope: Scope, body: bytes, until: float) -> list[bytes]:
        request = decoded("the request", _reranking, body)
        model, served = self._model(scope, request.model, "reranker")
        if served.labels != 1:
            raise RequestError(400, f"{model} has {served.labels} scores for a pair, and an order takes one")
        if request.truncate is False:
            raise RequestError(400, "truncate: false is not supported; texts are cut at the longest length")
        if request.top_n is not None and request.top_n < 1:
            raise RequestError(400, f"top_n must be at least 1; seen {str(request.top_n)[:40]}")
        if bool(request.documents) == bool(request.texts):
            raise RequestError(400, "a request has documents, or texts")

        def read() -> tuple[list[str], list[Tokenized]]:
            documents = _documents_of(request)
            if not isinstance(request.query, str) or not request.query:
                raise RequestError(400, "query must be a text that is not empty")
            query = request.query
            return documents, served.tokenized([(query, text) for text in documents], None)

        documents, pairs = await self._service.aside(len(body) * _COST, read)
        run = served.run_of(None)
        rows = await self._rows(served, pairs, run, until)
        scores = (rows if request.raw_scores else run.activation(rows))[:, 0]
        return [await self._service.aside(len(body), _write_ranks, model, request, documents, scores, _usage(pairs))]

    async def _tokenize(self, scope: Scope, body: bytes, until: float) -> list[bytes]:
        request = decoded("the request", _tokenizing, body)
        _, served = self._model(scope, request.model, None)
        prompt, special = served.run_of(request.prompt_name).prompt, request.add_special_tokens is not False

        def write() -> list[bytes]:
            texts: Any = read_texts("inputs", request.inputs)
            pieces = [json.encode(served.tokens(prompt + text, special)) for text in texts]
            return [b"[" + b",".join(pieces) + b"]"]

        return await self._service.aside(len(body) * _COST, write)

    def _models(self, name: str) -> dict[str, Any]:
        served = {n: s for n, s in self._newest().items() if isinstance(s, ServedEmbedder) or (isinstance(s, ServedWriter) and s.tokenizer is not None)}
        entries = {n: {"id": n, "object": "model", "created": s.created, "owned_by": "foreshape"} for n, s in served.items()}
        if not name:
            return {"object": "list", "data": [*entries.values()]}
        if name not in entries:
            raise self._unknown(name, entries)
        return entries[name]

    # --- models and their work

    def _newest(self) -> dict[str, ServedModel]:
        repository = self._service.repository
        return {name: repository.find(name)[0] for name in repository.names()}

    def _served(self) -> dict[str, ServedEmbedder]:
        """Return the newest version of each embedder and reranker."""
        return {name: served for name, served in self._newest().items() if isinstance(served, ServedEmbedder)}

    def _unknown(self, name: str, names: Mapping[str, Any]) -> RequestError:
        return RequestError(404, f"there is no model {name[:100]!r} for this; there are: {', '.join(names) or 'none'}", code="model_not_found")

    def _model(self, scope: Scope, name: str | None, kind: str | None) -> tuple[str, ServedEmbedder]:
        """Return the named model, and count the request as its own; without a name the only one of its kind."""
        every = {n: s for n, s in self._served().items() if kind is None or (s.labels is not None) == (kind == "reranker")}
        if name is None:
            if len(every) != 1:
                raise (
                    RequestError(400, f"model must name one of: {', '.join(every)}") if every else RequestError(404, f"no {kind or 'model of texts'} is served")
                )
            (name,) = every
        if name not in every:
            raise self._unknown(name, every)
        scope["path_params"] = {"model": name}
        return name, every[name]

    async def _rows(self, served: ServedEmbedder, texts: Sequence[Tokenized], run: TextRun, until: float) -> Any:
        """Return the vectors, or scores, of texts, part by part."""
        loop, out = asyncio.get_running_loop(), list[Any]([None] * len(texts))
        waiting = deque[tuple[list[int], Future[Any]]]()

        async def take() -> None:
            part, future = waiting.popleft()
            results = await result_of(future, loop)
            for i, row in zip(part, results["rows"], strict=True):
                out[i] = row

        try:
            for part in served.parts_of(texts, run):
                if len(waiting) == _AHEAD:
                    await take()
                waiting.append((part, served.put([texts[i] for i in part], run, until, loop.call_soon)))
            while waiting:
                await take()
        except QueueEnded:
            raise RequestError(503, "the model was closed, or another took its place", retry_after=1) from None
        except RequestError:
            raise
        except Exception as error:
            raise served.refusal(None, error) or server_error("a request failed", error) from error
        finally:
            for _, future in waiting:
                future.cancel()
        rows = numpy.stack(out)
        if not numpy.isfinite(rows).all():
            raise RequestError(422, "a result has a NaN or an infinity, which JSON lacks")
        return rows


_JSON: Final = (b"content-type", b"application/json")


def _documents_of(request: RerankRequest) -> list[str]:
    if request.texts:
        texts: Any = read_texts("texts", request.texts)
        return texts
    entries = decoded("documents", _documents, request.documents)
    return _not_empty("documents", [entry if isinstance(entry, str) else entry.text for entry in entries])


def _usage(texts: Sequence[Tokenized]) -> dict[str, int]:
    count = sum(len(text.ids) for text in texts)
    return {"prompt_tokens": count, "total_tokens": count}


def _write_vectors(model: str, request: EmbeddingsRequest, vectors: Any, usage: Mapping[str, int]) -> list[bytes]:
    rows = vectors[:, : request.dimensions]
    if request.normalize or (request.normalize is None and request.dimensions is not None):
        rows = normalized(rows)
    packed = request.encoding_format == "base64"
    pieces = [b'{"object":"list","data":[']
    for index, row in enumerate(numpy.ascontiguousarray(rows, "<f4")):
        value = base64.b64encode(row.tobytes()).decode() if packed else row.tolist()
        pieces.append((b"," if index else b"") + json.encode({"object": "embedding", "index": index, "embedding": value}))
    pieces.append(b'],"model":%b,"usage":%b}' % (json.encode(model), json.encode(usage)))
    return [b"".join(pieces)]


def _write_ranks(model: str, request: RerankRequest, documents: Sequence[str], scores: Any, usage: Mapping[str, int]) -> bytes:
    order = [int(i) for i in numpy.argsort(-scores, kind="stable")[: request.top_n]]
    if request.texts:
        return json.encode([{"index": i, **({"text": documents[i]} if request.return_text else {}), "score": float(scores[i])} for i in order])
    results = [{"index": i, "relevance_score": float(scores[i]), **({"document": {"text": documents[i]}} if request.return_documents else {})} for i in order]
    return json.encode({"id": f"rerank-{token_hex(8)}", "model": model, "object": "list", "results": results, "usage": usage})


async def refuse_by_path(send: Send, error: RequestError, path: str) -> None:
    """Send an answer in place of results; in OpenAI's form below /v1."""
    content = openai_error(error) if path.startswith("/v1/") else {name: value for name, value in error.content().items() if name != "code"}
    headers: Headers = [_JSON, *((name.lower().encode(), value.encode()) for name, value in error.headers().items())]
    await start(send, error.status, headers, json.encode(content))


def openai_error(error: RequestError) -> dict[str, Any]:
    """Return an answer's JSON in OpenAI's form."""
    content = error.content()
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": content.pop("error"), "type": kind, "param": error.field, "code": content.pop("code", None), **content}}
