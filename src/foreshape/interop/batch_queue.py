"""A queue of simultaneous requests to one network, joined and run as batches by a thread of its own, or, where they are short, by their own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from foreshape.errors import ExecutionError, SchemaError
from foreshape.interop.batch_layout import Part, Runs
from foreshape.interop.results import Results
from foreshape.machine.process.threads import end_team

_FEW: Final = 8
"""So many requests are taken together if they wait. Of more, half: while they run, the answers of the other half are sent, and new requests come."""


_LINGERS: Final = 0.05
"""The seconds for which the thread of a queue keeps its OpenMP threads without work."""
_CALM: Final = 64
"""After so many short batches in turn it leaves the next ones to their own threads. OpenMP threads are made anew then, so it must not come often."""
_LONE: Final = 0.005
"""The most seconds of one request's run in its own thread."""
_EACH: Final = 0.0001
"""The most seconds for each of several: reading a request and writing its answer takes longer."""


class QueueFull(ExecutionError):
    """A request more than may wait."""


class QueueEnded(ExecutionError):
    """A request after the end of its queue."""


class Expired(ExecutionError):
    """A request whose time was over before it could run."""


class Batch(NamedTuple):
    """A batch after its run: its requests, examples and seconds; its ragged rows, and the seconds of each request's waiting.

    Attributes:
        shared: the rows of texts taken from a cache, beside the computed ``rows``.
    """

    requests: int
    examples: int
    seconds: float
    rows: int = 0
    waited: Sequence[float] = ()
    shared: int = 0


class Joining(Protocol):
    """The way to join requests, as `BatchLayout` has it.

    Attributes:
        batch: the symbol of the number of examples.
        growing: this and other symbols growing with it.
    """

    @property
    def batch(self) -> str: ...
    @property
    def growing(self) -> frozenset[str]: ...
    def part(self, feed: Mapping[str, Any]) -> Part | None: ...
    def together(self, sizes: Mapping[str, int], part_sizes: Mapping[str, int]) -> dict[str, int] | None: ...
    def joined(self, parts: Sequence[Part]) -> dict[str, Any]: ...
    def split(self, results: Results, parts: Sequence[Part]) -> Iterator[Results]: ...


class _Request(NamedTuple):
    part: Part | None
    feed: Mapping[str, Any]
    answer: Future[Results]
    until: float | None
    size: BatchSize
    came: float


