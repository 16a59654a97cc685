"""Elements by their rank: the k-th smallest, the most frequent, the median, the place of a number in a sorted row."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP32, FP64, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import OWN, ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal
from foreshape.language.operator.samples import f32, f64, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.reduction import reduced
from foreshape.language.ops.rules.broadcast import broadcast_lod
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import axes_of, axis_of_any
from foreshape.machine.kernels.onednn import thread_count

_NUMBERS = (FP32, FP64, INT32, INT64)
_NAN = float("nan")


class Picked(Operator):
    """The base of operators with one picked element along ``axis``, and its place."""

    abstract = True
    X = operand((*FLOATING, INT32, INT64), doc="any shape")
    Out = result(doc="X without axis (with 1 there if keepdim)")
    Indices = result(doc="as Out, int64")
    axis = attribute(AttrType.INT, -1)
    keepdim = attribute(AttrType.BOOLEAN, False)

    def _picked(self, X: Spec) -> tuple[Spec, Spec]:
        axis = axis_of_any(self.axis, X.rank, X=None)
        if X.rank:
            require_at_most(1, X.known_dims[axis], f"there must be an element: the dim at axis {axis} must be at least 1", X=axis)
        out = reduced(X, (axis,), self.keepdim)
        return out, out.with_dtype(INT64)

    @gradient("X", "Indices", "Out@GRAD", gives="X@GRAD", layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Indices: Tensor, d_out: Tensor) -> Tensor:
        if not X.dim():
            return d_out.reshape(X.shape).clone()
        index, d = (Indices, d_out) if self.keepdim else (Indices.unsqueeze(self.axis), d_out.unsqueeze(self.axis))
        return d_out.new_zeros(X.shape).scatter_(self.axis, index, d)


class Kthvalue(Picked):
    """Out = the ``k``-th smallest element along ``axis``, NaN last; Indices = its place, of equal ones any."""

    type = "kthvalue"
    gradient_reads_dims = ("X",)
    k = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        out = self._picked(X)
        axis = axis_of_any(self.axis, X.rank, X=None)
        size = X.known_dims[axis] if X.rank else 1
        require_at_most(self.k, size, f"k must be at most the dim at axis {axis}, {size}; seen {self.k}", X=axis if X.rank else None)
        return out

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 8 * X.elements

    def kernel(self, X: Tensor) -> Any:
        return tuple(torch.kthvalue(X, self.k, self.axis, self.keepdim))

    samples = [
        sample(X=f32(2, 5, distinct=True), k=2),
        sample(X=f32(4, 3, distinct=True), k=3, axis=0, keepdim=True),
        sample(X=f32(2, 3, 5, distinct=True), k=2, axis=1),
        sample(X=f32()),
        sample(X=f32(0, 3), k=3),
        sample(X=i64(2, 5, high=99), k=4),
    ]
    rejects = [
        reject(X=f32(2, 5), k=6, says="k must be at most the dim at axis 1, 5"),
        reject(X=f32(0, 3), axis=0, says="at least 1"),
        reject(X=f32(), k=2, says="k must be at most"),
    ]


class MedianOfAxis(Picked):
    """Out = the median along ``axis``, of an even number of elements the lower of the middle ones; Indices = its place, of equal ones any, as in torch.median.

    It is NaN if an element is, and Indices then the first one's place. With ``ignore_nan`` the others count, and it is NaN if there are none.
    """

    type = "median_of_axis"
    since = OWN
    gradient_reads_dims = ("X",)
    ignore_nan = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        return self._picked(X)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 16 * X.elements

    def kernel(self, X: Tensor) -> Any:
        return tuple((torch.nanmedian if self.ignore_nan else torch.median)(X, self.axis, self.keepdim))

    samples = [
        sample(X=f32(2, 5, distinct=True)),
        sample(X=f32(4, 3, distinct=True), axis=0, keepdim=True),
        sample(X=f32(2, 3, 4, distinct=True), axis=1, ignore_nan=True),
        sample(X=f32(3, 3, data=[[1.0, _NAN, 4.0], [_NAN, 2.0, _NAN], [3.0, 2.0, 1.0]]), differentiate=False),
        sample(X=f32(3, 3, data=[[1.0, _NAN, 4.0], [_NAN, 2.0, _NAN], [3.0, 2.0, 1.0]]), ignore_nan=True, differentiate=False),
        *(sample(X=f32()), sample(X=f32(0, 3)), sample(X=i64(2, 5, high=99, distinct=True))),
    ]
    rejects = [reject(X=f32(0, 3), axis=0, says="at least 1")]


class Mode(Picked):
    """Out = the most frequent element along ``axis``, of several the smallest; Indices = its last place. NaN equals nothing."""

    type = "mode"

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        return self._picked(X)

    def workspace(self, X: Spec) -> Size:
        axis = axis_of_any(self.axis, X.rank, X=None)
        return 2 * X.nbytes + 50 * X.elements + 8 * reduced(X, (axis,), True).elements + (16 * thread_count() * X.known_dims[axis] if X.rank else 0)

    def kernel(self, X: Tensor) -> Any:
        if not X.dim():
            return X.clone(), torch.zeros((), dtype=torch.int64, device=X.device)
        values, places = torch.sort(X.movedim(self.axis, -1), stable=True, dim=-1)
        positions = torch.arange(values.shape[-1], device=X.device)
        again = torch.zeros_like(values, dtype=torch.bool)
        torch.eq(values[..., 1:], values[..., :-1], out=again[..., 1:])
        repeats = positions - torch.cummax(torch.where(again, 0, positions), -1).values  # the number of equal ones before each
        best = repeats.argmax(-1, keepdim=True)
        out, indices = values.gather(-1, best), places.gather(-1, best)
        if self.keepdim:
            return out.movedim(-1, self.axis).contiguous(), indices.movedim(-1, self.axis).contiguous()
        return out.squeeze(-1), indices.squeeze(-1)

    samples = [
        sample(X=f32(2, 5, data=[[1.0, 2.0, 2.0, 3.0, 3.0], [5.0, 4.0, 4.0, 5.0, 1.0]]), differentiate=False),
        sample(X=f32(4, 3, distinct=True), axis=0, keepdim=True),
        sample(X=f32(2, 3, 5, distinct=True), axis=1),
        sample(X=i64(2, 7, high=2)),
        sample(X=f32()),
        sample(X=f32(0, 3)),
    ]
    rejects = [reject(X=f32(0, 3), axis=0, says="at least 1")]


class Medians(Operator):
    """The base of the medians: of the elements over ``axis``, all axes if it is empty, and of the places of the middle ones among these."""

    abstract = True
    axis = attribute(AttrType.INTS, [])
    keepdim = attribute(AttrType.BOOLEAN, True)
    mode = attribute(AttrType.STRING, "avg", since=3, choices=("avg", "min"), doc="of an even number of elements the mean of the middle ones, or the lower")
    _skips_nan = False

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(axes_of(self.axis, rank, "axis", **{self.schema.operands[0].name: None}))) if self.axis else tuple(range(rank))

    def _places(self) -> int:
        """Return the number of places for each median."""
        return 2 if self.mode == "avg" else 1

    def _median(self, x: Spec) -> Spec:
        axes, slot = self._axes(x.rank), self.schema.operands[0].name
        for axis in axes[: x.rank]:
            require_at_most(1, x.known_dims[axis], f"a median needs an element: the dim at axis {axis} must be at least 1", **{slot: axis})
        return reduced(x, axes, self.keepdim)

    def _rows(self, x: Tensor) -> Tensor:
        """Return the elements of each median, as a row."""
        axes = self._axes(x.dim())[: x.dim()]
        remaining = [k for k in range(x.dim()) if k not in axes]
        sizes = [x.shape[k] for k in axes]
        count = 1
        for size in sizes:
            count *= size
        return x.permute([*remaining, *axes]).reshape(-1, count)

    def workspace(self, *specs: Spec) -> Size:
        x = specs[0]
        return 3 * x.nbytes + 9 * x.elements + 100 * self._median(x).elements + 16 * thread_count() * x.elements

    def _medians(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the medians, and the places of each as a row."""
        rows = self._rows(x)
        values, places = torch.sort(rows, stable=True, dim=1)
        count = (values == values).sum(1, keepdim=True)  # NaN, equal to nothing, is sorted to the end
        ends = [(count - 1).clamp_(min=0), torch.where(count > 0, count, 0)][: self._places()]
        if not self._skips_nan:  # the first NaN is the median
            ends = [torch.where(count < rows.shape[1], 2 * count, end) for end in ends]
        middle = torch.cat(ends, 1).div_(2, rounding_mode="floor")
        near = values.gather(1, middle)
        out = low = near[:, 0]
        if self.mode == "avg":
            mean = (low + near[:, 1]) / 2 if x.dtype.is_floating_point else torch.div(low + near[:, 1], 2, rounding_mode="trunc")
            out = torch.where(middle[:, 0] == middle[:, 1], low, mean)
        indices = places.gather(1, middle)
        if self._skips_nan:
            indices.masked_fill_(count == 0, -1)
        dims = [1 if k in self._axes(x.dim()) else d for k, d in enumerate(x.shape) if self.keepdim or k not in self._axes(x.dim())]
        return out.reshape(dims), indices

    def _gradient_specs(self, x: Spec, places: Spec, d_out: Spec) -> Spec:
        out = Medians._median(self, x)
        places_name, gradient_name = (o.name for o in self.schema.operands[1:])
        check_made(**{gradient_name.replace("@", "_"): (d_out, out)})
        count = Medians._places(self)
        require_at_most(count * out.elements, places.elements, f"{places_name} must have {count} places for each median", **{places_name: None})
        return x.like()

    def _gradient_workspace(self, x: Spec, places: Spec, d_out: Spec) -> Size:
        return 3 * x.nbytes + 2 * places.nbytes + 4 * d_out.nbytes

    def _put_back(self, x: Tensor, places: Tensor, d_out: Tensor) -> Tensor:
        """Return the gradient, alike to the places of each median."""
        rows, count = torch.zeros_like(self._rows(x)), self._places()
        index = places.reshape(-1)[: count * rows.shape[0]].reshape(-1, count)
        part = (d_out.reshape(-1, 1) / count).masked_fill(index < 0, 0.0)
        rows.scatter_add_(1, index.clamp(min=0), part)
        axes = self._axes(x.dim())[: x.dim()]
        order = [*(k for k in range(x.dim()) if k not in axes), *axes]
        back = sorted(range(x.dim()), key=order.__getitem__)
        return rows.reshape([x.shape[k] for k in order]).permute(back).contiguous()


