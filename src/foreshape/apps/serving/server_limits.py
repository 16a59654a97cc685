"""The limits of a server, and the errors in its answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreshape.errors import ForeshapeError


class ServerLimits(NamedTuple):
    """The limits for clients."""

    body: int = 64 << 20
    """The bytes of one request, unpacked."""
    json: int = 16 << 20
    """The bytes of its JSON: lists of numbers take some sixteen times as much in memory."""
    pending: int = 512 << 20
    """The bytes of all requests being read, waiting or running."""
    seconds: float = 30.0
    """The time from a request's first line to its answer."""
    queue: int = 1000
    """The waiting requests of one model."""
    batch: int = 64
    """The examples computed together."""
    memory: int | None = None
    """The bytes of the plans of all models together; None for nine tenths of the machine's or container's memory."""
    connections: int = 8000
    """The open connections."""
    header_seconds: float = 10.0
    """The time for a request's first line and headers, and the longest standstill of a client reading an answer."""
    keep_alive: float = 60.0
    """The longest idle time of a connection."""
    stop_seconds: float = 30.0
    """The time for running requests to end after the signal to stop."""


class RequestError(ForeshapeError):
    """An answer in place of results.

    Args:
        status: of HTTP.
        words: the message.
        retry_after: seconds until the next try.
        field: the wrong field of the request, for answers in OpenAI's form.
        facts: more fields of the answer's JSON.
    """

    def __init__(self, status: int, words: str, *, retry_after: int | None = None, field: str | None = None, **facts: Any) -> None:
        super().__init__(words)
        self.status, self.retry_after, self.field, self.facts = status, retry_after, field, facts

    def content(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return {"error": str(self), **self.facts}

    def headers(self) -> dict[str, str]:
        """Return its headers."""
        out = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status in (408, 413, 415):  # the rest of the body is not read
            out["Connection"] = "close"
        return out
