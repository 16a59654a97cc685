"""Convolutions fused by other makers' rewrites: with a bias, a sum with other images, an activation."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.language.operator import NOT_WRITTEN, AttrType, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.registry import get
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.nn.convolution import Convolution
from foreshape.language.ops.rules.onednn_activation import ALPHA, BETA, ONEDNN_ACTIVATIONS, by_onednn
from foreshape.language.ops.rules.window import VOLUME_FORMATS, is_channels_last

ACTIVATIONS = ("", "identity", "relu", "relu6", "sigmoid", "tanh", "swish", "leaky_relu", "hard_swish", "hard_sigmoid")


class FusedConvolution(Convolution):
    """The base: Output = activation(conv2d(Input, Filter) + Bias + ResidualData)."""

    abstract = True
    examples = ("Input", "ResidualData")
    _made_of: ClassVar[str] = "conv2d"
    ResidualData = operand(FLOATING, optional=True, same_type_as="Input", doc="as Output")

    def infer_shape(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None
    ) -> Spec:
        out = Convolution.infer_shape(self, Input, Filter, Bias)
        if ResidualData is not None:
            require(ResidualData.rank == out.rank, f"ResidualData must have {out.rank} dims, as Output, not {ResidualData.rank}", ResidualData=None)
            for axis, (a, b) in enumerate(zip(ResidualData.known_dims, out.known_dims, strict=True)):
                require_equal(a, b, f"ResidualData must have the dims of Output, {out.text()}", ResidualData=axis)
        return out

    def work(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None
    ) -> Size:
        return Convolution.work(self, Input, Filter, Bias)

    def computes(self) -> None:
        return None

    def _activated(self, of: Composition, x: Any) -> Any:
        raise NotImplementedError

    def expand(self, of: Composition, Input: Any, Filter: Any, Bias: Any, ResidualData: Any) -> Any:
        attrs = {name: getattr(self, name) for name in get(self._made_of).schema.attributes}
        out = of(self._made_of, attrs, Input=Input, Filter=Filter)
        if Bias is not None:
            out = of("elementwise_add", {"axis": self._axes + 1 if is_channels_last(self.data_format) else 1}, X=out, Y=Bias)
        if ResidualData is not None:
            out = of("elementwise_add", X=out, Y=ResidualData)
        return self._activated(of, out)


class ByOnednn(FusedConvolution):
    """The base of oneDNN's operators."""

    abstract = True
    fuse_activation = attribute(AttrType.STRING, "", choices=ONEDNN_ACTIVATIONS)
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc=ALPHA)
    fuse_beta = attribute(AttrType.FLOAT, 0.0, doc=BETA)
    fuse_residual_connection = attribute(AttrType.BOOLEAN, False, doc="ResidualData is given")
    force_fp32_output = attribute(AttrType.BOOLEAN, False)

    def _activated(self, of: Composition, x: Any) -> Any:
        return by_onednn(of, x, self.fuse_activation, self.fuse_alpha, self.fuse_beta)


class FusedConv2d(ByOnednn):
    """Output = fuse_activation(conv2d(Input, Filter) + Bias + ResidualData), as oneDNN has it in rewritten inference programs.

    ``fuse_alpha`` and ``fuse_beta`` are the activation's parameters, 0 by default. By default swish is then half its operand, hard_swish 0, and relu6 must have
    its 6 as ``fuse_beta``.
    """

    type = "fused_conv2d"
    gradient = NOT_WRITTEN

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), fuse_activation="relu"),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 3), paddings=[1, 1], Bias=f32(5), ResidualData=f32(2, 5, 7, 8), fuse_residual_connection=True),
        sample(Input=f32(2, 4, 7, 8), Filter=f32(6, 2, 3, 2), groups=2, strides=[2, 1], fuse_activation="leaky_relu", fuse_alpha=0.1),
        sample(Input=f32(2, 7, 8, 3), Filter=f32(5, 3, 3, 2), Bias=f32(5), data_format="NHWC", fuse_activation="swish", fuse_alpha=1.0),
        *(
            sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), fuse_activation=name, fuse_alpha=0.25, fuse_beta=0.5)
            for name in ONEDNN_ACTIVATIONS
            if name not in ("relu", "leaky_relu", "sqrt")
        ),
        sample(Input=f32(2, 3, 7, 8, low=0.1, high=1.0), Filter=f32(5, 3, 3, 2, low=0.1, high=1.0), fuse_activation="sqrt"),
    ]
    rejects = [
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), ResidualData=f32(2, 5, 7, 8), says="ResidualData must have the dims of Output"),
        reject(Input=f32(2, 4, 7, 8), Filter=f32(5, 3, 3, 2), says="the channels of Input"),
    ]


class FusedConv3d(ByOnednn):
    """`fused_conv2d` for volumes."""

    type = "fused_conv3d"
    gradient = NOT_WRITTEN
    _axes: ClassVar[int] = 3
    _made_of: ClassVar[str] = "conv3d"
    strides = attribute(AttrType.INTS, [1, 1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0, 0], low=0, doc="one number per axis, or two: before and after")
    dilations = attribute(AttrType.INTS, [1, 1, 1], low=1)
    data_format = attribute(AttrType.STRING, "NCDHW", choices=VOLUME_FORMATS)

    samples = [
        sample(Input=f32(2, 3, 4, 5, 6), Filter=f32(5, 3, 2, 3, 2), Bias=f32(5), fuse_activation="relu"),
        sample(Input=f32(2, 3, 4, 5, 6), Filter=f32(5, 3, 3, 3, 3), paddings=[1, 1, 1], ResidualData=f32(2, 5, 4, 5, 6), fuse_residual_connection=True),
    ]


class FusedConv2dAddAct(FusedConvolution):
    """Output = activation(conv2d(Input, Filter) + Bias + ResidualData), as cuDNN has it in rewritten inference programs."""

    type = "fused_conv2d_add_act"
    gradient = NOT_WRITTEN
    Outputs = result(many=True, optional=True, doc="parts of Output by channels: not supported")
    activation = attribute(AttrType.STRING, "relu", choices=ACTIVATIONS)
    split_channels = attribute(AttrType.INTS, [], doc="must be empty: the division of Output into Outputs")
    exhaustive_search = attribute(AttrType.BOOLEAN, False)
    workspace_size_MB = attribute(AttrType.INT, 512)
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc="for leaky_relu: the slope below 0")

    def infer_shape(self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None) -> Any:
        require(len(self.split_channels) < 2, f"split_channels must be empty: parts of Output are not supported; seen {list(self.split_channels)}", Filter=None)
        return FusedConvolution.infer_shape(self, Input, Filter, Bias, ResidualData), ()

    def _activated(self, of: Composition, x: Any) -> Any:
        attrs: dict[str, dict[str, float]] = {
            "leaky_relu": {"alpha": self.fuse_alpha},
            "hard_sigmoid": {"slope": self.fuse_alpha or 1.0 / 6.0},
        }
        return x if self.activation in ("", "identity") else of(self.activation, attrs.get(self.activation), X=x), []

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5)),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 3), paddings=[1, 1], Bias=f32(5), ResidualData=f32(2, 5, 7, 8), activation="tanh"),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), activation="identity"),
    ]
    rejects = [reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), split_channels=[2, 3], says="split_channels must be empty")]
