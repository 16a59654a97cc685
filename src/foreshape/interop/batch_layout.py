"""The layout of batches of requests: the dims of examples, and the place of each request's results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from foreshape.core.dims import Size, symbol_name, symbols_of
from foreshape.core.spec import Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import SchemaError
from foreshape.interop.model import InferenceModel
from foreshape.interop.results import Results
from foreshape.language.infer.example_flow import ExampleFlow
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost
from foreshape.machine.kernels.onednn_ragged import FILLED

Sizes = Mapping[str, int]
"""Symbol -> its size."""


class Runs(Protocol):
    """A runner of a network: `InferenceModel`, or a session of onnxruntime."""

    feeds: Any
    fetches: Any

    def run(self, feed: Any) -> Results: ...


class Extent(NamedTuple):
    """The symbols of a tensor's rows, of its numbers of sequences, outermost first, and of its other dims."""

    rows: str | None
    counts: tuple[str | None, ...]
    inner: tuple[str | None, ...]
    free: frozenset[str]
    """The symbols in the other dims, within formulas too."""


def _extent(dims: Sequence[Size | None], counts: Sequence[Size], sizes: Mapping[str, Size]) -> Extent:
    def symbol(dim: Size | None) -> str | None:
        name = None if dim is None or isinstance(dim, int) else symbol_name(dim)
        if name is None or name not in sizes:
            return name
        size = sizes[name]
        return name if isinstance(size, int) else symbol_name(size) or name

    free = frozenset(n for d in dims[1:] if d is not None and not isinstance(d, int) for n in symbols_of(d))
    return Extent(symbol(dims[0]) if dims else None, tuple(map(symbol, counts)), tuple(map(symbol, dims[1:])), free)


class Part(NamedTuple):
    """A request as arrays: its feed, its sizes, and the shapes and element types common to a batch."""

    feed: dict[str, Any]
    sizes: dict[str, int]
    alike: Any


