"""oneDNN's rewrites of inference programs, without convolutions: an operator with an activation, scales and other dims in one."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP64, Spec
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import axis_of, require, require_broadcast_to
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.math.elementwise import Elementwise
from foreshape.language.ops.math.matmul import MatmulV2
from foreshape.language.ops.rules.onednn_activation import ALPHA, BETA, ONEDNN_ACTIVATIONS, by_onednn
from foreshape.language.ops.tensor.reshaping import reshaped, transposed, unsqueezed

QUANTIZED = "for quantized inference: must be"


def scaled(of: Composition, x: Any, factor: float) -> Any:
    """Return ``factor * x``."""
    return x if factor == 1.0 else of("scale", {"scale": factor}, X=x)


def _activation() -> Any:
    return attribute(AttrType.STRING, "", choices=ONEDNN_ACTIVATIONS, doc="the activation applied to the result")


class FusedSoftplus(Operator):
    """Out = fuse_activation(log(1 + exp(beta X)) / beta), as oneDNN has it in rewritten inference programs.

    ``threshold`` is not read, as there: beyond it `softplus` gives X, the same for large X but for rounding.
    """

    type = "fused_softplus"
    examples = ("X",)
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    beta = attribute(AttrType.FLOAT, 1.0, doc="not 0")
    threshold = attribute(AttrType.FLOAT, 20.0, doc="ignored")
    fuse_activation = _activation()
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc=ALPHA)
    fuse_beta = attribute(AttrType.FLOAT, 0.0, doc=BETA)

    def infer_shape(self, X: Spec) -> Spec:
        require(self.beta != 0.0, "beta must not be 0", X=None)
        return X.like()

    def expand(self, of: Composition, X: Any) -> Any:
        furthest = 700.0 if X.spec.dtype is FP64 else 88.0  # as far as an exponential reaches
        out = of("softplus", {"beta": self.beta, "threshold": furthest}, X=X)
        return by_onednn(of, out, self.fuse_activation, self.fuse_alpha, self.fuse_beta)

    samples = [
        sample(X=f32(2, 3, 5), beta=2.0),
        sample(X=f32(4, 3, low=-9.0, high=9.0), beta=1.5, threshold=1.0, fuse_activation="tanh"),
        sample(X=f32(4, 3), fuse_activation="clip", fuse_alpha=0.5, fuse_beta=0.75),
        sample(X=f32(0, 3)),
    ]
    rejects = [reject(X=f32(4, 3), beta=0.0, says="beta must not be 0")]


class FusedElementwise(Elementwise):
    """The base: Out = fused_output_scale * fuse_activation(scale_out * function(X / scale_x, Y / scale_y)), with dims of 1 put in."""

    abstract = True
    per_element = False
    gradient = NOT_WRITTEN
    _made_of: ClassVar[str]
    X = operand(FLOATING, doc="any shape")
    Y = operand(FLOATING, same_type_as="X", doc="broadcast against X")
    Out = result(doc="the broadcast shape, with the dims of 1")
    fuse_activation = _activation()
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc=ALPHA)
    fuse_beta = attribute(AttrType.FLOAT, 0.0, doc=BETA)
    fused_output_scale = attribute(AttrType.FLOAT, 1.0, doc="the factor of all")
    fused_unsqueeze2_axes = attribute(AttrType.INTS, [], doc="positions of new dims of 1 in Out, one after the other")
    scale_x = attribute(AttrType.FLOAT, 1.0, doc="the divisor of X, not 0")
    scale_y = attribute(AttrType.FLOAT, 1.0, doc="the divisor of Y, not 0")
    scale_out = attribute(AttrType.FLOAT, 1.0, doc="the factor before the activation")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require(self.scale_x != 0.0 and self.scale_y != 0.0, "scale_x and scale_y must not be 0", X=None)
        out = self._broadcast(X, Y)
        return out.with_dims(unsqueezed(out.known_dims, self.fused_unsqueeze2_axes)[0])

    def expand(self, of: Composition, X: Any, Y: Any) -> Any:
        x, y = scaled(of, X, 1.0 / self.scale_x), scaled(of, Y, 1.0 / self.scale_y)
        out = scaled(of, of(self._made_of, {"axis": self.axis}, X=x, Y=y), self.scale_out)
        out = scaled(of, by_onednn(of, out, self.fuse_activation, self.fuse_alpha, self.fuse_beta), self.fused_output_scale)
        axes = self.fused_unsqueeze2_axes
        return of("unsqueeze2", {"axes": axes}, X=out)[0] if axes else out

    rejects = [reject(X=f32(2, 3), Y=f32(3), scale_x=0.0, says="must not be 0")]


class FusedElementwiseAdd(FusedElementwise):
    """Out = fused_output_scale * fuse_activation(scale_out * (X / scale_x + Y / scale_y)), as oneDNN has it in rewritten inference programs.

    PaddlePaddle's rule leaves ``fused_unsqueeze2_axes`` out of account; its kernel has the dims given here.
    """

    type = "fused_elementwise_add"
    gradient = NOT_WRITTEN
    _made_of = "elementwise_add"

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5), fuse_activation="relu"),
        sample(X=f32(2, 3, 5), Y=f32(3), axis=1, fused_output_scale=2.0),
        sample(X=f32(2, 3, 5), Y=f32(3, 5), scale_x=2.0, scale_y=4.0, scale_out=3.0, fuse_activation="tanh", fused_output_scale=1.5),
        sample(X=f32(2, 3, 5), Y=f32(5), fused_unsqueeze2_axes=[0, 2], fuse_activation="leaky_relu", fuse_alpha=0.1),
        sample(X=f32(2, 1, 5), Y=f32(3, 1)),
        sample(X=f32(3, 5), Y=f32(2, 3, 5)),
    ]
    rejects = FusedElementwise.rejects


class FusedElementwiseSub(FusedElementwise):
    """Out = fused_output_scale * fuse_activation(scale_out * (X / scale_x - Y / scale_y)); as `fused_elementwise_add`."""

    type = "fused_elementwise_sub"
    gradient = NOT_WRITTEN
    _made_of = "elementwise_sub"

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5), fuse_activation="relu", fuse_alpha=0.5),
        sample(X=f32(2, 3, 5), Y=f32(5), scale_x=2.0, scale_y=4.0, fuse_activation="sigmoid"),
    ]
    rejects = FusedElementwise.rejects[:1]


class FusedElementwiseMul(FusedElementwise):
    """Out = fused_output_scale * fuse_activation(scale_out * X / scale_x * Y / scale_y); as `fused_elementwise_add`."""

    type = "fused_elementwise_mul"
    gradient = NOT_WRITTEN
    _made_of = "elementwise_mul"

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5), fuse_activation="gelu_tanh", fused_output_scale=0.5),
        sample(X=f32(2, 3, 5), Y=f32(3), axis=1, scale_x=2.0, scale_y=4.0, scale_out=5.0, fuse_activation="tanh"),
    ]
    rejects = FusedElementwise.rejects[:1]


class FusedElementwiseDiv(FusedElementwise):
    """Out = fused_output_scale * fuse_activation(scale_out * (X / scale_x) / (Y / scale_y)); as `fused_elementwise_add`."""

    type = "fused_elementwise_div"
    gradient = NOT_WRITTEN
    _made_of = "elementwise_div"

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5, low=0.5, high=2.0), fuse_activation="tanh", fused_unsqueeze2_axes=[1]),
        sample(X=f32(2, 3, 5), Y=f32(5, low=0.5, high=2.0), scale_x=2.0, scale_y=4.0, scale_out=0.25),
    ]
    rejects = FusedElementwise.rejects[:1]


def _product_of(trans_x: bool, trans_y: bool) -> Any:
    return MatmulV2.with_values({"trans_x": trans_x, "trans_y": trans_y})


class FusedMatmul(Operator):
    """Out = fused_output_scale * fuse_activation(matmul_alpha X Y + ResidualData), as oneDNN has it in rewritten inference programs.

    X, and Y likewise, is reshaped to ``fused_reshape_X`` (0 copies a dim and one -1 takes the rest). Then its axes are put in the order ``fused_transpose_X``.
    The axes of Out are put in the order ``fused_transpose_Out`` and reshaped to ``fused_reshape_Out`` last. Each pair is given together or not at all. Of two
    vectors Out is [1].
    """

    type = "fused_matmul"
    gradient = NOT_WRITTEN
    multiplies = True
    X = operand(FLOATING, doc="[..., rows, k], or [k]")
    Y = operand(FLOATING, same_type_as="X", doc="[..., k, columns], or [k]")
    ResidualData = operand(FLOATING, optional=True, same_type_as="X", doc="broadcast to the product")
    Out = result(layout="row", doc="[..., rows, columns]; fused_reshape_Out if given")
    trans_x = attribute(AttrType.BOOLEAN, False)
    trans_y = attribute(AttrType.BOOLEAN, False)
    matmul_alpha = attribute(AttrType.FLOAT, 1.0, doc="the factor of the product")
    fuse_activation = _activation()
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc=ALPHA)
    fuse_beta = attribute(AttrType.FLOAT, 0.0, doc=BETA)
    fused_output_scale = attribute(AttrType.FLOAT, 1.0, doc="the factor of all")
    fused_reshape_X = attribute(AttrType.INTS, [])
    fused_transpose_X = attribute(AttrType.INTS, [])
    fused_reshape_Y = attribute(AttrType.INTS, [])
    fused_transpose_Y = attribute(AttrType.INTS, [])
    fused_reshape_Out = attribute(AttrType.INTS, [])
    fused_transpose_Out = attribute(AttrType.INTS, [])
    mkldnn_data_type = attribute(AttrType.STRING, "float32", doc="ignored")
    Scale_x = attribute(AttrType.FLOAT, 1.0, doc=f"{QUANTIZED} 1")
    Scale_y = attribute(AttrType.FLOAT, 1.0, doc=f"{QUANTIZED} 1")
    Scale_in_eltwise = attribute(AttrType.FLOAT, 0.0, doc=f"{QUANTIZED} 0 or 1")
    Scale_out = attribute(AttrType.FLOAT, 1.0, doc=f"{QUANTIZED} 1")
    force_fp32_output = attribute(AttrType.BOOLEAN, False, doc="ignored")

    def _rearranged_spec(self, spec: Spec, slot: str) -> Spec:
        shape, order = getattr(self, f"fused_reshape_{slot}"), getattr(self, f"fused_transpose_{slot}")
        require(bool(shape) == bool(order), f"fused_reshape_{slot} and fused_transpose_{slot} must be given together", X=None)
        return transposed(spec.with_dims(reshaped(spec.known_dims, shape)), order) if shape else spec

    def _product_dims(self, X: Spec, Y: Spec) -> Spec:
        out: Spec = _product_of(self.trans_x, self.trans_y).infer_shape(self._rearranged_spec(X, "X"), self._rearranged_spec(Y, "Y"))
        return out if out.dims else out.dense((1,))

    def infer_shape(self, X: Spec, Y: Spec, ResidualData: Spec | None) -> Spec:
        plain = self.Scale_x == 1.0 and self.Scale_y == 1.0 and self.Scale_out == 1.0 and self.Scale_in_eltwise in (0.0, 1.0)
        require(plain, "Scale_x, Scale_y and Scale_out must be 1, and Scale_in_eltwise 0 or 1: quantized products are not supported", X=None)
        out = self._product_dims(X, Y)
        if ResidualData is not None:
            words = f"ResidualData must broadcast to the product, {out.text()}"
            missing = out.rank - ResidualData.rank
            require(missing >= 0, words, ResidualData=None)
            for axis, size in enumerate(ResidualData.known_dims):
                require_broadcast_to(size, out.known_dims[missing + axis], words, ResidualData=axis)
        shape, order = self.fused_reshape_Out, self.fused_transpose_Out
        require(bool(shape) == bool(order), "fused_reshape_Out and fused_transpose_Out must be given together", X=None)
        ordered = transposed(out, order) if shape else out
        return ordered.with_dims(reshaped(ordered.known_dims, shape)) if shape else out

    def work(self, X: Spec, Y: Spec, ResidualData: Spec | None) -> Size:
        return _product_of(self.trans_x, self.trans_y).work(self._rearranged_spec(X, "X"), self._rearranged_spec(Y, "Y"))

    def expand(self, of: Composition, X: Any, Y: Any, ResidualData: Any) -> Any:
        x, y = self._rearranged(of, X, "X"), self._rearranged(of, Y, "Y")
        out = scaled(of, of("matmul_v2", {"trans_x": self.trans_x, "trans_y": self.trans_y}, X=x, Y=y), self.matmul_alpha)
        if not out.spec.dims:
            out = of("reshape2", {"shape": [1]}, X=out)[0]
        if ResidualData is not None:
            out = of("elementwise_add", X=out, Y=ResidualData)
        out = scaled(of, by_onednn(of, out, self.fuse_activation, self.fuse_alpha, self.fuse_beta), self.fused_output_scale)
        if self.fused_reshape_Out:
            out = of("transpose2", {"axis": self.fused_transpose_Out}, X=out)[0]
        return of("reshape2", {"shape": self.fused_reshape_Out}, X=out)[0] if self.fused_reshape_Out else out

    def _rearranged(self, of: Composition, x: Any, slot: str) -> Any:
        shape, order = getattr(self, f"fused_reshape_{slot}"), getattr(self, f"fused_transpose_{slot}")
        return of("transpose2", {"axis": order}, X=of("reshape2", {"shape": shape}, X=x)[0])[0] if shape else x

    samples = [
        sample(X=f32(2, 3), Y=f32(3, 5), fuse_activation="relu"),
        sample(X=f32(7, 2, 3), Y=f32(7, 3, 5), ResidualData=f32(7, 2, 5), matmul_alpha=0.5, fuse_activation="tanh", fused_output_scale=3.0),
        sample(X=f32(7, 3, 2), Y=f32(5, 3), ResidualData=f32(2, 1), trans_x=True, trans_y=True),
        sample(X=f32(2, 3, 20), Y=f32(2, 4, 5, 7), fused_reshape_X=[0, 0, 4, 5], fused_transpose_X=[0, 2, 1, 3]),
        sample(X=f32(2, 4, 3, 5), Y=f32(2, 7, 20), fused_reshape_Y=[0, -1, 4, 5], fused_transpose_Y=[0, 2, 3, 1], matmul_alpha=0.25),
        sample(X=f32(2, 4, 3, 5), Y=f32(2, 4, 5, 7), fused_transpose_Out=[0, 2, 1, 3], fused_reshape_Out=[0, -1, 28]),
        sample(X=f32(3), Y=f32(3)),
        sample(X=f32(7, 2, 3), Y=f32(3)),
        sample(X=f32(0, 3), Y=f32(3, 5)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(4, 5), says="the columns of X must equal the rows of Y"),
        reject(X=f32(2, 3), Y=f32(3, 5), ResidualData=f32(3, 5), says="ResidualData must broadcast to the product"),
        reject(X=f32(2, 3), Y=f32(3, 5), ResidualData=f32(1, 2, 5), says="ResidualData must broadcast to the product"),
        reject(X=f32(2, 3), Y=f32(3, 5), Scale_out=2.0, says="quantized products are not supported"),
        reject(X=f32(2, 3), Y=f32(3, 5), fused_reshape_X=[2, 3], says="fused_reshape_X and fused_transpose_X must be given together"),
        reject(X=f32(2, 3), Y=f32(3, 5), fused_transpose_Out=[1, 0], says="fused_reshape_Out and fused_transpose_Out must be given together"),
        reject(X=f32(2, 3), Y=f32(3, 5), fused_reshape_Out=[3, 5], fused_transpose_Out=[1, 0], says="X has 10 elements, and shape has 15"),
    ]


class FusedTranspose(Operator):
    """Out = scale * X with its axes in the order ``axis``, as oneDNN has it in rewritten inference programs.

    The dims of X at ``fused_squeeze2_axes``, all 1, are left out first; last come dims of 1 at ``fused_unsqueeze2_axes``, or the dims ``fused_reshape2_shape``.
    PaddlePaddle's rule leaves the last two out of account; its kernel has the dims given here.
    """

    type = "fused_transpose"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="any shape")
    Out = result(layout="row", doc="the dims of X in the order of axis")
    XShape = result(optional=True, doc="not made here")
    axis = attribute(AttrType.INTS, doc="a permutation of the remaining axes")
    fused_squeeze2_axes = attribute(AttrType.INTS, [], doc="axes of 1 left out before")
    fused_unsqueeze2_axes = attribute(AttrType.INTS, [], doc="positions of new dims of 1 put in after, one after the other")
    fused_reshape2_shape = attribute(AttrType.INTS, [], doc="the dims after; one -1 takes the rest")
    scale = attribute(AttrType.FLOAT, 1.0)
    shift = attribute(AttrType.FLOAT, 0.0, doc=f"{QUANTIZED} 0")
    output_data_type = attribute(AttrType.STRING, "", choices=("", "fp32"), doc="ignored: other values are for quantized inference")

    def infer_shape(self, X: Spec) -> Any:
        require(self.shift == 0.0, f"shift must be 0, not {self.shift}: quantized numbers are not supported", X=None)
        left_out = {axis_of(a, X.rank, "an axis of fused_squeeze2_axes", X=None) for a in self.fused_squeeze2_axes}
        axes = self.fused_squeeze2_axes
        require(len(left_out) == len(axes), f"fused_squeeze2_axes must name each axis once; seen {list(axes)}", X=None)
        for axis in sorted(left_out):
            require_broadcast_to(X.known_dims[axis], 1, f"the axis {axis} of X, which is left out, must be 1", X=axis)
        remaining = X.with_dims([d for a, d in enumerate(X.known_dims) if a not in left_out]) if left_out else X
        out = transposed(remaining, self.axis)
        shape = self.fused_reshape2_shape
        require(not (shape and self.fused_unsqueeze2_axes), "fused_unsqueeze2_axes and fused_reshape2_shape must not be given both", X=None)
        require(0 not in shape, f"fused_reshape2_shape must have no 0; seen {list(shape)}", X=None)
        dims = reshaped(out.known_dims, shape) if shape else unsqueezed(out.known_dims, self.fused_unsqueeze2_axes)[0]
        return out.with_dims(dims), None

    def expand(self, of: Composition, X: Any) -> Any:
        x = of("squeeze2", {"axes": self.fused_squeeze2_axes}, X=X)[0] if self.fused_squeeze2_axes else X
        out = scaled(of, of("transpose2", {"axis": self.axis}, X=x)[0], self.scale)
        if self.fused_unsqueeze2_axes:
            return of("unsqueeze2", {"axes": self.fused_unsqueeze2_axes}, X=out)[0], None
        return of("reshape2", {"shape": self.fused_reshape2_shape}, X=out)[0] if self.fused_reshape2_shape else out, None

    samples = [
        sample(X=f32(2, 3, 5), axis=[2, 0, 1]),
        sample(X=f32(2, 3, 5, 4), axis=[0, 2, 1, 3], fused_reshape2_shape=[2, 5, 12], scale=2.0),
        sample(X=f32(2, 3, 5), axis=[1, 0, 2], fused_unsqueeze2_axes=[1]),
        sample(X=f32(2, 1, 3, 5), axis=[2, 0, 1], fused_squeeze2_axes=[1], output_data_type="fp32"),
        sample(X=f32(2, 3, 5), axis=[2, 0, 1], fused_reshape2_shape=[5, -1]),
    ]
    rejects = [
        reject(X=f32(2, 3, 5), axis=[0, 1], says="order all 3 axes"),
        reject(X=f32(2, 3, 5), axis=[0, 1], fused_squeeze2_axes=[1], says="the axis 1 of X, which is left out, must be 1"),
        reject(X=f32(2, 1), axis=[0], fused_squeeze2_axes=[-1, 1], says="fused_squeeze2_axes must name each axis once"),
        reject(X=f32(2, 3), axis=[1, 0], shift=1.0, says="shift must be 0"),
        reject(X=f32(2, 3), axis=[1, 0], fused_reshape2_shape=[4, 2], says="X has 6 elements, and shape has 8"),
        reject(X=f32(2, 3), axis=[1, 0], fused_reshape2_shape=[0, 2], says="must have no 0"),
        reject(X=f32(2, 3), axis=[1, 0], fused_reshape2_shape=[6], fused_unsqueeze2_axes=[0], says="must not be given both"),
    ]
