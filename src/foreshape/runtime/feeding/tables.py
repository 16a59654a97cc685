"""Users' tables and columns, by input: pandas, polars, Arrow and the data sets of Hugging Face. None of them is imported.

They are known by their methods, so that a subclass or a look-alike is taken too. A table gives its columns by name; a column becomes an array, or lists if
its elements are sequences. A column with missing values is refused: there is no default for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from foreshape.core.pictures.figures import plural
from foreshape.core.spec import Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import FeedError
from foreshape.language.program import Program, Variable
from foreshape.language.program.inputs import inputs_of
from foreshape.runtime.feeding.columns import column_of, missing_in


class Table(Mapping[str, Any]):
    """A table as a mapping from the names of its columns to them; a column is taken out of it on demand."""

    def __init__(self, names: Sequence[Any], column: Callable[[Any], Any]) -> None:
        self.names = list(names)
        self._column = column

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        if self.names.count(name) > 1:
            raise FeedError(f"the table has {self.names.count(name)} columns that are called {name!r}")
        return self._column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def table_of(source: Any) -> Table | None:
    """Return the columns of a table: a DataFrame, an Arrow table or record batch, a data set of Hugging Face; None if it is none."""
    kind = cast("Any", type(source))
    if isinstance(source, (list, tuple, str, bytes, Mapping)) or kind.__name__ == "ndarray":
        return None
    if is_dataset(source):
        if is_transformed(source):
            rows: Any = source[:]
            if not isinstance(rows, Mapping):
                raise FeedError.must("what a data set is transformed to", "a dict, input -> array", f"{type(rows).__name__}")
            columns = cast("Mapping[str, Any]", rows)
            return Table(list(columns), lambda name: columns[name])
        return Table(_columns_of(source), lambda name: Complete(formatted(source.select_columns([name])))[:][name])
    if hasattr(kind, "get_column") and hasattr(kind, "columns"):  # polars
        return Table(source.columns, source.get_column)
    if hasattr(kind, "collect_schema") and hasattr(kind, "collect"):
        raise FeedError(f"a {kind.__name__} has no rows before it is collected: feed .collect()")
    if hasattr(kind, "to_table") and hasattr(kind, "to_batches"):  # Arrow's, of files
        raise FeedError(f"a {kind.__name__} has no rows before it is read: feed .to_table(), or train on lambda: data.to_batches(batch_size=32)")
    if hasattr(kind, "iloc") and hasattr(kind, "columns"):  # pandas
        return Table(list(source.columns), lambda name: source[name])
    if hasattr(kind, "column") and hasattr(kind, "schema"):  # Arrow
        return Table(source.schema.names, source.column)
    return None


def is_dataset(source: Any) -> bool:
    """Return True for a data set of rows by number, with named columns and a format."""
    kind = cast("Any", type(source))
    return all(hasattr(kind, name) for name in ("column_names", "with_format", "__getitem__", "__len__"))


def is_transformed(dataset: Any) -> bool:
    """Return True if a function makes the rows of a data set on demand, with unknown columns."""
    dataset_format: Any = getattr(dataset, "format", None)
    return isinstance(dataset_format, Mapping) and cast("Mapping[str, Any]", dataset_format).get("type") == "custom"


def formatted(dataset: Any) -> Any:
    """Return the data set with its columns as arrays, unless its own format says otherwise."""
    dataset_format: Any = getattr(dataset, "format", None)
    return dataset.with_format("numpy") if not isinstance(dataset_format, Mapping) or cast("Mapping[str, Any]", dataset_format).get("type") is None else dataset


def _format_of(dataset: Any) -> Mapping[str, Any]:
    dataset_format: Any = getattr(dataset, "format", None)
    return cast("Mapping[str, Any]", dataset_format) if isinstance(dataset_format, Mapping) else {}


def _columns_of(dataset: Any) -> list[str]:
    """Return the names of the columns in a data set's format."""
    dataset_format = _format_of(dataset)
    return list(dataset.column_names if dataset_format.get("output_all_columns", True) else dataset_format.get("columns") or dataset.column_names)


