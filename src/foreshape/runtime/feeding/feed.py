"""Fed values: checked against the program, turned into tensors, and the symbols bound to their sizes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

import numpy

from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.core.dims import Size, evaluate, symbol_name, symbols_of
from foreshape.core.hints import did_you_mean
from foreshape.core.spec import SELECTED_ROWS, Spec
from foreshape.core.values.conversion import is_masked, on_device, to_tensor
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.rows import Rows
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import FeedError, GuardError
from foreshape.language.ops.rules.ragged_rules import longest, longest_outermost
from foreshape.language.program import Program
from foreshape.language.program.guards import Guards
from foreshape.machine.kernels.pages import copied, is_aligned
from foreshape.runtime.feeding.converted import converted
from foreshape.runtime.feeding.feed_errors import dims_advice, meant_for, not_numbers
from foreshape.runtime.feeding.ragged import as_ragged
from foreshape.runtime.feeding.state_checks import NOTHING, Held, OpenDim
from foreshape.runtime.feeding.tables import array_of, in_order, named
from foreshape.runtime.feeding.warn_once import Notes


class Feeder:
    """The conversion of one step's fed values to tensors, in the order of its inputs."""

    __slots__ = ("_dense", "device", "guards", "inputs", "names", "program", "types")

    def __init__(self, program: Program, inputs: Sequence[Value], guards: Guards, device: Any) -> None:
        self.program = program
        self.inputs = inputs
        self.guards = guards
        self.device = device
        self.names = [v.name for v in inputs]
        self.types = [torch_dtype(_spec(v).known_dtype) for v in inputs]
        is_dense = device is None and all(v.lod is None and _spec(v).kind is not SELECTED_ROWS and _spec(v).known_dtype.numpy_name for v in inputs)
        self._dense = [(v.name, numpy.dtype(_spec(v).known_dtype.numpy_name)) for v in inputs] if is_dense else None

    def tensors(self, feed: Mapping[str, Any], notes: Notes | None = None) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the arguments of the step (the tensors, then the offsets of ragged ones), and the shapes of them all.

        Args:
            feed: input -> its value.
            notes: takes hints for the user on accepted but poor feeds; None for no hints.

        Raises:
            FeedError: a value is missing, unknown, or not as described.
        """
        out: list[Any] = []
        if self._dense is not None and len(feed) == len(self._dense):  # arrays as they are wanted, the usual feed
            for name, dtype in self._dense:
                source: Any = feed.get(name)
                if source.__class__ is not numpy.ndarray or source.dtype != dtype:
                    break
                out.append(torch.from_numpy(source) if source.flags.carray and source.size else to_tensor(source))  # pyright: ignore[reportUnknownMemberType]
            else:
                return out, tuple([t.shape for t in out])
            out = []
        offsets: list[Offsets] = []
        for value, torch_type in zip(self.inputs, self.types, strict=True):
            source = feed.get(value.name)
            if source is None:
                raise self._missing(value, feed)
            if _spec(value).kind is SELECTED_ROWS:
                out.append(self._rows(value, source, torch_type, notes).to(self.device))
                continue
            if value.lod is not None:
                source = as_ragged(value.name, source, _spec(value))
                offsets.append(source.offsets_on(self.device))
                source = source.data
            elif isinstance(source, LoDTensor):
                if source.lod_level:
                    raise FeedError(f"{value.name} is dense, {_spec(value).text()}; a ragged tensor of {source.lod_level} levels was fed")
                source = source.data
            elif isinstance(source, SelectedRows):
                raise FeedError(f"{value.name} is {_spec(value).text()}; sparse rows were fed")
            tensor = _tensor(value, source)
            if tensor.dtype is not torch_type:
                tensor = self._converted(value, tensor, torch_type, notes)
            out.append(tensor if self.device is None else on_device(tensor, self.device))
        if len(feed) > len(self.inputs):
            self.refuse_unknown(feed)
        shapes = [t.shape for t in out]
        if offsets:
            shapes += [tuple([len(level) for level in o.levels]) for o in offsets]
        return out + offsets, tuple(shapes)

    def by_input(self, feed: Any) -> Mapping[Any, Any]:
        """Return a feed in any of its forms, by input. Raise `FeedError` for other objects."""
        if feed is None:
            return {}
        if isinstance(feed, Mapping):  # of a training's batch too
            return cast("Mapping[Any, Any]", feed)
        return named(feed, self.program, in_order(self.program, self.names))

    def fit(self, tensors: list[Any]) -> tuple[Any, ...]:
        """Append the missing dim of 1 to tensors, as labels ``[n]`` for an input ``[n, 1]``.

        Returns:
            The shapes of all inputs, as `tensors` gives them; nothing if none was changed.
        """
        changed = False
        for index, value in enumerate(self.inputs):
            spec, tensor = _spec(value), tensors[index]
            if value.lod is None and spec.kind is not SELECTED_ROWS and 0 < tensor.dim() == len(spec.known_dims) - 1 and spec.known_dims[-1] == 1:
                tensors[index] = tensor[..., None]
                changed = True
        return tuple([t.shape for t in tensors[: len(self.inputs)]]) if changed else ()

    def refuse_unknown(self, feed: Mapping[Any, Any]) -> None:
        """Refuse an unknown name, or a variable that is not fed."""
        for name in feed:
            if name in self.names:
                continue
            variable = self.program.global_block.find(name) if isinstance(name, str) else None
            if variable is None:
                raise FeedError(
                    f"{name!r} is fed, and the program has no such input; it has {', '.join(self.names) or 'none'}{did_you_mean(name, self.names)}"
                ).told(slot=str(name))
            if variable.persistable:
                raise FeedError(f"{name!r} is fed, and it is a parameter or state of the program: set it in the scope").told(slot=name)

    def _missing(self, value: Value, feed: Mapping[str, Any]) -> FeedError:
        site = value.variable.call_site if value.variable is not None else None
        site_words = f", described at {site.short()}" if site is not None else ""
        if value.name in feed:
            return FeedError(f"{value.name} ({_spec(value).text()}{site_words}) is fed None, which is no value").told(
                slot=value.name, required=_spec(value).text(), seen="None", site=site
            )
        meant = meant_for(value.name, feed, self.names)
        return FeedError(f"{value.name} ({_spec(value).text()}{site_words}) is not fed; fed are: {', '.join(map(str, feed)) or 'none'}{meant}").told(
            slot=value.name, required=_spec(value).text(), site=site
        )

    def _rows(self, value: Value, rows: Any, torch_type: Any, notes: Notes | None) -> Rows:
        """Return fed sparse rows in the program's element type."""
        if not isinstance(rows, SelectedRows):
            raise FeedError(f"{value.name} is {_spec(value).text()}; feed a SelectedRows(rows, values, height)")
        values = _tensor(value, rows.values)
        return Rows(to_tensor(rows.rows), values if values.dtype is torch_type else self._converted(value, values, torch_type, notes), rows.height)

    def _converted(self, value: Value, tensor: Tensor, torch_type: Any, notes: Notes | None) -> Tensor:
        """Return the same numbers in the program's element type.

        Conversions are exact by kind, as int32 to int64, or exact for these numbers, as int64 to int32 where all fit. But float64 becomes float32 too, with
        one warning in a run.

        Raises:
            FeedError: the numbers would change.
        """
        want = _spec(value).known_dtype
        out, rounds = converted(value.name, tensor, want, torch_type, dims_advice(_spec(value), tensor.shape))
        if rounds and notes is not None:
            message = f"{value.name} is {want.numpy_name} and is fed float64: it is rounded at every step; .astype('{want.numpy_name}') once saves that"
            notes.tell(value.name, message)
        return out

    def check_shapes(self, tensors: Sequence[Any], scope_sizes: Held = NOTHING) -> dict[str, int]:
        """Check the shapes and guards of the tensors, beside the scope's values; return the symbols' values.

        Raises:
            FeedError: a rank or a dim differs from the program's. GuardError: these values break a condition. Both also name the sizes that the inputs
                take, and the nearest ones.
        """
        try:
            return self._checked(tensors, scope_sizes)
        except (FeedError, GuardError) as error:
            ragged = any(v.lod is not None for v in self.inputs)  # whose sizes are not chosen one by one
            advice = self.program.feeds.refusal({v.name: list(t.shape) for v, t in zip(self.inputs, tensors, strict=False)}, not ragged)
            if not advice:
                raise
            raise error.reworded(f"{error}\n{advice}") from None

    def _checked(self, tensors: Sequence[Any], scope_sizes: Held) -> dict[str, int]:
        values = dict(scope_sizes.values)
        equalities = self.guards.known
        later: list[OpenDim] = []
        offsets = iter(tensors[len(self.inputs) :])
        for value, tensor in zip(self.inputs, tensors, strict=False):
            spec, shape = _spec(value), list(tensor.shape)
            dims = spec.known_dims
            if len(dims) != len(shape):
                raise FeedError(f"{value.name} must have {len(dims)} dims, {spec.text()}; fed is {shape}{dims_advice(spec, shape)}").told(
                    slot=value.name, required=spec.text(), seen=shape
                )
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                if isinstance(dim, int):
                    if dim != size:
                        raise FeedError.must(value.name, f"{spec.text()}", f"{shape}: dim {axis} must be {dim}, not {size}", "fed is", dims_advice(spec, shape))
                elif (name := symbol_name(dim)) is not None:
                    self._set(values, name, size, value, f"dim {axis}", str(shape))
                else:
                    later.append(OpenDim(value.name, f"dim {axis}", dim, size))
            if value.lod is not None and spec.lod is not None:
                later += self._check_counts(value, spec.lod.counts, next(offsets), values)
        self._settle(values)
        for open_dim in later:
            if not symbols_of(open_dim.dim) <= values.keys():
                missing = ", ".join(sorted(symbols_of(open_dim.dim) - values.keys()))
                raise FeedError(f"{open_dim.name}: {open_dim.place} is {open_dim.dim}; fed is {open_dim.size}, and no input gives {missing}")
        for open_dim in (*later, *scope_sizes.expressions):
            if (wrong := open_dim.check(values)) is not None:
                raise FeedError(f"{open_dim.name}: {wrong}; {'fed' if open_dim in later else 'held by the scope'} is {open_dim.size}")
        for guard in self.guards:
            if guard.condition.symbols <= values.keys():
                guard.check(values)
        for name, size in equalities.items():
            if name not in values and symbols_of(size) <= values.keys():
                values[name] = evaluate(size, values)
        return values

    def _settle(self, values: dict[str, int]) -> None:
        """Give values to symbols without a feed: an input that this step does not need has them, and dims were set equal to them."""
        for name, size in self.guards.known.items():
            equal_name = symbol_name(size)
            if equal_name is not None and equal_name not in values and name in values:
                values[equal_name] = values[name]

    def longest(self, tensors: Sequence[Any], symbols: Container[str]) -> dict[str, int]:
        """Return the values of these ``symbols`` for the longest of fed sequences, which no shape tells."""
        values: dict[str, int] = {}
        ragged = [spec.lod for v in self.inputs if v.lod is not None and (spec := _spec(v)).lod is not None]
        for lod, offsets in zip(ragged, tensors[len(self.inputs) :], strict=True):
            for symbol, lengths in ((longest(lod), offsets), (longest_outermost(lod), offsets.in_rows(0))):
                if str(symbol) in symbols:
                    values[str(symbol)] = lengths.longest
        return values

    def _set(self, values: dict[str, int], name: str, size: int, value: Value, place: str, feed_words: str) -> None:
        previous = values.setdefault(name, size)
        if previous != size:
            message = f"{value.name} must be {_spec(value).text()}; fed is {feed_words}"
            raise FeedError(f"{message}: {place} is {name}, and another input or a parameter makes that {previous}")

    def _check_counts(self, value: Value, counts: Sequence[Size], ragged_offsets: Offsets, values: dict[str, int]) -> list[OpenDim]:
        """Check the numbers of sequences; return those that are sums of sizes of other inputs."""
        later: list[OpenDim] = []
        for level, (count, offsets) in enumerate(zip(counts, ragged_offsets.levels, strict=True)):
            size = len(offsets) - 1
            if (name := symbol_name(count)) is not None:
                self._set(values, name, size, value, f"level {level}", f"{size} sequences")
            elif not isinstance(count, int):
                later.append(OpenDim(value.name, f"the number of sequences of level {level}", count, size))
            elif count != size:
                raise FeedError(f"{value.name} must have {count} sequences; fed are {size}")
        return later


