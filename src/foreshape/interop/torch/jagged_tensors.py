"""Jagged tensors in an export: a stand-in for each, whose functions work on its packed rows, and the operators of ragged rows kept whole.

torch.export traces no nested tensors. Rows and lengths are its inputs instead, and the network's code gets `JaggedTensor`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from foreshape.core.values.torch_private import private
from foreshape.interop.torch.replaced import replaced
from foreshape.interop.torch.untyped_torch import defined_operators, is_list, own_operators, pytree, torch

SCHEMAS: Final = {
    "jagged": "(Tensor rows, Tensor lengths) -> Tensor",
    "jagged_pool": "(Tensor rows, Tensor lengths, str kind, float empty) -> Tensor",
    "jagged_softmax": "(Tensor rows, Tensor lengths, bool log) -> Tensor",
    "jagged_expand": "(Tensor each, Tensor lengths, Tensor rows) -> Tensor",
    "jagged_pad": "(Tensor rows, Tensor lengths, float value) -> Tensor",
    "jagged_attention": "(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor key_lengths, bool causal, float scale) -> Tensor",
}
"""Operators of ragged rows: ``jagged`` tells their sequences; ``jagged_pool`` takes sum, mean, amax, amin of each; q, k and v are ``[rows, heads, width]``."""


class JaggedRefused(Exception):
    """A function of torch without a form here for jagged tensors."""


class JaggedParts(NamedTuple):
    """The tensors of a jagged input, in its place among the inputs of an export."""

    rows: Any
    lengths: Any


class Sequences:
    """The division of rows into sequences: one object for tensors of equal ones, as torch has one symbol for them.

    Attributes:
        lengths: int64, ``[sequences]``.
    """

    def __init__(self, lengths: Any, offsets: Any = None) -> None:
        self.lengths, self._offsets = lengths, offsets

    @property
    def offsets(self) -> Any:
        """Return int64 ``[sequences + 1]``."""
        if self._offsets is None:
            self._offsets = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
            setattr(self._offsets, _OF, self)
        return self._offsets

    @property
    def count(self) -> Any:
        """Return the number of sequences."""
        return self.lengths.shape[0]


class RaggedSize:
    """The size of a ragged axis: no number, equal for the same sequences."""

    __slots__ = ("of",)

    def __init__(self, of: Sequences) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedSize) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)

    def __repr__(self) -> str:
        return "ragged"

    def _refuse(self, *_: Any) -> Any:
        raise JaggedRefused("the size of a ragged axis is no number: x.offsets().diff() has the length of each sequence")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = __index__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = (
        __ge__
    ) = _refuse


Answer = Callable[[str, Any, Sequence[Any], Mapping[str, Any]], Any]
"""Returns the result of a function of torch, by its name, with jagged tensors among its arguments."""
_ANSWERS: Final[list[Answer]] = []


def answering(function: Answer) -> Answer:
    """Have a function answer for all jagged tensors, as it decorates."""
    _ANSWERS.append(function)
    return function


def _method(name: str, *args: Any, **kwargs: Any) -> Any:
    return _ANSWERS[-1](name, getattr(torch.Tensor, name), args, kwargs)


class JaggedTensor:
    """A jagged tensor in a trace.

    Attributes:
        rows: ``[rows, ...]``, with the other axes in order.
        sequences: their division.
        ragged: the place of the ragged axis among the tensor's own, from 1 on.
    """

    def __init__(self, rows: Any, sequences: Sequences, ragged: int = 1) -> None:
        self.rows, self.sequences, self.ragged = rows, sequences, ragged

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return torch's class: the network's code may ask for it."""
        return torch.Tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Return the result of a function of torch."""
        name = str(getattr(function, "__name__", function))
        if name in ("__get__", "__set__"):
            raise JaggedRefused(f"Tensor.{getattr(getattr(function, '__self__', None), '__name__', '?')} of a jagged tensor has no form here")
        return _ANSWERS[-1](name, function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch.Tensor, name)  # an AttributeError in torch's words
        if not callable(found):
            raise JaggedRefused(f"Tensor.{name} of a jagged tensor has no form here")
        return functools.partial(_method, name, self)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the sizes, with a `RaggedSize`."""
        sizes: list[Any] = [self.sequences.count, *self.rows.shape[1:]]
        sizes.insert(self.ragged, RaggedSize(self.sequences))
        return tuple(sizes)

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of axes."""
        return int(self.rows.dim()) + 1

    ndim = property(dim)
    dtype = property(lambda self: self.rows.dtype)
    device = property(lambda self: self.rows.device)
    requires_grad = property(lambda self: self.rows.requires_grad)
    layout = property(lambda self: torch.jagged)
    is_nested = property(lambda self: True)
    is_sparse = is_quantized = is_mkldnn = is_cuda = is_meta = property(lambda self: False)

    def values(self) -> Any:
        """Return the packed rows, as torch has them: with the ragged axis in its place."""
        return self.rows.movedim(0, self.ragged - 1) if self.ragged > 1 else self.rows

    _values = property(values)
    _offsets = property(lambda self: self.sequences.offsets)

    def offsets(self) -> Any:
        """Return int64 ``[sequences + 1]``."""
        return self.sequences.offsets

    def lengths(self) -> Any:
        """Return None, as torch does for sequences without holes."""

    def requires_grad_(self, on: bool = True) -> Any:
        """Return itself: gradients are the program's."""
        return self

    def __len__(self) -> int:
        return self.sequences.count

    def __iter__(self) -> Any:
        raise JaggedRefused("the sequences of a jagged tensor one by one: their number is open")

    def __bool__(self) -> bool:
        raise JaggedRefused("the truth of a jagged tensor")

    def __getitem__(self, index: Any) -> Any:
        return _method("__getitem__", self, index)

    def __repr__(self) -> str:
        return f"jagged tensor {list(self.shape)}"

    __hash__ = object.__hash__


