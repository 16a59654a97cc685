"""The first versions of reshape, transpose, flatten, squeeze and unsqueeze, as in files of PaddlePaddle 1.

They compute the same as the second versions and have no ``XShape``: their gradients take the dims of X from X itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size
from foreshape.core.spec import INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require_equal
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import turned
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.tensor.reshaping import Transpose2, as_matrix, flattened, in_shape, inverse, reshaped, squeezed, transposed, unsqueezed, with_ones


class FirstReshaping(Operator):
    """The base of operators with every element kept at its place in row-major order."""

    abstract = True
    X = operand(doc="any shape")
    Out = result(view_of="X", layout="reshaped", doc="the same elements")
    gradient_reads_dims = ("X",)

    def _in(self, X: Spec, dims: Sequence[Size]) -> Spec:
        return X.with_dims(dims).with_value(X.value)

    def _input_spec(self, X: Spec, d_out: Spec) -> Spec:
        require_equal(d_out.elements, X.elements, "Out@GRAD must have as many elements as X", **{"Out@GRAD": None, "X": None})
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, Out_GRAD=d_out)

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_input_spec, view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(X.shape)


class Reshape(FirstReshaping):
    """Out = the elements of X in row-major order, in the dims ``shape``: reshape2 without XShape."""

    type = "reshape"
    Shape = operand(INDEX, optional=True, doc="the shape, as a tensor")
    ShapeTensor = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    shape = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, Shape: Spec | None, ShapeTensor: tuple[Spec, ...]) -> Spec:
        return self._in(X, reshaped(X.known_dims, known_sizes(self.shape, Shape, ShapeTensor, "Shape", "ShapeTensor")))

    def workspace(self, X: Spec, Shape: Spec | None, ShapeTensor: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        return turned(strided, X=X)

    def kernel(self, X: Tensor, Shape: Tensor | None, ShapeTensor: list[Tensor]) -> Tensor:
        return in_shape(X, sizes_at_run(self.shape, Shape, ShapeTensor))

    samples = [
        sample(X=f32(2, 3, 4), shape=[6, 4]),
        sample(X=f32(2, 3, 4), shape=[0, -1]),
        sample(X=f32(0, 3, 4), shape=[0, -1]),
        sample(X=f32(2, 6), shape=[1], Shape=i64(3, data=[3, 2, 2])),
        sample(X=f32(2, 6), shape=[1], ShapeTensor=[i32(1, data=[4]), i32(1, data=[-1])]),
        sample(X=i64(2, 3, data=[1, 2, 3, 4, 5, 6]), shape=[3, 2]),
    ]
    rejects = [reject(X=f32(2, 3), shape=[4, 2], says="X has 6 elements"), reject(X=f32(2, 3), shape=[-1, -1], says="at most one -1")]


class Flatten(FirstReshaping):
    """Out = X as a matrix: the dims before ``axis`` are its rows, the others its columns. flatten2 without XShape."""

    type = "flatten"
    axis = attribute(AttrType.INT, 1)

    def infer_shape(self, X: Spec) -> Spec:
        return self._in(X, flattened(X.known_dims, self.axis))

    def kernel(self, X: Tensor) -> Tensor:
        return as_matrix(X, self.axis)

    samples = [sample(X=f32(2, 3, 4)), sample(X=f32(2, 3, 4), axis=0), sample(X=f32(0, 3, 4), axis=2), sample(X=f32(2, 3, 4), axis=3)]


class FirstOnes(FirstReshaping):
    """The base of operators that only drop or put in dims of 1, for any strides."""

    abstract = True
    Out = result(view_of="X", doc="the same elements")

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=FirstReshaping._input_spec, view_of={"X@GRAD": "Out@GRAD"})  # pyright: ignore[reportPrivateUsage]
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(X.shape)


class Squeeze(FirstOnes):
    """Out = X without the dims of 1 at ``axes``; without all dims of 1 if ``axes`` is empty. squeeze2 without XShape."""

    type = "squeeze"
    axes = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec) -> Spec:
        return self._in(X, squeezed(X.known_dims, self.axes))

    def kernel(self, X: Tensor) -> Tensor:
        return X.squeeze(self.axes) if self.axes else X.squeeze()

    samples = [
        sample(X=f32(2, 1, 3, 1), axes=[-1, 1]),
        sample(X=f32(2, 1, 3, 1)),
        sample(X=f32(0, 1), axes=[1]),
        sample(X=i64(1, data=[4]), axes=[0]),
    ]


class Unsqueeze(FirstOnes):
    """Out = X with a dim of 1 put in at each of ``axes``, one after the other. unsqueeze2 without XShape."""

    type = "unsqueeze"
    AxesTensor = operand(INDEX, optional=True, doc="axes, as a tensor")
    AxesTensorList = operand(INDEX, many=True, optional=True, doc="axes, as tensors of one number each")
    axes = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, AxesTensor: Spec | None, AxesTensorList: tuple[Spec, ...]) -> Spec:
        dims, is_known = unsqueezed(X.known_dims, known_sizes(self.axes, AxesTensor, AxesTensorList, "AxesTensor", "AxesTensorList"))
        return self._in(X if is_known else X.dense(), dims)

    def kernel(self, X: Tensor, AxesTensor: Tensor | None, AxesTensorList: list[Tensor]) -> Tensor:
        return with_ones(X, sizes_at_run(self.axes, AxesTensor, AxesTensorList))

    samples = [
        sample(X=f32(2, 3), axes=[0, -1]),
        sample(X=f32(), axes=[0]),
        sample(X=f32(0, 3), AxesTensor=i64(2, data=[1, 0])),
        sample(X=f32(2, 3), AxesTensorList=[i32(1, data=[-2]), i32(1, data=[0])]),
    ]


class Transpose(Operator):
    """Out = X with its axes in another order: axis ``k`` of Out is axis ``axis[k]`` of X. transpose2 without XShape."""

    type = "transpose"
    X = operand(doc="any shape")
    Out = result(view_of="X", layout="strided", doc="the dims of X in the order of axis")
    axis = attribute(AttrType.INTS, doc="a permutation of the axes")
    computes = Transpose2.computes
    gradient_reads_dims = ("X",)

    def infer_shape(self, X: Spec) -> Spec:
        return transposed(X, self.axis)

    def kernel(self, X: Tensor) -> Tensor:
        return X.permute(self.axis)

    def _input_spec(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, transposed(X, self.axis)))
        return X.like()

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_input_spec, view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return d_out.permute(inverse(self.axis, d_out.dim()))

    samples = [
        sample(X=f32(2, 3, 5), axis=[2, 0, 1]),
        sample(X=f32(2, 3, 5, 4), axis=[0, -2, 1, -1]),
        sample(X=f32(0, 3, 5), axis=[1, 0, 2]),
        sample(X=f32(), axis=[]),
    ]
    rejects = [reject(X=f32(2, 3, 5), axis=[0, 1], says="order all 3 axes")]