class Nanmedian(Medians):
    """Out = the median over ``axis`` (all axes if empty) of the elements other than NaN; NaN if there are none.

    For an even number of elements it is by ``mode`` the mean of the two in the middle, for integers without its fraction, or the lower one. MedianIndex has
    for each median the places of these two among its elements, or of the lower one. The two are equal for an odd number, and -1 if all are NaN. The
    gradient goes to both alike.
    """

    type = "nanmedian"
    X = operand(_NUMBERS, doc="any shape")
    Out = result(doc="X without the axes (with 1 there if keepdim)")
    MedianIndex = result(doc="[2 * medians], int64; with mode min as Out")
    _skips_nan = True

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        out = self._median(X)
        return out, out.with_dtype(INT64) if self.mode == "min" else out.dense((2 * out.elements,), INT64)

    def kernel(self, X: Tensor) -> Any:
        out, places = self._medians(X)
        return out, places.reshape(out.shape) if self.mode == "min" else places.reshape(-1)

    @gradient("X", "MedianIndex", "Out@GRAD", gives="X@GRAD", infer=Medians._gradient_specs, workspace=Medians._gradient_workspace)
    def backward(self, X: Tensor, MedianIndex: Tensor, d_out: Tensor) -> Tensor:
        return self._put_back(X, MedianIndex, d_out)

    samples = [
        sample(X=f32(2, 5, distinct=True)),
        sample(X=f32(3, 4, distinct=True), axis=[1], keepdim=False),
        sample(X=f32(2, 3, 4, distinct=True), axis=[0, -1], keepdim=False),
        sample(X=f32(2, 3, 4, distinct=True), axis=[2, 0]),
        sample(X=f32(3, 3, data=[[1.0, _NAN, 4.0], [_NAN, _NAN, _NAN], [_NAN, 2.0, _NAN]]), axis=[1], keepdim=False, differentiate=False),
        sample(X=f32(), keepdim=False),
        sample(X=f32(0, 3), axis=[1]),
        sample(X=i64(3, 4, low=-9), axis=[1]),
        sample(X=i32(5), keepdim=False),
        sample(X=f32(3, 4, distinct=True), axis=[1], mode="min"),
        sample(X=f32(2, 4, data=[[1.0, _NAN, 4.0, 2.0], [_NAN] * 4]), axis=[1], keepdim=False, mode="min", differentiate=False),
    ]
    rejects = [reject(X=f32(0, 3), axis=[0], says="at least 1")]


