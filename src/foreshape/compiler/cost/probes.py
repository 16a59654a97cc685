"""Small networks with measured kernel calls. They are described, differentiated, lowered and fused like any other, so the kernels are real steps' own, in
their usual forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from foreshape import layer, optimizer
from foreshape.core.spec import FP32
from foreshape.language.program import Program, Variable, default_main_program, program_guard
from foreshape.layer.parameter import create_parameter

HEIGHTS = (2_000, 400_000)
"""Rows of tables: one in the cache, and one beyond it."""


@dataclass(slots=True)
class Probe:
    """A training program, and its feeds: sizes of the dense inputs, the bound of ids, lengths of sequences."""

    program: Program
    loss: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    below: dict[str, int] = field(default_factory=dict[str, int])
    lengths: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    @property
    def symbols(self) -> dict[str, int]:
        """Return the values of the program's symbols."""
        out: dict[str, int] = {}
        for name, shape in self.shapes.items():
            spec = self.program.global_block.var(name).spec
            for dim, size in zip(spec.known_dims, shape, strict=True):
                if not isinstance(dim, int):
                    out[str(dim)] = size
            if spec.lod is not None:
                out[str(spec.lod.counts[0])] = len(self.lengths[name])
        return out


def _trained(build: Callable[[], Variable], rule: Any, **fed: Any) -> Probe:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        loss = layer.mean(build())
        rule.minimize(loss)
    return Probe(main, loss.name, **fed)


def _values(*shape: int) -> Variable:
    """Return values with a gradient."""
    return create_parameter(shape, FP32)


def probes(limit: int, large: int) -> Iterator[Probe]:
    """Yield all networks.

    Args:
        limit: the multiply-adds of the largest product.
        large: the bytes of the largest moved value.
    """
    yield from _products(limit)
    yield from _convolutions(limit)
    yield from _elementwise(large)
    yield from _rows(large)
    yield from _images(large)
    yield from _tables()
    yield from _attention(limit)
    yield from _recurrent()


def mixed() -> Iterator[Probe]:
    """Yield networks of some twenty small calls each, no two successive ones equal, with fed operands."""
    for rows, width in ((16, 24), (48, 48), (24, 96)):
        main = Program()
        with program_guard(main, Program()):
            x, w = layer.data("x", shape=["batch", width]), layer.data("w", shape=[width, width])
            h = x
            for function in (layer.relu, layer.tanh, layer.sigmoid, layer.softmax):
                h = function(layer.matmul(h, w))
                h = layer.square(h) + layer.reshape(layer.reduce_mean(h * x, 1), [-1, 1])
            loss = layer.mean(layer.concat([h, x], axis=1))
        yield Probe(main, loss.name, shapes={"x": (rows, width), "w": (width, width)})


def _products(limit: int) -> Iterator[Probe]:
    widths = (8, 64, 256, 1024, 4096)
    for inner in widths:
        for outer in widths:
            for rows in (16, 128, 1024, 8192):
                if rows * inner * outer > limit or (rows == 8192 and inner * outer < 64 * 64):
                    continue
                for rule in (optimizer.SGD(0.01), optimizer.Momentum(0.01, 0.9)):
                    if isinstance(rule, optimizer.SGD) and rows == 8192:
                        continue

                    def build(rows: int = rows, inner: int = inner, outer: int = outer) -> Variable:
                        return layer.fc(layer.relu(_values(rows, inner)), outer, activation="relu")

                    yield _trained(build, rule)


def _convolutions(limit: int) -> Iterator[Probe]:
    for window in (1, 3, 7):
        for size in (3, 7, 14, 28) if window < 7 else (32, 64):
            for inner in {1: (64, 256, 512, 2048), 3: (3, 64, 128, 512)}.get(window, (3,)):
                for outer in {1: (64, 256, 512, 2048), 3: (64, 128, 512)}.get(window, (64,)):
                    for batch in (4, 16) if window < 7 else (8,):
                        unusual = max(inner, outer) > 8 * min(inner, outer) and inner != 3
                        first = inner == 3 and (outer > 64 or size < 14)
                        if batch * size * size * inner * outer * window * window > limit or unusual or first:
                            continue
                        for stride in (1, 2) if window < 7 and inner <= outer and inner != 3 else (2 if window == 7 else 1,):
                            yield _trained(partial(_convolved, batch, size, inner, outer, window, stride), optimizer.Momentum(0.01, 0.9))


