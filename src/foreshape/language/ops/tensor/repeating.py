"""Repetitions of a tensor, first versions too: expand, expand_as, grids, repeated entries."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size, bounds
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, INDEX, LOD_TENSOR, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import Expansion
from foreshape.language.operator.require import axis_of, fail, require, require_at_most, require_divides, require_equal, unknown_size
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import ShardingRule
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import broadcast_dims, sum_to
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.tensor.expanding import not_tiled, tiled, tiling_rule
from foreshape.machine.process.this_run import require_room


class Expand(Operator):
    """Out = X repeated ``expand_times`` along each axis: tile with a number for each axis, unlike expand_v2."""

    type = "expand"
    sets_dims = ("ExpandTimes", "expand_times_tensor")
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    ExpandTimes = operand(INDEX, optional=True, doc="the times, as a tensor")
    expand_times_tensor = operand(INDEX, many=True, optional=True, doc="the times, as tensors of one number each")
    Out = result(doc="each dim of X times its number")
    expand_times = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, ExpandTimes: Spec | None, expand_times_tensor: tuple[Spec, ...]) -> Spec:
        times = known_sizes(self.expand_times, ExpandTimes, expand_times_tensor, "ExpandTimes", "expand_times_tensor")
        require(len(times) == X.rank, f"expand_times must have a number for each of the {X.rank} dims of X; it has {len(times)}", X=None)
        return tiled(X, times, "expand_times")

    def sharding_rule(self, X: Spec, ExpandTimes: Spec | None, expand_times_tensor: tuple[Spec, ...]) -> ShardingRule | None:
        return tiling_rule(X, known_sizes(self.expand_times, ExpandTimes, expand_times_tensor, "ExpandTimes", "expand_times_tensor"))

    def computes(self) -> Expansion:
        return Expansion()

    def kernel(self, X: Tensor, ExpandTimes: Tensor | None, expand_times_tensor: list[Tensor]) -> Tensor:
        return torch.tile(X, tuple(sizes_at_run(self.expand_times, ExpandTimes, expand_times_tensor)))

    @gradient("X", "ExpandTimes", "expand_times_tensor", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: Tensor, ExpandTimes: Tensor | None, expand_times_tensor: list[Tensor], d_out: Tensor) -> Tensor:
        return not_tiled(X, sizes_at_run(self.expand_times, ExpandTimes, expand_times_tensor), d_out)

    samples = [
        sample(X=f32(2, 3), expand_times=[2, 1]),
        sample(X=f32(2, 3, 4), expand_times=[1, 3, 2]),
        sample(X=f32(0, 3), expand_times=[2, 2]),
        sample(X=f32(2, 3), ExpandTimes=i32(2, data=[1, 3])),
        sample(X=f32(2, 3), expand_times_tensor=[i32(1, data=[2]), i32(1, data=[2])]),
    ]
    rejects = [
        reject(X=f32(2, 3), expand_times=[2], says="a number for each of the 2 dims"),
        reject(X=f32(2, 3), expand_times=[0, 1], says="at least 1"),
    ]


class ExpandAs(Operator):
    """Out = X repeated along each axis to the dims of target_tensor, multiples of its own."""

    type = "expand_as"
    reads_dims = ("target_tensor",)
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    target_tensor = operand(ANY, doc="the tensor of the wanted dims")
    Out = result(doc="the dims of target_tensor")

    def infer_shape(self, X: Spec, target_tensor: Spec) -> Spec:
        require(target_tensor.rank == X.rank, f"target_tensor must have the {X.rank} dims of X; it has {target_tensor.rank}", X=None, target_tensor=None)
        for axis, (d, size) in enumerate(zip(X.known_dims, target_tensor.known_dims, strict=True)):
            if d is not size:
                says = f"a dim of X must divide that of target_tensor; at axis {axis} X has {d}, target_tensor {size}"
                require_divides(d, size, says, X=axis, target_tensor=axis)
        return X.with_dims(target_tensor.known_dims)

    def _times(self, X: Tensor, target_tensor: Tensor) -> tuple[int, ...]:
        return tuple(size // d if d else 1 for d, size in zip(X.shape, target_tensor.shape, strict=True))

    def kernel(self, X: Tensor, target_tensor: Tensor) -> Tensor:
        return torch.tile(X, self._times(X, target_tensor))

    @gradient("X", "target_tensor", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: Tensor, target_tensor: Tensor, d_out: Tensor) -> Tensor:
        return not_tiled(X, self._times(X, target_tensor), d_out)

    samples = [
        sample(X=f32(2, 3), target_tensor=f32(4, 3)),
        sample(X=f32(2, 1, 3), target_tensor=i64(2, 5, 6)),
        sample(X=f32(2, 3), target_tensor=f32(2, 3)),
    ]
    rejects = [
        reject(X=f32(2, 3), target_tensor=f32(3, 3), says="at axis 0 X has 2, target_tensor 3"),
        reject(X=f32(2, 3), target_tensor=f32(3), says="the 2 dims of X"),
    ]


class BroadcastTensors(Operator):
    """Out = the tensors X, each repeated along its dims of 1 until all have the same dims; last dims aligned."""

    type = "broadcast_tensors"
    gradient_reads_dims = ("X",)
    X = operand(ANY_OR_COMPLEX, many=True, doc="tensors of one type, any shapes fit to broadcast")
    Out = result(many=True, view_of="X", layout="strided", doc="as many as X, of one shape")

    def infer_shape(self, X: tuple[Spec, ...]) -> tuple[Spec, ...]:
        _one_type(X)
        dims: Sequence[Size] = X[0].known_dims
        for x in X[1:]:
            dims = broadcast_dims(dims, x.known_dims, -1, ("X", "X"))
        lod = next((x.lod for x in X if x.lod is not None and x.rank == len(dims) and x.known_dims[0] == dims[0]), None)
        return tuple(Spec(LOD_TENSOR, x.dtype, tuple(dims), lod) for x in X)

    def kernel(self, X: list[Tensor]) -> list[Tensor]:
        return aten.broadcast_tensors(X)

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: list[Tensor], d_out: list[Tensor]) -> list[Tensor]:
        return [sum_to(d, x, d, -1) for x, d in zip(X, d_out, strict=True)]

    samples = [
        sample(X=[f32(3, 1), f32(2, 1, 5)]),
        sample(X=[f32(4), f32(), f32(3, 4)]),
        sample(X=[f32(0, 3), f32(1, 3)]),
        sample(X=[i64(2, 1), i64(1, 3)]),
        sample(X=[f32(2, 3)]),
        sample(X=[c64(2, 1), c64(1, 3)]),
    ]
    rejects = [
        reject(X=[f32(3), f32(2)], says="equal or 1"),
        reject(X=[f32(2), i64(2)], says="one element type", error=TypeMismatchError),
    ]


def _one_type(X: tuple[Spec, ...]) -> None:
    for index, x in enumerate(X[1:], 1):
        if x.dtype is not X[0].dtype:
            fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}, X[0] is {X[0].known_dtype.name}", TypeMismatchError, X=None)


class Meshgrid(Operator):
    """Out[k][i, j, ...] = X[k] at the k-th of these indices: the coordinates of a grid over the vectors X. A number counts as a vector of one."""

    type = "meshgrid"
    gradient_reads_dims = ("X",)
    X = operand(many=True, doc="vectors of one type, or numbers")
    Out = result(many=True, view_of="X", layout="strided", doc="as many as X, with a dim for each")

    def infer_shape(self, X: tuple[Spec, ...]) -> tuple[Spec, ...]:
        _one_type(X)
        for index, x in enumerate(X):
            require(x.rank < 2, f"each X must be a vector; X[{index}] has {x.rank} dims", X=None)
        dims = [x.elements for x in X]
        return tuple(Spec(LOD_TENSOR, x.dtype, tuple(dims), X[0].lod) for x in X)

    def kernel(self, X: list[Tensor]) -> list[Tensor]:
        return list(torch.meshgrid(*X, indexing="ij"))

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: list[Tensor], d_out: list[Tensor]) -> list[Tensor]:
        out: list[Tensor] = []
        for index, (x, d) in enumerate(zip(X, d_out, strict=True)):
            axes = [axis for axis in range(d.dim()) if axis != index and d.shape[axis] != 1]
            out.append((d.sum(axes) if axes else d).reshape(x.shape))
        return out

    samples = [
        sample(X=[f32(3), f32(5)]),
        sample(X=[f32(3), f32(5), f32(2)]),
        sample(X=[f32(4)]),
        sample(X=[f32(3), f32()]),
        sample(X=[f32(0), f32(3)]),
        sample(X=[i64(3), i64(2)]),
    ]
    rejects = [
        reject(X=[f32(3), f32(2, 2)], says="X[1] has 2 dims"),
        reject(X=[f32(3), i64(2)], says="one element type", error=TypeMismatchError),
    ]


class RepeatInterleave(Operator):
    """Out = X with each entry of the axis ``dim`` repeated Repeats times, one after the other; RepeatsTensor has a number for each entry."""

    type = "repeat_interleave"
    gradient_reads_dims = ("X",)
    X = operand(doc="at least one dim")
    RepeatsTensor = operand(INDEX, optional=True, doc="[entries]: the times of each")
    Out = result(layout="row", doc="X with the sum of the numbers at dim")
    Repeats = attribute(AttrType.INT, 0, low=0, doc="the times, without a tensor")
    dim = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, RepeatsTensor: Spec | None) -> Spec:
        axis = axis_of(self.dim, X.rank, "dim", X=None)
        dims = list(X.known_dims)
        if RepeatsTensor is None:
            require(self.Repeats > 0, f"Repeats must be at least 1, or a tensor; seen {self.Repeats}", X=None)
            dims[axis] = dims[axis] * self.Repeats
        else:
            says = f"RepeatsTensor must have a number for each entry of axis {axis}"
            require(RepeatsTensor.rank == 1, f"{says}; it has {RepeatsTensor.rank} dims", RepeatsTensor=None)
            require_equal(RepeatsTensor.known_dims[0], dims[axis], says, RepeatsTensor=0, X=axis)
            dims[axis] = self._total(RepeatsTensor)
        return (X if axis or (RepeatsTensor is None and self.Repeats == 1) else X.dense()).with_dims(dims)

    def _total(self, RepeatsTensor: Spec) -> Size:
        repeats = RepeatsTensor.value
        if repeats is None:
            return unknown_size("total")
        total: Size = 0
        for n in repeats:
            low = bounds(n)[0]
            if low is None or (low < 0 and not isinstance(n, int)):
                return unknown_size("total")
            require_at_most(0, n, f"how often an entry is there must be at least 0; seen {n}", RepeatsTensor=None)
            total = total + n
        return total

    def _index(self, X: Tensor, RepeatsTensor: Tensor | None) -> Tensor:
        """Return the entry of X at each place of Out."""
        axis: int = self.dim
        size = X.shape[axis]
        if RepeatsTensor is None:
            return torch.arange(size, device=X.device).unsqueeze(1).expand(size, self.Repeats).reshape(-1)
        if RepeatsTensor.numel() != size or bool((RepeatsTensor < 0).any()):
            raise ExecutionError(f"repeat_interleave: RepeatsTensor must have {size} numbers of at least 0, one for each entry of axis {self.dim}")
        counts = RepeatsTensor.to(torch.int64)
        largest = int(counts.max()) if size else 0
        total = int(counts.sum()) if largest * size < 2**63 else sum(int(n) for n in counts)  # torch's sum wraps past 64 bits
        entry = X.numel() // size * X.element_size() if size else 0
        require_room(self.type, total * (entry + 8), f"a result of {total:,} entries")
        if total >= 2**63:
            raise ExecutionError(f"repeat_interleave: {total:,} entries are more than 64 bits count")
        return torch.repeat_interleave(counts)

    def kernel(self, X: Tensor, RepeatsTensor: Tensor | None) -> Tensor:
        return X.index_select(self.dim, self._index(X, RepeatsTensor))

    def workspace(self, X: Spec, RepeatsTensor: Spec | None, *, strided: frozenset[str]) -> Size:
        axis = axis_of(self.dim, X.rank, "dim")
        if RepeatsTensor is None:
            return copies(strided, X=X) + 16 * self.Repeats * X.known_dims[axis]
        return copies(strided, X=X) + 24 * X.known_dims[axis]  # and 8 bytes for each entry of Out, unknown from the operands' dims

    def _gradient_workspace(self, X: Spec, RepeatsTensor: Spec | None, d_out: Spec, *, strided: frozenset[str]) -> Size:
        axis = axis_of(self.dim, X.rank, "dim")
        return copies(strided, Out_GRAD=d_out) + 16 * d_out.known_dims[axis] + 24 * X.known_dims[axis]

    @gradient("X", "RepeatsTensor", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, RepeatsTensor: Tensor | None, d_out: Tensor) -> Tensor:
        return d_out.new_zeros(X.shape).index_add_(self.dim, self._index(X, RepeatsTensor), d_out)

    samples = [
        sample(X=f32(2, 3), Repeats=2),
        sample(X=f32(2, 3, 4), Repeats=3, dim=-2),
        sample(X=f32(0, 3), Repeats=2, dim=1),
        sample(X=f32(3, 2), RepeatsTensor=i64(3, data=[2, 0, 3])),
        sample(X=f32(2, 3), RepeatsTensor=i32(3, low=0, high=2), dim=1),
        sample(X=b1(4), Repeats=1),
    ]
    rejects = [
        reject(X=f32(2, 3), says="Repeats must be at least 1"),
        reject(X=f32(2, 3), RepeatsTensor=i64(4), says="a number for each entry of axis 0"),
        reject(X=f32(2, 3), RepeatsTensor=i64(2, data=[1, -1]), says="at least 0; seen -1"),
    ]
