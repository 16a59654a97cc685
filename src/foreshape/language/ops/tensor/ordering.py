"""Order within tensors: argmax, sorting, top k, running sums."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import COMPLEX, INDEX, INT32, INT64, NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule, rule_along
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.math.reduction import reduced
from foreshape.language.ops.rules.known_values import axis_of_any, carry, known_number, number_at_run
from foreshape.machine.kernels.introsort import MOST_ELEMENTS, order_equal
from foreshape.machine.kernels.onednn import thread_count


class ArgExtreme(Operator):
    """The base of arg_max and arg_min."""

    abstract = True
    X = operand(NUMERIC, doc="any shape")
    Out = result(doc="X without axis (with 1 there if keepdims), int64 or int32")
    axis = attribute(AttrType.LONG, -1)
    keepdims = attribute(AttrType.BOOLEAN, False)
    flatten = attribute(AttrType.BOOLEAN, False, doc="look for one element of the whole tensor; axis does not matter then")
    dtype = attribute(AttrType.INT, INT64, choices=(-1, INT32.code, INT64.code), doc="int64, int32, or -1 for int64")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec) -> Spec:
        dtype = INT64 if self.dtype < 0 else element_type(self.dtype)
        dims = X.known_dims
        if self.flatten:
            require_at_most(1, product(dims), "there must be an element: X must not be empty", X=None)
            return X.dense((1,) * len(dims) if self.keepdims else (), dtype)
        axis = axis_of_any(self.axis, len(dims), X=None)
        if not dims:
            return X.dense((), dtype)
        require_at_most(1, dims[axis], f"there must be an element: the dim at axis {axis} must be at least 1", X=axis)
        out = (*dims[:axis], *((1,) if self.keepdims else ()), *dims[axis + 1 :])
        return (X if axis else X.dense()).with_dims(out).with_dtype(dtype)

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], range(X.rank) if self.flatten else (self.axis,), drops=not self.keepdims)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        axes = range(X.rank) if self.flatten or not X.rank else (axis_of_any(self.axis, X.rank, X=None),)
        return copies(strided, X=X) + (8 * reduced(X, tuple(axes), True).elements if self.dtype == INT32.code else 0)

    def _indices_by(self, function: Any, X: Tensor) -> Tensor:
        axis = None if self.flatten else self.axis
        out = function(X, axis, self.keepdims)
        return out.to(torch.int32) if self.dtype == INT32.code else out

    samples = [
        sample(X=f32(2, 3, 5, distinct=True)),
        sample(X=f32(2, 3, 5, distinct=True), axis=1, keepdims=True, dtype=2),
        sample(X=f32(2, 3, distinct=True), flatten=True),
        sample(X=f32(2, 3, distinct=True), flatten=True, keepdims=True),
        sample(X=f32(0, 3)),
        sample(X=f32(), axis=0),
        sample(X=i64(3, 4), axis=-2, dtype=-1),
    ]
    rejects = [
        reject(X=f32(0, 3), axis=0, says="at least 1"),
        reject(X=f32(0, 3), flatten=True, says="must not be empty"),
    ]


class ArgMax(ArgExtreme):
    """Out = the place along ``axis`` of the largest element."""

    type = "arg_max"
    layer_function = "argmax"

    def kernel(self, X: Tensor) -> Tensor:
        return self._indices_by(torch.argmax, X)


class ArgMin(ArgExtreme):
    """Out = the place along ``axis`` of the smallest element."""

    type = "arg_min"
    layer_function = "argmin"

    def kernel(self, X: Tensor) -> Tensor:
        return self._indices_by(torch.argmin, X)


def _put_back(X: Tensor, Indices: Tensor, axis: int, d_out: Tensor) -> Tensor:
    """Return the gradient of picking different elements along an axis."""
    if not X.dim():
        return d_out.reshape(X.shape).clone()
    return d_out.new_zeros(X.shape).scatter_(axis, Indices, d_out)


class Argsort(Operator):
    """Out = X sorted along ``axis``; Indices = the old place of each element.

    Equal elements keep their order, but for rows of more than 16 elements in tensors of up to 2,048, on a processor: there they come as PaddlePaddle's
    kernel leaves them, unless ``stable`` is set.
    """

    type = "argsort"
    works_along = "axis"
    gradient_reads_dims = ("X",)
    X = operand(NUMERIC, doc="any shape")
    Out = result(doc="as X")
    Indices = result(doc="as X, int64")
    axis = attribute(AttrType.INT, -1)
    descending = attribute(AttrType.BOOLEAN, False)
    stable = attribute(AttrType.BOOLEAN, False, since=3, doc="equal elements keep their order")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        axis = axis_of_any(self.axis, X.rank, X=None)
        out = X.like() if axis else X.dense()
        return out, out.with_dtype(INT64)

    def workspace(self, X: Spec) -> Size:
        return 16 * thread_count() * X.known_dims[axis_of_any(self.axis, X.rank, X=None)] if X.rank else 0

    def kernel(self, X: Tensor) -> Any:
        values, places = torch.sort(X, stable=True, dim=self.axis, descending=self.descending)
        if not self.stable and 16 < X.numel() <= MOST_ELEMENTS and X.device.type == "cpu":
            comparable = values.view(torch.int16) if values.dtype is torch.bfloat16 else values
            order_equal(comparable.movedim(self.axis, -1).numpy(), places.movedim(self.axis, -1).numpy())
        return values, places

    @gradient("X", "Indices", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Indices: Tensor, d_out: Tensor) -> Tensor:
        return _put_back(X, Indices, self.axis, d_out)

    samples = [
        sample(X=f32(2, 5, distinct=True)),
        sample(X=i64(2, 40, high=3), descending=True),
        sample(X=i64(20, high=1)),
        sample(X=f32(4, 3, distinct=True), axis=0, descending=True),
        sample(X=f32(0, 3)),
        sample(X=f32()),
        sample(X=i64(5)),
        sample(X=i64(7, high=2), stable=True),
    ]


class TopKBase(Operator):
    """The base of top_k_v2 and top_k."""

    abstract = True
    X = operand(NUMERIC, doc="any shape")
    K = operand(INDEX, optional=True, doc="k, as a tensor of one number")
    Out = result(doc="X with k at axis")
    Indices = result(doc="as Out, int64")
    k = attribute(AttrType.INT, 1)

    def _picked(self, X: Spec, K: Spec | None, axis: int) -> tuple[Spec, Spec]:
        k = known_number(self.k, K, "K")
        if k is not None:
            require_at_most(1, k, f"k must be at least 1; seen {k}", X=None)
        dims = X.known_dims
        require(len(dims) > 0 or k is None or k == 1, f"k must be 1 where X has no dims; seen {k}", X=None)
        if not dims:
            return X.like(), X.with_dtype(INT64)
        count: Size = unknown_size("k") if k is None else k
        require_at_most(count, dims[axis], f"k must be at most the dim at axis {axis}, {dims[axis]}; seen {count}", X=axis)
        out = (X if axis else X.dense()).with_dims((*dims[:axis], count, *dims[axis + 1 :]))
        return out, out.with_dtype(INT64)

    def sharding_rule(self, X: Spec, K: Spec | None) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out", "Indices"], (getattr(self, "axis", -1),))


class TopKV2(TopKBase):
    """Out = the ``k`` largest (or smallest) elements along ``axis``, in falling (rising) order; Indices = their places."""

    type = "top_k_v2"
    layer_function = "topk"
    gradient_reads_dims = ("X",)
    axis = attribute(AttrType.INT, -1)
    largest = attribute(AttrType.BOOLEAN, True)
    sorted = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, X: Spec, K: Spec | None) -> tuple[Spec, Spec]:
        return self._picked(X, K, axis_of_any(self.axis, X.rank, X=None))

    def kernel(self, X: Tensor, K: Tensor | None) -> Any:
        return tuple(torch.topk(X, number_at_run(self.k, K), self.axis, self.largest, self.sorted))

    @gradient("X", "Indices", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Indices: Tensor, d_out: Tensor) -> Tensor:
        return _put_back(X, Indices, self.axis, d_out)

    samples = [
        sample(X=f32(2, 5, distinct=True), k=3),
        sample(X=f32(4, 3, distinct=True), k=2, axis=0, largest=False),
        sample(X=f32(0, 3), k=2),
        sample(X=f32()),
        sample(X=f32(2, 5, distinct=True), K=i32(1, data=[4])),
        sample(X=i64(2, 5, high=99), k=1, sorted=False),
    ]
    rejects = [
        reject(X=f32(2, 5), k=6, says="k must be at most the dim at axis 1, 5"),
        reject(X=f32(2, 5), k=0, says="at least 1"),
        reject(X=f32(), k=2, says="k must be 1"),
    ]


class TopK(TopKBase):
    """Out = the ``k`` largest elements along the last axis, in falling order; Indices = their places."""

    type = "top_k"
    gradient_reads_dims = ("X",)

    def infer_shape(self, X: Spec, K: Spec | None) -> tuple[Spec, Spec]:
        return self._picked(X, K, max(X.rank - 1, 0))

    def kernel(self, X: Tensor, K: Tensor | None) -> Any:
        return tuple(torch.topk(X, number_at_run(self.k, K), -1, True, True))

    @gradient("X", "Indices", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Indices: Tensor, d_out: Tensor) -> Tensor:
        return _put_back(X, Indices, -1, d_out)

    samples = [sample(X=f32(2, 5, distinct=True), k=3), sample(X=f32(2, 5, distinct=True), K=i64(1, data=[2])), sample(X=f32(0, 5))]
    rejects = [reject(X=f32(2, 5), k=6, says="k must be at most")]


class Cumsum(Operator):
    """Out = the running sums of X along ``axis``: of the elements up to each (before it if ``exclusive``), from the end if ``reverse``."""

    type = "cumsum"
    gradient_reads_dims = ("X",)
    X = operand((*NUMERIC, *COMPLEX), doc="any shape")
    Out = result(doc="as X; one dim with flatten")
    axis = attribute(AttrType.INT, -1)
    flatten = attribute(AttrType.BOOLEAN, False, doc="along all elements in row-major order")
    exclusive = attribute(AttrType.BOOLEAN, False)
    reverse = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> Spec:
        if not self.flatten:
            axis_of_any(self.axis, X.rank, X=None)
        out = X.dense((X.elements,)) if self.flatten else X.like()
        if X.value is None or not X.known_dtype.is_integer or (X.rank > 1 and not self.flatten):
            return out
        values = X.value[::-1] if self.reverse else X.value
        sums = [*accumulate(values, initial=0)]
        sums = sums[:-1] if self.exclusive else sums[1:]
        return carry(out, sums[::-1] if self.reverse else sums)

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return ShardingRule({"X": (WHOLE,) * X.rank}, {"Out": (WHOLE,)}) if self.flatten else rule_along({"X": X}, ["Out"], (self.axis,))

    def computes(self) -> computations.RunningSum | None:
        return None if self.flatten or self.reverse else computations.RunningSum(self.axis, self.exclusive)

    def _sums(self, x: Tensor, reverse: bool) -> Tensor:
        axis = 0 if self.flatten else self.axis
        x = x.reshape(-1) if self.flatten else x
        out = torch.cumsum(x.flip(axis) if reverse and x.dim() else x, axis, dtype=x.dtype)
        if self.exclusive:
            out = out.roll(1, axis) if x.dim() else torch.zeros_like(out)
            if x.dim() and x.shape[axis]:
                out.narrow(axis, 0, 1).zero_()
        return out.flip(axis) if reverse and x.dim() else out

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return (X.nbytes if self.reverse or self.exclusive else 0) + (copies(strided, X=X) if self.flatten else 0)

    def kernel(self, X: Tensor) -> Tensor:
        return self._sums(X, self.reverse)

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return X.nbytes if self.exclusive or not self.reverse else 0

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return self._sums(d_out, not self.reverse).reshape(X.shape)

    samples = [
        sample(X=f32(2, 5)),
        sample(X=f32(4, 3), axis=0, exclusive=True),
        sample(X=f32(4, 3), axis=1, reverse=True),
        sample(X=f32(4, 3), axis=-2, reverse=True, exclusive=True),
        sample(X=f32(4, 3), flatten=True),
        sample(X=c64(2, 5)),
        sample(X=f32(0, 3)),
        sample(X=f32(0, 3), axis=0, exclusive=True),
        sample(X=i32(5)),
        sample(X=f32()),
    ]