class Median(Medians):
    """out = the median over ``axis`` (all axes if empty), NaN if any of the elements is.

    For an even number of elements it is by ``mode`` the mean of the two in the middle, for integers without its fraction, or the lower one. medians has
    the places of these two among the elements, or of the lower one; of a NaN the first one's. The gradient goes to both alike.
    """

    type = "median"
    since = 3
    x = operand(_NUMBERS, doc="any shape")
    out = result(doc="x without the axes (with 1 there if keepdim)")
    medians = result(doc="[*out, 2], int64; with mode min as out")

    def infer_shape(self, x: Spec) -> tuple[Spec, Spec]:
        out = self._median(x)
        return out, (out if self.mode == "min" else out.with_dims((*out.known_dims, 2)) if out.rank else out.dense((2,))).with_dtype(INT64)

    def kernel(self, x: Tensor) -> Any:
        out, places = self._medians(x)
        return out, places.reshape(out.shape if self.mode == "min" else (*out.shape, 2))

    @gradient("x", "medians", "out@GRAD", gives="x@GRAD", infer=Medians._gradient_specs, workspace=Medians._gradient_workspace)
    def backward(self, x: Tensor, medians: Tensor, d_out: Tensor) -> Tensor:
        return self._put_back(x, medians, d_out)

    samples = [
        sample(x=f32(2, 5, distinct=True)),
        sample(x=f32(3, 4, distinct=True), axis=[1], keepdim=False),
        sample(x=f32(3, 4, distinct=True), axis=[1], keepdim=False, mode="min"),
        sample(x=f32(2, 3, 4, distinct=True), axis=[0, -1], keepdim=False),
        sample(x=f32(2, 3, 4, distinct=True), axis=[2, 0], mode="min"),
        sample(x=f32(3, 3, data=[[1.0, _NAN, 4.0], [_NAN, _NAN, _NAN], [3.0, 2.0, 1.0]]), axis=[1], keepdim=False, differentiate=False),
        *(sample(x=f32(), keepdim=False), sample(x=f32(0, 3), axis=[1]), sample(x=i64(3, 4, low=-9), axis=[1]), sample(x=i32(5), mode="min")),
    ]
    rejects = [reject(x=f32(0, 3), axis=[0], says="at least 1")]


