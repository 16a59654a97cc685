"""Borders around a tensor: constant, reflected, replicated, circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import COMPLEX, INDEX, NUMERIC, Spec
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import Border
from foreshape.language.operator.require import require, require_at_most, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run


class Pad3d(Operator):
    """Out = X with a border around its last three dims (NCDHW) or its middle three (NDHWC).

    ``paddings`` are [left, right, top, bottom, front, back]: of width, of height and of depth. ``mode``: "constant" borders are
    ``value`` (and negative ones cut), "reflect" mirrors without the edge, "replicate" repeats the edge, "circular" goes round.
    """

    type = "pad3d"
    layer_function = "pad"
    examples = ("X",)
    gradient_reads_dims = ("X",)
    X = operand(NUMERIC, doc="[batch, channels, depth, height, width], or channels last")
    Paddings = operand(INDEX, optional=True, doc="the paddings, as a tensor of six numbers")
    Out = result(doc="as X, the padded dims larger")
    paddings = attribute(AttrType.INTS, [])
    value = attribute(AttrType.FLOAT, 0.0)
    mode = attribute(AttrType.STRING, "constant", choices=("constant", "reflect", "replicate", "circular"))
    data_format = attribute(AttrType.STRING, "NCDHW", choices=("NCDHW", "NDHWC"))

    def infer_shape(self, X: Spec, Paddings: Spec | None) -> Spec:
        require_rank(5, X, "X")
        pads = known_sizes(self.paddings, Paddings, (), "Paddings")
        require(len(pads) == 6, f"paddings must be six numbers, not {len(pads)}", X=None)
        dims = list(X.known_dims)
        first = 2 if self.data_format == "NCDHW" else 1
        for k in range(3):
            axis = first + 2 - k
            dims[axis] = self._padded(dims[axis], pads[2 * k], pads[2 * k + 1], axis)
        return X.with_dims(dims)

    def computes(self) -> Border | None:
        if self.mode != "constant" or len(self.paddings) != 6:
            return None
        pairs = tuple((self.paddings[2 * k], self.paddings[2 * k + 1]) for k in (2, 1, 0))
        return Border(((0, 0), (0, 0), *pairs) if self.data_format == "NCDHW" else ((0, 0), *pairs, (0, 0)), self.value)

    def _padded(self, size: Size, front: Size | None, back: Size | None, axis: int) -> Size:
        if front is None or back is None:
            return unknown_size(str(axis))
        for pad in (front, back):
            if self.mode == "constant":
                continue
            require_at_most(0, pad, f"paddings must be at least 0 in mode {self.mode!r}; seen {pad}", X=axis)
            if self.mode == "reflect":
                require_at_most(pad + 1, size, f"a reflected padding must be less than the dim; seen {pad} and {size}", X=axis)
            elif self.mode == "circular":
                require_at_most(pad, size, f"a circular padding must be at most the dim; seen {pad} and {size}", X=axis)
            elif not isinstance(pad, int) or pad:
                require_at_most(1, size, "an edge that is repeated must be there: the dim must be at least 1", X=axis)
        if self.mode == "constant":  # padding at one end cannot be cut at the other
            cut = minimum(front, 0) + minimum(back, 0)
            require_at_most(0, size + cut, f"paddings cut more than the dim at axis {axis} has, {size}", X=axis)
        out = size + front + back
        require(not isinstance(out, int) or out >= 0, f"paddings cut more than the dim at axis {axis} has, {size}", X=axis)
        return out

    def workspace(self, X: Spec, Paddings: Spec | None) -> Size:
        if self.mode == "constant":
            return 0
        out = self.infer_shape(X, Paddings).nbytes  # whole numbers, and circular borders, one axis at a time
        return out if X.known_dtype.is_floating else 2 * out

    def kernel(self, X: Tensor, Paddings: Tensor | None) -> Tensor:
        pads = list(sizes_at_run(self.paddings, Paddings))
        x = X if self.data_format == "NCDHW" else X.permute(0, 4, 1, 2, 3)
        if self.mode == "constant":
            out = F.pad(x, pads, "constant", self.value)
        elif x.is_floating_point() and x.shape[1]:
            out = F.pad(x, pads, self.mode)
        else:
            out = x
            for k in range(3):
                out = out.index_select(4 - k, _border_index(self.mode, x.shape[4 - k], pads[2 * k], pads[2 * k + 1], x.device))
        return out if self.data_format == "NCDHW" else out.permute(0, 2, 3, 4, 1)

    def _gradient_workspace(self, X: Spec, Paddings: Spec | None, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * d_out.nbytes if self.mode == "circular" else copies(strided, Out_GRAD=d_out)

    @gradient("X", "Paddings", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Paddings: Tensor | None, d_out: Tensor) -> Tensor:
        pads = list(sizes_at_run(self.paddings, Paddings))
        last = self.data_format == "NDHWC"
        x, d = (X.permute(0, 4, 1, 2, 3), d_out.permute(0, 4, 1, 2, 3)) if last else (X, d_out)
        if self.mode == "constant":
            out = F.pad(d, [-p for p in pads])
        elif not x.numel():
            out = torch.zeros_like(x)
        elif self.mode == "reflect":
            out = aten.reflection_pad3d_backward(d, x, pads)
        elif self.mode == "replicate":
            out = aten.replication_pad3d_backward(d, x, pads)
        else:
            out = d
            for k in range(3):
                out = _unwrapped(out, 4 - k, x.shape[4 - k], pads[2 * k], pads[2 * k + 1])
        return out.permute(0, 2, 3, 4, 1) if last else out

    samples = [
        sample(X=f32(2, 3, 4, 5, 6), paddings=[1, 2, 0, 1, 2, 0], value=0.5),
        sample(X=f32(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="reflect"),
        sample(X=f32(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="replicate"),
        sample(X=f32(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="circular"),
        sample(X=f32(2, 3, 4, 5, 1), paddings=[1, 2, 1, 0, 2, 1], mode="circular", data_format="NDHWC"),
        sample(X=f32(2, 3, 4, 5, 6), paddings=[-1, 2, 0, -2, 0, 0]),
        sample(X=f32(0, 3, 4, 5, 2), paddings=[1, 2, 0, 1, 2, 0], data_format="NDHWC"),
        sample(X=i64(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="reflect"),
        sample(X=i64(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="replicate"),
        sample(X=i64(2, 1, 3, 4, 5), paddings=[1, 2, 1, 0, 2, 1], mode="circular"),
        sample(X=f32(2, 3, 4, 5, 6), Paddings=i32(6, data=[1, 2, 0, 1, 2, 0])),
    ]
    rejects = [
        reject(X=f32(2, 3, 4, 5, 6), paddings=[1, 1], says="six numbers"),
        reject(X=f32(2, 3, 4, 5, 6), paddings=[6, 0, 0, 0, 0, 0], mode="reflect", says="less than the dim"),
        reject(X=f32(2, 3, 4, 5, 6), paddings=[7, 0, 0, 0, 0, 0], mode="circular", says="at most the dim"),
        reject(X=f32(2, 3, 4, 5, 6), paddings=[-1, 0, 0, 0, 0, 0], mode="replicate", says="at least 0"),
        reject(X=f32(2, 3, 4, 5, 6), paddings=[-7, 0, 0, 0, 0, 0], says="cut more than"),
    ]


def _border_index(mode: str, size: int, front: int, back: int, device: Any) -> Tensor:
    """Return the element of a dim of ``size`` at each place of the padded dim."""
    places = torch.arange(-front, size + back, device=device)
    if mode == "replicate":
        return places.clamp_(0, size - 1)
    if mode == "circular":
        return places.remainder_(size)
    return (size - 1) - ((size - 1) - places.abs_()).abs_()


def _unwrapped(d: Tensor, axis: int, size: int, front: int, back: int) -> Tensor:
    """Return the gradient of a circular border: each part added at its source."""
    if not front and not back:
        return d
    out = d.narrow(axis, front, size).clone()
    if back:
        out.narrow(axis, 0, back).add_(d.narrow(axis, front + size, back))
    if front:
        out.narrow(axis, size - front, front).add_(d.narrow(axis, 0, front))
    return out


class Pad(Operator):
    """Out = X with ``pad_value`` around it; ``paddings`` are [before, after] of each axis, first axis first."""

    type = "pad"
    gradient_reads_dims = ("X",)
    X = operand((*NUMERIC, *COMPLEX), doc="any shape")
    Out = result(doc="each dim of X and its two paddings")
    paddings = attribute(AttrType.INTS)
    pad_value = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, X: Spec) -> Spec:
        pads = self.paddings
        require(len(pads) == 2 * X.rank, f"paddings must be two numbers for each of the {X.rank} dims of X; it has {len(pads)}", X=None)
        require(all(p >= 0 for p in pads), f"paddings must be at least 0; seen {list(pads)}", X=None)
        return X.with_dims([d + pads[2 * k] + pads[2 * k + 1] for k, d in enumerate(X.known_dims)])

    def computes(self) -> Border:
        return Border(tuple(zip(self.paddings[::2], self.paddings[1::2], strict=True)), self.pad_value)

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], [k for k in range(X.rank) if any(self.paddings[2 * k : 2 * k + 2])])

    def _widths(self, sign: int) -> Sequence[int]:
        pads = self.paddings
        return [sign * pads[k + side] for k in range(len(pads) - 2, -1, -2) for side in (0, 1)]

    def kernel(self, X: Tensor) -> Any:
        return F.pad(X, self._widths(1), "constant", self.pad_value)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Any:
        return F.pad(d_out, self._widths(-1))

    samples = [
        sample(X=f32(2, 3), paddings=[0, 1, 2, 3], pad_value=1.5),
        sample(X=c64(2, 3), paddings=[0, 1, 2, 0]),
        sample(X=f32(0, 3), paddings=[0, 0, 1, 1]),
        sample(X=i64(4), paddings=[1, 0]),
    ]
    rejects = [reject(X=f32(2, 3), paddings=[1, 1], says="two numbers for each"), reject(X=f32(2), paddings=[-1, 1], says="at least 0")]
