"""Import of losses, resizing and windows."""

from __future__ import annotations

import math
import operator
from typing import Any

from foreshape import layer
from foreshape.dims import less_equal
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_elementwise import change
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.aten_shapes import padded_by_sizes
from foreshape.interop.torch.aten_special import x_log_y
from foreshape.interop.torch.open_size import FLOORDIV, OpenSize, as_dim, as_variable, compute, host_number, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.program import Variable
from foreshape.spec import FP32, INT32, INT64

# --- losses


def _reduced(x: Variable, reduction: int) -> Variable:
    return x if reduction == 0 else layer.reduce_mean(x) if reduction == 1 else layer.reduce_sum(x)


@aten("mse_loss")
def _mse(t: TorchCall, x: Variable, y: Variable, reduction: int = 1) -> Any:
    return _reduced(layer.square(layer.subtract(x, y)), reduction)


@aten("multi_margin_loss")
def _multi_margin(t: TorchCall, x: Variable, target: Variable, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1) -> Any:
    single = t.rank(x) == 1
    x, target = (layer.unsqueeze(x, [0]), layer.reshape(target, [1])) if single else (x, target)
    own = layer.unsqueeze(target, [1])
    off = layer.relu(t.scale(layer.subtract(x, layer.take_along_axis(x, own, 1)), 1.0, float(margin)))
    off = layer.square(off) if p == 2 else off
    off = off if weight is None else layer.multiply(off, layer.unsqueeze(layer.gather(weight, target), [1]))
    classes = layer.range(0, as_variable(size_of(x, 1)), 1, dtype=INT64)
    others = t.cast(layer.not_equal(own, layer.unsqueeze(classes, [0])), t.dtype)
    made = _reduced(layer.reduce_mean(layer.multiply(off, others), [1]), reduction)
    return layer.reshape(made, []) if single else made


@aten("multilabel_margin_loss", "multilabel_margin_loss_forward")
def _multilabel_margin(t: TorchCall, x: Variable, target: Variable, reduction: int = 1) -> Any:
    single = t.rank(x) == 1
    x, target = (layer.unsqueeze(x, [0]), layer.unsqueeze(target, [0])) if single else (x, target)
    ended = layer.less_equal(layer.cumsum(t.cast(layer.less_than(target, 0), INT64), 1), 0)  # the labels before the first one below 0
    label = t.where(ended, target, layer.fill_like(target, 0))
    classes = layer.unsqueeze(layer.range(0, as_variable(size_of(x, 1)), 1, dtype=INT64), [0, 1])
    meant = layer.logical_and(layer.equal(layer.unsqueeze(label, [2]), classes), layer.unsqueeze(ended, [2]))
    others = layer.logical_not(layer.reduce_any(meant, [1], True))
    off = layer.subtract(layer.unsqueeze(x, [1]), layer.unsqueeze(layer.take_along_axis(x, label, 1), [2]))
    counted = t.cast(layer.logical_and(others, layer.unsqueeze(ended, [2])), t.dtype)
    each = layer.reduce_mean(layer.reduce_sum(layer.multiply(layer.relu(t.scale(off, 1.0, 1.0)), counted), [1]), [1])
    made = _reduced(each, reduction)
    made = layer.reshape(made, []) if single else made
    return [made, None] if "forward" in t.name else made


@aten("l1_loss")
def _l1(t: TorchCall, x: Variable, y: Variable, reduction: int = 1) -> Any:
    return _reduced(layer.abs(layer.subtract(x, y)), reduction)


@aten("smooth_l1_loss", "huber_loss")
def _huber(t: TorchCall, x: Variable, y: Variable, reduction: int = 1, beta: float = 1.0) -> Any:
    off = layer.abs(layer.subtract(x, y))
    smooth = "smooth" in t.name
    if smooth and beta == 0:
        return _reduced(off, reduction)
    near = t.scale(layer.square(off), 0.5 / beta if smooth else 0.5)
    far = t.scale(off, 1.0, -0.5 * beta) if smooth else t.scale(off, beta, -0.5 * beta * beta)
    return _reduced(layer.where(layer.less_than(off, t.tensor(float(beta), t.dtype)), near, far), reduction)