class Searchsorted(Operator):
    """Out = the count of numbers in the rising row SortedSequence below each of Values; with ``right`` below or equal.

    A SortedSequence of more dims has a row for each row of Values. Both are compared in the wider of their element types.
    """

    type = "searchsorted"
    SortedSequence = operand(_NUMBERS, doc="[n], or [..., n]")
    Values = operand(_NUMBERS, doc="any shape, or [..., m]")
    Out = result(layout="row", doc="as Values, int64 or int32")
    out_int32 = attribute(AttrType.BOOLEAN, False)
    right = attribute(AttrType.BOOLEAN, False)
    gradient = ZERO_GRADIENT

    def infer_shape(self, SortedSequence: Spec, Values: Spec) -> Spec:
        sorted_dims, dims = SortedSequence.known_dims, Values.known_dims
        require(len(sorted_dims) > 0, "SortedSequence must have at least one dim", SortedSequence=None)
        if len(sorted_dims) > 1:
            requirement = "a SortedSequence of more than one dim must have the dims of Values but the last"
            require(len(sorted_dims) == len(dims), requirement, SortedSequence=None, Values=None)
            for axis in range(len(sorted_dims) - 1):
                require_equal(sorted_dims[axis], dims[axis], requirement, SortedSequence=axis, Values=axis)
        lod = broadcast_lod(Values, SortedSequence, dims) if len(sorted_dims) > 1 else Values.lod
        return Spec(Values.kind, INT32 if self.out_int32 else INT64, dims, lod)

    def workspace(self, SortedSequence: Spec, Values: Spec, *, strided: frozenset[str]) -> Size:
        if SortedSequence.dtype is Values.dtype:
            return copies(strided, SortedSequence=SortedSequence, Values=Values)
        return 16 * (SortedSequence.elements + Values.elements)

    def kernel(self, SortedSequence: Tensor, Values: Tensor) -> Tensor:
        common = torch.promote_types(SortedSequence.dtype, Values.dtype)
        return torch.searchsorted(SortedSequence.to(common).contiguous(), Values.to(common).contiguous(), right=self.right, out_int32=self.out_int32)

    samples = [
        sample(SortedSequence=f32(5, data=[-1.0, 0.5, 0.5, 1.0, 2.0]), Values=f32(2, 3)),
        sample(SortedSequence=f32(2, 3, data=[[-1.0, 0.5, 1.0], [-2.0, 0.0, 0.5]]), Values=f32(2, 4), right=True, out_int32=True),
        sample(SortedSequence=i64(4, data=[1, 2, 2, 3]), Values=i64(5, data=[0, 2, 3, 9, -1]), right=True),
        sample(SortedSequence=f32(3, data=[-1.0, 0.5, 1.0]), Values=f64(2)),
        sample(SortedSequence=i32(3, data=[1, 2, 3]), Values=f32()),
        sample(SortedSequence=f32(0), Values=f32(2)),
        sample(SortedSequence=f32(3, data=[-1.0, 0.5, 1.0]), Values=f32(0, 3)),
    ]
    rejects = [
        reject(SortedSequence=f32(), Values=f32(2), says="at least one dim"),
        reject(SortedSequence=f32(2, 3), Values=f32(4, 3), says="the dims of Values but the last"),
        reject(SortedSequence=f32(2, 3), Values=f32(2), says="the dims of Values but the last"),
    ]
