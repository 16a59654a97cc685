"""Channels exchanged with space, with one another and with time: space_to_depth, shuffle_channel, temporal_shift."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import ChannelShuffling
from foreshape.language.operator.require import require, require_at_most, require_divides, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.machine.kernels.shuffling import shuffled


class SpaceToDepth(Operator):
    """Out = X with blocks of ``blocksize`` by ``blocksize`` pixels as channels, in the order of the network YOLOv2.

    This order is not a plain exchange. Channel ``o C' + c`` of X, of ``C' = C / blocksize^2``, goes to row ``y blocksize + o // blocksize`` and column ``x
    blocksize + o % blocksize`` of an image of C' channels. Out is this image read in row-major order.
    """

    type = "space_to_depth"
    examples = ("X",)
    gradient_reads_dims = ("X",)
    X = operand(doc="[batch, channels, height, width]; blocksize^2 divides channels, blocksize height and width")
    Out = result(layout="row", doc="[batch, channels blocksize^2, height / blocksize, width / blocksize]")
    blocksize = attribute(AttrType.LONG, low=2, high=2**15)

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        n, b = X.known_dims[0], self.blocksize
        _, c, h, w = X.known_dims
        require_divides(b * b, c, f"blocksize^2, {b * b}, must divide the {c} channels of X", X=1)
        height = require_divides(b, h, f"blocksize, {b}, must divide the height of X, {h}", X=2)
        width = require_divides(b, w, f"blocksize, {b}, must divide the width of X, {w}", X=3)
        return X.with_dims((n, c * b * b, height, width))

    def kernel(self, X: Tensor) -> Tensor:
        n, c, h, w = X.shape
        b = self.blocksize
        image = X.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
        return image.reshape(n, c * b * b, h // b, w // b)

    def workspace(self, X: Spec) -> Size:
        return 0

    @gradient("X", "Out@GRAD", gives="X@GRAD", layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        n, c, h, w = X.shape
        b = self.blocksize
        image = d_out.reshape(n, c // (b * b), h, b, w, b).permute(0, 3, 5, 1, 2, 4)
        return image.reshape(n, c, h, w)

    samples = [sample(X=f32(2, 8, 4, 6), blocksize=2), sample(X=f32(1, 9, 3, 6), blocksize=3), sample(X=f32(0, 4, 2, 2), blocksize=2)]
    rejects = [
        reject(X=f32(2, 6, 4, 6), blocksize=2, says="must divide the 6 channels"),
        reject(X=f32(2, 8, 5, 6), blocksize=2, says="must divide the height of X, 5"),
        reject(X=f32(2, 8, 4, 7), blocksize=2, says="must divide the width of X, 7"),
    ]


class ShuffleChannel(Operator):
    """Out = X with its channels, in ``group`` groups one after the other, taken from each group in turn.

    The gradient is the inverse shuffle. PaddlePaddle 2.6 repeats the forward shuffle instead: equal only if group^2 is all channels.
    """

    type = "shuffle_channel"
    examples = ("X",)
    gradient_reads_dims = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width]; group divides channels")
    Out = result(layout="row", doc="as X")
    group = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        require_divides(self.group, X.known_dims[1], f"group, {self.group}, must divide the channels of X, {X.known_dims[1]}", X=1)
        return X.like()

    def computes(self) -> ChannelShuffling:
        return ChannelShuffling(self.group)

    def kernel(self, X: Tensor) -> Tensor:
        return shuffled(X, self.group)

    @gradient("X", "Out@GRAD", gives="X@GRAD", layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return shuffled(d_out, d_out.shape[1] // self.group)

    samples = [sample(X=f32(2, 6, 3, 4), group=2), sample(X=f32(2, 6, 3, 4), group=3), sample(X=f32(0, 4, 3, 2), group=2), sample(X=f32(2, 3, 1, 2))]
    rejects = [reject(X=f32(2, 5, 3, 4), group=2, says="must divide the channels of X, 5")]


class TemporalShift(Operator):
    """Out = X, ``seg_num`` images of each video one after the other, with some channels of the image before, some of the next, and the rest.

    Of C channels the first ``int(C shift_ratio)`` are from the image before, the next up to ``int(2 C shift_ratio)`` from the image after. They are zeros if
    the video has none.
    """

    type = "temporal_shift"
    X = operand(FLOATING, doc="[videos * seg_num, channels, height, width], or channels last")
    Out = result(doc="as X")
    seg_num = attribute(AttrType.INT, low=1)
    shift_ratio = attribute(AttrType.FLOAT, 0.25, low=0.0, high=0.5)
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        require(0.0 < self.shift_ratio < 0.5, f"shift_ratio must be more than 0 and less than 0.5; seen {self.shift_ratio}")
        rows = X.known_dims[0]
        require_divides(self.seg_num, rows, f"seg_num, {self.seg_num}, must divide the images of X, {rows}", X=0)
        require_at_most(1, X.known_dims[self._channels()], "X must have a channel", X=self._channels())
        return X.like()

    def _channels(self) -> int:
        return 1 if self.data_format == "NCHW" else 3

    def _shifted(self, x: Tensor, step: int) -> Tensor:
        """Return the first channels from the image ``step`` before, the next ones from the image ``step`` after."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        axis, steps = self._channels() + 1, self.seg_num
        sources, targets = (t.reshape(t.shape[0] // steps, steps, *t.shape[1:]) for t in (x, out))
        channels = x.shape[axis - 1]
        ends = (0, int(channels * self.shift_ratio), int(channels * 2 * self.shift_ratio), channels)
        for begin, end, shift in zip(ends[:-1], ends[1:], (step, -step, 0), strict=True):
            part, source = targets.narrow(axis, begin, end - begin), sources.narrow(axis, begin, end - begin)
            if shift > 0:
                part[:, 1:] = source[:, :-1]
                part[:, 0] = 0
            elif shift < 0:
                part[:, :-1] = source[:, 1:]
                part[:, -1] = 0
            else:
                part.copy_(source)
        return out

    def kernel(self, X: Tensor) -> Tensor:
        return self._shifted(X, 1)

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"})
    def backward(self, d_out: Tensor) -> Tensor:
        return self._shifted(d_out, -1)

    samples = [
        sample(X=f32(6, 4, 2, 5), seg_num=3),
        sample(X=f32(6, 3, 5, 7), seg_num=2, shift_ratio=0.4),
        sample(X=f32(6, 2, 5, 8), seg_num=3, data_format="NHWC"),
        sample(X=f32(3, 5, 1, 2), seg_num=1),
        sample(X=f32(0, 4, 2, 5), seg_num=3),
    ]
    rejects = [
        reject(X=f32(5, 4, 2, 3), seg_num=3, says="must divide the images of X, 5"),
        reject(X=f32(6, 4, 2, 3), seg_num=3, shift_ratio=0.5, says="less than 0.5"),
    ]
