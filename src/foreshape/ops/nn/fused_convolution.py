"""Convolutions with what other makers' rewrites put into them: a bias, a sum with other images, an activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Size
from foreshape.operator import FLOATING, NOT_WRITTEN, AttrType, F, attribute, f32, operand, reject, require, require_equal, result, sample, torch
from foreshape.operator.temporaries import copies
from foreshape.ops.nn.convolution import Convolution
from foreshape.ops.rules.window import is_channels_last
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS = ("", "identity", "relu", "relu6", "sigmoid", "tanh", "swish", "leaky_relu", "hard_swish", "hard_sigmoid")


def activated(x: Tensor, name: str, alpha: float) -> Tensor:
    """``x`` with an activation, in its own memory where that can be."""
    if name in ("", "identity"):
        return x
    if name == "leaky_relu":
        return F.leaky_relu_(x, alpha)
    if name == "relu6":
        return x.clamp_(0.0, 6.0)
    if name == "hard_sigmoid":
        return x.mul_(alpha or 1.0 / 6.0).add_(0.5).clamp_(0.0, 1.0)
    return {"relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_, "swish": _silu_, "hard_swish": _hard_swish_}[name](x)


def _silu_(x: Tensor) -> Tensor:
    return F.silu(x, inplace=True)


def _hard_swish_(x: Tensor) -> Tensor:
    return F.hardswish(x, inplace=True)


class FusedConvolution(Convolution):
    """The base: Output = activation(conv2d(Input, Filter) + Bias + ResidualData)."""

    abstract = True
    Bias = operand(FLOATING, optional=True, same_type_as="Input", doc="[out]")
    ResidualData = operand(FLOATING, optional=True, same_type_as="Input", doc="as Output")

    def infer_shape(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None
    ) -> Spec:
        out = Convolution.infer_shape(self, Input, Filter)
        if Bias is not None:
            require(Bias.rank == 1, f"Bias must have 1 dim, not {Bias.rank}", Bias=None)
            require_equal(Bias.known_dims[0], Filter.known_dims[0], "Bias must have one number for each channel of Output", Bias=0, Filter=0)
        if ResidualData is not None:
            require(ResidualData.rank == out.rank, f"ResidualData must have {out.rank} dims, as Output, not {ResidualData.rank}", ResidualData=None)
            for at, (a, b) in enumerate(zip(ResidualData.known_dims, out.known_dims, strict=True)):
                require_equal(a, b, f"ResidualData must have the dims of Output, {out.text()}", ResidualData=at)
        return out

    def work(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None
    ) -> Size:
        return Convolution.work(self, Input, Filter)

    def computes(self) -> None:
        return None

    def workspace(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None, *, strided: frozenset[str]
    ) -> Size:
        plain = Convolution.workspace(self, Input, Filter, strided=strided)
        return plain + copies(strided, ResidualData=ResidualData) + (0 if Bias is None else Bias.nbytes)

    def _activated(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def kernel(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, Input: Tensor, Filter: Tensor, Bias: Tensor | None, ResidualData: Tensor | None
    ) -> Any:
        out = Convolution.kernel(self, Input, Filter)
        if Bias is not None:
            out += Bias if is_channels_last(self.data_format) else Bias.view(-1, *[1] * self._axes)
        if ResidualData is not None:
            out += ResidualData
        return self._activated(out)


class FusedConv2d(FusedConvolution):
    """Output = fuse_activation(conv2d(Input, Filter) + Bias + ResidualData), as oneDNN has it in rewritten inference programs."""

    type = "fused_conv2d"
    gradient = NOT_WRITTEN
    fuse_activation = attribute(AttrType.STRING, "", choices=ACTIVATIONS)
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc="of leaky_relu: the slope below 0")
    fuse_residual_connection = attribute(AttrType.BOOLEAN, False, doc="whether ResidualData is given")
    force_fp32_output = attribute(AttrType.BOOLEAN, False)

    def _activated(self, x: Tensor) -> Tensor:
        return activated(x, self.fuse_activation, self.fuse_alpha)

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), fuse_activation="relu"),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 3), paddings=[1, 1], Bias=f32(5), ResidualData=f32(2, 5, 7, 8), fuse_residual_connection=True),
        sample(Input=f32(2, 4, 7, 8), Filter=f32(6, 2, 3, 2), groups=2, strides=[2, 1], fuse_activation="leaky_relu", fuse_alpha=0.1),
        sample(Input=f32(2, 7, 8, 3), Filter=f32(5, 3, 3, 2), Bias=f32(5), data_format="NHWC", fuse_activation="swish"),
    ]
    rejects = [
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(4), says="Bias must have one number"),
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5, 1), says="Bias must have 1 dim"),
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), ResidualData=f32(2, 5, 7, 8), says="ResidualData must have the dims of Output"),
        reject(Input=f32(2, 4, 7, 8), Filter=f32(5, 3, 3, 2), says="the channels of Input"),
    ]


class Conv2dFusion(FusedConvolution):
    """Output = activation(conv2d(Input, Filter) + Bias + ResidualData), as cuDNN has it in rewritten inference programs."""

    type = "conv2d_fusion"
    gradient = NOT_WRITTEN
    Outputs = result(many=True, optional=True, doc="parts of Output by channels: not supported")
    activation = attribute(AttrType.STRING, "relu", choices=ACTIVATIONS)
    split_channels = attribute(AttrType.INTS, [], doc="must be empty: how Output is divided into Outputs")
    exhaustive_search = attribute(AttrType.BOOLEAN, False)
    workspace_size_MB = attribute(AttrType.INT, 512)
    fuse_alpha = attribute(AttrType.FLOAT, 0.0, doc="of leaky_relu: the slope below 0")

    def infer_shape(self, Input: Spec, Filter: Spec, Bias: Spec | None, ResidualData: Spec | None) -> Any:
        require(len(self.split_channels) < 2, f"split_channels must be empty: parts of Output are not supported; seen {list(self.split_channels)}", Filter=None)
        return FusedConvolution.infer_shape(self, Input, Filter, Bias, ResidualData), ()

    def _activated(self, x: Tensor) -> Any:
        return activated(x, self.activation, self.fuse_alpha), []

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5)),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 3), paddings=[1, 1], Bias=f32(5), ResidualData=f32(2, 5, 7, 8), activation="tanh"),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), activation="identity"),
    ]
    rejects = [
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), split_channels=[2, 3], says="split_channels must be empty"),
        reject(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(4), says="Bias must have one number"),
    ]


class FusedConv2dAddAct(Conv2dFusion):
    """As `conv2d_fusion`, by the name that it has since PaddlePaddle 2.6."""

    type = "fused_conv2d_add_act"
    gradient = NOT_WRITTEN

    samples = Conv2dFusion.samples
    rejects = Conv2dFusion.rejects
