"""Sparse matrices in an export: a stand-in for each, of places and values, whose products are sums of rows.

torch.export traces no functions of sparse tensors. A product takes the rows of the other matrix at the columns of the values, and adds them up at their rows:
the gradients are those of this sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch


class SparseRefused(Exception):
    """A function of torch without a form here for sparse matrices."""


class SparseMatrix:
    """A sparse matrix in a trace.

    Attributes:
        rows, columns: of the values, int64 ``[values]``; several at one place are summed.
        values: ``[values]``.
        shape: the numbers of rows and columns.
    """

    def __init__(self, rows: Any, columns: Any, values: Any, shape: Sequence[Any]) -> None:
        self.rows, self.columns, self.values_ = rows, columns, values
        self.shape = torch.Size(shape) if all(isinstance(n, int) for n in shape) else tuple(shape)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return torch's class: the network's code may ask for it."""
        return torch.Tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Return the result of a function of torch."""
        name = str(getattr(function, "__name__", function))
        return _answer(name, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(torch.Tensor, name)  # an AttributeError in torch's words
        if name in ("dtype", "device", "requires_grad"):
            return getattr(self.values_, name)
        if name in ("T", "mT"):
            return self.turned()
        if not callable(attribute):
            raise SparseRefused(f"Tensor.{name} of a sparse matrix has no form here")
        return functools.partial(_answer, name, self)

    is_sparse = True
    ndim = 2

    def turned(self) -> SparseMatrix:
        """Return it with rows and columns changed over."""
        return SparseMatrix(self.columns, self.rows, self.values_, self.shape[::-1])

    def of_values(self, values: Any) -> SparseMatrix:
        """Return it with other values at its places."""
        return SparseMatrix(self.rows, self.columns, values, self.shape)

    def times(self, other: Any) -> Any:
        """Return the product with a dense matrix, or a vector."""
        if not isinstance(other, torch.Tensor) or is_sparse(other) or other.dim() not in (1, 2):
            raise SparseRefused(f"the product of a sparse matrix is with a dense matrix or vector; seen {_shown(other)}")
        if other.shape[0] != self.shape[1]:
            raise SparseRefused(f"the columns of a sparse matrix must equal the rows of what it is multiplied with; seen {self.shape[1]} and {other.shape[0]}")
        columns = other.index_select(0, self.columns)
        parts = columns * (self.values_ if other.dim() == 1 else self.values_.unsqueeze(1))
        return other.new_zeros((self.shape[0], *other.shape[1:])).index_add(0, self.rows, parts)

    def __matmul__(self, other: Any) -> Any:
        return self.times(other)

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    def __mul__(self, other: Any) -> SparseMatrix:
        return _scaled(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseMatrix:
        return _scaled(self, other, torch.div)

    def __neg__(self) -> SparseMatrix:
        return self.of_values(-self.values_)


def is_sparse(value: Any) -> bool:
    """Tell whether it is a `SparseMatrix`."""
    return type(value) is SparseMatrix


def _shown(value: Any) -> str:
    kind = "a sparse matrix" if is_sparse(value) else "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    return f"{kind} of {list(value.shape)}" if isinstance(value, torch.Tensor) else kind


# --- functions of torch


def _product(x: Any, y: Any) -> Any:
    if is_sparse(x):
        return x.times(y)
    if x.dim() == 1:
        return y.turned().times(x)
    return y.turned().times(x.t()).t()


def _with_product(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return bias * beta + _product(x, y) * alpha


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    out = weight.times(x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias


def _scaled(x: Any, y: Any, by: Callable[..., Any] = torch.mul) -> SparseMatrix:
    x, y = (x, y) if is_sparse(x) else (y, x)
    if is_sparse(y) or (isinstance(y, torch.Tensor) and y.dim()):
        raise SparseRefused(f"a sparse matrix is multiplied by one number; seen {_shown(y)}")
    return x.of_values(by(x.values_, y))


def _dense(x: SparseMatrix, *_: Any, **__: Any) -> Any:
    return x.values_.new_zeros(x.shape).index_put((x.rows, x.columns), x.values_, accumulate=True)


def _total(x: SparseMatrix, dim: Any = None, **_: Any) -> Any:
    """Return the sum of all values."""
    if dim is not None:
        raise SparseRefused("the sum of a sparse matrix along an axis has no form here: its product with a vector of ones is a dense one")
    return x.values_.sum()


def _turned(x: SparseMatrix, *_: Any) -> SparseMatrix:
    return x.turned()


def _converted(x: SparseMatrix, *arguments: Any, **named: Any) -> SparseMatrix:
    return x.of_values(x.values_.to(*arguments, **named))


def _itself(x: SparseMatrix, *_: Any) -> SparseMatrix:
    return x


def _size(x: SparseMatrix, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


def _rank(x: SparseMatrix) -> int:
    return 2


def _values(x: SparseMatrix) -> Any:
    return x.values_


def _places(x: SparseMatrix) -> Any:
    return torch.stack([x.rows, x.columns])


def _of_each_value(name: str, x: SparseMatrix) -> SparseMatrix:
    return x.of_values(getattr(torch.Tensor, name)(x.values_))


_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(("sparse_mm", "mm", "matmul", "mv", "spmm", "dsmm"), _product),
    **dict.fromkeys(("sparse_addmm", "addmm"), _with_product),
    **dict.fromkeys(("mul", "multiply"), _scaled),
    **dict.fromkeys(("sparse_sum", "sum"), _total),
    **dict.fromkeys(("t", "transpose", "adjoint"), _turned),
    **dict.fromkeys(("coalesce", "to_sparse", "to_sparse_coo", "to_sparse_csr", "contiguous", "cpu"), _itself),
    **{name: functools.partial(_of_each_value, name) for name in ("detach", "float", "double", "half", "bfloat16", "neg", "clone")},
    "div": functools.partial(_scaled, by=torch.div),
    **{"linear": _linear, "to_dense": _dense, "to": _converted, "size": _size, "dim": _rank, "_values": _values, "_indices": _places},
}
"""Name of a function -> its stand-in."""


def _answer(name: str, *arguments: Any, **named: Any) -> Any:
    known = _ANSWERS.get(name) or _ANSWERS.get(name.strip("_"))
    if known is None:
        raise SparseRefused(f"torch.{name.strip('_')} has no form here for a sparse matrix: x.to_dense() makes a dense one")
    return known(*arguments, **named)


# --- the ones of a network


def _made(indices: Any, values: Any, size: Any = None, **named: Any) -> Any:
    """Return torch.sparse_coo_tensor of a matrix."""
    indices, values = torch.as_tensor(indices), torch.as_tensor(values, dtype=named.get("dtype"))
    if size is None:
        raise SparseRefused("torch.sparse_coo_tensor without a size has no form here: its size would depend on values")
    if len(size) != 2 or values.dim() != 1:
        raise SparseRefused(f"sparse tensors are matrices of numbers here; seen one of {list(size)} with values of {list(values.shape)}")
    return SparseMatrix(indices[0], indices[1], values, size)


def _made_of_rows(starts: Any, columns: Any, values: Any, size: Any = None, **named: Any) -> Any:
    """Return torch.sparse_csr_tensor of a matrix."""
    starts, columns, values = torch.as_tensor(starts), torch.as_tensor(columns), torch.as_tensor(values, dtype=named.get("dtype"))
    if size is None or len(size) != 2 or values.dim() != 1:
        raise SparseRefused(f"torch.sparse_csr_tensor has a form here for a matrix of numbers with its size; seen {size}")
    rows = torch.bucketize(torch.arange(columns.shape[0], device=columns.device), starts[1:], right=True)  # the row of the k-th value
    return SparseMatrix(rows, columns.long(), values, size)


def sparse_stand_ins() -> dict[Any, Any]:
    """Return torch's makers of sparse tensors with the ones in their place."""
    return {torch.sparse_coo_tensor: _made, torch.sparse_csr_tensor: _made_of_rows}


