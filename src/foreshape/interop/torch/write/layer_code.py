"""Torch code of layers: convolutions, pooling, normalization, resizing, embeddings, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.dims import Size, equal
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import layers, resizing_points
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.kernels.window_steps import lacking
from foreshape.ops.rules.window import is_channels_last, pads_of

_CHANNELS_LAST: Final = {1: "movedim(-1, 1)", 2: "permute(0, 3, 1, 2)", 3: "permute(0, 4, 1, 2, 3)"}
_BACK: Final = {1: "movedim(1, -1)", 2: "permute(0, 2, 3, 1)", 3: "permute(0, 2, 3, 4, 1)"}


def image(w: PlainOp, slot: str, last: bool, axes: int) -> tuple[str, tuple[Size, ...]]:
    """Return an operand with its channels first, and the sizes of its images."""
    dims = w.dims(slot)
    return (f"{w.x(slot)}.{_CHANNELS_LAST[axes]}", dims[1:-1]) if last else (w.x(slot), dims[2:])


def short(numbers: Sequence[Any]) -> str:
    """Return numbers for the axes of an image: one if all are equal."""
    return str(numbers[0]) if len({*map(str, numbers)}) == 1 else f"({', '.join(map(str, numbers))})"


def padded(w: PlainOp, x: str, pads: Sequence[tuple[Size, Size]]) -> tuple[str, list[Size]]:
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
    pads = list(pads_of(w.of.paddings, algorithm, sizes, window, strides))
    if algorithm == "SAME":
        return pads
    for at, (size, span) in enumerate(zip(sizes, spans, strict=True)):
        if isinstance(size, int) and isinstance(span, int):
            before, after = pads[at]
            pads[at] = (before, after + lacking(size, span, before + after, strides[at]))
    return pads


@writes("conv2d", "depthwise_conv2d", "conv3d")
def _convolution(w: PlainOp) -> str:
    axes, last = (3 if w.op.type == "conv3d" else 2), is_channels_last(w.of.data_format)
    x, sizes = image(w, "Input", last, axes)
    same = w.of.padding_algorithm == "SAME"
    dilations = (1,) * axes if same else w.of.dilations
    window = w.dims("Filter")[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, window, strict=True)]
    x, padding = padded(w, x, windows(w, sizes, spans, w.of.padding_algorithm, w.of.strides, window))
    given = [x, w.x("Filter"), *([w.x("Bias")] if w.has("Bias") else [])]
    named = [f"{name}={short(v)}" for name, v, usual in (("stride", w.of.strides, 1), ("dilation", dilations, 1)) if any(n != usual for n in v)]
    named[1 if w.of.strides != (1,) * axes else 0 : 0] = [f"padding={short([w.size(p) for p in padding])}"] if any(p != 0 for p in padding) else []
    named += [f"groups={w.of.groups}"] if w.of.groups != 1 else []
    made = f"F.conv{axes}d({', '.join([*given, *named])})"
    return f"{made}.{_BACK[axes]}" if last else made


@writes("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _transposed(w: PlainOp) -> str:
    axes, last = (3 if w.op.type == "conv3d_transpose" else 2), is_channels_last(w.of.data_format)
    x, sizes = image(w, "Input", last, axes)
    window, dims = w.dims("Filter")[2:], w.result("Output").known_dims
    out = dims[1:-1] if last else dims[2:]
    dilations = w.of._dilations()
    pads = w.of._pads(sizes, window)
    full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(sizes, w.of.strides, dilations, window, strict=True)]
    cut = [(before, f - before - size) for (before, _), f, size in zip(pads, full, out, strict=True)]
    more = [before - after for before, after in cut]
    settings = [f"stride={short(w.of.strides)}"] if any(s != 1 for s in w.of.strides) else []
    rest = [f"groups={w.of.groups}"] if w.of.groups != 1 else []
    rest += [f"dilation={short(dilations)}"] if any(d != 1 for d in dilations) else []
    limits = [max(s, d) for s, d in zip(w.of.strides, dilations, strict=True)]
    bias = w.x("Bias") if w.has("Bias") else ""
    if all(isinstance(m, int) and 0 <= m < limit and isinstance(c[0], int) and c[0] >= 0 for m, limit, c in zip(more, limits, cut, strict=True)):
        settings += [f"padding={short([c[0] for c in cut])}"] if any(c[0] != 0 for c in cut) else []
        settings += [f"output_padding={short(more)}"] if any(m != 0 for m in more) else []
        made = f"F.conv_transpose{axes}d({', '.join([x, w.x('Filter'), *([bias] if bias else []), *settings, *rest])})"
    else:
        if not all(w.writer.has_size(n) for pair in cut for n in pair):
            raise Refused("output_size must be known before the run")
        made = f"F.conv_transpose{axes}d({', '.join([x, w.x('Filter'), *settings, *rest])})"
        made = f"F.pad({made}, ({', '.join(w.size(-n) for pair in reversed(cut) for n in pair)}))"
        made = f"{made} + {bias}.reshape(-1{', 1' * axes})" if bias else made
    return f"({made}).{_BACK[axes]}" if last else made


@writes("pool2d")
def _pool(w: PlainOp) -> Any:
    last, of = is_channels_last(w.of.data_format), w.of.pooling_type
    x, sizes = image(w, "X", last, 2)
    back = f".{_BACK[2]}" if last else ""
    if w.of.global_pooling or (w.of.adaptive and tuple(w.of.ksize) == (1, 1) and not w.count("KernelSizes")):
        over = "(1, 2)" if last else "(2, 3)"
        return f"{w.x('X')}.{'amax' if of == 'max' else 'mean'}({over}, keepdim=True)"
    if w.of.adaptive:
        size = [w.int("KernelSizes", at) for at in range(2)] if w.count("KernelSizes") else w.of.ksize
        return f"F.adaptive_{of}_pool2d({x}, {short(size)}){back}"
    pads: list[tuple[Any, Any]] = [*windows(w, sizes, w.of.ksize, w.of.padding_algorithm, w.of.strides, w.of.ksize)]
    even = all(isinstance(a, int) and a == b and 2 * a <= k for (a, b), k in zip(pads, w.of.ksize, strict=True))
    sees_image = all(isinstance(n, int) and n < k for pair, k in zip(pads, w.of.ksize, strict=True) for n in pair)  # in each window
    if of == "max" and not even and not w.of.ceil_mode and sees_image:
        x, pads, even = surrounded(w, x, pads, ', value=float("-inf")'), [(0, 0), (0, 0)], True
    if not even or (w.of.ceil_mode and not _counts_alike(w, sizes, pads)) or (w.of.ceil_mode and of == "avg" and not w.of.exclusive):
        return kernel_rule(w)
    padding = [a for a, _ in pads]
    named = [f"stride={short(w.of.strides)}"] if w.of.strides != w.of.ksize else []
    named += [f"padding={short(padding)}"] if any(padding) else []
    named += ["ceil_mode=True"] if w.of.ceil_mode else []
    named += ["count_include_pad=False"] if of == "avg" and w.of.exclusive and any(padding) else []
    return f"F.{of}_pool2d({', '.join([x, short(w.of.ksize), *named])}){back}"


def _counts_alike(w: PlainOp, sizes: Sequence[Size], pads: Sequence[tuple[Size, Size]]) -> bool:
    """Tell whether torch counts as many windows: its last one begins inside the image or its left padding."""
    for size, (before, after), k, s in zip(sizes, pads, w.of.ksize, w.of.strides, strict=True):
        if s <= k and before == 0 == after:
            continue  # the last window begins at most s - 1 behind a whole one
        if not isinstance(size, int) or not isinstance(before, int) or not isinstance(after, int):
            return False
        count = (size + before + after + s - 1 - k) // s + 1
        if (count - 1) * s >= size + before:
            return False
    return True


@writes("max_pool2d_with_index")
def _pool_with_index(w: PlainOp) -> Any:
    sizes = w.dims("X")[2:]
    if w.of.global_pooling or w.of.adaptive or w.of.ceil_mode:
        return kernel_rule(w)
    pads = windows(w, sizes, w.of.ksize, "EXPLICIT", w.of.strides, w.of.ksize)
    if not all(isinstance(a, int) and a == b and 2 * a <= k for (a, b), k in zip(pads, w.of.ksize, strict=True)):
        return kernel_rule(w)
    padding = [a for a, _ in pads]
    more = f", padding={short(padding)}" if any(padding) else ""
    out, index = w.several(f"F.max_pool2d({w.x('X')}, {short(w.of.ksize)}, stride={short(w.of.strides)}{more}, return_indices=True)", 2)
    return out, f"{index}.to(torch.int32)"


@writes("unpool")
def _unpool(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    index = w.x("Indices") if w.dtype("Indices").itemsize == 8 else f"{w.x('Indices')}.to(torch.int64)"
    return w.call(layers.unpool, w.x("X"), index, f"[{w.size(dims[2])}, {w.size(dims[3])}]")


@writes("batch_norm", "sync_batch_norm", by_mode=True)
def _batch_norm(w: PlainOp) -> Any:
    if w.has("MomentumTensor"):
        return kernel_rule(w)
    is_fixed = w.of.use_global_stats or (w.of.is_test and not w.of.trainable_statistics)
    last = is_channels_last(w.of.data_layout) and w.rank("X") > 2
    x = f"{w.x('X')}.movedim(-1, 1)" if last else w.x("X")
    given = [x, w.x("Mean"), w.x("Variance"), w.optional("Scale"), w.optional("Bias")]
    epsilon = number_code(w.of.epsilon)
    if is_fixed:
        made = f"F.batch_norm({', '.join(given)}, eps={epsilon})"
    else:
        unbiased = True if w.of.unbiased else None
        trained = "True" if w.of.trainable_statistics else "self.training"
        made = w.call(layers.batch_norm, *given, trained, momentum=number_code(w.of.momentum), epsilon=epsilon, unbiased=unbiased)
    moved = [(n, own) for slot, own in (("MeanOut", "Mean"), ("VarianceOut", "Variance")) if (n := w.op.output(slot)) and n not in w.writer.parameters]
    made = w.let(made) if moved else made
    for name, own in moved:
        w.writer.bind(w.op, name, f"{w.x(own)}.clone()")
    return (f"{made}.movedim(1, -1)" if last else made,)


@writes("layer_norm")
def _layer_norm(w: PlainOp) -> Any:
    if w.op.output("Mean") in w.writer.wanted or w.op.output("Variance") in w.writer.wanted:
        return kernel_rule(w)
    dims = w.dims("X")[w.of.begin_norm_axis :]
    shape = f"[{', '.join(map(w.size, dims))}]" if all(w.writer.has_size(d) for d in dims) else f"{w.x('X')}.shape[{w.of.begin_norm_axis}:]"
    shape = w.let(shape) if not isinstance(dims[0], int) or len(dims) > 1 else shape
    given = [w.optional(slot) if not w.has(slot) or len(dims) == 1 else f"{w.x(slot)}.reshape({shape})" for slot in ("Scale", "Bias")]
    while given and given[-1] == "None":
        given.pop()
    return f"F.layer_norm({', '.join([w.x('X'), shape, *given])}, eps={number_code(w.of.epsilon)})", None, None


@writes("group_norm", "instance_norm")
def _group_norm(w: PlainOp) -> Any:
    more = [n for r in w.operator.schema.results[1:] if (n := w.op.output(r.name)) is not None]
    if any(n in w.writer.wanted for n in more) or is_channels_last(getattr(w.of, "data_layout", "NCHW")):
        return kernel_rule(w)
    groups = w.of.groups if w.op.type == "group_norm" else w.size(w.dims("X")[1])
    given = [w.optional(slot) for slot in ("Scale", "Bias")]
    return f"torch.group_norm({w.x('X')}, {groups}, {given[0]}, {given[1]}, {number_code(w.of.epsilon)})", None, None  # F's refuses one number


_MODES: Final = {"bilinear": ("bilinear", 2), "nearest": ("nearest", 2), "bicubic": ("bicubic", 2), "linear": ("linear", 1), "trilinear": ("trilinear", 3)}


@writes(*[f"{kind}_interp{version}" for kind in _MODES for version in ("", "_v2")])
def _resize(w: PlainOp) -> Any:
    kind, older = w.op.type.split("_")[0], not w.op.type.endswith("_v2")
    mode, axes = _MODES[kind]
    corners = bool(w.of.align_corners)
    if is_channels_last(w.of.data_layout) or w.rank("X") != axes + 2 or w.has("Scale") or not w.dtype("X").is_floating or 0 in w.dims("X"):
        return kernel_rule(w)
    if kind == "nearest" and corners:
        return kernel_rule(w)
    scales = list(w.of._scales())
    size = w.result("Out").known_dims[2:]
    corner = "" if kind == "nearest" else f", align_corners={corners}"
    given = w.has("OutSize") or w.count("SizeTensor")
    if kind != "bicubic" and kind != "nearest" and not corners and w.of.align_mode == 1:
        if not all(w.writer.has_size(n) for n in size):
            return kernel_rule(w)
        by = [None] * axes if older or not scales or w.count("SizeTensor") else scales * axes if len(scales) == 1 else scales
        listed = ", ".join("None" if b is None else number_code(float(b)) for b in by)
        return w.call(resizing_points.resized_points, w.x("X"), f"[{', '.join(map(w.size, size))}]", f"[{listed}]")
    thin = bool(getattr(w.of, "antialias", False))
    if thin and (w.dtype("X").itemsize == 2 or not isinstance(size[1], int) or size[1] == 1):  # torch's kernel gives all rows of a column the first's number
        return kernel_rule(w)
    if not corners and any(n == 1 for n in size) and not (thin or getattr(w.of, "centered", False)):
        return kernel_rule(w)
    corner += ", antialias=True" if thin else ""
    if scales and not given and not older and not corners:
        scales = scales * axes if len(scales) == 1 else scales
        whole = [int(s) if s == int(s) else s for s in scales]
        if all(isinstance(n, int) for n in w.dims("X")[2:]) and [int(n * s) for n, s in zip(w.dims("X")[2:], whole, strict=True)] != [*size]:
            return kernel_rule(w)
        return f'F.interpolate({w.x("X")}, scale_factor={short([float(s) for s in scales])}, mode="{mode}"{corner})'
    if scales and w.has("OutSize") and not older and not corners:
        return kernel_rule(w)  # placed by the scale, of another size
    if not all(w.writer.has_size(n) for n in size):
        sizes = [w.int("SizeTensor", at) for at in range(axes)] if w.count("SizeTensor") else None
        return f'F.interpolate({w.x("X")}, size={w.list("OutSize") if sizes is None else tuple_of_sizes(sizes)}, mode="{mode}"{corner})'
    return f'F.interpolate({w.x("X")}, size={tuple_of_sizes([w.size(n) for n in size])}, mode="{mode}"{corner})'


def tuple_of_sizes(sizes: Sequence[str]) -> str:
    """Return the sizes of an image."""
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


@writes("lookup_table_v2", "lookup_table")
def _embedding(w: PlainOp) -> str:
    ids = w.x("Ids") if w.op.type == "lookup_table_v2" else f"{w.x('Ids')}.squeeze(-1)"
    padding = w.of.padding_idx
    if padding == -1:
        return f"F.embedding({ids}, {w.x('W')})"
    ids, rows = w.let(ids), w.dims("W")[0]
    row = padding if padding >= 0 else w.size(rows + padding)
    if w.of.keeps_padding:
        return f"F.embedding({ids}, {w.x('W')}, {row})"
    return f"F.embedding({ids}, {w.x('W')}).masked_fill(({ids} == {row}).unsqueeze(-1), 0.0)"


@writes("dropout", by_mode=True)
def _dropout(w: PlainOp) -> Any:
    if w.op.output("Mask") in w.writer.wanted:
        raise Refused("its Mask is read")
    x, p = w.x("X"), number_code(w.of.dropout_prob)
    if w.of.is_test:
        return (x if w.of.dropout_implementation == "upscale_in_train" else f"{x} * {number_code(1.0 - w.of.dropout_prob)}"), None
    if w.of.dropout_implementation == "upscale_in_train":
        return f"F.dropout({x}, {p}, self.training)", None
    return w.call(layers.downgraded_dropout, x, p, "self.training"), None


@writes("grid_sampler")
def _grid(w: PlainOp) -> Any:
    padding = {"zeros": "zeros", "border": "border", "reflection": "reflection", "reflect": "reflection"}.get(w.of.padding_mode)
    if padding is None or (w.of.mode == "nearest" and not w.of.halves_to_even):
        return kernel_rule(w)
    return f'F.grid_sample({w.x("X")}, {w.x("Grid")}, mode="{w.of.mode}", padding_mode="{padding}", align_corners={w.of.align_corners})'


def _falls_short(w: PlainOp, sizes: Sequence[Size], around: Sequence[int]) -> bool:
    """Tell whether an only patch reaches beyond an image of known size."""
    each = zip(sizes, around, w.of.kernel_sizes, w.of.dilations, strict=True)
    return any(isinstance(n, int) and n + more < d * (k - 1) + 1 for n, more, k, d in each)


@writes("unfold")
def _unfold(w: PlainOp) -> Any:
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    if _falls_short(w, w.dims("X")[2:], (top + bottom, left + right)):
        return kernel_rule(w)
    x, padding = padded(w, w.x("X"), [(top, bottom), (left, right)])
    named = [
        f"{n}={short(v)}"
        for n, v, usual in (("dilation", w.of.dilations, 1), ("padding", padding, 0), ("stride", w.of.strides, 1))
        if any(e != usual for e in v)
    ]
    return f"F.unfold({', '.join([x, short(w.of.kernel_sizes), *named])})"


@writes("fold")
def _fold(w: PlainOp) -> Any:
    top, left, bottom, right = w.of.paddings if len(w.of.paddings) == 4 else (*w.of.paddings, *w.of.paddings)
    if (top, left) != (bottom, right) or _falls_short(w, w.of.output_sizes, (top + bottom, left + right)):
        return kernel_rule(w)
    sizes = tuple(w.of.output_sizes)
    return (
        f"F.fold({w.x('X')}, {sizes}, {short(w.of.kernel_sizes)}, dilation={short(w.of.dilations)}, padding={short((top, left))}, stride={short(w.of.strides)})"
    )


@writes("pixel_shuffle")
def _pixel_shuffle(w: PlainOp) -> Any:
    return kernel_rule(w) if w.of.data_format == "NHWC" else f"F.pixel_shuffle({w.x('X')}, {w.of.upscale_factor})"


@writes("rnn", by_mode=True)
def _rnn(w: PlainOp) -> Any:
    states, weights = w.all("PreState"), w.all("WeightList")
    both, count = 2 if w.of.is_bidirec else 1, int(w.of.num_layers)
    if w.has("SequenceLength"):
        made = w.call(
            layers.recurrent_with_lengths,
            w.x("Input"),
            f"[{', '.join(states)}]",
            f"[{', '.join(weights)}]",
            w.x("SequenceLength"),
            f'"{w.of.mode}"',
            number_code(w.of.dropout_prob),
            str(not w.of.is_test and "self.training"),
            w.of.is_bidirec,
        )
        found = w.several(made, 1 + len(states))
        return found[0], None, found[1:], None
    units: int = both * count
    drops = "0.0, False" if w.of.is_test else f"{number_code(w.of.dropout_prob)}, self.training"
    ordered = [t for u in range(units) for t in (weights[2 * u], weights[2 * u + 1], weights[2 * units + 2 * u], weights[2 * units + 2 * u + 1])]
    function = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}[w.of.mode]
    state = f"({', '.join(states)})" if w.of.mode == "LSTM" else states[0]
    settings = f"True, {count}, {drops}, {w.of.is_bidirec}, False"
    found = w.several(f"torch.{function}({w.x('Input')}, {state}, [{', '.join(ordered)}], {settings})", 1 + len(states))
    return found[0], None, found[1:], None
