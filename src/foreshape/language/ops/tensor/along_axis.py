"""Elements picked and put along an axis, by an index for each place: index_sample, take_along_axis, put_along_axis."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, maximum
from foreshape.core.spec import ANY, INDEX, NUMERIC, Spec
from foreshape.core.values.late_checks import limited
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import axis_of, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, turned, widened
from foreshape.language.ops.rules.known_values import carry
from foreshape.language.ops.tensor.gathering import check_index, entries_at, from_front, placed


class IndexSample(Operator):
    """Out[i, j] = X[i, Index[i, j]]: from each row the elements named by its row of Index."""

    type = "index_sample"
    examples = ("X", "Index")
    gradient_reads_dims = ("X",)
    X = operand(doc="[rows, columns]")
    Index = operand(INDEX, doc="[rows, n]")
    Out = result(layout="row", doc="[rows, n]")

    def infer_shape(self, X: Spec, Index: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(2, Index, "Index")
        rows = require_equal(X.known_dims[0], Index.known_dims[0], "Index must have as many rows as X", X=0, Index=0)
        return (X if X.known_dims[0] == rows else X.dense()).with_dims((rows, Index.known_dims[1]))

    def kernel(self, X: Tensor, Index: Tensor) -> Tensor:
        return X.gather(1, check_index(Index, X.shape[1], "an index").long().contiguous())

    def workspace(self, X: Spec, Index: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * (widened(Index) + copies(strided, Index=Index))

    def _gradient_workspace(self, X: Spec, Index: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return widened(Index) + copies(strided, Index=Index, Out_GRAD=d_out)

    @gradient("X", "Index", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Index: Tensor, d_out: Tensor) -> Tensor:
        return d_out.new_zeros(X.shape).scatter_add_(1, limited(Index.long(), X.shape[1]), d_out)

    samples = [
        sample(X=f32(3, 5), Index=i64(3, 2, high=4)),
        sample(X=f32(3, 2), Index=i32(3, 4, high=1)),
        sample(X=f32(0, 5), Index=i64(0, 2)),
        sample(X=i64(2, 3), Index=i64(2, 0)),
    ]


class AlongAxis(Operator):
    """The base of take_along_axis and put_along_axis."""

    abstract = True
    works_along = "Axis"
    Input = operand(doc="at least one dim")
    Index = operand(INDEX, doc="as Input, any size at Axis; a negative number counts from the back")
    Axis = attribute(AttrType.INT)

    def _axis(self, Input: Spec, Index: Spec) -> int:
        axis = axis_of(self.Axis, Input.rank, "Axis", Input=None)
        require_rank(Input.rank, Index, "Index")
        for k, (a, b) in enumerate(zip(Input.known_dims, Index.known_dims, strict=True)):
            if k != axis:
                require_equal(a, b, f"Index must have the dims of Input but at axis {axis}", Input=k, Index=k)
        return axis

    def _counted(self, Index: Spec) -> Size:
        """Return the bytes of an index counted from the front: another one if a number is negative."""
        return widened(Index) + 8 * Index.elements

    def _places(self, Input: Tensor, Index: Tensor) -> Tensor:
        """Return Index counted from the front."""
        axis: int = self.Axis
        return from_front(Index.long(), Input.shape[axis])


class TakeAlongAxis(AlongAxis):
    """Result[i, j, k] = Input[i, Index[i, j, k], k], for Axis 1 of three: for each place a place along the axis.

    PaddlePaddle 2.6 supports neither a negative Axis nor a negative Index, and then reads out of bounds.
    """

    type = "take_along_axis"
    gradient_reads_dims = ("Input",)
    Result = result(layout="row", doc="the dims of Index")

    def infer_shape(self, Input: Spec, Index: Spec) -> Spec:
        axis = self._axis(Input, Index)
        out = (Input if axis else Input.dense()).with_dims((*Input.known_dims[:axis], Index.known_dims[axis], *Input.known_dims[axis + 1 :]))
        return out if Input.value is None or Index.value is None or Input.rank > 1 else carry(out, entries_at(Input, 0, Index))

    def computes(self) -> computations.PickingAlong:
        return computations.PickingAlong(self.Axis)

    def kernel(self, Input: Tensor, Index: Tensor) -> Tensor:
        return Input.gather(self.Axis, self._places(Input, Index).contiguous())

    def workspace(self, Input: Spec, Index: Spec, *, strided: frozenset[str]) -> Size:
        return self._counted(Index) + copies(strided, Index=Index)

    def _gradient_workspace(self, Input: Spec, Index: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._counted(Index) + copies(strided, Index=Index, Result_GRAD=d_out)

    @gradient("Input", "Index", "Result@GRAD", gives="Input@GRAD", workspace=_gradient_workspace, layout={"Input@GRAD": "row"})
    def backward(self, Input: Tensor, Index: Tensor, d_out: Tensor) -> Tensor:
        return d_out.new_zeros(Input.shape).scatter_add_(self.Axis, self._places(Input, Index), d_out)

    samples = [
        sample(Input=f32(3, 5), Index=i64(3, 2, high=4), Axis=1),
        sample(Input=f32(2, 5, 3), Index=i32(2, 7, 3, low=-5, high=4), Axis=-2),
        sample(Input=f32(4, 3), Index=i64(2, 3, high=3), Axis=0),
        sample(Input=f32(0, 3), Index=i64(0, 3), Axis=1),
        sample(Input=i64(4), Index=i64(0), Axis=0),
    ]
    rejects = [
        reject(Input=f32(3, 5), Index=i64(2, 5), Axis=1, says="the dims of Input but at axis 1"),
        reject(Input=f32(3, 5), Index=i64(3), Axis=0, says="Index must have 2 dims"),
    ]


REDUCTIONS = {"add": "sum", "sum": "sum", "mul": "prod", "multiply": "prod", "mean": "mean", "amin": "amin", "amax": "amax"}
"""The runtime's names of ``Reduce``, without "assign"."""


