"""A convolution with its bias in one kernel, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.dims import Size
from foreshape.kernels import onednn
from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused, spec_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.values.torch_proxy import Late, aten, torch

_TYPES = ("conv2d", "depthwise_conv2d")


def apply(graph: Graph) -> bool:
    """Rewrite ``conv2d`` and the ``elementwise_add`` of a bias per channel behind it, and the two gradients."""
    changed = False
    for i in graph.instructions(*_TYPES):
        if is_plain(i):
            changed |= _forward(graph, i)
    for i in graph.instructions(*(f"{t}_grad" for t in _TYPES)):
        if is_plain(i):
            changed |= _backward(graph, i)
    return changed


def is_plain(i: Instruction) -> bool:
    """Whether torch's convolution takes it as it is: channels first, the same padding at both ends."""
    x, w = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    symmetric = attr(i, "padding_algorithm") == "EXPLICIT" and len(attr(i, "paddings")) == 2
    images = x is not None and w is not None and len(x) == len(w) == 4
    return images and attr(i, "data_format") in ("NCHW", "AnyLayout") and symmetric


def _settings(i: Instruction) -> str:
    return f"{list(attr(i, 'strides'))}, {list(attr(i, 'paddings'))}, {list(attr(i, 'dilations'))}"


def _forward(graph: Graph, i: Instruction) -> bool:
    x, w = i.arguments
    out, like, bias, gone = i.results[0], i, None, list[Instruction]()
    add = graph.only_reader(out)
    if add is not None and add.op.type == "elementwise_add" and add.expression is None and add.arguments[0] is out and _is_channel_bias(add, out):
        like, out, bias, gone = add, add.results[0], add.arguments[1], [i]
    arguments = [x, w] if bias is None else [x, w, bias]
    text = f"{{conv}}({{0}}, {{1}}, {'None' if bias is None else '{2}'}, {_settings(i)}, {attr(i, 'groups')})"
    graph.remove(gone)
    graph.replace(like, fused(like, text, arguments, [out], "product", workspace=lambda: _workspace(i, out), in_rows=(0,), conv=Late(lambda: torch.conv2d)))
    return True


def _is_channel_bias(add: Instruction, out: Argument) -> bool:
    wide, narrow = dims_of(out), dims_of(add.arguments[1])
    return wide is not None and narrow is not None and len(wide) == 4 and len(narrow) == 1 and narrow[0] == wide[1] and attr(add, "axis") == 1


def _backward(graph: Graph, i: Instruction) -> bool:
    x, w, d = i.arguments
    d_x, d_w = i.results
    wide = dims_of(d)
    bias = next((s for s in graph.readers(d) if s.op.type == "elementwise_add_grad" and s.tag == "channel bias gradient"), None)
    d_bias = bias.results[0] if bias is not None else None
    size = wide[1] if wide is not None and len(wide) == 4 else None
    with_bias = isinstance(d_bias, Value) and isinstance(size, int)
    wants = [not graph.unused(d_x), not graph.unused(d_w), with_bias]
    text = (
        f"{{back}}({{2}}, {{0}}, {{1}}, {[size] if with_bias else None}, {_settings(i)}, False, [0, 0], {attr(i, 'groups')}, {wants})"
    )
    results: list[Argument] = [d_x if wants[0] else None, d_w if wants[1] else None, d_bias if with_bias else None]
    if with_bias and bias is not None:
        if graph.position(bias) < graph.position(i) and any(_uses(r, d_bias) for r in graph.between(bias, i)):
            results[2] = None  # somebody needs it before this kernel runs
            text = text.replace(str(wants), str([*wants[:2], False])).replace(str([size]), "None", 1)
        else:
            graph.remove([bias])
    back = Late(lambda: aten.convolution_backward)
    graph.replace(i, fused(i, text, [x, w, d], results, workspace=lambda: _workspace(i, d, wants), in_rows=(0, 2), back=back))
    return True


def _workspace(i: Instruction, out: Argument, wants: Sequence[bool] | None = None) -> Size:
    """The bytes that a convolution takes besides its results; with ``wants``, that its gradients take."""
    x, w, y = dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(out)
    spec = spec_of(out)
    if x is None or w is None or y is None or spec is None or spec.dtype is None:
        return 0
    settings = (spec.dtype.itemsize, attr(i, "groups"), attr(i, "strides"), attr(i, "dilations"))
    return onednn.convolution(x, w, y, *settings) if wants is None else onednn.convolution_backward(x, w, y, *settings, wants)


def _uses(i: Instruction, value: Argument) -> bool:
    return any(v is value for v in i.reads())