def _convolved(batch: int, size: int, inner: int, outer: int, window: int, stride: int) -> Variable:
    """Return the results of so many places, if the stride is 1 or the window wide."""
    images = size if window >= 7 else size * stride
    return layer.conv2d(_values(batch, inner, images, images), outer, window, padding=window // 2, stride=stride, bias=False)


def _grow(large: int, least: int = 64) -> Iterator[int]:
    """Yield numbers of elements up to so many bytes."""
    elements = least
    while 4 * elements <= large:
        yield elements
        elements *= 4


def _elementwise(large: int) -> Iterator[Probe]:
    chain = (layer.relu, layer.tanh, layer.sigmoid, layer.gelu, layer.silu, layer.exp, layer.square, layer.sqrt)

    def build(rows: int) -> Variable:
        x, y = _values(rows, 64), _values(rows, 64)
        h = (x * y + x) * 0.5 - y
        for function in chain:
            h = function(h)
        h = layer.dropout(h, 0.1) / (y + 2.0)
        return layer.sigmoid_cross_entropy_with_logits(layer.concat([h, x], axis=1), layer.concat([x, y], axis=1))

    for elements in _grow(large):
        yield _trained(partial(build, elements // 64), optimizer.SGD(0.01))

    for rule in (optimizer.SGD(0.01), optimizer.Momentum(0.01, 0.9), optimizer.Adam(0.001), optimizer.AdamW(0.001), optimizer.Adagrad(0.01)):
        for elements in _grow(large):

            def parameters(elements: int = elements) -> Variable:
                return layer.sum([_values(elements) for _ in range(1 if 4 * elements > 1 << 18 else 4)])

            yield _trained(parameters, rule)


def _rows(large: int) -> Iterator[Probe]:
    for width in (16, 256, 1024):
        for elements in _grow(large // 4, width * 4):
            rows = elements // width

            def build(rows: int = rows, width: int = width) -> Variable:
                h = layer.layer_norm(layer.softmax(_values(rows, width)))
                h = h + _values(width)
                label = layer.data("label", shape=["batch"], dtype="int64")
                return layer.softmax_with_cross_entropy(h, label) + layer.reshape(layer.reduce_mean(h, 1), [-1, 1])

            yield _trained(build, optimizer.SGD(0.01), shapes={"label": (rows,)}, below={"label": width})
    for classes in (2, 10, 100, 1000):
        for rows in (16, 128, 1024):

            def classified(rows: int = rows, classes: int = classes) -> Variable:
                return layer.softmax_with_cross_entropy(_values(rows, classes), layer.data("label", shape=["batch"], dtype="int64"))

            yield _trained(classified, optimizer.SGD(0.01), shapes={"label": (rows,)}, below={"label": classes})
    for width in (64, 512):
        for rows in (16, 128, 1024, 8192):
            if 4 * rows * width > large // 4:
                continue

            def sequences(rows: int = rows, width: int = width) -> Variable:
                x = _values(rows // 16, 16, width)
                h = layer.layer_norm(x + layer.relu(x), begin_norm_axis=2)
                h = layer.transpose(layer.reshape(h, [0, 0, 8, width // 8]), [0, 2, 1, 3])
                h = layer.reshape(layer.transpose(h, [0, 2, 1, 3]), [0, 0, width])
                return layer.reduce_mean(h + _values(width), 1)

            yield _trained(sequences, optimizer.SGD(0.01))


def _images(large: int) -> Iterator[Probe]:
    for channels in (16, 128, 512):
        for size in (4, 8, 32):
            for batch in (4, 32):
                if 4 * batch * channels * size * size > large // 4:
                    continue

                def build(batch: int = batch, channels: int = channels, size: int = size) -> Variable:
                    x = _values(batch, channels, size, size)
                    h = layer.relu(layer.batch_norm(x) + x)
                    h = h + layer.pool2d(h, 3, stride=1, padding=1)
                    h = h + layer.pool2d(h, 3, "avg", stride=1, padding=1)
                    return layer.reduce_mean(h + _values(channels, 1, 1), [2, 3])

                yield _trained(build, optimizer.SGD(0.01))


def _tables() -> Iterator[Probe]:
    rules = (lambda: optimizer.SGD(0.01), lambda: optimizer.Adam(0.001, lazy_mode=True), lambda: optimizer.Adagrad(0.01))
    for height in HEIGHTS:
        for rule in rules:
            for count in (256, 2048, 6144, 16384):

                def bags(height: int = height, words: int = 16) -> Variable:
                    ids = layer.data("ids", shape=["batch", words], dtype="int64")
                    return layer.embedding_bag(ids, [height, 64])

                def lookups(height: int = height) -> Variable:
                    return layer.embedding(layer.data("ids", shape=["batch"], dtype="int64"), [height, 64], is_sparse=True)

                def dealt(height: int = height) -> Variable:
                    ids = layer.data("ids", shape=["batch"], dtype="int64")
                    return default_main_program().global_block.apply("split_lookup", {"W": _values(height, 64), "Ids": ids}, {"height": height, "nranks": 1})

                yield _trained(dealt, rule(), shapes={"ids": (count,)}, below={"ids": height})
                yield _trained(bags, rule(), shapes={"ids": (count // 16, 16)}, below={"ids": height})
                yield _trained(lookups, rule(), shapes={"ids": (count,)}, below={"ids": height})
    for count in (256, 2048, 16384):

        def dense() -> Variable:
            return layer.embedding(layer.data("ids", shape=["batch"], dtype="int64"), [HEIGHTS[0], 64])

        yield _trained(dense, optimizer.SGD(0.01), shapes={"ids": (count,)}, below={"ids": HEIGHTS[0]})


def _attention(limit: int) -> Iterator[Probe]:
    for width in (16, 64):
        for time in (16, 64, 256):
            for heads in (4, 32, 128):
                if heads * time * time * width > limit:
                    continue

                def build(width: int = width, time: int = time, heads: int = heads) -> Variable:
                    q, k, v = (_values(heads // 4, 4, time, width) for _ in "qkv")
                    scores = layer.matmul(q * width**-0.5, k, transpose_y=True)
                    return layer.matmul(layer.softmax(scores), v)

                yield _trained(build, optimizer.SGD(0.01))


def _recurrent() -> Iterator[Probe]:
    for run in (layer.lstm, layer.gru, layer.simple_rnn):
        for hidden in (32, 128, 256) if run is not layer.simple_rnn else (64,):
            for batch, steps in ((4, 16), (4, 100), (16, 16), (16, 100), (64, 16), (64, 100)):

                def build(run: Any = run, hidden: int = hidden) -> Variable:
                    words = layer.data("x", shape=["words"], dtype="int64", lod_level=1)
                    return layer.sequence_pool(run(layer.embedding(words, [100, hidden]), hidden)[0], "sum")

                lengths = [max(1, steps * (k + 1) // batch) for k in range(batch)]
                yield _trained(build, optimizer.SGD(0.01), shapes={"x": (sum(lengths),)}, below={"x": 100}, lengths={"x": lengths})
