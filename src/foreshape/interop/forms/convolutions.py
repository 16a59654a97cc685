"""Convolutions, in the other formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.dims import Size, equal
from foreshape.interop.forms.products import pairs
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import numbers, padded, size_of
from foreshape.interop.onnx.windows import given_pads, padded_as_same, pads_of, strides_and_dilations
from foreshape.interop.onnx.write.channel_order import channels_back, channels_first, image_dims, padding
from foreshape.interop.onnx.write.terms import Term, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.language.ops.rules.window import pads_of as onnx_pads_of
from foreshape.language.program.variable import Variable
from foreshape.machine.kernels.window_steps import lacking

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Conv")
def from_onnx_convolution(c: Call) -> Any:
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
    for size, k, d, head, tail in zip(x.spec.known_dims[2:], kernel, dilations, pads[::2], pads[1::2], strict=True):
        if algorithm == "EXPLICIT" and isinstance(size, int) and size + head + tail < (k - 1) * d + 1:
            raise Refused(f"a window of {(k - 1) * d + 1} over an axis of {size}, {head + tail} zeros around it")
    if axes == 1:
        x, weight = c.unsqueeze(x, 2), c.unsqueeze(weight, 2)
        strides, dilations, pads = [1, *strides], [1, *dilations], [0, 0, *pads]
    attrs = {"strides": strides, "dilations": dilations, "paddings": pads, "groups": groups, "padding_algorithm": algorithm}
    depthwise = axes < 3 and groups > 1 and x.spec.known_dims[1] == groups
    out = c.op("depthwise_conv2d" if depthwise else "conv3d" if axes == 3 else "conv2d", attrs, Input=x, Filter=weight)
    out = out if bias is None else layer.add(out, bias, axis=1)
    return c.squeeze(out, 2) if axes == 1 else out


@from_onnx("ConvTranspose")
def from_onnx_transposed_convolution(c: Call) -> Any:
    x, weight, bias = c.x(0), c.x(1), c.optional(2)
    axes = c.rank(x) - 2
    if axes > 3 or axes < 1:
        raise Refused(f"a convolution of {axes} axes")
    kernel = [int(k) for k in c.attribute("kernel_shape") or weight.spec.known_dims[2:]]  # pyright: ignore[reportArgumentType]
    strides, dilations = strides_and_dilations(c, axes)
    output_padding = [int(n) for n in c.attribute("output_padding") or [0] * axes]
    output_shape, auto = c.attribute("output_shape"), c.attribute("auto_pad", "NOTSET")
    pads = given_pads(c, axes) if auto != "VALID" and output_shape is None else [0] * (2 * axes)
    # without pads an image has a stride for each entry of x, and this
    beyond = [(k - 1) * d + 1 + m - s for k, d, m, s in zip(kernel, dilations, output_padding, strides, strict=True)]
    sizes = [int(s) for s in x.spec.known_dims[2:] if isinstance(s, int)]
    lacks, output_shape = [0] * axes, [int(n) for n in output_shape][-axes:] if output_shape is not None else None
    if output_shape is not None and len(sizes) == axes:
        totals = [n * s + b - w for n, s, b, w in zip(sizes, strides, beyond, output_shape, strict=True)]
        pads, lacks = [n for total in totals for n in _halves(max(0, total), auto)], [max(0, -total) for total in totals]
    elif output_shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = [n for total in beyond for n in _halves(max(0, total), auto)]
    if min(pads) < 0 or any(e >= max(s, d) for e, s, d in zip(output_padding, strides, dilations, strict=True)):
        raise Refused("negative pads, or more output_padding than strides and dilations")
    if axes == 1:
        x, weight = c.unsqueeze(x, 2), c.unsqueeze(weight, 2)
        strides, dilations, pads, output_padding, lacks = [1, *strides], [1, *dilations], [0, 0, *pads], [0, *output_padding], [0, *lacks]
    attrs = {"strides": strides, "dilations": dilations, "paddings": pads, "groups": int(c.attribute("group", 1))}
    attrs["output_padding"] = output_padding if any(output_padding) else []
    out = c.op("conv3d_transpose" if axes == 3 else "conv2d_transpose", attrs, Input=x, Filter=weight)
    if any(lacks):
        out = c.op("pad", {"paddings": [0, 0, 0, 0, *(n for lack in lacks for n in (0, lack))], "pad_value": 0.0}, X=out)
    out = c.squeeze(out, 2) if axes == 1 else out
    if output_shape is not None and len(sizes) < axes:
        out = _cut_to(c, out, output_shape, auto)
    return out if bias is None else layer.add(out, bias, axis=1)


def _cut_to(c: Call, x: Variable, sizes: list[int], auto: str) -> Variable:
    """Return images cut to sizes at both ends, in the run, or with zeros behind them."""
    heads: list[Variable] = []
    tails: list[Variable] = []
    for axis, size in enumerate(sizes, 2):
        length = size_of(c, x, axis)
        total = layer.maximum(length - numbers(c, size), numbers(c, 0))
        head = (total if auto == "SAME_UPPER" else total + numbers(c, 1)) // numbers(c, 2)
        heads.append(numbers(c, 0) - head)
        tails.append(numbers(c, size) + head - length)
    return padded(c, x, layer.concat([*heads, *tails], 0), "constant", None, [*range(2, 2 + len(sizes))])


def _halves(total: int, auto: str) -> tuple[int, int]:
    """Return the pads before and after an axis."""
    small, large = total // 2, total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


# --- to ONNX


@to_onnx()
def _to_onnx_row_conv(w: WrittenOp) -> Any:
    """Add up the rows ahead, each times its row of the filter; behind the end there are zeros."""
    x, ahead = term(w, "X"), w.spec("Filter").known_dims[0]
    rank = w.rank("X")
    if not isinstance(ahead, int):
        raise Refused("an open number of rows")
    pads = [0] * (2 * rank)
    pads[2 * rank - 2] = ahead - 1
    padded, filters = x.node("Pad", w.ints(*pads), w.number(0.0, x.of)), term(w, "Filter")
    total: Term | None = None
    for row in range(ahead):
        part = padded.cut(rank - 2, row, row - ahead + 1 if row - ahead + 1 < 0 else 2**62) * filters.at(0, row)
        total = part if total is None else total + part
    return total.value if total is not None else None


@to_onnx("conv2d", "depthwise_conv2d", "conv3d")
def _to_onnx_convolution(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("Input")
    kernel = w.spec("Filter").known_dims[2:]
    dilations = [1] * (rank - 2) if w.of.padding_algorithm == "SAME" else [*w.of.dilations]
    pads = padding(w, image_dims(w, "Input", layout), kernel, w.of.strides, dilations)
    out = w.node(
        "Conv",
        channels_first(w, "Input", layout),
        w.x("Filter"),
        w.optional("Bias"),
        group=int(w.of.groups),
        strides=[*w.of.strides],
        dilations=dilations,
        **pads,
    )
    return channels_back(w, out, rank, layout)


@to_onnx("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _to_onnx_transposed_convolution(w: WrittenOp) -> OnnxValue:
    layout, rank = w.of.data_format, w.rank("Input")
    axes = rank - 2
    kernel = [int(k) for k in w.spec("Filter").known_dims[2:]]  # pyright: ignore[reportArgumentType]
    image, strides = image_dims(w, "Input", layout), [*w.of.strides]
    dilations = [1] * axes if w.of.padding_algorithm == "SAME" else [*w.of.dilations]
    pad_pairs = onnx_pads_of(w.of.paddings, w.of.padding_algorithm, image, kernel, strides)
    if not all(isinstance(p, int) for pair in pad_pairs for p in pair):
        raise Refused("padding SAME for images of open sizes")
    pads: list[int] = [*[p[0] for p in pad_pairs], *[p[1] for p in pad_pairs]]  # pyright: ignore[reportAssignmentType]
    output_padding = [*w.of.output_padding] or [0] * axes
    out = w.result("Output").known_dims
    out = out[1:-1] if is_channels_last(layout) else out[2:]
    if w.op.input_slots.get("OutputSizes") or w.of.output_size:
        if not all(isinstance(d, int) for d in (*out, *image)):
            raise Refused("an output size that is given, for images of open sizes")
        for axis in range(axes):
            usual = (image[axis] - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1 - pads[axis] - pads[axes + axis]
            output_padding[axis] = int(out[axis]) - usual  # pyright: ignore[reportArgumentType]
    result = w.node(
        "ConvTranspose",
        channels_first(w, "Input", layout),
        w.x("Filter"),
        w.optional("Bias"),
        group=int(w.of.groups),
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=output_padding if any(output_padding) else None,
    )
    return channels_back(w, result, rank, layout)


# --- from PaddlePaddle 3


@from_pir("depthwise_conv2d_bias", "conv2d_transpose_bias", without=("use_cudnn",))
def _convolution_with_bias(p: PirCall) -> Any:
    """Return a convolution, and the sum with its bias, one number for each channel."""
    p.by_row(name=p.name.removesuffix("_bias"), skipped=2)
    return p.apply("elementwise_add", {"axis": 3 if p.attribute("data_format") == "NHWC" else 1}, X=p.raw(0), Y=p.x(2))


# --- from torch


@from_torch("conv1d", "conv2d", "conv3d")
def _convolution(t: TorchCall, x: Variable, weight: Variable, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    axes = t.rank(weight) - 2
    single = t.rank(x) == axes + 1
    if single:
        x = layer.unsqueeze(x, [0])
    dilations, strides = pairs(dilation, axes), pairs(stride, axes)
    kernel = [int(k) for k in weight.spec.known_dims[2:]]  # pyright: ignore[reportArgumentType]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        pads = [n for size in total for n in (size // 2, size - size // 2)]
    elif padding == "valid":
        pads = [0] * axes
    else:
        pads = pairs(padding, axes)
    if axes == 1:
        x, weight = layer.unsqueeze(x, [2]), layer.unsqueeze(weight, [2])
        strides, dilations, pads = [1, *strides], [1, *dilations], ([0, 0, *pads] if len(pads) == 2 else [0, *pads])
    type = "conv3d" if axes == 3 else "conv2d"
    out = t.op(type, {"strides": strides, "paddings": pads, "dilations": dilations, "groups": groups}, Input=x, Filter=weight)
    if bias is not None:
        out = t.op("elementwise_add", {"axis": 1}, X=out, Y=bias)
    if axes == 1:
        out = layer.squeeze(out, [2])
    return layer.squeeze(out, [0]) if single else out


@from_torch("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _from_torch_transposed(
    t: TorchCall,
    x: Variable,
    weight: Variable,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    axes = t.rank(weight) - 2
    strides, pads, extras, dilations = (pairs(g, axes) for g in (stride, padding, output_padding, dilation))
    if axes == 1:
        x, weight = layer.unsqueeze(x, [2]), layer.unsqueeze(weight, [2])
        strides, pads, extras, dilations = [1, *strides], [0, *pads], [0, *extras], [1, *dilations]
    attrs: dict[str, Any] = {"strides": strides, "paddings": pads, "dilations": dilations, "groups": groups}
    if any(extras):
        attrs["output_padding"] = extras
    out = t.op("conv3d_transpose" if axes == 3 else "conv2d_transpose", attrs, Input=x, Filter=weight)
    if bias is not None:
        out = t.op("elementwise_add", {"axis": 1}, X=out, Y=bias)
    return layer.squeeze(out, [2]) if axes == 1 else out


@from_torch()
def _from_torch_convolution(
    t: TorchCall,
    x: Variable,
    weight: Variable,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    if transposed:
        return _from_torch_transposed(t, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(t, x, weight, bias, stride, padding, dilation, groups)


@from_torch()
def _from_torch_convolution_backward(t: TorchCall, d: Variable, x: Variable, weight: Variable, _: Any, *settings: Any) -> Any:
    """Return the gradient of the images, as a convolution the other way: a gradient in a forward pass, that has its own gradient."""
    stride, padding, dilation, transposed, _, groups, mask = settings
    if any(mask[1:]):
        raise Refused("the gradient of a convolution's weight or bias within the forward pass; the one of its images has a form")
    if transposed:
        return [_convolution(t, d, weight, None, stride, padding, dilation, groups), None, None]
    axes = t.rank(weight) - 2
    rest: list[int] = []
    windows = zip(x.spec.known_dims[2:], d.spec.known_dims[2:], weight.spec.known_dims[2:], *(pairs(g, axes) for g in (stride, padding, dilation)), strict=True)
    for size, count, kernel, step, pad, distance in windows:
        left = size - ((count - 1) * step - 2 * pad + distance * (kernel - 1) + 1)
        if not isinstance(left, int):
            raise Refused("the gradient of a convolution with a step over an open size, within the forward pass")
        rest.append(left)
    return [_from_torch_transposed(t, d, weight, None, stride, padding, rest, groups, dilation), None, None]


# --- to torch's code


_CHANNELS_LAST: Final = {1: "movedim(-1, 1)", 2: "permute(0, 3, 1, 2)", 3: "permute(0, 4, 1, 2, 3)"}


BACK: Final = {1: "movedim(1, -1)", 2: "permute(0, 2, 3, 1)", 3: "permute(0, 2, 3, 4, 1)"}


def image(w: PlainOp, slot: str, last: bool, axes: int) -> tuple[str, tuple[Size, ...]]:
    """Return an operand with its channels first, and the sizes of its images."""
    dims = w.dims(slot)
    return (f"{w.x(slot)}.{_CHANNELS_LAST[axes]}", dims[1:-1]) if last else (w.x(slot), dims[2:])


def short(numbers: Sequence[Any]) -> str:
    """Return numbers for the axes of an image: one if all are equal."""
    return str(numbers[0]) if len({*map(str, numbers)}) == 1 else f"({', '.join(map(str, numbers))})"


def to_torch_padded(w: PlainOp, x: str, pads: Sequence[tuple[Size, Size]]) -> tuple[str, list[Size]]:
    """Return ``x`` padded as no layer of torch does it, and the padding left to the layer."""
    if all(equal(a, b) is True for a, b in pads):
        return x, [a for a, _ in pads]
    return surrounded(w, x, pads), [0] * len(pads)


def surrounded(w: PlainOp, x: str, pads: Sequence[tuple[Size, Size]], value: str = "") -> str:
    """Return ``x`` with padding around it."""
    return f"F.pad({x}, ({', '.join(w.size(n) for pair in reversed(pads) for n in pair)}){value})"


def windows(
    w: PlainOp, sizes: Sequence[Size], spans: Sequence[Size], algorithm: str, strides: Sequence[int], window: Sequence[Size]
) -> list[tuple[Size, Size]]:
    """Return the padding of windows before and after each axis, with the reach of an only window beyond an image of known size."""
    pads = list(onnx_pads_of(w.of.paddings, algorithm, sizes, window, strides))
    if algorithm == "SAME":
        return pads
    for axis, (size, span) in enumerate(zip(sizes, spans, strict=True)):
        if isinstance(size, int) and isinstance(span, int):
            head, tail = pads[axis]
            pads[axis] = (head, tail + lacking(size, span, head + tail, strides[axis]))
    return pads


@to_torch("conv2d", "depthwise_conv2d", "conv3d")
def _to_torch_convolution(w: PlainOp) -> str:
    axes, last = (3 if w.op.type == "conv3d" else 2), is_channels_last(w.of.data_format)
    x, sizes = image(w, "Input", last, axes)
    is_same = w.of.padding_algorithm == "SAME"
    dilations = (1,) * axes if is_same else w.of.dilations
    window = w.dims("Filter")[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, window, strict=True)]
    x, padding = to_torch_padded(w, x, windows(w, sizes, spans, w.of.padding_algorithm, w.of.strides, window))
    arguments = [x, w.x("Filter"), *([w.x("Bias")] if w.has("Bias") else [])]
    keywords = [f"{name}={short(v)}" for name, v, usual in (("stride", w.of.strides, 1), ("dilation", dilations, 1)) if any(n != usual for n in v)]
    keywords[1 if w.of.strides != (1,) * axes else 0 : 0] = [f"padding={short([w.size(p) for p in padding])}"] if any(p != 0 for p in padding) else []
    keywords += [f"groups={w.of.groups}"] if w.of.groups != 1 else []
    code = f"F.conv{axes}d({', '.join([*arguments, *keywords])})"
    return f"{code}.{BACK[axes]}" if last else code


@to_torch("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _to_torch_transposed(w: PlainOp) -> str:
    axes, last = (3 if w.op.type == "conv3d_transpose" else 2), is_channels_last(w.of.data_format)
    x, sizes = image(w, "Input", last, axes)
    window, dims = w.dims("Filter")[2:], w.result("Output").known_dims
    out = dims[1:-1] if last else dims[2:]
    dilations = w.of._dilations()
    pads = w.of._pads(sizes, window)
    full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(sizes, w.of.strides, dilations, window, strict=True)]
    cut = [(head, f - head - size) for (head, _), f, size in zip(pads, full, out, strict=True)]
    extras = [head - tail for head, tail in cut]
    settings = [f"stride={short(w.of.strides)}"] if any(s != 1 for s in w.of.strides) else []
    options = [f"groups={w.of.groups}"] if w.of.groups != 1 else []
    options += [f"dilation={short(dilations)}"] if any(d != 1 for d in dilations) else []
    limits = [max(s, d) for s, d in zip(w.of.strides, dilations, strict=True)]
    bias = w.x("Bias") if w.has("Bias") else ""
    if all(isinstance(m, int) and 0 <= m < limit and isinstance(c[0], int) and c[0] >= 0 for m, limit, c in zip(extras, limits, cut, strict=True)):
        settings += [f"padding={short([c[0] for c in cut])}"] if any(c[0] != 0 for c in cut) else []
        settings += [f"output_padding={short(extras)}"] if any(m != 0 for m in extras) else []
        code = f"F.conv_transpose{axes}d({', '.join([x, w.x('Filter'), *([bias] if bias else []), *settings, *options])})"
    else:
        if not all(w.writer.has_size(n) for pair in cut for n in pair):
            raise Refused("output_size must be known before the run")
        code = f"F.conv_transpose{axes}d({', '.join([x, w.x('Filter'), *settings, *options])})"
        code = f"F.pad({code}, ({', '.join(w.size(-n) for pair in reversed(cut) for n in pair)}))"
        code = f"{code} + {bias}.reshape(-1{', 1' * axes})" if bias else code
    return f"({code}).{BACK[axes]}" if last else code


@to_torch("deformable_conv", "deformable_conv_v1")
def _to_torch_deformable(w: PlainOp) -> str:
    o, mask = w.of, w.x("Mask") if w.op.type == "deformable_conv" else None
    numbers = list(o.strides), list(o.paddings), list(o.dilations), o.groups, o.deformable_groups
    return w.call(helpers.deformed_windows.deformable_convolution, w.x("Input"), w.x("Offset"), mask, w.x("Filter"), *numbers)
