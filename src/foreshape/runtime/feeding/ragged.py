"""Conversion of users' ragged data to a `LoDTensor`: lists, torch nested tensors, Arrow and awkward columns.

All become packed rows and, for each level, the lengths of its sequences. Columns bring their offsets as arrays, without work for each element; each sequence
of a list, a Python object, is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

from foreshape.core.spec import DType, Spec
from foreshape.core.values.conversion import is_masked, plain, to_tensor
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import FeedError
from foreshape.language.program.call_site import warn_user
from foreshape.runtime.feeding.columns import column_of
from foreshape.runtime.feeding.tables import column

_TEXTS = "texts, which have no numbers yet: give each word its number, as [[vocabulary[word] for word in text.split()] for text in texts]"
_MOST_SHOWN = 12
_FAMILY = {"i": "int", "u": "int", "f": "float", "b": "bool"}


def as_ragged(name: str, source: Any, spec: Spec) -> LoDTensor:
    """Return the feed of the ragged variable ``name``, as a `LoDTensor` with as many levels as ``spec``.

    It takes a `LoDTensor`, a torch nested tensor, or a list column of Arrow, awkward, pandas or polars. It also takes a list of sequences (of lists of them,
    for two levels), each an array or tensor ``[length, *row]`` or a list of rows. A last dim of 1 of the rows, as in ids ``[words, 1]``, may be left out.

    Raises:
        FeedError: it is not ragged, has another number of levels, or rows of other dims.
    """
    levels = spec.lod_level
    if not _is_list(source):
        source = column(name, source)
    if isinstance(source, LoDTensor):
        if source.lod_level != levels:
            raise FeedError(f"{name} has {levels} level{'s' * (levels != 1)} of sequences; fed are {source.lod_level}")
        if _lacks_last(source.data.shape, spec):
            source = source.with_data(source.data[..., None])
        return source
    if type(source).__module__.partition(".")[0] == "torch" and getattr(source, "is_nested", False):
        data, lengths = _of_nested(name, source, spec)
    elif _is_list(source) or _is_array_of_objects(source):
        if levels == 1 and source.__class__ is tuple:
            _check_pair(name, source)
        data, lengths = _Lists(name, spec).packed(list(source))
    else:
        unpacked = column_of(name, source, levels)
        if unpacked is None:
            kind = getattr(getattr(source, "dtype", None), "kind", "")
            if isinstance(source, (str, bytes)) or kind in ("U", "S", "T"):
                raise FeedError(f"{name} is ragged, {spec.text()}; fed are {_TEXTS}")
            feed_words = "sparse rows were fed" if isinstance(source, SelectedRows) else f"{type(source).__name__}{_dims_of(source)} was fed"
            raise FeedError(
                f"{name} is ragged, {spec.text()}: feed a LoDTensor(data, sequence_lengths), a {_nesting(levels)} of arrays, a nested tensor "
                f"or a list column; {feed_words}"
            )
        data, lengths = _with_rows(name, *unpacked, spec), unpacked[1]
    if _lacks_last(data.shape, spec):
        data = data[..., None]
    return LoDTensor.of_lengths(data, lengths)


def _check_pair(name: str, pair: Any) -> None:
    """Refuse packed rows beside their lengths or offsets; warn of two arrays alike, which may be two sequences of a batch by chance."""
    if len(pair) != 2 or not all(hasattr(part, "__len__") for part in pair):
        return
    import numpy

    try:
        parts: list[Any] = [numpy.asarray(plain(part)) for part in pair]
    except (TypeError, ValueError, RuntimeError):  # told where it is packed
        return
    rows, second = parts
    if rows.ndim < 1 or second.ndim != 1 or second.dtype.kind not in "iu" or not len(second) or int(second.min()) < 0:
        return
    form = ""
    if int(second.sum()) == len(rows):
        form = f"LoDTensor(data, [{_brief(second)}])"
    elif len(second) > 1 and int(second[0]) == 0 and int(second[-1]) == len(rows) and bool((second[1:] >= second[:-1]).all()):
        form = f"LoDTensor.from_offsets(data, [{_brief(second)}])"
    if form:
        meaning = "lengths" if form.startswith("LoDTensor(") else "offsets"
        words = f"{name} is fed a tuple of {len(rows)} rows and, as it seems, their {meaning}: feed fs.{form}, or two sequences as a list"
        if type(pair[0]) is not type(pair[1]) or rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise FeedError(words)
        warn_user(f"{words}; it is taken as two sequences")


def _brief(numbers: Any) -> str:
    return str(numbers.tolist()) if len(numbers) <= _MOST_SHOWN else "..."


def _lacks_last(shape: Sequence[int], spec: Spec) -> bool:
    """Return True if packed rows lack only the last dim of 1 of ids."""
    dims = spec.known_dims
    return len(shape) + 1 == len(dims) and len(dims) > 1 and dims[-1] == 1


def _dims_of(array: Any) -> str:
    shape: Any = getattr(array, "shape", None)
    return f" of shape {shape}" if shape.__class__.__name__ in ("tuple", "Size") else ""


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_array_of_objects(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "O" and len(value.shape) == 1


def _nesting(levels: int) -> str:
    return "list" + " of lists" * (levels - 1)


def _row_text(spec: Spec) -> str:
    return "".join(f", {d}" for d in spec.known_dims[1:])


# --- torch nested tensors


def _of_nested(name: str, nested: Any, spec: Spec) -> tuple[Any, list[Any]]:
    if spec.lod_level != 1:
        raise FeedError(f"{name} has {spec.lod_level} levels of sequences; fed is a nested tensor, which has 1")
    if nested.layout is torch.jagged:
        if nested.dim() < 2 or isinstance(nested.shape[1], int):
            raise FeedError.must(f"{name}: the ragged dim of a nested tensor", "dim 1", f"{list(nested.shape)}", "fed is")
        offsets, counts = nested.offsets(), nested.lengths()
        if counts is None:
            return nested.values().detach(), [offsets.diff()]
        starts = offsets[: len(counts)]  # with holes between the sequences
        packed = torch.repeat_interleave(starts - counts.cumsum(0) + counts, counts) + torch.arange(int(counts.sum()), device=counts.device)
        return nested.values().detach().index_select(0, packed), [counts]
    if nested.size(0) == 0:  # it has no dims then
        return _no_rows(name, spec), [torch.zeros(0, dtype=torch.int64)]
    sizes = private.nested_tensor_size(nested)
    rows, row = sizes[:, 0], sizes[0, 1:]
    if not bool((sizes[:, 1:] == row).all()):
        sizes_text = ", ".join(map(str, sizes.tolist()[:8]))
        raise FeedError(f"{name} must have rows [{_row_text(spec)[2:]}]; the parts of the nested tensor differ in more than dim 0: {sizes_text}")
    packed = nested.detach().contiguous().values()
    return packed.reshape(int(rows.sum()), *row.tolist()), [rows]


# --- lists


class _Lists:
    """The packing of nested lists for one variable."""

    def __init__(self, name: str, spec: Spec) -> None:
        self.name, self.spec, self.levels = name, spec, spec.lod_level
        self.of: DType = spec.known_dtype
        self.given: Any = ()

    def packed(self, sequences: Any) -> tuple[Any, list[Any]]:
        """Return the rows, and for each level the lengths."""
        import numpy

        lengths: list[Any] = []
        parts: Sequence[Any] = sequences
        self.given = sequences
        for _ in range(1, self.levels):
            if not all(_is_list(p) or _is_array_of_objects(p) for p in parts):
                place = next(k for k, p in enumerate(parts) if not (_is_list(p) or _is_array_of_objects(p)))
                self.refuse(
                    lengths, place, parts[place], f"a list, since {self.name} has {self.levels} levels of sequences (a {_nesting(self.levels)} of arrays)"
                )
            lengths.append(numpy.fromiter(map(len, parts), numpy.int64, len(parts)))
            parts = list(chain.from_iterable(parts))
        quick = self._of_numbers(parts)
        if quick is not None:
            rows = quick
            counts = map(len, parts)
        else:
            arrays = [self._sequence(lengths, place, p) for place, p in enumerate(parts)]
            rows = self._joined(lengths, arrays)
            counts = (0 if a is None else a.shape[0] for a in arrays)
        lengths.append(numpy.fromiter(counts, numpy.int64, len(parts)))
        return rows, lengths

    def _of_numbers(self, parts: Sequence[Any]) -> Any:
        """Return the rows if all sequences are lists of plain numbers, made in one piece; None if they are not."""
        import numpy

        dims = self.spec.known_dims
        if len(dims) > 2 or (len(dims) == 2 and dims[1] != 1) or not parts or not all(type(p) in (list, tuple) for p in parts):
            return None
        flat = list(chain.from_iterable(parts))
        if not flat or not {int, float, bool}.issuperset(set(map(type, flat))):
            return None
        rows = self._numbers(numpy.array(flat))
        return rows

    def _numbers(self, array: Any) -> Any:
        """Return Python's numbers, which have no size, in the variable's type; None if the conversion is not exact by kind."""
        import numpy

        if not self.of.numpy_name or (array.dtype.kind not in "iufb" and array.size):
            return None
        dtype = numpy.dtype(self.of.numpy_name)
        kind = array.dtype.kind
        if not array.size or _FAMILY[kind] == self.of.family == "float" or (kind in "iu" and self.of.is_floating) or kind == dtype.kind == "b":
            return array.astype(dtype)
        if kind in "iu" and self.of.is_integer:
            info = numpy.iinfo(dtype)
            return array.astype(dtype) if info.min <= int(array.min()) and int(array.max()) <= info.max else None
        return None

    def _sequence(self, lengths: list[Any], place: int, sequence: Any) -> Any:
        """Return one innermost sequence as an array or tensor ``[length, *row]``; None for an empty list, without a shape of rows."""
        import numpy

        dims = self.spec.known_dims
        if sequence is None:
            self.refuse(lengths, place, None, "a sequence, and it is missing (None): leave its row out, or make it an empty list")
        if isinstance(sequence, torch.Tensor) and not sequence.is_nested:
            array = sequence.detach()
        else:
            if is_masked(sequence):
                self.refuse(lengths, place, None, "an array without masked elements, which have no value: use .filled(...)")
            try:
                array: Any = numpy.asarray(sequence)
            except (TypeError, ValueError):
                array = numpy.empty((), dtype=object)
            if array.dtype.kind not in "iufb" and not (array.dtype.kind == "V" and array.dtype.name == "bfloat16"):
                self.refuse(lengths, place, sequence)
            if _is_list(sequence):
                if not len(sequence):
                    return None
                numbers = self._numbers(array) if all(not hasattr(x, "dtype") for x in sequence) else array
                array = array if numbers is None else numbers
        if _lacks_last(array.shape, self.spec):
            array = array[..., None]
        fits = len(array.shape) == len(dims) and all(not isinstance(d, int) or d == s for d, s in zip(dims[1:], array.shape[1:], strict=True))
        if not fits:
            self.refuse(lengths, place, array)
        return array

    def _joined(self, lengths: list[Any], arrays: list[Any]) -> Any:
        import numpy

        sequences = [a for a in arrays if a is not None]
        if not sequences:
            return _no_rows(self.name, self.spec)
        filled = [a for a in sequences if a.shape[0]] or sequences[:1]
        first = filled[0]
        for place, a in enumerate(arrays):
            if a is not None and a.shape[0] and tuple(a.shape[1:]) != tuple(first.shape[1:]):
                self.refuse(lengths, place, a, f"[length{''.join(f', {d}' for d in first.shape[1:])}], as the sequences before it")
        if any(isinstance(a, torch.Tensor) for a in filled):
            tensors = [to_tensor(a) for a in filled]
            families = {(t.is_floating_point(), t.dtype is torch.bool) for t in tensors}
            devices = {t.device for t in tensors}
            if len(families) > 1 or len(devices) > 1:
                raise FeedError(
                    f"{self.name}: all sequences must be of one kind of number, on one device; seen are {sorted({str(t.dtype) for t in tensors})} "
                    f"on {sorted(map(str, devices))}"
                )
            return torch.cat(tensors)
        kinds = {a.dtype.kind for a in filled}
        if len({_FAMILY.get(k, k) for k in kinds}) > 1:
            dtypes = f"are {', '.join(sorted({a.dtype.name for a in filled}))}"
            raise FeedError.must(f"{self.name}: all sequences", "of one kind of number", dtypes, hint=self._advice(arrays[-1]))
        return numpy.concatenate(filled)

    def refuse(self, lengths: list[Any], place_in_level: int, part: Any, required: str | None = None) -> NoReturn:
        """Refuse part ``place_in_level`` of the level after the levels in ``lengths``."""
        index = [place_in_level]
        for level in reversed(lengths):
            above = int(level.cumsum().searchsorted(index[0], side="right"))
            index[0] -= int(level[:above].sum())
            index.insert(0, above)
        place = self.name + "".join(f"[{i}]" for i in index)
        words = required or f"one sequence of {self.spec.text()}, [length{_row_text(self.spec)}]"
        raise FeedError(f"{place} must be {words}" + ("" if part is None else f"; seen {_part_text(part)}{self._advice(part)}"))

    def _advice(self, part: Any) -> str:
        """Return the code for texts, and for rows beside their lengths."""
        first: Any = next(iter(part), None) if _is_list(part) else part
        if isinstance(first, (str, bytes)) or getattr(getattr(first, "dtype", None), "kind", "") in ("U", "S", "T"):
            return f": these are {_TEXTS}"
        if self.levels == 1 and len(self.given) == 2 and part is not None and hasattr(self.given[0], "shape") and _are_rows_and_lengths(*self.given):
            return ": rows with their lengths are a LoDTensor(rows, [lengths])"
        return ""


def _are_rows_and_lengths(rows: Any, lengths: Any) -> bool:
    """Tell whether whole numbers beside rows add up to their count."""
    import numpy

    try:
        counts = numpy.asarray(lengths)
        return counts.dtype.kind in "iu" and int(counts.sum()) == len(rows)
    except (TypeError, ValueError):
        return False


def _part_text(part: Any) -> str:
    shape = getattr(part, "shape", None)
    if shape is not None and len(shape):
        return f"{getattr(part, 'dtype', '')} {list(shape)}".strip()
    if _is_list(part):
        return f"a list of {len(part)} that is no array: {_value_text(part)}"
    return _value_text(part)


def _value_text(part: Any) -> str:
    text = repr(part)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_rows(name: str, spec: Spec) -> Any:
    """Return an array of no rows. Their dims must be described."""
    import numpy

    row = spec.known_dims[1:]
    if not all(isinstance(d, int) for d in row):
        raise FeedError(f"{name} is {spec.text()}, and no sequences were fed, so that nothing tells the size of a row: feed LoDTensor(zeros of [0, ...], ...)")
    return numpy.zeros((0, *row), dtype=spec.known_dtype.numpy_name or "float32")  # pyright: ignore[reportArgumentType]


# --- columns


def _with_rows(name: str, values: Any, lengths: list[Any], inner: list[Any], spec: Spec) -> Any:
    """Return the flat values of a column as rows: list levels below the sequences (``inner``) are dims of the rows, and must be even."""
    row = spec.known_dims[1:]
    if values.size == 0 and (values.dtype.kind == "b" or len(values.shape) + len(inner) <= len(row)):
        return _no_rows(name, spec)  # of nothing a column may know neither type nor dims
    rows = len(inner[0]) if inner else len(values)
    sizes: list[int] = []
    for depth, counts in enumerate(inner):
        size = int(counts[0]) if len(counts) else (row[depth] if depth < len(row) and isinstance(row[depth], int) else 0)
        if len(counts) and not bool((counts == size).all()):
            place = int((counts != size).argmax())
            depth = depth + 1 + len(lengths)
            raise FeedError(
                f"{name} must have rows [{_row_text(spec)[2:]}]; the lists of the column at depth {depth} have {size} elements "
                f"and, number {place}, {int(counts[place])}"
            )
        sizes.append(int(size))
    return values.reshape(rows, *sizes, *values.shape[1:])
