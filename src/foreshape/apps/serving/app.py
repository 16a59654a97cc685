"""The HTTP interface: routes of the Open Inference Protocol, metrics, and pages, as a FastAPI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from html import escape as html
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException as HTTPError

from foreshape.apps.serving.access import AccessLog
from foreshape.apps.serving.completion_routes import CompletionRoutes
from foreshape.apps.serving.generate_route import GenerateRoute
from foreshape.apps.serving.infer_route import InferRoute
from foreshape.apps.serving.served_model import ServedModel
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.service import Service
from foreshape.apps.serving.text_routes import TextRoutes
from foreshape.apps.serving.trouble import client_words
from foreshape.core.version import VERSION
from foreshape.language.text.literal import escape

if TYPE_CHECKING:
    from starlette.types import ASGIApp


log: Final = logging.getLogger("foreshape.serving")
EXTENSIONS: Final = ("binary_tensor_data", "generate", "model_repository")
_PACE: Final = 1.0
"""Seconds from one look at the models' files to the next."""


def make_app(service: Service, watch: bool = True) -> ASGIApp:
    """Return the application.

    Args:
        service: its state; the models are open.
        watch: look for changes of the models' files.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        task = asyncio.create_task(_watch(service)) if watch else None
        yield
        if task is not None:
            task.cancel()
        service.close()

    app = FastAPI(title="Foreshape", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None)  # these pages load scripts from elsewhere
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPError, _unknown)
    app.add_exception_handler(Exception, _failed)
    _add_protocol(app, service)
    _add_pages(app, service)
    return AccessLog(InferRoute(GenerateRoute(CompletionRoutes(TextRoutes(app, service), service), service), service), service)


async def _watch(service: Service) -> None:
    while True:
        await asyncio.sleep(_PACE)
        try:
            await service.repository.refresh()
        except Exception:  # a mistake here must not end the looking
            log.exception("the models' files could not be looked at")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(error.content(), error.status, error.headers())


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPError)
    return JSONResponse({"error": f"{request.method} {escape(request.url.path[:200])}: {error.detail}"}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    raise error  # the layer around the application answers


def _add_protocol(app: FastAPI, service: Service) -> None:
    """Add the other routes of the protocol."""
    repository = service.repository

    @app.get("/v2")
    async def server() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"name": "foreshape", "version": VERSION, "extensions": [*EXTENSIONS]})

    @app.get("/v2/health/live")
    async def live() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"live": True})

    @app.get("/v2/health/ready")
    async def ready() -> Response:  # pyright: ignore[reportUnusedFunction]
        is_ready = not service.stopping and bool(repository.names())
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/v2/models/{model}")
    @app.get("/v2/models/{model}/versions/{version}")
    async def metadata(model: str, version: str | None = None) -> Response:  # pyright: ignore[reportUnusedFunction]
        served, _ = repository.find(model, version)
        facts = {
            "name": model,
            "versions": repository.versions(model),
            "platform": served.platform,
            "inputs": [part.facts() for part in served.inputs],
            "outputs": [part.facts() for part in served.outputs],
            "parameters": {**served.facts(), "notes": [client_words(part) for part in served.notes]},
        }
        return JSONResponse(facts)

    @app.get("/v2/models/{model}/ready")
    @app.get("/v2/models/{model}/versions/{version}/ready")
    async def model_ready(model: str, version: str | None = None) -> Response:  # pyright: ignore[reportUnusedFunction]
        _, number = repository.find(model, version)
        return JSONResponse({"name": model, "version": number, "ready": not service.stopping}, 503 if service.stopping else 200)

    @app.post("/v2/repository/index")
    async def index() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse(repository.index())

    @app.post("/v2/repository/models/{model}/{action}")
    async def change(model: str, action: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        raise RequestError(400, "models are opened and closed by their files, not by requests")


def _add_pages(app: FastAPI, service: Service) -> None:
    """Add the pages for persons, and the metrics."""
    repository = service.repository
    pages = WeakKeyDictionary["ServedModel", str]()  # an exchanged model is not kept for its page

    async def page_of(name: str, version: str | None) -> Response:
        served, number = repository.find(name, version)
        page = pages.get(served)
        if page is None:
            page = pages[served] = await asyncio.to_thread(served.page, f"{name}, version {number}")
        return HTMLResponse(page)

    @app.get("/")
    async def start() -> Response:  # pyright: ignore[reportUnusedFunction]
        every = repository.index()
        if len(every) == 1 and repository.names():
            return await page_of(every[0]["name"], None)
        rows = "".join(
            f'<tr><td><a href="/models/{quote(entry["name"], safe="")}/{entry["version"]}">{html(entry["name"])}</a></td>'
            f"<td>{html(entry['version'])}</td><td>{entry['state']}</td><td>{html(entry['reason'])}</td></tr>"
            for entry in every
        )
        style = "body{font:16px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}"
        head = "<tr><th>model</th><th>version</th><th>state</th><th></th></tr>"
        return HTMLResponse(f"<!doctype html><meta charset=utf-8><title>Foreshape</title><style>{style}</style><h1>Models</h1><table>{head}{rows}</table>")

    @app.get("/models/{model}/{version}")
    async def page(model: str, version: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await page_of(model, version)

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        figures = service.metrics
        figures.waiting.clear()
        for name, version, served in repository.served():
            figures.waiting.labels(name, version).set(served.waiting())
        figures.running.set(service.running)
        figures.pending.set(service.pending)
        return PlainTextResponse(figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