def _operator(name: str) -> Any:
    def call(*given: Any) -> Any:
        return _method(name, *given)

    return call


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(JaggedTensor, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(JaggedTensor, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "abs", "invert", "matmul", "rmatmul", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(JaggedTensor, f"__{_name}__", _operator(f"__{_name}__"))


def is_jagged(value: Any) -> bool:
    """Tell whether it is torch's jagged tensor."""
    return isinstance(value, torch.Tensor) and bool(value.is_nested) and value.layout is torch.jagged


def is_stand_in(value: Any) -> bool:
    """Tell whether it is a `JaggedTensor`."""
    return type(value) is JaggedTensor


def parts_of(value: Any) -> JaggedParts:
    """Return rows and lengths of a jagged example; the sequences need no order."""
    counts = value.lengths()
    return JaggedParts(value.values().detach(), value.offsets().diff() if counts is None else counts)


# --- the operators without numbers


def _pooled(rows: Any, lengths: Any, kind: str, empty: float) -> Any:
    return rows.new_empty((lengths.shape[0], *rows.shape[1:]))


def _expanded(each: Any, lengths: Any, rows: Any) -> Any:
    return each.new_empty((rows.shape[0], *each.shape[1:]))


def _padded(rows: Any, lengths: Any, value: float) -> Any:
    return rows.new_empty((lengths.shape[0], own_operators().get_ctx().new_dynamic_size(), *rows.shape[1:]))


def _attended(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


def _as_given(rows: Any, *_: Any) -> Any:
    return torch.empty_like(rows)


SHAPED: Final[Mapping[str, Callable[..., Any]]] = {
    "jagged": _as_given,
    "jagged_pool": _pooled,
    "jagged_softmax": _as_given,
    "jagged_expand": _expanded,
    "jagged_pad": _padded,
    "jagged_attention": _attended,
}


# --- in an export


def _made(rows: Any, offsets: Any, lengths: Any = None, ragged_idx: int = 1, **_: Any) -> Any:
    if lengths is not None:
        raise JaggedRefused("nested_tensor_from_jagged with offsets and lengths, of sequences with holes between them: torch.nested.narrow has a form here")
    rows = rows.movedim(ragged_idx - 1, 0) if ragged_idx > 1 else rows
    known: Sequences | None = getattr(offsets, _OF, None)
    if known is None:
        known = Sequences(offsets.diff(), offsets)
        setattr(offsets, _OF, known)
    return JaggedTensor(defined_operators().jagged(rows, known.lengths), known, ragged_idx)


def _made_whole(rows: Any, offsets: Any, ragged_idx: int = 1, **_: Any) -> Any:
    return _made(rows, offsets, None, ragged_idx)


_OF: Final = "foreshape_sequences"
"""The attribute of a tensor of offsets with its `Sequences`."""


def _of_list(tensors: Sequence[Any], offsets: Any = None, dtype: Any = None, device: Any = None) -> Any:
    lengths = torch.cat([torch.full((1,), one.shape[0], dtype=torch.int64) for one in tensors])
    rows = torch.cat([*tensors]).to(dtype=dtype or tensors[0].dtype)
    of = Sequences(lengths)
    return JaggedTensor(defined_operators().jagged(rows, lengths), of), of.offsets


def _narrowed(x: Any, starts: Any, lengths: Any) -> Any:
    places = torch.arange(x.shape[1], device=x.device)
    first, count = (one.to(torch.int64).expand(x.shape[0]) for one in (starts, lengths))
    rows = x[(places >= first.unsqueeze(1)) & (places < (first + count).unsqueeze(1))]
    return JaggedTensor(defined_operators().jagged(rows, count), Sequences(count)), None, None


def _no() -> bool:
    return False


_REPLACED: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("torch.nested._internal.nested_tensor", "nested_view_from_values_offsets_lengths"): _made,
    ("torch.nested._internal.nested_tensor", "nested_view_from_values_offsets"): _made_whole,
    ("torch.nested._internal.nested_tensor", "jagged_from_list"): _of_list,
    ("torch.nested._internal.nested_tensor", "jagged_from_tensor_and_lengths"): _narrowed,
    ("torch.fx._symbolic_trace", "is_fx_tracing"): _no,  # or torch refuses to make a nested tensor
}


@contextmanager
def jagged_tensors() -> Generator[None]:
    """Have torch make stand-ins in the place of jagged tensors within the block."""
    with ExitStack() as stack:
        for (path, name), own in _REPLACED.items():
            of: Any = importlib.import_module(path)
            if hasattr(of, name):
                stack.enter_context(replaced(of, **{name: own}))
        yield


def stand_ins(given: Any, shared: Sequence[int]) -> Any:
    """Return inputs of a traced call with stand-ins in the place of `JaggedParts`; ``shared`` has for each the first one with the same sequences."""
    made: list[JaggedTensor] = []

    def stand_in(value: Any) -> Any:
        if not isinstance(value, JaggedParts):
            return value
        first = shared[len(made)]
        of = made[first].sequences if first < len(made) else Sequences(value.lengths)
        rows = defined_operators().jagged(value.rows, value.lengths)
        if first < len(made):
            private.check(rows.shape[0] == made[first].rows.shape[0])
            private.check(value.lengths.shape[0] == of.count)
        made.append(JaggedTensor(rows, of))
        return made[-1]

    return pytree().tree_map(stand_in, given, is_leaf=_is_parts)


def plain_results(results: Any) -> Any:
    """Return results with marked rows in the place of stand-ins."""
    return pytree().tree_map(_plain, results)


def _is_parts(value: Any) -> bool:
    return isinstance(value, JaggedParts)


def _plain(value: Any) -> Any:
    if not is_stand_in(value):
        return value
    if value.ragged != 1:
        raise JaggedRefused(f"a result whose ragged axis is {value.ragged}: transpose it to be axis 1")
    return defined_operators().jagged(value.rows, value.sequences.lengths)


def first_alike(inputs: Any) -> list[int]:
    """Return for each jagged tensor of the inputs the number of the first one with the same sequences, as torch tells them."""
    found = [leaf for leaf in pytree().tree_leaves(inputs) if is_jagged(leaf)]
    return [next(at for at, other in enumerate(found) if _size(other) == _size(leaf)) for leaf in found]


def _size(value: Any) -> Any:
    return value.shape[1]


def flat_sizes(size: Any) -> list[Any]:
    """Return sizes given one by one or as a list."""
    return [*size[0]] if len(size) == 1 and is_list(size[0]) else [*size]