class BatchLayout:
    """The joining of requests of one network.

    Attributes:
        batch: the symbol of the number of examples.
        growing: this and other symbols growing with it.
        rounds: fill many ragged rows up to one of a few numbers, for kernels prepared anew for each number. Of few rows the kernels do it.
    """

    batch: str
    rounds = True

    def __init__(
        self, inputs: Mapping[str, Extent], results: Mapping[str, Extent], description: str, longest: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        """Find the dims of examples.

        Args:
            inputs, results: by name.
            description: the inputs and results in words.
            longest: ragged input -> the symbols of its longest innermost and its longest outermost sequence, in rows.

        Raises:
            SchemaError: the results are not one for each example.
        """
        self._inputs, self._results = dict(inputs), dict(results)
        self._longest = dict(longest or {})
        self._tallest = {n for symbols in self._longest.values() for n in symbols}
        self.growing: frozenset[str] = frozenset(n for e in inputs.values() for n in (e.rows, *e.counts) if n is not None)
        ragged = [e for e in inputs.values() if e.counts]
        leading = {e.counts[0] if e.counts else None for e in ragged} or {e.rows for e in inputs.values()}
        growing = {e.rows for e in inputs.values()} | {n for e in ragged for n in e.counts}
        sequence_symbols = {n for e in ragged for n in (e.rows, *e.counts)} or leading
        fixed = {n for e in inputs.values() for n in e.free}
        fits = len(leading) == 1 and None not in growing and growing == sequence_symbols and not growing & fixed
        if fits:
            (self.batch,) = (n for n in leading if n is not None)
            fits = all((e.counts[0] == self.batch if e.counts else e.rows in growing) and e.free <= fixed for e in results.values())
        if not fits:
            raise SchemaError(f"several requests can be run as one batch where inputs and results begin with one open dim; seen {description}")

    @staticmethod
    def of_model(model: InferenceModel) -> BatchLayout:
        """Return the layout of an opened network. Raises `SchemaError` as the class, and for results of one example that another may change."""
        block, sizes = model.program.global_block, model.program.guards.known
        layout = BatchLayout.of_specs({n: block.var(n).spec for n in model.feeds}, {v.name: block.var(v.name).spec for v in model.fetches}, sizes)
        check_apart(model)
        return layout

    @staticmethod
    def of_specs(inputs: Mapping[str, Spec], results: Mapping[str, Spec], sizes: Mapping[str, Size]) -> BatchLayout:
        """Return the layout of described inputs and results; ``sizes``: symbol -> its size by other ones."""
        description = ", ".join(f"{n}: {s.text()}" for n, s in (*inputs.items(), *results.items()))
        extents = [{n: _extent(s.dims or (), s.lod.counts if s.lod is not None else (), sizes) for n, s in specs.items()} for specs in (inputs, results)]
        symbols = {n: (str(longest(s.lod)), str(longest_outermost(s.lod))) for n, s in inputs.items() if s.lod is not None}
        return BatchLayout(extents[0], extents[1], description, symbols)

    @staticmethod
    def of_names(inputs: Mapping[str, Sequence[Any]], results: Mapping[str, Sequence[Any]]) -> BatchLayout:
        """Return the layout of dense inputs and results, whose dims are numbers, names, or None."""
        description = ", ".join(f"{n}: {[*dims]}" for n, dims in (*inputs.items(), *results.items()))

        def extent(dims: Sequence[Any]) -> Extent:
            names = [d if isinstance(d, str) else None for d in dims]
            return Extent(names[0] if names else None, (), tuple(names[1:]), frozenset(n for n in names[1:] if n is not None))

        return BatchLayout({n: extent(dims) for n, dims in inputs.items()}, {n: extent(dims) for n, dims in results.items()}, description)

    def part(self, feed: Mapping[str, Any]) -> Part | None:
        """Return a request as a part of a batch; None if its inputs or their sizes do not fit together: the run's error says so."""
        import numpy

        if feed.keys() != self._inputs.keys():
            return None
        out: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        alike: list[Any] = []
        for name, extent in self._inputs.items():
            value: Any = feed[name]
            if extent.counts:
                if not isinstance(value, LoDTensor) or value.lod_level != len(extent.counts):
                    return None
                rows, counts = value.data, [len(value), *(len(level) for level in value.sequence_lengths[1:])]
            else:
                value = rows = numpy.asarray(value)
                counts = []
            if not rows.ndim:
                return None
            pairs = zip((extent.rows, *extent.counts, *extent.inner), (rows.shape[0], *counts, *rows.shape[1:]), strict=False)
            if any(n is not None and sizes.setdefault(n, size) != size for n, size in pairs):
                return None
            out[name] = value
            if extent.counts and name in self._longest:
                inner, outer = self._longest[name]
                sizes[inner] = max(value.sequence_lengths[-1], default=0)
                sizes.setdefault(outer, rows.shape[0])
            alike.append((rows.shape[1:], rows.dtype.str))
        return Part(out, sizes, tuple(alike))

    def together(self, sizes: Sizes, part_sizes: Sizes) -> dict[str, int] | None:
        """Return the sizes of a batch with another part; None if sizes of others than examples differ."""
        out: dict[str, int] = {}
        for name, size in sizes.items():
            if name in self.growing:
                size += part_sizes[name]
            elif name in self._tallest:
                size = max(size, part_sizes[name])
            elif size != part_sizes[name]:
                return None
            out[name] = size
        return out

    def joined(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return one feed of several requests. If it ``rounds``, some more sequences stand behind many rows."""
        import numpy

        out: dict[str, Any] = {}
        for name, extent in self._inputs.items():
            values = [p.feed[name] for p in parts]
            if extent.counts:
                out[name] = LoDTensor.joined(values) if len(values) > 1 else values[0]
            else:
                out[name] = numpy.concatenate(values) if len(values) > 1 else values[0]
        rounds = self.rounds and len(parts) > 1 and all(len(e.counts) == 1 for e in self._inputs.values())
        return self._filled(out) if rounds and max(len(v.data) for v in out.values()) >= FILLED else out

    def cut(self, request: Part, begin: int, end: int) -> Part:
        """Return some successive examples of a request, as a part of their own."""
        import numpy

        spans: dict[str | None, tuple[int, int]] = {self.batch: (begin, end)}
        feed: dict[str, Any] = {}
        for name, extent in self._inputs.items():
            value = request.feed[name]
            if extent.counts:
                first, last = begin, end
                for symbol, level in zip((*extent.counts[1:], extent.rows), value.offsets(), strict=True):
                    first, last = level[first], level[last]
                    spans[symbol] = first, last
                feed[name] = value.choose(numpy.arange(begin, end))
        for name, extent in self._inputs.items():
            if not extent.counts:
                feed[name] = request.feed[name][slice(*spans[extent.rows])]
        part = self.part(feed)
        assert part is not None  # as the request was
        return part

    def result_rows(self, name: str, sizes: Sizes) -> int | None:
        """Return the rows of a dense result for a request of these sizes; None of a ragged one."""
        extent = self._results[name]
        return None if extent.counts or extent.rows is None else sizes[extent.rows]

    def _filled(self, feed: dict[str, Any]) -> dict[str, Any]:
        """Return a feed of sequences of one level with some more sequences of zeros, for round numbers of rows."""
        added_rows: dict[str | None, int] = {}
        longest = 1
        for name, extent in self._inputs.items():
            added_rows[extent.rows] = round_up(len(feed[name].data)) - len(feed[name].data)
            longest = max(longest, max(feed[name].sequence_lengths[0], default=1))
        pieces = -(-max(added_rows.values()) // longest)
        if not pieces:
            return feed
        out: dict[str, Any] = {}
        for name, extent in self._inputs.items():
            lengths = [added_rows[extent.rows] // pieces + (piece < added_rows[extent.rows] % pieces) for piece in range(pieces)]
            out[name] = LoDTensor.joined([feed[name], LoDTensor(_zeros(feed[name].data, added_rows[extent.rows]), [lengths])])
        return out

    def split(self, results: Results, parts: Sequence[Part]) -> Iterator[Results]:
        """Yield the results of each request of a batch."""
        offsets = dict.fromkeys(parts[0].sizes, 0)
        for part in parts:
            out: dict[str, Any] = {}
            for name, value in results.items():
                extent = self._results[name]
                symbol = extent.counts[0] if extent.counts else extent.rows
                assert symbol is not None
                begin, end = offsets[symbol], offsets[symbol] + part.sizes[symbol]
                out[name] = sequences(value, begin, end) if extent.counts else value[begin:end]
            yield Results(out, results.asked)
            for name, size in part.sizes.items():
                offsets[name] += size


def check_apart(model: InferenceModel) -> None:
    """Raise `SchemaError` unless the operators of a network say that each example's results are the same beside other examples."""
    mixture = ExampleFlow(model.program, model.feeds).mixture(v.name for v in model.fetches)
    if mixture is not None:
        raise SchemaError(f"several requests can be run as one batch where no example changes another's results, and {mixture}")


def _zeros(rows: Any, count: int) -> Any:
    import numpy

    return numpy.zeros((count, *rows.shape[1:]), rows.dtype)


def round_up(rows: int) -> int:
    """Return the next of few numbers of rows: eight between a power of two and the next."""
    step = max(8, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step


def sequences(value: LoDTensor, begin: int, end: int) -> LoDTensor:
    """Return some of the outermost sequences of a ragged tensor, as views."""
    levels: list[Any] = []
    for level in value.sequence_lengths:
        levels.append(level[begin:end])
        start = sum(level[:begin])
        begin, end = start, start + sum(level[begin:end])
    return LoDTensor.of_lengths(value.data[begin:end], levels)
