"""Attention within each text of ragged rows, by oneDNN's kernels over numpy's memory.

Lengths of texts are rounded up to few numbers, so a text reads some rows behind its own; what those give is left out: their scores are -inf, and their
results lie where the next text's are written after it. The scores of long texts are computed for some heads and queries at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

from foreshape.machine.kernels.onednn_library import NOTHING_AFTER, RESULT, SOURCE, STEP_OF, WEIGHTS, After, Memory, Primitive
from foreshape.machine.kernels.row_kernels import Array, KernelStore, RowKernel, Worker, address_of

SCORES = 1 << 18
"""So many scores are computed at once, or those of `QUERIES` rows of one head."""
QUERIES = 64


def rounded_length(count: int) -> int:
    """Return the length for a text of so many rows: at most an eighth longer, and less than 8 rows up to 128."""
    step = max(8, 1 << max((count - 1).bit_length() - 4, 0))
    return -(-count // step) * step


def rows_behind(longest: int) -> int:
    """Return the number of rows read behind the last row of texts, all with at most ``longest``."""
    return max(8, 1 << max(longest.bit_length() - 4, 0))


def scores_at_once(count: int, heads: int) -> tuple[int, int]:
    """Return the queries and the heads whose scores are computed at once, for a text of so many rows."""
    length = rounded_length(count)
    queries, group = length, heads
    while queries * length * group > SCORES and queries // 2 >= QUERIES and queries % 16 == 0:
        queries //= 2
    while group > 1 and (queries * length * group > SCORES or heads % group):
        group -= 1
    return queries, group


class RowAttention:
    """Softmax(Q K' * scale [+ bias]) V within each text, for each of ``heads`` equal parts of the columns; with ``causal`` of rows up to each."""

    def __init__(self, store: KernelStore, heads: int, scale: float, causal: bool) -> None:
        self._store, self._heads, self._scale, self._causal = store, heads, scale, causal

    def nbytes(self, longest: int) -> int:
        """Return the bytes of the scores computed at once, with a mask of them, for texts of at most so many rows."""
        queries, group = scores_at_once(longest, self._heads)
        return 5 * max(SCORES, group * queries * rounded_length(longest))

    def __call__(self, worker: Worker, q: Array, k: Array, v: Array, out: Array, begins: Sequence[int], bias: Sequence[Array] | None = None) -> None:
        """Compute all texts, of rows ``begins[i]`` to ``begins[i + 1]``.

        Args:
            q, k, v, out: [rows and more behind, columns], with contiguous columns.
            bias: for each text [1 or heads, its rows or more, likewise], added to the scores; or None.
        """
        v[begins[-1] :] = 0.0  # their weights are 0, but numbers left from before might be infinite
        for text, (begin, end) in enumerate(pairwise(begins)):
            if end > begin:
                self._text(worker, q, k, v, out, begin, end - begin, None if bias is None else bias[text])

    def _text(self, worker: Worker, q: Array, k: Array, v: Array, out: Array, begin: int, count: int, bias: Array | None) -> None:
        import numpy

        heads, length = self._heads, rounded_length(count)
        size = q.shape[1] // heads
        queries, group = scores_at_once(count, heads)
        steps = tuple(x.strides[0] // 4 for x in (q, k, v, out))
        for first in range(0, count, queries):
            keys = rounded_length(min(count, first + queries)) if self._causal else length
            visible = min(count, keys)
            scores = worker.scores(group * queries * keys).reshape(group, queries, keys)
            products, softmax, sums = self._kernels(worker, (group, queries, keys, size, *steps))
            address = address_of(scores)
            row = begin + first
            for head in range(0, heads, group):
                column = head * size
                products(worker, address_of(q[row:, column:]), address_of(k[begin:, column:]), address)
                if bias is not None:
                    part, real = bias[head : head + group] if len(bias) > 1 else bias, min(queries, count - first)
                    scores[:, :real, :visible] += part[:, first : first + real, :visible]
                if keys > visible:
                    scores[:, :, visible:] = -numpy.inf
                if self._causal:
                    numpy.copyto(scores, -numpy.inf, where=_later(first, queries, keys))
                softmax(worker, address, address)
                sums(worker, address, address_of(v[begin:, column:]), address_of(out[row:, column:]))

    def _kernels(self, worker: Worker, sizes: tuple[int, ...]) -> tuple[RowKernel, RowKernel, RowKernel]:
        """Return the products with the keys, the softmax, and the products with the values."""
        store, (group, queries, keys, size, q_stride, k_stride, v_stride, out_stride) = self._store, sizes
        names = (SOURCE, WEIGHTS, RESULT)
        scores = Memory((group, queries, keys), (queries * keys, keys, 1))
        key = "scores", sizes[:6], self._scale, worker.threads
        products = store.kernel(key)
        if products is None:
            operands = Memory((group, queries, size), (size, q_stride, 1)), Memory((group, size, keys), (size, 1, k_stride))
            record = Primitive("product", (*operands, None, scores, After(None, (), ((SOURCE, 0),))), worker.threads)
            scale = self._scale or 1 / sqrt(size)
            products = store.add(key, record, names, constants={STEP_OF | SOURCE: store.onednn.number(scale)})
        key = "softmax", sizes[:3], worker.threads
        softmax = store.kernel(key) or store.add(key, Primitive("softmax", (scores, 2, NOTHING_AFTER), worker.threads), (SOURCE, RESULT))
        key = "sums", sizes[:4], v_stride, out_stride, worker.threads
        sums = store.kernel(key)
        if sums is None:
            operands = scores, Memory((group, keys, size), (size, v_stride, 1)), None, Memory((group, queries, size), (size, out_stride, 1))
            sums = store.add(key, Primitive("product", (*operands, NOTHING_AFTER), worker.threads), names)
        return products, softmax, sums


def _later(first: int, queries: int, keys: int) -> Array:
    """Return True where a key stands behind a query; the first query has the number ``first``: ``[queries, keys]``."""
    import numpy

    return numpy.arange(keys) > numpy.arange(first, first + queries)[:, None]
