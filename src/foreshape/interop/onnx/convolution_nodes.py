"""Products, convolutions, pooling, normalizations and resizing."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call, transposed
from foreshape.interop.onnx.computed import numbers, padded, size_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.elementwise_nodes import result
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.reduce_nodes import reduce
from foreshape.interop.onnx.resize_nodes import by_matrices
from foreshape.interop.onnx.windows import given_pads, padded_as_same, pads_of, strides_and_dilations
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP32, FP64


@onnx("MatMul")
def matmul(c: Call) -> Any:
    x, y = c.x(0), c.x(1)
    of = x.spec.known_dtype
    if of.is_integer:  # exact below 2^53
        return c.cast(layer.matmul(c.cast(x, FP64), c.cast(y, FP64)), of)
    turned = _turned(y)
    return layer.matmul(x, y) if turned is None else layer.matmul(x, turned, transpose_y=True)


def _turned(y: Variable) -> Variable | None:
    """Return the tensor of which ``y`` is the transpose, in its last two axes alone; None if it is none."""
    source, axes = transposed(y)
    last = len(axes) - 1
    return source if axes == [*range(last - 1), last, last - 1] else None


@onnx("Gemm")
def gemm(c: Call) -> Any:
    """alpha A B + beta C, of matrices, each transposed or not."""
    x, y, more = c.x(0), c.x(1), c.optional(2)
    if c.rank(x) != 2 or c.rank(y) != 2:
        raise Refused(f"a product of tensors of {c.rank(x)} and {c.rank(y)} dims")
    of = x.spec.known_dtype
    if of.is_integer:
        x, y = c.cast(x, FP64), c.cast(y, FP64)
    out = layer.matmul(x, y, transpose_x=bool(c.attribute("transA", 0)), transpose_y=bool(c.attribute("transB", 0)))
    alpha, beta = c.attribute("alpha", 1.0), c.attribute("beta", 1.0)
    out = out if alpha == 1.0 else layer.scale(out, alpha)
    if more is not None:
        more = c.cast(more, out.spec.known_dtype)
        out = out + (more if beta == 1.0 else layer.scale(more, beta))
    return c.cast(out, of)


# --- windows


@onnx("Conv")
def convolution(c: Call) -> Any:
    return convolve(c, c.x(0), c.x(1), c.optional(2))


def convolve(c: Call, x: Variable, weight: Variable, bias: Variable | None) -> Variable:
    """Return a convolution with the attributes of a node. One axis is done as an image of height 1."""
    axes, groups = c.rank(x) - 2, int(c.attribute("group", 1))
    if axes > 3 or axes < 1:
        raise Refused(f"a convolution of {axes} axes")
    kernel = [int(k) for k in c.attribute("kernel_shape") or weight.spec.known_dims[2:]]  # pyright: ignore[reportArgumentType]
    strides, dilations = strides_and_dilations(c, axes)
    pads = pads_of(c, x, kernel, strides, dilations)
    algorithm = "EXPLICIT"
    if pads is None and c.attribute("auto_pad") == "SAME_UPPER" and set(dilations) == {1}:
        algorithm = "SAME"
    elif pads is None:
        x = padded_as_same(c, x, kernel, strides, dilations)
    pads = pads or [0] * (2 * axes)
    for size, k, d, before, after in zip(x.spec.known_dims[2:], kernel, dilations, pads[::2], pads[1::2], strict=True):
        if algorithm == "EXPLICIT" and isinstance(size, int) and size + before + after < (k - 1) * d + 1:
            raise Refused(f"a window of {(k - 1) * d + 1} over an axis of {size}, {before + after} zeros around it")
    if axes == 1:
        x, weight = c.unsqueeze(x, 2), c.unsqueeze(weight, 2)
        strides, dilations, pads = [1, *strides], [1, *dilations], [0, 0, *pads]
    attrs = {"strides": strides, "dilations": dilations, "paddings": pads, "groups": groups, "padding_algorithm": algorithm}
    depthwise = axes < 3 and groups > 1 and x.spec.known_dims[1] == groups
    out = c.op("depthwise_conv2d" if depthwise else "conv3d" if axes == 3 else "conv2d", attrs, Input=x, Filter=weight)
    out = out if bias is None else layer.add(out, bias, axis=1)
    return c.squeeze(out, 2) if axes == 1 else out


@onnx("ConvTranspose")
def transposed_convolution(c: Call) -> Any:
    x, weight, bias = c.x(0), c.x(1), c.optional(2)
    axes = c.rank(x) - 2
    if axes > 3 or axes < 1:
        raise Refused(f"a convolution of {axes} axes")
    kernel = [int(k) for k in c.attribute("kernel_shape") or weight.spec.known_dims[2:]]  # pyright: ignore[reportArgumentType]
    strides, dilations = strides_and_dilations(c, axes)
    more = [int(n) for n in c.attribute("output_padding") or [0] * axes]
    wanted, auto = c.attribute("output_shape"), c.attribute("auto_pad", "NOTSET")
    pads = given_pads(c, axes) if auto != "VALID" and wanted is None else [0] * (2 * axes)
    # without pads an image has a stride for each entry of x, and this
    beyond = [(k - 1) * d + 1 + m - s for k, d, m, s in zip(kernel, dilations, more, strides, strict=True)]
    sizes = [int(s) for s in x.spec.known_dims[2:] if isinstance(s, int)]
    lacks, wanted = [0] * axes, [int(n) for n in wanted][-axes:] if wanted is not None else None
    if wanted is not None and len(sizes) == axes:
        totals = [n * s + b - w for n, s, b, w in zip(sizes, strides, beyond, wanted, strict=True)]
        pads, lacks = [n for total in totals for n in _halves(max(0, total), auto)], [max(0, -total) for total in totals]
    elif wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = [n for total in beyond for n in _halves(max(0, total), auto)]
    if min(pads) < 0 or any(e >= max(s, d) for e, s, d in zip(more, strides, dilations, strict=True)):
        raise Refused("negative pads, or more output_padding than strides and dilations")
    if axes == 1:
        x, weight = c.unsqueeze(x, 2), c.unsqueeze(weight, 2)
        strides, dilations, pads, more, lacks = [1, *strides], [1, *dilations], [0, 0, *pads], [0, *more], [0, *lacks]
    attrs = {"strides": strides, "dilations": dilations, "paddings": pads, "groups": int(c.attribute("group", 1))}
    attrs["output_padding"] = more if any(more) else []
    out = c.op("conv3d_transpose" if axes == 3 else "conv2d_transpose", attrs, Input=x, Filter=weight)
    if any(lacks):
        out = c.op("pad", {"paddings": [0, 0, 0, 0, *(n for lack in lacks for n in (0, lack))], "pad_value": 0.0}, X=out)
    out = c.squeeze(out, 2) if axes == 1 else out
    if wanted is not None and len(sizes) < axes:
        out = _cut_to(c, out, wanted, auto)
    return out if bias is None else layer.add(out, bias, axis=1)


def _cut_to(c: Call, x: Variable, wanted: list[int], auto: str) -> Variable:
    """Return images cut to sizes at both ends, in the run, or with zeros behind them."""
    heads: list[Variable] = []
    tails: list[Variable] = []
    for axis, size in enumerate(wanted, 2):
        now = size_of(c, x, axis)
        total = layer.maximum(now - numbers(c, size), numbers(c, 0))
        head = (total if auto == "SAME_UPPER" else total + numbers(c, 1)) // numbers(c, 2)
        heads.append(numbers(c, 0) - head)
        tails.append(numbers(c, size) + head - now)
    return padded(c, x, layer.concat([*heads, *tails], 0), "constant", None, [*range(2, 2 + len(wanted))])


def _halves(total: int, auto: str) -> tuple[int, int]:
    """Return the pads before and after an axis."""
    small, large = total // 2, total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


# --- normalizations


@onnx("BatchNormalization")
def batch_norm(c: Call) -> Any:
    x, scale, bias, mean, variance = (c.x(at) for at in range(5))
    attrs = {"epsilon": c.attribute("epsilon", 1e-5), "momentum": c.attribute("momentum", 0.9), "is_test": True}
    rank, running = c.rank(x), ()
    if c.attribute("training_mode", 0):
        axes = [0, *range(2, rank)]
        own = reduce(c, "Mean", x, axes, False)
        apart = x - c.unsqueeze(own, *range(1, rank - 1))
        spread = reduce(c, "Mean", apart * apart, axes, False)
        kept = attrs["momentum"]
        pairs = [(layer.scale(old, kept), layer.scale(new, 1 - kept)) for old, new in ((mean, own), (variance, spread))]
        running = tuple(old + new for old, new in pairs)
        mean, variance = own, spread
    elif len([o for o in c.node.outputs if o]) > 1:
        raise Refused("a batch norm of training")
    held = all(v.persistable for v in (mean, variance)) and rank >= 2 and x.spec.known_dtype is FP32
    if not held:
        axes = [*range(1, rank - 1)]
        scale, bias, mean, variance = (c.unsqueeze(v, *axes) for v in (scale, bias, mean, variance))
        deviation = layer.sqrt(layer.scale(variance, 1.0, attrs["epsilon"]))
        apart = layer.divide(x - mean, deviation)
        out = apart * scale + bias
        return (out, *running) if running else out
    outputs = {"MeanOut": mean, "VarianceOut": variance}
    op = c.importer.block.append_op("batch_norm", {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}, outputs, attrs)
    return c.importer.block.vars[op.output("Y") or ""]


@onnx("InstanceNormalization")
def instance_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    return result(c.op("instance_norm", {"epsilon": c.attribute("epsilon", 1e-5)}, X=x, Scale=scale, Bias=bias))


@onnx("LayerNormalization")
def layer_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.optional(2)
    rank = c.rank(x)
    axis, epsilon = c.axis(c.attribute("axis", -1), rank), c.attribute("epsilon", 1e-5)
    several = len([o for o in c.node.outputs if o]) > 1
    flat = scale.spec.known_dims == x.spec.known_dims[axis:] and all(isinstance(d, int) for d in scale.spec.known_dims)
    if flat and not several and axis > 0:
        sizes = (c.reshape(v, [-1]) if v is not None and v.spec.rank != 1 else v for v in (scale, bias))
        one, other = sizes
        return result(c.op("layer_norm", {"epsilon": epsilon, "begin_norm_axis": axis}, X=x, Scale=one, Bias=other))
    axes = [*range(axis, rank)]
    mean = reduce(c, "Mean", x, axes, True)
    apart = x - mean
    variance = reduce(c, "Mean", apart * apart, axes, True)
    inverse = layer.rsqrt(layer.scale(variance, 1.0, epsilon))
    out = apart * inverse * scale
    out = out if bias is None else out + bias
    return (out, mean, inverse) if several else out


@onnx("RMSNormalization")
@onnx("SimplifiedLayerNormalization")
def rms_norm(c: Call) -> Any:
    x, scale = c.x(0), c.x(1)
    rank = c.rank(x)
    axes = [*range(c.axis(c.attribute("axis", -1), rank), rank)]
    mean = reduce(c, "Mean", x * x, axes, True)
    inverse = layer.rsqrt(layer.scale(mean, 1.0, c.attribute("epsilon", 1e-05)))
    return x * inverse * scale


@onnx("GroupNormalization")
def group_norm(c: Call) -> Any:
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    groups, channels = int(c.attribute("num_groups")), x.spec.known_dims[1]
    if not isinstance(channels, int) and c.opset >= 21 and isinstance(scale.spec.known_dims[0], int):
        channels = scale.spec.known_dims[0]
        x = computed.shaped(c, x, *computed.dims_of(c, x, 0, 1), channels, *computed.dims_of(c, x, 2))
    if not isinstance(channels, int) and c.opset < 21:  # each group as one channel
        flat = computed.shaped(c, x, *computed.dims_of(c, x, 0, 1), groups, -1)
        made = result(c.op("group_norm", {"epsilon": c.attribute("epsilon", 1e-5), "groups": groups}, X=flat, Scale=scale, Bias=bias))
        return computed.shaped(c, made, *computed.dims_of(c, x))
    if not isinstance(channels, int):
        raise Refused("an open number of channels")
    if c.opset < 21 and scale.spec.known_dims == (groups,):  # a number for each group
        scale, bias = (c.reshape(c.op("expand_v2", {"shape": [groups, channels // groups]}, X=c.unsqueeze(v, 1)), [channels]) for v in (scale, bias))
    return result(c.op("group_norm", {"epsilon": c.attribute("epsilon", 1e-5), "groups": groups}, X=x, Scale=scale, Bias=bias))


@onnx("LRN")
def local_response_norm(c: Call) -> Any:
    x, size = c.x(), int(c.attribute("size"))
    attrs = {"n": size, "k": c.attribute("bias", 1.0), "alpha": c.attribute("alpha", 1e-4) / size, "beta": c.attribute("beta", 0.75)}
    if size % 2 == 0 or c.rank(x) != 4:
        raise Refused("an even size, or other than 4 dims")
    return result(c.op("lrn", attrs, X=x))


@onnx("Resize", "Upsample")
def resize(c: Call) -> Any:
    """Resize the image of a batch by nearest entries, lines or cubes: by an op of ours where one is the same, else by matrices."""
    try:
        return _by_op(c)
    except Refused:
        x, old = c.x(), c.node.operator == "Upsample" or c.opset < 11
        axes = [c.axis(int(a), c.rank(x)) for a in c.attribute("axes") or range(c.rank(x))]
        scales, sizes = (None if one is None or one.spec.dims == (0,) else one for one in (c.optional(1 if old else 2), None if old else c.optional(3)))
        known = None if scales is None else c.constant(1 if old else 2)
        if c.node.operator == "Upsample" and c.opset < 9:
            known = _scales_of_attributes(c)
            scales = c.importer.variable(OnnxConstant("scales", None, known))
        if scales is None and sizes is None:
            raise
        region = c.optional(1) if c.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize" and not old else None
        return by_matrices(c, x, axes, scales, sizes, region, old, known)


def _scales_of_attributes(c: Call) -> Any:
    import numpy

    return numpy.array(c.attribute("scales") or [1.0, 1.0, c.attribute("height_scale"), c.attribute("width_scale")], "float32")


def _by_op(c: Call) -> Any:
    x, kind = c.x(), c.attribute("mode", "nearest")
    rank = c.rank(x)
    old = c.node.operator == "Upsample" or c.opset < 11
    scales_at, sizes_at = (1, 9) if old else (2, 3)
    scales = c.constant(scales_at) if c.has(scales_at) else None
    if c.node.operator == "Upsample" and c.opset < 9:
        scales = _scales_of_attributes(c)
    sizes = c.sizes(sizes_at) if c.has(sizes_at) else None
    axes = [c.axis(int(a), rank) for a in c.attribute("axes") or range(rank)]
    dims = x.spec.known_dims
    if scales is not None and scales.size:
        factors = {a: float(s) for a, s in zip(axes, scales.reshape(-1), strict=True) if float(s) != 1.0}
        wanted = {a: int(float(dims[a]) * s) for a, s in factors.items() if isinstance(dims[a], int)}  # pyright: ignore[reportArgumentType]
    elif sizes is not None:
        if any(not isinstance(s, int) and s != dims[a] for a, s in zip(axes, sizes, strict=True)):
            raise Refused("a size of other symbols than the image's")
        wanted = {a: int(s) for a, s in zip(axes, sizes, strict=True) if s != dims[a]}  # pyright: ignore[reportArgumentType]
        factors = {a: wanted[a] / int(dims[a]) if isinstance(dims[a], int) else 0.0 for a in wanted}  # pyright: ignore[reportArgumentType]
    else:
        raise Refused("its scales are not known before the run")
    if not factors:
        return layer.assign(x)
    mode = c.attribute("coordinate_transformation_mode", "half_pixel" if not old else "asymmetric")
    nearest = c.attribute("nearest_mode", "round_prefer_floor" if not old else "floor")
    for name, plain in (("antialias", 0), ("exclude_outside", 0), ("extrapolation_value", 0.0), ("keep_aspect_ratio_policy", "stretch")):
        if c.attribute(name, plain) != plain:
            raise Refused(f"{name} = {c.attribute(name)}")
    if rank not in (3, 4, 5) or any(a < 2 for a in factors):
        raise Refused("axes other than those of an image")
    image = [*range(2, rank)]
    attrs: dict[str, Any] = {"align_corners": mode == "align_corners"}
    if all(a in wanted or isinstance(dims[a], int) for a in image):
        out = [wanted.get(a, dims[a]) for a in image]
        attrs |= dict(zip({3: ("out_w",), 4: ("out_h", "out_w"), 5: ("out_d", "out_h", "out_w")}[rank], out, strict=True))
    elif 0.0 in factors.values():
        raise Refused("a size of an axis that is open, beside another that is")
    else:
        attrs["scale"] = [factors.get(a, 1.0) for a in image]
    fraction = any(isinstance(dims[a], int) and scales is not None and scales.size and factors.get(a, 1.0) * int(dims[a]) % 1 for a in image)  # pyright: ignore[reportArgumentType]
    if fraction:
        raise Refused("scales that give no whole size")
    if kind == "nearest":
        whole = all(f >= 1 and f % 1 == 0 for f in factors.values())
        downs = mode == "asymmetric" and nearest == "floor" and not (old and any(f < 1 for f in factors.values()))
        if (
            not downs
            and not (whole and mode in ("half_pixel", "pytorch_half_pixel") and nearest in ("round_prefer_floor", "round_prefer_ceil"))
            and not (whole and mode == "asymmetric" and nearest == "floor")
        ):
            raise Refused(f"nearest entries by {mode}, {nearest}")
        type = "nearest_interp_v2"
        attrs["align_corners"] = False
        if rank == 3:
            raise Refused("nearest entries of 3 dims")
    elif kind in ("linear", "cubic"):
        if mode not in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            raise Refused(f"coordinates by {mode}")
        if kind == "cubic" and (mode == "asymmetric" or rank != 4 or c.attribute("cubic_coeff_a", -0.75) != -0.75):
            raise Refused("cubes of this kind")
        type = {3: "linear_interp_v2", 4: "bilinear_interp_v2", 5: "trilinear_interp_v2"}[rank] if kind == "linear" else "bicubic_interp_v2"
        attrs["align_mode"] = 1 if mode == "asymmetric" else 0
        if mode == "half_pixel" and ("scale" in attrs or any(wanted.get(a, dims[a]) == 1 for a in image)):
            attrs["centered"] = True
        attrs["interp_method"] = {"linear_interp_v2": "linear", "bilinear_interp_v2": "bilinear", "trilinear_interp_v2": "trilinear"}.get(type, "bicubic")
    else:
        raise Refused(f"the mode {kind}")
    return c.op(type, attrs, X=x)