def aligned(tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors in memory that begins as torch's own does: arrays of numpy begin anywhere."""
    return [_aligned_rows(t) if isinstance(t, Rows) else t if isinstance(t, Offsets) or is_aligned(t) else copied(t) for t in tensors]


def _aligned_rows(rows: Rows) -> Rows:
    return rows if is_aligned(rows.values) else Rows(rows.rows, copied(rows.values), rows.height)


def _spec(value: Value) -> Spec:
    spec = value.spec
    assert spec is not None  # of an input
    return spec


_arrays: set[type] = set()
"""The classes of values that are taken as they are."""


def _tensor(value: Value, array: Any) -> Tensor:
    if array.__class__ not in _arrays:
        array = _unpacked(value, array)
    try:
        return to_tensor(array)
    except (TypeError, ValueError) as error:
        if getattr(getattr(array, "dtype", None), "kind", "") == "O":
            packed = array_of(value.name, array, _spec(value))
            if packed is not array:
                return _tensor(value, packed)
        raise not_numbers(value.name, array, array, error) from None


def _unpacked(value: Value, array: Any) -> Any:
    """Return other feeds as an array or a tensor."""
    kind: type[Any] = array.__class__
    if kind.__name__ in ("ndarray", "Tensor") and kind.__module__ in ("numpy", "torch"):
        _arrays.add(kind)
        return array
    if is_masked(array):
        raise FeedError(f"{value.name}: a masked array was fed, whose masked elements have no value: use .filled(...)")
    return array_of(value.name, array, _spec(value))
