"""The interface between a server and its models, of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, Protocol

from foreshape.apps.serving.protocol import InferRequest, NamedTensor, TensorInfo
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.interop.batch_queue import Batch

Soon = Callable[[Callable[[], None]], Any]
"""A caller of functions, later in the same thread."""


class ServedModel(Protocol):
    """An opened model, ready to answer."""

    @property
    def platform(self) -> str:
        """Return its kind, for the metadata."""
        ...

    @property
    def inputs(self) -> Sequence[TensorInfo]: ...
    @property
    def outputs(self) -> Sequence[TensorInfo]: ...
    @property
    def notes(self) -> list[str]:
        """Return notes for its owner, as on requests without batches."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return the parameters of its metadata."""
        ...

    def feed(self, request: InferRequest) -> Any:
        """Return the feed of a request to `submit`, in any thread. Raises `RequestError` if it is refused."""
        ...

    def submit(self, feed: Any, until: float, soon: Soon | None) -> Future[Any]:
        """Begin with a feed, and return at once.

        Args:
            until: the latest time of the answer, of `time.monotonic`.
            soon: calls a function later in this thread; short work may be done there. None if there is no such function.

        Raises:
            RequestError: it is refused.
        """
        ...

    def tensors(self, request: InferRequest, results: Any) -> list[NamedTensor]:
        """Return the response's tensors, of the result of the future."""
        ...

    def refusal(self, request: InferRequest, error: Exception) -> RequestError | None:
        """Return the answer for an error of the future; None for a mistake of the server."""
        ...

    def waiting(self) -> int:
        """Return the number of waiting requests."""
        ...

    def give_memory(self, limit: int) -> None:
        """Set the limit of its plans from now on, in bytes."""
        ...

    def page(self, title: str) -> str:
        """Return a page about it, as HTML."""
        ...

    def close(self) -> None:
        """Take no more requests, and free all memory after the present ones."""
        ...


class RoutedModel:
    """The part of a model answering at routes of its own, and no tensors.

    Attributes:
        routes: the words for clients sending tensors.
    """

    routes = ""

    def feed(self, request: InferRequest) -> NoReturn:
        """Refuse, as `submit` and `tensors` do: see `routes`."""
        raise RequestError(400, self.routes)

    def submit(self, feed: Any, until: float, soon: Soon | None) -> NoReturn:
        raise RequestError(400, self.routes)

    def tensors(self, request: InferRequest, results: Any) -> NoReturn:
        raise RequestError(400, self.routes)

    def give_memory(self, limit: int) -> None:
        """Do nothing: its memory keeps the bound of its opening."""


class Opening(NamedTuple):
    """The circumstances in which a model is opened: its memory in bytes, the server's limits, and the listener to its batches."""

    memory: int
    limits: ServerLimits
    ran: Callable[[Batch], None]


class ModelKind(Protocol):
    """A kind of models, known by their files."""

    def finds(self, path: str) -> bool:
        """Tell whether a file or a folder is a model of this kind."""
        ...

    def fills(self, folder: str) -> bool:
        """Tell whether a folder is one model, rather than a place for several."""
        ...

    def opened(self, path: str, opening: Opening) -> ServedModel:
        """Open a model, and run it once. Raises `ForeshapeError` if it cannot be opened or run."""
        ...