def is_sparse_matrix(value: Any) -> bool:
    """Tell whether it is a sparse tensor of torch with a stand-in here."""
    layouts = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
    return isinstance(value, torch.Tensor) and not is_sparse(value) and value.layout in layouts and value.dim() == 2 and not value.dense_dim()


def _stand_in(tensor: Any) -> SparseMatrix:
    """Return the stand-in for a sparse tensor of a network."""
    coordinates = tensor.detach().to_sparse_coo().coalesce()
    rows, columns = coordinates.indices()
    return SparseMatrix(rows.clone(), columns.clone(), coordinates.values().clone(), tensor.shape)


@contextmanager
def sparse_matrices(module: Any) -> Generator[None]:
    """Put stand-ins in the places of a network's sparse buffers and attributes within the block."""
    before: list[tuple[Any, dict[str, Any], str, Any]] = []
    try:
        for part in module.modules():
            buffers: dict[str, Any] = part.__dict__["_buffers"]
            for holder, name, value in [(space, name, space[name]) for space in (buffers, part.__dict__) for name in space]:
                if is_sparse_matrix(value):
                    before.append((part, holder, name, value))
                    del holder[name]
                    part.__dict__[name] = _stand_in(value)
        yield
    finally:
        for part, holder, name, value in before:
            del part.__dict__[name]
            holder[name] = value