@aten("binary_cross_entropy")
def _bce(t: TorchCall, x: Variable, y: Variable, weight: Any = None, reduction: int = 1) -> Any:
    made = t.op("bce_loss", None, X=x, Label=y)
    if not y.stop_gradient:  # ours has no gradient of it
        slope = layer.subtract(layer.log1p(layer.scale(x, -1.0)), layer.log(x))
        slope.stop_gradient = True
        made = layer.add(made, layer.multiply(change(y), slope))
    return _reduced(made if weight is None else layer.multiply(made, weight), reduction)


@aten("binary_cross_entropy_with_logits")
def _bce_logits(t: TorchCall, x: Variable, y: Variable, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    if pos_weight is None:
        made = layer.subtract(layer.softplus(x, 1.0, 1e4), layer.multiply(x, y))
    else:  # (1 - y) x + (1 + (p - 1) y) log(1 + e^-x)
        by = layer.scale(layer.multiply(layer.scale(pos_weight, 1.0, -1.0), y), 1.0, 1.0)
        made = layer.add(layer.multiply(layer.scale(y, -1.0, 1.0), x), layer.multiply(by, layer.softplus(layer.scale(x, -1.0), 1.0, 1e4)))
    return _reduced(made if weight is None else layer.multiply(made, weight), reduction)


@aten("nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def _nll(t: TorchCall, x: Variable, target: Variable, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    attrs = {"ignore_index": ignore_index, "reduction": ("none", "mean", "sum")[reduction]}
    rank = t.rank(x)
    if rank not in (2, 4):  # ours are of rows, and of images
        sizes = [size_of(target, a) for a in range(t.rank(target))]
        if rank == 1:
            x, target = layer.unsqueeze(x, [0]), layer.reshape(target, [1])
        else:
            x = layer.unsqueeze(x, [3]) if rank == 3 else layer.flatten(x, 2, -1)
            x = layer.unsqueeze(x, [3]) if t.rank(x) == 3 else x
            target = layer.unsqueeze(layer.flatten(target, 1, -1), [2])
        made = t.op("nll_loss", attrs, X=x, Label=target, Weight=weight)[0]
        return t.reshape(made, sizes) if reduction == 0 else made
    made, total = t.op("nll_loss", attrs, X=x, Label=target, Weight=weight)
    return [made, total] if "forward" in t.name else made


@aten("cross_entropy_loss")
def _cross_entropy(
    t: TorchCall, x: Variable, target: Variable, weight: Any = None, reduction: int = 1, ignore_index: int = -100, smoothing: float = 0.0
) -> Any:
    axis = 1 if t.rank(x) > 1 else 0
    logs = layer.log_softmax(x, axis)
    classes = logs.spec.known_dims[axis]
    if not isinstance(classes, int):
        raise Refused("an open number of classes")
    column = None if weight is None else layer.reshape(weight, [-1, *[1] * (t.rank(x) - 1 - axis)])
    if target.dtype == x.dtype:
        if smoothing:
            target = t.scale(target, 1.0 - smoothing, smoothing / classes)
        made = layer.multiply(logs, target if column is None else layer.multiply(target, column))
        made = layer.scale(layer.reduce_sum(made, axis), -1.0)
        if reduction == 1 and t.rank(made) > 1:
            return layer.divide(layer.reduce_sum(made), layer.reshape(layer.cast(layer.slice(layer.shape(x), [0], [0], [1]), x.dtype), []))
        return _reduced(made, reduction)
    if axis == 0:
        logs, target = layer.unsqueeze(logs, [0]), layer.reshape(target, [1])
    hard = _nll(t, logs, target, weight, reduction, ignore_index)
    if not smoothing:
        return layer.reshape(hard, []) if axis == 0 and reduction == 0 else hard
    counted = layer.cast(layer.not_equal(target, ignore_index), x.dtype)
    soft = layer.multiply(layer.scale(layer.reduce_sum(logs if column is None else layer.multiply(logs, column), 1), -1.0), counted)
    if reduction == 1:
        number = counted
        if weight is not None:
            safe = layer.where(layer.equal(target, ignore_index), layer.fill_like(target, 0), target)
            of_each = t.reshape(layer.index_select(weight, layer.reshape(safe, [-1]), 0), [size_of(target, a) for a in range(t.rank(target))])
            number = layer.multiply(of_each, counted)
        soft = layer.divide(layer.reduce_sum(soft), layer.reduce_sum(number))
    else:
        soft = _reduced(soft, reduction)
    return layer.add(t.scale(hard, 1.0 - smoothing), t.scale(soft, smoothing / classes))


@aten("foreshape.ctc")
def _ctc(t: TorchCall, x: Variable, target: Variable, steps: Variable, lengths: Variable, blank: int, zero_infinity: bool) -> Any:
    """Return each sequence's loss of connectionist temporal classification, of logarithms ``[time, batch, classes]`` and labels ``[batch, labels]``."""
    steps, lengths = t.cast(steps, INT64), t.cast(lengths, INT64)
    loss = layer.reshape(layer.warpctc(x, t.cast(target, INT32), blank, input_length=steps, label_length=lengths), [-1])
    if not zero_infinity:  # labels too long for the steps, where ours is 0: each needs a step, and one more where it repeats the last
        later, before = layer.slice(target, [1], [1], [2**31 - 1]), layer.slice(target, [1], [0], [-1])
        place = layer.add(layer.cumsum(layer.fill_like(later, 1.0, INT64), 1), layer.fill_constant([], INT64, 0))
        repeats = layer.logical_and(layer.equal(later, before), layer.less_than(place, layer.unsqueeze(lengths, [1])))
        needed = layer.add(lengths, layer.reduce_sum(layer.cast(repeats, INT64), [1]))
        loss = t.where(layer.greater_than(needed, steps), t.tensor(float("inf"), x.spec.known_dtype), loss)
    return loss


@aten("kl_div")
def _kl(t: TorchCall, x: Variable, y: Variable, reduction: int = 1, log_target: bool = False) -> Any:
    if y.stop_gradient:
        made = t.op("kldiv_loss", {"reduction": "none", "log_target": log_target}, X=x, Target=y)
    elif log_target:
        made = layer.multiply(layer.exp(y), layer.subtract(y, x))
    else:
        made = layer.subtract(x_log_y(t, y, y), layer.multiply(y, x))
    return _reduced(made, reduction)


# --- images

_METHODS = {"nearest1d": "linear", "linear1d": "linear", "nearest2d": "nearest", "bilinear2d": "bilinear", "bicubic2d": "bicubic", "trilinear3d": "trilinear"}


@aten(
    *(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"_upsample_{kind}_aa" for kind in ("bilinear2d", "bicubic2d")),
)
def _upsample(t: TorchCall, x: Variable, size: Any, *more: Any) -> Any:
    name, overload = t.name.split("upsample_")[1].removesuffix("_aa"), t.overload
    nearest = "nearest" in name
    corners = False if nearest else bool(more[0]) if more else False
    rest = list(more if nearest else more[1:])
    factors = rest[0] if rest and is_list(rest[0]) else [f for f in rest if isinstance(f, (int, float)) and not isinstance(f, bool)]
    if overload == "vec" and size is None and not factors:
        raise Refused("neither a size nor factors")
    wanted = [*size] if size is not None else [_times(size_of(x, 2 + at), float(f)) for at, f in enumerate(factors)]
    if name == "nearest1d":
        x = layer.unsqueeze(x, [2])
    type = {"nearest1d": "nearest", "nearest3d": "nearest"}.get(name, _METHODS.get(name, "nearest")) + "_interp_v2"
    attrs: dict[str, Any] = {"align_corners": corners, "align_mode": 0, "interp_method": type.removesuffix("_interp_v2")}
    attrs |= {"antialias": True} if t.name.endswith("_aa") else {}
    if not nearest and not corners and not all((n := as_dim(s)) is not None and less_equal(2, n) for s in wanted):
        attrs["centered"] = True
    inputs: dict[str, Any] = {"X": x}
    if size is not None:
        wanted = [1, *size] if name == "nearest1d" else [*size]
        if all(isinstance(as_dim(s), int) for s in wanted):
            attrs.update(zip(("out_d", "out_h", "out_w")[3 - len(wanted) :], [as_dim(s) for s in wanted], strict=True))
        else:
            inputs["SizeTensor"] = [layer.cast(layer.fill_constant([1], INT64, s) if isinstance(s, int) else s.variable, "int32") for s in wanted]
    else:
        attrs["scale"] = [float(f) for f in ([1.0, *factors] if name == "nearest1d" else factors)]
    made = t.op(type, attrs, **inputs)
    return layer.squeeze(made, [2]) if name == "nearest1d" else made


@aten("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _upsample_exact(t: TorchCall, x: Variable, size: Any, *more: Any) -> Any:
    """Return the elements nearest to the middle of each place."""
    factors = next((one for one in more if is_list(one)), [one for one in more if one is not None])
    axes = t.rank(x) - 2
    for at in range(axes):
        own = size_of(x, 2 + at)
        factor = float(factors[at]) if factors else None
        wanted = size[at] if size is not None else _times(own, factor)
        places = layer.scale(layer.range(0, as_variable(wanted), 1, dtype=FP32), 1.0, 0.5)
        if factor is not None:
            near = layer.scale(places, 1.0 / factor)
        else:
            near = layer.multiply(places, layer.divide(layer.cast(as_variable(own), FP32), layer.cast(as_variable(wanted), FP32)))
        last = layer.cast(layer.subtract(as_variable(own), as_variable(1)), INT64)
        x = layer.index_select(x, layer.minimum(layer.cast(near, INT64), last), 2 + at)
    return x


def _times(own: Any, factor: Any) -> Any:
    """Return a size times a factor, rounded down."""
    return host_number(math.floor, [host_number(operator.mul, [own, factor])])


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(t: TorchCall, x: Variable, grid: Variable, mode: int = 0, padding: int = 0, align_corners: bool = False) -> Any:
    if mode == 2:
        raise Refused("a grid read bicubically")
    kind, outside = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return layer.grid_sample(x, grid, kind, outside, bool(align_corners), kind == "nearest")


@aten("affine_grid_generator")
def _affine_grid(t: TorchCall, theta: Variable, size: Any, align_corners: bool) -> Any:
    if any(isinstance(s, OpenSize) for s in size):
        return layer.affine_grid(theta, layer.concat([as_variable(s) for s in size], 0), align_corners)
    return layer.affine_grid(theta, [int(s) for s in size], align_corners)


@aten("im2col")
def _im2col(t: TorchCall, x: Variable, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return layer.unfold(x, kernel, stride, padding, dilation)


@aten("col2im")
def _col2im(t: TorchCall, x: Variable, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    if not any(isinstance(n, OpenSize) for n in size):
        return layer.fold(x, size, kernel, stride, padding, dilation)
    return _folded(t, x, size, *([int(n) for n in one] for one in (kernel, dilation, padding, stride)))


def _folded(t: TorchCall, x: Variable, size: Any, kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Any:
    """Return windows ``[batch, channels * elements, windows]`` added up in an image of open size: a transposed convolution, cut and filled up."""
    count = kernel[0] * kernel[1]
    counts = [
        compute(operator.add, compute(FLOORDIV, compute(operator.add, n, 2 * p - d * (k - 1) - 1), s), 1)
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]
    parts = t.reshape(x, [-1, count, *counts])
    each = layer.reshape(layer.eye(count, None, x.spec.known_dtype), [count, 1, *kernel])
    out = t.op("conv2d_transpose", {"strides": stride, "dilations": dilation, "paddings": [0, 0]}, Input=parts, Filter=each)
    for at, (n, m, k, d, p, s) in enumerate(zip(size, counts, kernel, dilation, padding, stride, strict=True)):
        full = compute(operator.add, compute(operator.mul, m, s), d * (k - 1) + 1 - s)
        rest = compute(operator.sub, compute(operator.add, n, 2 * p), full)
        if rest != 0:
            out = padded_by_sizes(t, out, [0] * (2 - 2 * at) + [0, rest], 0.0)
        out = layer.slice(out, [2 + at], [p], t.sizes([compute(operator.add, n, p)])) if p else out
    return t.reshape(out, [size_of(x, 0), compute(FLOORDIV, size_of(x, 1), count), *size])