def _last_of_each(like: Tensor, axis: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each element of ``like`` the last place naming it in ``index`` along the axis, and the count of each place.

    Places are counted from 1; 0 is none.
    """
    numbers = torch.ones_like(index).cumsum(axis)
    return index.new_zeros(like.shape).scatter_reduce_(axis, index, numbers, "amax", include_self=True), numbers


class PutAlongAxis(AlongAxis):
    """Result = Input with Result[i, Index[i, j, k], k] = Value[i, j, k], for Axis 1 of three.

    ``Reduce``: "assign" replaces (of several values for one place the last is kept), "add" adds, "mul" or "multiply" multiplies. Further, "mean", "amin" and
    "amax" take the mean, the least and the largest, of the values and, if ``Include_self``, of the old element.
    """

    type = "put_along_axis"
    Input = operand(NUMERIC, doc="at least one dim")
    Value = operand(ANY, same_type_as="Input", doc="as Index")
    Result = result(layout="row", doc="as Input")
    Reduce = attribute(AttrType.STRING, "assign", choices=("assign", *REDUCTIONS))
    Include_self = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, Input: Spec, Index: Spec, Value: Spec) -> Spec:
        self._axis(Input, Index)
        require_rank(Index.rank, Value, "Value")
        for k, (a, b) in enumerate(zip(Index.known_dims, Value.known_dims, strict=True)):
            require_equal(a, b, "Value must have the dims of Index", Index=k, Value=k)
        if Input.value is None or Index.value is None or Value.value is None or Input.rank > 1 or self.Reduce != "assign":
            return Input.like()
        return carry(Input, placed(Input.value, Index.value, Value.value))

    def kernel(self, Input: Tensor, Index: Tensor, Value: Tensor) -> Tensor:
        index = self._places(Input, Index)
        if self.Reduce == "assign" and Input.device.type != "cpu" and index.numel():
            last, _ = _last_of_each(Input, self.Axis, index)
            return torch.where(last > 0, Value.gather(self.Axis, (last - 1).clamp_(min=0)), Input).contiguous()
        out = Input.clone(memory_format=torch.contiguous_format)
        if self.Reduce == "assign":
            return out.scatter_(self.Axis, index, Value)
        return out.scatter_reduce_(self.Axis, index, Value, REDUCTIONS[self.Reduce], include_self=self.Include_self)

    def workspace(self, Input: Spec, Index: Spec, Value: Spec, *, strided: frozenset[str]) -> Size:
        counts = Value.nbytes + Input.nbytes + 8 * Input.elements if self.Reduce == "mean" else 0
        return self._counted(Index) + maximum(copies(strided, Index=Index), turned(strided, Input=Input) + counts)

    def _gradient_workspace(self, Input: Spec, Index: Spec, Value: Spec, Result: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        how = REDUCTIONS.get(self.Reduce, "assign")
        if how == "sum":
            return self._counted(Index)
        if how == "mean":  # the counts
            return self._counted(Index) + Input.nbytes + copies(strided, Result_GRAD=d_out)
        if how == "assign":  # the count of each place, twice while it is summed up, or the places of the last ones
            return self._counted(Index) + 8 * Index.elements + maximum(8 * Index.elements, 8 * Input.elements + 9 * Index.elements)
        return self._counted(Index) + 4 * Value.nbytes + 5 * Input.nbytes + 8 * (Index.elements + Input.elements)

    _given, _made = ("Input", "Index", "Value", "Result", "Result@GRAD"), ("Input@GRAD", "Value@GRAD")

    @gradient(*_given, gives=_made, workspace=_gradient_workspace, layout={"Input@GRAD": "row", "Value@GRAD": "row"})
    def backward(self, Input: Tensor, Index: Tensor, Value: Tensor, Result: Tensor, d_out: Tensor) -> Any:
        axis: int = self.Axis
        index = self._places(Input, Index)
        how = REDUCTIONS.get(self.Reduce, "assign")
        if how in ("assign", "sum"):
            d_input, d_value = d_out.clone(memory_format=torch.contiguous_format), d_out.gather(axis, index)
            if how == "assign":  # of several values for one place, the last is there
                last, counts = _last_of_each(d_out, axis, index)
                d_value.masked_fill_(last.gather(axis, index) != counts, 0.0)
        elif how == "mean":
            count = torch.full_like(Result, float(self.Include_self)).scatter_add_(axis, index, torch.ones_like(Value)).clamp_(min=1)
            d_input = d_out / count
            d_value = d_input.gather(axis, index)
        elif how == "prod":
            d_input, d_value = self._of_product(Input, index, Value, d_out)
        else:  # an extreme: shared by all elements equal to it
            winners = (Input == Result).to(d_out.dtype)
            if not self.Include_self:
                winners.scatter_(axis, index, 0.0)
            among = (Value == Result.gather(axis, index)).to(d_out.dtype)
            share = d_out / winners.scatter_add(axis, index, among)
            d_input = torch.where(winners > 0, share, 0.0)
            d_value = torch.where(among > 0, share.gather(axis, index), 0.0)
        if how == "assign" or not self.Include_self:
            d_input.scatter_(axis, index, 0.0)
        return d_input.contiguous(), d_value.contiguous()

    def _of_product(self, Input: Tensor, index: Tensor, Value: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the factors: each is the product of the others, without a division, since a factor may be 0."""
        axis = self.Axis
        base = Input if self.Include_self else Input.scatter(axis, index, 1.0)
        factors = torch.ones_like(Input).scatter_reduce_(axis, index, Value, "prod", include_self=True)
        zeros = torch.zeros_like(Input).scatter_add_(axis, index, (Value == 0).to(Input.dtype))
        nonzero = torch.ones_like(Input).scatter_reduce_(axis, index, torch.where(Value == 0, 1.0, Value).to(Value.dtype), "prod", include_self=True)
        zeros_here, others_here = zeros.gather(axis, index), nonzero.gather(axis, index)
        remaining = torch.where(Value == 0, torch.where(zeros_here == 1, others_here, 0.0), torch.where(zeros_here == 0, others_here / Value, 0.0))
        return (d_out * factors).contiguous(), (d_out * base).gather(axis, index) * remaining

    samples = [
        sample(Input=f32(3, 5), Index=i64(3, 2, data=[[0, 4], [1, 0], [3, 2]]), Value=f32(3, 2), Axis=1),
        sample(Input=f32(3, 5), Index=i64(3, 4, data=[[1, 1, 2, 0], [0, 0, 0, 0], [4, 3, 4, 3]]), Value=f32(3, 4), Axis=1),
        sample(Input=f32(3, 5), Index=i32(3, 2, low=-5, high=4), Value=f32(3, 2), Axis=-1, Reduce="add"),
        sample(Input=f32(4, 3), Index=i64(6, 3, high=3), Value=f32(6, 3), Axis=0, Reduce="add", Include_self=False),
        sample(Input=f32(4, 3), Index=i64(6, 3, high=3), Value=f32(6, 3), Axis=0, Reduce="multiply"),
        sample(Input=f32(4, 3), Index=i64(6, 3, high=3), Value=f32(6, 3), Axis=0, Reduce="mul", Include_self=False),
        sample(Input=f32(4, 3), Index=i64(6, 3, high=3), Value=f32(6, 3), Axis=0, Reduce="mean"),
        sample(Input=f32(4, 3), Index=i64(6, 3, high=3), Value=f32(6, 3), Axis=0, Reduce="mean", Include_self=False),
        sample(Input=f32(4, 3, distinct=True), Index=i64(6, 3, high=3), Value=f32(6, 3, distinct=True), Axis=0, Reduce="amax"),
        sample(Input=f32(4, 3, distinct=True), Index=i64(6, 3, high=3), Value=f32(6, 3, distinct=True), Axis=0, Reduce="amin", Include_self=False),
        sample(Input=f32(0, 3), Index=i64(0, 2, high=2), Value=f32(0, 2), Axis=1),
        sample(Input=i64(4), Index=i64(2, data=[3, 1]), Value=i64(2), Axis=0),
    ]
    rejects = [reject(Input=f32(3, 5), Index=i64(2, 5), Value=f32(2, 5), Axis=1, says="the dims of Input but at axis 1")]
