"""One log line and one count for each request."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from foreshape.apps.serving.infer_route import refuse
from foreshape.apps.serving.service import Service
from foreshape.apps.serving.trouble import server_error
from foreshape.language.text.literal import escape

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


log: Final = logging.getLogger("foreshape.access")


class AccessLog:
    """A layer around an application: it counts and logs each answer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size = monotonic(), 0, 0

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception as error:  # a mistake of ours: the client gets an answer in words, or its connection ends
            if status:
                raise
            await refuse(counted, server_error(f"{scope['method']} {escape(scope['path'][:200])}", error))
        finally:
            seconds = monotonic() - began
            route = scope.get("counted_as") or getattr(scope.get("route"), "path", "unknown")
            params: dict[str, str] = scope.get("path_params") or {}
            model = self._service.repository.known(params.get("model", ""), params.get("version"))
            self._service.metrics.answered(route, status or 500, seconds, model)
            if log.isEnabledFor(logging.INFO):
                client = scope.get("client")
                path = escape(scope["path"][:200])
                log.info("%s %s %s %d %.1fms %d", client[0] if client else "-", scope["method"], path, status or 500, seconds * 1e3, size)