class Complete:
    """A data set with complete rows, checked on demand: for a missing value, formats of arrays would have NaN or fail."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        columns: Any = None if is_transformed(dataset) else getattr(dataset, "data", None)
        lacking = [n for n in _columns_of(dataset) if missing_in(columns.column(n))] if hasattr(columns, "column") else []
        self._lacking = dataset.select_columns(lacking).with_format("arrow") if lacking else None

    def __getitem__(self, rows: Any) -> Any:
        """Raise `FeedError` for a missing value."""
        if self._lacking is not None:
            for name, column in zip(self._lacking.column_names, self._lacking[rows].columns, strict=True):
                if missing := missing_in(column):
                    rows_lack = f"{plural(len(column), 'row')} of the column lack {plural(missing, 'value')}"
                    raise FeedError(f"{name}: {rows_lack}: fill what is missing, or leave such rows out")
        return self._dataset[rows]


def gives_lists(dataset: Any) -> bool:
    """Return True if a row of a data set has lists for arrays, since the data set has no format."""
    data: Any = getattr(dataset, "data", None)
    if not hasattr(data, "schema") or _format_of(dataset).get("type", "") is not None:
        return False
    return any(hasattr(getattr(field.type, "storage_type", field.type), "value_type") for field in data.schema)


def _lack(missing: int, total: int) -> str:
    return f"{missing} of the {total} values of the column are missing: fill them, or leave their rows out"


def named(source: Any, program: Program, needed: Sequence[str]) -> Mapping[Any, Any]:
    """Return a feed or a batch by input.

    Args:
        source: a mapping or a table, by the names of its columns; a list of rows, each a mapping; one value for each input, in the order of their
            description (all inputs of the program, or ``needed``); or, for a program of one input, its value.
        needed: the inputs of the run, in order.

    Raises:
        FeedError: another kind, or a number of values that fits no inputs.
    """
    if isinstance(source, Mapping):
        return cast("Mapping[Any, Any]", source)
    if hasattr(source, "_asdict"):  # a named tuple
        return source._asdict()
    table = table_of(source)
    if table is not None:
        return table
    if isinstance(source, (list, tuple)):
        parts = cast("Sequence[Any]", source)
        if parts and all(isinstance(part, Mapping) for part in parts):
            return _of_rows(parts)
        for part in parts:
            if not is_value(part):
                raise FeedError(f"a feed is a mapping, input -> array, a table, or an array for each input; seen a sequence with {_value_text(part)}")
        return _in_order(parts, program, needed)
    if is_value(source) and not isinstance(source, (int, float)):
        inputs = described(program)
        names = inputs if len(inputs) == 1 else list(needed) if len(needed) == 1 else None
        if names is None:
            raise FeedError(
                f"one {type(source).__name__} is fed, and the program has the inputs {_listed(inputs)}: say which it is, as {{{inputs[0]!r}: ...}}"
                if inputs
                else f"a {type(source).__name__} is fed, and the program has no inputs"
            )
        return {names[0]: source}
    raise FeedError(f"a feed is a mapping, input -> array, a table, or an array for each input; seen {_value_text(source)}")


def described(program: Program) -> list[str]:
    """Return the inputs of a program in the order of their description."""
    return [v.name for v in inputs_of(program.global_block)]


def in_order(program: Program, variables: Sequence[Any]) -> list[str]:
    """Return names of inputs in the order of their description."""
    names = {v.name if isinstance(v, Variable) else str(v) for v in variables}
    return [name for name in described(program) if name in names]


def _in_order(parts: Sequence[Any], program: Program, needed: Sequence[str]) -> dict[str, Any]:
    inputs = described(program)
    for names in (inputs, needed):
        if len(parts) == len(names):
            return dict(zip(names, parts, strict=True))
    few = f", of which this run takes {_listed(needed)}" if len(needed) < len(inputs) else ""
    raise FeedError(
        f"{len(parts)} value{'s' * (len(parts) != 1)} in order are fed, and the program has the inputs {_listed(inputs)}{few}: "
        "feed one for each, in this order, or a mapping by their names"
    )


def _of_rows(rows: Sequence[Any]) -> dict[Any, Any]:
    """Return the columns of rows with equal names."""
    names = list(rows[0])
    for index, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise FeedError(f"rows of a batch must have the same names; row 0 has {_listed(names)}, row {index} has {_listed(list(row))}")
    return {name: [row[name] for row in rows] for name in names}


def is_value(value: Any) -> bool:
    """Return True if an object may be the feed of one input: it has numbers, and is no mapping, text or set."""
    if isinstance(value, (int, float, list, tuple, LoDTensor, SelectedRows)):
        return True
    kind = cast("Any", type(value))
    if isinstance(value, (str, bytes, Mapping, set, frozenset, Variable)) or value is None or hasattr(kind, "read_next_batch"):
        return False
    return any(hasattr(kind, name) for name in ("__array__", "__array_interface__", "__arrow_array__", "__arrow_c_array__", "__arrow_c_stream__", "layout"))


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names)) or "none"


def _value_text(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__}" if len(text) > 60 or "\n" in text else f"{type(value).__name__} {text}"


# --- single columns


def array_of(name: str, source: Any, spec: Spec) -> Any:
    """Return a column, a table or a list for one dense input, as an array or a tensor; other objects unchanged.

    Raises:
        FeedError: values are missing, elements are no numbers, or lists have different lengths.
    """
    if isinstance(source, (list, tuple)):
        return _of_list(name, cast("Sequence[Any]", source), spec)
    source = column(name, source)
    if isinstance(source, (list, tuple)):
        return _of_list(name, cast("Sequence[Any]", source), spec)
    if type(source).__module__.partition(".")[0] == "pyarrow":
        return _of_arrow(name, source, spec)
    if getattr(getattr(source, "dtype", None), "kind", "") == "O" and hasattr(source, "tolist"):
        return _of_objects(name, source, spec)
    return source


def column(name: str, source: Any) -> Any:
    """Return a column of pandas or polars, or of a data set, as an array, an Arrow column, or a list; other objects unchanged.

    Raises:
        FeedError: values are missing, or elements are no numbers.
    """
    kind = cast("Any", type(source))
    if hasattr(kind, "iloc") and hasattr(kind, "to_numpy"):
        return _of_pandas(name, source)
    if hasattr(kind, "to_arrow") and hasattr(kind, "null_count"):
        return _of_polars(name, source)
    if kind.__module__.partition(".")[0] == "datasets" and hasattr(kind, "__getitem__"):
        return source[:]
    return source


def _of_pandas(name: str, source: Any) -> Any:
    """Return a Series, or of a DataFrame all columns as one array ``[rows, columns]``."""
    if hasattr(source, "columns"):
        import numpy

        return numpy.stack([_dense_column(f"{name}, column {label!r}", source.iloc[:, k], _of_pandas) for k, label in enumerate(source.columns)], axis=1)
    dtype = source.dtype
    if type(dtype).__module__.partition(".")[0] == "numpy":
        return source.to_numpy()
    missing = int(source.isna().sum())
    if missing:
        raise FeedError(f"{name}: {_lack(missing, len(source))}")
    if getattr(dtype, "kind", "O") == "O" and "pyarrow" in sys.modules and hasattr(source.array, "__arrow_array__") and hasattr(dtype, "pyarrow_dtype"):
        return source.array.__arrow_array__()
    if hasattr(dtype, "categories"):
        raise FeedError(f"{name}: a column of categories has no numbers of its own: feed its .cat.codes")
    return source.to_numpy(dtype=dtype.numpy_dtype) if hasattr(dtype, "numpy_dtype") else source.to_numpy()


def _dense_column(name: str, column: Any, read: Callable[[str, Any], Any]) -> Any:
    array = read(name, column)
    if getattr(array, "dtype", None) is None or array.dtype.kind not in "iufb":
        raise FeedError.must(f"{name}: the columns of a table that is fed to one input", "of numbers", column.dtype)
    return array


def _of_polars(name: str, source: Any) -> Any:
    if hasattr(source, "get_column"):
        import numpy

        return numpy.stack([_dense_column(f"{name}, column {label!r}", source.get_column(label), _of_polars) for label in source.columns], axis=1)
    missing = source.null_count()
    if missing:
        raise FeedError(f"{name}: {_lack(missing, len(source))}")
    dtype_name = type(source.dtype).__name__
    if dtype_name in ("Categorical", "Enum"):
        raise FeedError(f"{name}: a column of categories has no numbers of its own: feed its .to_physical()")
    if dtype_name == "Struct":
        raise FeedError(f"{name}: a column of structs is several columns: feed .struct.unnest(), or one of its fields")
    if dtype_name == "Decimal":
        raise FeedError(f"{name}: a column of decimals is no column of numbers: convert it with .cast(polars.Float64)")
    if "Int128" in str(source.dtype):
        raise FeedError(f"{name}: numbers of 128 bits are none that arrays have: convert them with .cast(polars.Int64)")
    if dtype_name not in ("List", "Array"):  # in lists values may be missing too
        return source.to_numpy()
    try:
        return source.to_arrow()
    except ImportError:  # without Arrow element by element
        return source.to_list()


def _of_arrow(name: str, source: Any, spec: Spec) -> Any:
    """Return the numbers of an Arrow column; of even lists, with a dim for each level."""
    if hasattr(source, "combine_chunks"):
        source = source.combine_chunks()
    if hasattr(source, "to_numpy_ndarray"):
        return source.to_numpy_ndarray()
    unpacked = column_of(name, source, 0)
    assert unpacked is not None
    values, _, levels = unpacked
    sizes: list[int] = []
    for depth, counts in enumerate(levels):
        if len(counts) and not bool((counts == counts[0]).all()):
            place = int((counts != counts[0]).argmax())
            raise FeedError(_uneven(name, f"at depth {depth + 1} have {int(counts[0])} elements and, number {place}, {int(counts[place])}"))
        dim = spec.known_dims[depth + 1] if depth + 1 < len(spec.known_dims) else 0
        sizes.append(int(counts[0]) if len(counts) else dim if isinstance(dim, int) else 0)
    return values.reshape(len(source), *sizes, *values.shape[1:])


def _uneven(name: str, how: str) -> str:
    return f"{name} is dense, and the lists that are fed {how}: describe it with lod_level=1, or make them even"


def _of_objects(name: str, objects: Any, spec: Spec) -> Any:
    """Return an array of objects, such as a column of lists or of arrays."""
    array = _of_list(name, objects.tolist(), spec) if objects.ndim == 1 else objects
    return objects if array.dtype == object else array


def _of_list(name: str, elements: Sequence[Any], spec: Spec) -> Any:
    """Return a list as an array. Python's numbers have no size, so they take the input's element type if it holds them."""
    import numpy

    first = elements[0] if len(elements) else None
    if isinstance(first, torch.Tensor) and all(isinstance(part, torch.Tensor) for part in elements):
        sizes = {tuple(part.shape) for part in elements}
        if len(sizes) > 1:
            raise FeedError(_uneven(name, f"are tensors of {', '.join(str(list(s)) for s in sorted(sizes)[:4])}"))
        return torch.stack([part.detach() for part in elements])
    try:
        array: Any = numpy.asarray(elements)
    except (TypeError, ValueError) as error:
        if missing := sum(part is None for part in elements):
            raise FeedError(f"{name}: {_lack(missing, len(elements))}") from None
        lengths = [len(part) for part in elements if hasattr(part, "__len__") and not isinstance(part, (str, bytes))]
        if len(lengths) == len(elements) and len(set(lengths)) > 1:
            place = next(k for k, n in enumerate(lengths) if n != lengths[0])
            raise FeedError(_uneven(name, f"have {lengths[0]} elements and, number {place}, {lengths[place]}")) from None
        raise FeedError(f"{name}: {type(elements).__name__} is not an array of numbers: {error}") from None
    if array.dtype == object and (missing := sum(part is None for part in array.flat)):
        raise FeedError(f"{name}: {_lack(missing, array.size)}")
    dtype = spec.known_dtype
    if not array.size and array.dtype.kind == "f":
        return array.astype(dtype.numpy_name or "float32")
    if dtype.is_floating and array.dtype.kind in "fi" and not _has_sizes(elements):
        if dtype.numpy_name:
            with numpy.errstate(over="ignore"):
                cast_array = array.astype(dtype.numpy_name)
            if not bool((numpy.isinf(cast_array) & ~numpy.isinf(array)).any()):
                return cast_array
        elif array.dtype.kind == "f":
            return array.astype("float32")
    return array


def _has_sizes(elements: Any) -> bool:
    """Return True if any element of nested lists has an element type of its own."""
    return any(_has_sizes(part) if isinstance(part, (list, tuple)) else hasattr(part, "dtype") for part in elements)