class BatchQueue:
    """A queue of requests to one network. Ragged requests are joined without padding.

    Batches are run by a thread of the queue, or, if they are short, by the thread of their requests: two changes of threads take longer than many a batch.
    Only one of the two keeps OpenMP threads.

    Args:
        model: runs a feed; never two at once.
        layout: joins requests; None to run each alone.
        most: the largest number of examples computed together.
        wait: the seconds for which a batch waits for more requests; 0 takes only present ones.
        fits: tells whether a batch of these sizes (symbol -> size) may run; a single request always may.
        length: the most waiting requests.
        ran: is told of each batch, in its thread.
    """

    def __init__(
        self,
        model: Runs,
        layout: Joining | None,
        limit: int,
        wait: float = 0.0,
        *,
        fits: Callable[[Mapping[str, int]], bool] = lambda sizes: True,
        length: int | None = None,
        ran: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        if limit < 1 or wait < 0:
            raise SchemaError(f"batch_queue is a number of examples, and wait of seconds; seen {limit} and {wait}")
        self._model, self._layout, self._limit, self._wait = model, layout, limit, wait
        self._fits, self._length, self._ran = fits, length, ran
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._ended = self._busy = self._called = self._awake = False
        self._times = BatchTimes(is_linear=layout is not None)
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def run(self, feed: Mapping[str, Any]) -> Results:
        """Return the results of a feed, when they are there."""
        return self.submit(feed).result()

    def submit(self, feed: Mapping[str, Any], until: float | None = None, soon: Callable[[Callable[[], None]], Any] | None = None) -> Future[Results]:
        """Put a request into the queue.

        Args:
            feed: input -> array, `LoDTensor` if ragged.
            until: the latest time to begin with it, of `time.monotonic`.
            soon: calls a function later in this thread, as `asyncio.loop.call_soon`; it may be given the run of a short batch.

        Returns:
            Its results, or its error: `Expired`, or any of `InferenceModel.run`. A request whose future is cancelled is not run.

        Raises:
            QueueFull: too many wait. QueueEnded: the queue has ended.
        """
        part = None if self._layout is None else self._layout.part(feed)
        request = _Request(part, feed, Future(), until, self._size_of(feed, part), monotonic())
        with self._changed:
            if self._ended:
                raise QueueEnded("the queue takes no more requests: its network is closed")
            if self._length is not None and len(self._waiting) >= self._length:
                raise QueueFull(f"{len(self._waiting)} requests wait, and no more may")
            self._waiting.append(request)
            if self._called:
                pass
            elif soon is not None and not self._busy and not self._awake and self._is_short():
                self._called = True
                soon(self._run_here)
            else:
                if soon is not None and not self._awake:
                    end_team()
                self._wake()
        return request.answer

    def try_out(self, feed: Mapping[str, Any]) -> None:
        """Run a feed in this thread before the first request, and note the time. Raises as `InferenceModel.run`."""
        part = None if self._layout is None else self._layout.part(feed)
        for counts in (False, True, True):  # the first one makes kernels
            start = monotonic()
            self._model.run(feed if part is None or self._layout is None else self._layout.joined([part]))
            if counts:
                self._times.took(self._size_of(feed, part), monotonic() - start)

    def end(self) -> None:
        """Take no more requests; the thread ends after the answers to present ones."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _wake(self) -> None:
        """Let the queue's thread look; it is made when it is first needed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="foreshape-batch-queue", daemon=True)
            self._thread.start()
        self._awake = True
        self._changed.notify()

    def _serve(self) -> None:
        few = 0  # short batches in turn with nobody waiting behind them
        while True:
            with self._changed:
                if few >= _CALM or not self._changed.wait_for(self._has_work, _LINGERS):
                    end_team()
                    self._awake, few = False, 0
                    self._changed.wait_for(self._has_work)
                if not self._waiting:
                    return
                few = few + 1 if self._is_short() else 0
                self._busy = True
                together = self._next()
            self._run(together)

    def _has_work(self) -> bool:
        return self._ended or bool(self._waiting and not self._busy and not self._called)

    def _run_here(self) -> None:
        """Run the waiting requests in this thread. The queue's own thread takes them if they became many, or what is left."""
        with self._changed:
            self._called = False
            if not self._waiting:
                return
            if self._busy or not self._is_short():
                end_team()
                self._wake()
                return
            self._busy = True
            together = self._next()
        self._run(together)
        with self._changed:
            if self._waiting:
                end_team()
                self._wake()

    def _run(self, together: Sequence[_Request]) -> None:
        began = monotonic()
        try:
            if together:
                self._answer(together)
        finally:
            self._busy = False
        if together:
            took, size = monotonic() - began, BatchSize.together(r.size for r in together)
            self._times.took(size, took)
            self._ran(Batch(len(together), sum(self._examples(r) for r in together), took, size.rows, [began - r.came for r in together]))

    def _is_short(self) -> bool:
        """Tell whether the waiting requests are expected to be computed soon, beside the time that their requests and answers take."""
        return self._times.expected(BatchSize.together(r.size for r in self._waiting)) < (_LONE if len(self._waiting) == 1 else _EACH * len(self._waiting))

    def _size_of(self, feed: Mapping[str, Any], part: Part | None) -> BatchSize:
        """Return the rows of a request, and its other dims and longest sequences."""
        if part is None or self._layout is None:
            return BatchSize(0, tuple(size for value in feed.values() for size in getattr(value, "shape", ())))
        growing = self._layout.growing
        rows = max((size for symbol, size in part.sizes.items() if symbol in growing), default=1)
        return BatchSize(rows, tuple(size for symbol, size in part.sizes.items() if symbol not in growing))

    def _next(self) -> list[_Request]:
        """Return the requests of the next batch: the first one, and all fitting ones behind it."""
        first = self._waiting.popleft()
        if not _starts(first):
            return []
        together, count, until = [first], self._examples(first), monotonic() + self._wait
        if first.part is None or self._layout is None:
            return together
        limit = self._limit if self._wait else min(self._limit, max(_FEW, len(self._waiting) // 2 + 1))
        sizes, index = first.part.sizes, 0
        while count < limit:
            if index >= len(self._waiting):
                left, length = until - monotonic(), len(self._waiting)
                if left <= 0 or self._ended or not self._changed.wait_for(lambda length=length: self._ended or len(self._waiting) > length, left):
                    break
                continue
            request = self._waiting[index]
            joined = self._joined_sizes(first.part, sizes, request.part) if count + self._examples(request) <= limit else None
            if joined is None:
                index += 1
                continue
            del self._waiting[index]
            if _starts(request):
                together.append(request)
                sizes = joined
                count += self._examples(request)
        return together

    def _joined_sizes(self, first: Part, sizes: Mapping[str, int], part: Part | None) -> dict[str, int] | None:
        """Return the sizes of a batch with one more part; None if it does not fit."""
        if part is None or self._layout is None or part.alike != first.alike:
            return None
        out = self._layout.together(sizes, part.sizes)
        return out if out is not None and self._fits(out) else None

    def _examples(self, request: _Request) -> int:
        return 1 if request.part is None or self._layout is None else request.part.sizes[self._layout.batch]

    def _answer(self, together: Sequence[_Request]) -> None:
        try:
            parts = [r.part for r in together if r.part is not None]
            if self._layout is None or not parts:
                together[0].answer.set_result(self._model.run(together[0].feed))
                return
            answers = list(self._layout.split(self._model.run(self._layout.joined(parts)), parts))
        except Exception as error:
            if len(together) > 1:  # the others are answered, whatever is wrong with one
                for r in together:
                    self._answer([r])
            else:
                together[0].answer.set_exception(error)
            return
        for request, results in zip(together, answers, strict=True):
            request.answer.set_result(results)


def _starts(request: _Request) -> bool:
    """Tell whether a request is to be run; answer it if its time is over."""
    if not request.answer.set_running_or_notify_cancel():
        return False
    if request.until is not None and monotonic() > request.until:
        request.answer.set_exception(Expired("the time of this request was over before it could run"))
        return False
    return True


# --- Expected times of batches, by their sizes.


_MOST: Final = 256
"""The most remembered sizes; clients choose them."""
_WIDER: Final = 4
"""The growth of time with twice the size of a dim other than the batch: attention takes its square."""


class BatchSize(NamedTuple):
    """The rows of a batch, and its other dims, the largest of all requests."""

    rows: int
    inner: tuple[int, ...] = ()

    @staticmethod
    def together(sizes: Iterable[BatchSize]) -> BatchSize:
        """Return the size of requests joined to one batch."""
        rows, inner = 0, set[tuple[int, ...]]()
        for size in sizes:
            rows += size.rows
            inner.add(size.inner)
        return BatchSize(rows, tuple(max(dims) for dims in zip(*inner, strict=False)))

    def bits(self) -> tuple[int, ...]:
        return (self.rows.bit_length(), *(size.bit_length() for size in self.inner))


class BatchTimes:
    """The times of batches, by their sizes to a power of two in each dim.

    Args:
        is_linear: the rows of a batch do not depend on one another.
    """

    def __init__(self, is_linear: bool = True) -> None:
        self._seconds: dict[tuple[int, ...], float] = {}
        self._by_rows = 2 if is_linear else _WIDER

    def took(self, size: BatchSize, seconds: float) -> None:
        """Note a batch."""
        bits = size.bits()
        average = self._seconds.pop(bits, seconds)
        if len(self._seconds) >= _MOST:
            del self._seconds[next(iter(self._seconds))]  # of the batch longest ago
        self._seconds[bits] = min(0.8 * average + 0.2 * seconds, 2 * seconds)

    def expected(self, size: BatchSize) -> float:
        """Return the seconds of a batch, at most; infinity if there was none smaller in each dim."""
        bits = size.bits()
        average = self._seconds.get(bits)
        return (
            average
            if average is not None
            else min((self._beyond(smaller, bits, seconds) for smaller, seconds in list(self._seconds.items())), default=float("inf"))
        )

    def _beyond(self, smaller: tuple[int, ...], bits: tuple[int, ...], seconds: float) -> float:
        """Return the most seconds of a larger batch, by a smaller one."""
        if len(smaller) != len(bits) or any(k > b for k, b in zip(smaller, bits, strict=True)):
            return float("inf")
        return seconds * self._by_rows ** (bits[0] - smaller[0]) * _WIDER ** (sum(bits[1:]) - sum(smaller[1:]))
