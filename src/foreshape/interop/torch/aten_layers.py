"""Import of layers: products, convolutions, normalization, attention, embeddings, recurrent nets and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_reductions import norm
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.higher_order import scanned
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.operator.computations import Transposition
from foreshape.program import Variable
from foreshape.spec import FP32, FP64


def pairs(given: Any, count: int) -> list[int]:
    """Return a number for each of ``count`` axes."""
    listed = [int(n) for n in (given if is_list(given) else [given])]
    return listed * count if len(listed) == 1 else listed


# --- products


def _product(t: TorchCall, x: Variable, y: Variable, transposed: bool = False) -> Variable:
    """Return a product of matrices; of integers, without a kernel of ours, as a sum of products."""
    if not x.spec.known_dtype.is_integer:
        return t.op("matmul_v2", {"trans_y": True} if transposed else None, X=x, Y=y)
    if transposed:
        y = layer.transpose(y, [1, 0])
    if t.rank(y) == 1:
        return t.cast(layer.reduce_sum(layer.multiply(x, y), [t.rank(x) - 1]), x.spec.known_dtype)
    lone = t.rank(x) == 1
    x = layer.unsqueeze(x, [0]) if lone else x
    each = layer.multiply(layer.unsqueeze(x, [t.rank(x)]), layer.unsqueeze(y, [t.rank(y) - 2]))
    made = t.cast(layer.reduce_sum(each, [t.rank(each) - 2]), x.spec.known_dtype)
    return layer.squeeze(made, [t.rank(made) - 2]) if lone else made


@aten("linear")
def _linear(t: TorchCall, x: Variable, weight: Variable, bias: Variable | None = None) -> Any:
    made = _product(t, x, weight, True)
    return made if bias is None else layer.add(made, bias)


@aten("matmul", "mm", "bmm", "mv")
def _matmul(t: TorchCall, x: Variable, y: Variable) -> Any:
    return _product(t, x, y)


@aten("dot", "vdot")
def _dot(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.reduce_sum(layer.multiply(x, y))


@aten("outer")
def _outer(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.multiply(layer.unsqueeze(x, [1]), layer.unsqueeze(y, [0]))


@aten("addmm", "baddbmm", "addmv")
def _addmm(t: TorchCall, x: Variable, y: Variable, z: Variable, beta: Any = 1, alpha: Any = 1) -> Any:
    made = _product(t, y, z)
    return t.scale(made, alpha) if beta == 0 else layer.add(t.scale(made, alpha), t.scale(x, beta))


@aten("addbmm")
def _addbmm(t: TorchCall, x: Variable, y: Variable, z: Variable, beta: Any = 1, alpha: Any = 1) -> Any:
    made = layer.reduce_sum(_product(t, y, z), [0])
    return t.scale(made, alpha) if beta == 0 else layer.add(t.scale(made, alpha), t.scale(x, beta))


@aten("_cdist_forward")
def _distances(t: TorchCall, x: Variable, y: Variable, p: float, mode: Any = None) -> Any:
    off = layer.subtract(layer.unsqueeze(x, [-2]), layer.unsqueeze(y, [-3]))
    if p == math.inf:  # each of equal distances has the whole gradient here
        return layer.reduce_max(layer.abs(off), [t.rank(off) - 1])
    return norm(t, off, float(p), [t.rank(off) - 1], False)


@aten("_grouped_mm", "grouped_mm_fallback")
def _grouped(t: TorchCall, x: Variable, weight: Variable, offsets: Variable, *_: Any, **__: Any) -> Any:
    """Return the rows times the matrix of their group, ``weight[group]``; ``offsets`` are the ends of the groups."""
    if t.rank(x) != 2 or t.rank(weight) != 3:
        raise Refused("groups of columns")
    turned = weight.op
    made = None if turned is None or turned.operator is None else turned.operator.computes()
    if turned is not None and isinstance(made, Transposition) and [axis % 3 for axis in made.axes] == [0, 2, 1]:  # so its gradient is a parameter's own
        return layer.grouped_matmul(x, next(turned.input_variables()), offsets, transpose_y=True)
    return layer.grouped_matmul(x, weight, offsets)


@aten("einsum")
def _einsum(t: TorchCall, equation: str, xs: Any, **_: Any) -> Any:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:  # the letters that are there once
        right = ("..." if "..." in left else "") + "".join(letter for letter in sorted(set(left) - {",", "."}) if left.count(letter) == 1)

    def contract(terms: Sequence[str], right: str, xs: Sequence[Variable]) -> Variable:
        return layer.einsum(f"{','.join(terms)}->{right}", *xs) if not xs[0].spec.known_dtype.is_integer else _sum_of_products(terms, right, xs)

    while len(terms) > 2:  # two at a time, from the front, as torch has them
        later = "".join(terms[2:]) + right
        both = terms[0] + terms[1]
        kept = "".join(dict.fromkeys(letter for letter in both.replace("...", "") if letter in later))
        made = f"...{kept}" if "..." in both else kept
        xs, terms = [contract(terms[:2], made, xs[:2]), *xs[2:]], [made, *terms[2:]]
    return contract(terms, right, xs)


def _sum_of_products(terms: Sequence[str], right: str, xs: Sequence[Variable]) -> Variable:
    """Return an einsum of integers: operands broadcast along all letters, multiplied and summed."""
    wide = max([len(x.spec.known_dims) - len(term.replace("...", "")) for term, x in zip(terms, xs, strict=True) if "..." in term], default=0)
    marks = "".join(chr(0x370 + at) for at in range(wide))  # a letter for each axis of ...

    def spelt(term: str, rank: int) -> str:
        return term.replace("...", marks[wide - (rank - len(term.replace("...", ""))) :]) if "..." in term else term

    own = [spelt(term, len(x.spec.known_dims)) for term, x in zip(terms, xs, strict=True)]
    right = right.replace("...", marks)
    if any(len(set(term)) != len(term) for term in own):
        raise Refused("a diagonal of integers")
    letters = [*right, *sorted(set("".join(own)) - set(right))]
    made: Variable | None = None
    for term, x in zip(own, xs, strict=True):
        order = [term.index(letter) for letter in letters if letter in term]
        x = layer.transpose(x, order) if order != sorted(order) else x
        missing = [at for at, letter in enumerate(letters) if letter not in term]
        x = layer.unsqueeze(x, missing) if missing else x
        made = x if made is None else layer.multiply(made, x)
    assert made is not None
    summed = [*range(len(right), len(letters))]
    return layer.cast(layer.reduce_sum(made, summed), xs[0].spec.known_dtype) if summed else made


# --- convolution


@aten("conv1d", "conv2d", "conv3d")
def _convolution(t: TorchCall, x: Variable, weight: Variable, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    axes = t.rank(weight) - 2
    single = t.rank(x) == axes + 1
    if single:
        x = layer.unsqueeze(x, [0])
    dilations, strides = pairs(dilation, axes), pairs(stride, axes)
    kernel = [int(k) for k in weight.spec.known_dims[2:]]  # pyright: ignore[reportArgumentType]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        pads = [n for one in total for n in (one // 2, one - one // 2)]
    elif padding == "valid":
        pads = [0] * axes
    else:
        pads = pairs(padding, axes)
    if axes == 1:
        x, weight = layer.unsqueeze(x, [2]), layer.unsqueeze(weight, [2])
        strides, dilations, pads = [1, *strides], [1, *dilations], ([0, 0, *pads] if len(pads) == 2 else [0, *pads])
    type = "conv3d" if axes == 3 else "conv2d"
    made = t.op(type, {"strides": strides, "paddings": pads, "dilations": dilations, "groups": groups}, Input=x, Filter=weight)
    if bias is not None:
        made = t.op("elementwise_add", {"axis": 1}, X=made, Y=bias)
    if axes == 1:
        made = layer.squeeze(made, [2])
    return layer.squeeze(made, [0]) if single else made


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
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
    strides, pads, more, dilations = (pairs(g, axes) for g in (stride, padding, output_padding, dilation))
    if axes == 1:
        x, weight = layer.unsqueeze(x, [2]), layer.unsqueeze(weight, [2])
        strides, pads, more, dilations = [1, *strides], [0, *pads], [0, *more], [1, *dilations]
    attrs: dict[str, Any] = {"strides": strides, "paddings": pads, "dilations": dilations, "groups": groups}
    if any(more):
        attrs["output_padding"] = more
    made = t.op("conv3d_transpose" if axes == 3 else "conv2d_transpose", attrs, Input=x, Filter=weight)
    if bias is not None:
        made = t.op("elementwise_add", {"axis": 1}, X=made, Y=bias)
    return layer.squeeze(made, [2]) if axes == 1 else made


@aten("convolution")
def _any_convolution(
    t: TorchCall, x: Variable, weight: Variable, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    if transposed:
        return _transposed(t, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(t, x, weight, bias, stride, padding, dilation, groups)


# --- normalization


@aten("layer_norm", "native_layer_norm")
def _layer_norm(t: TorchCall, x: Variable, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    axis = t.rank(x) - len(shape)
    flat = [None if v is None else v if len(shape) == 1 else layer.reshape(v, [-1]) for v in (weight, bias)]
    made = t.op("layer_norm", {"begin_norm_axis": axis, "epsilon": float(eps)}, X=x, Scale=flat[0], Bias=flat[1])[0]
    return [made, None, None] if "native" in t.name else made


@aten("rms_norm", "_fused_rms_norm")
def _rms_norm(t: TorchCall, x: Variable, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    axes = [*range(t.rank(x) - len(shape), t.rank(x))]
    least = 1.1920928955078125e-07 if eps is None else float(eps)
    made = layer.multiply(x, layer.rsqrt(t.scale(layer.reduce_mean(layer.square(x), axes, keepdim=True), 1.0, least)))
    made = made if weight is None else layer.multiply(made, weight)
    return [made, None] if "fused" in t.name else made


@aten("group_norm")
def _group_norm(t: TorchCall, x: Variable, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return t.op("group_norm", {"groups": groups, "epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0]


@aten("native_group_norm")
def _native_group_norm(t: TorchCall, x: Variable, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: int, eps: float) -> Any:
    return [t.op("group_norm", {"groups": group, "epsilon": float(eps)}, X=x, Scale=weight, Bias=bias)[0], None, None]


@aten("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(t: TorchCall, x: Variable, dim: int, *_: Any) -> Any:
    function = layer.log_softmax if "log" in t.name else layer.softmax
    x = t.cast(x, t.dtype)
    return function(x, t.axis(x, dim))


@aten("local_response_norm")
def _local_response_norm(t: TorchCall, x: Variable, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    return t.op("lrn", {"n": size, "alpha": alpha / size, "beta": beta, "k": k}, X=x)[0]


# --- recurrent nets


@aten("lstm", "gru", "rnn_tanh", "rnn_relu", "foreshape.lstm", "foreshape.gru", "foreshape.rnn_tanh", "foreshape.rnn_relu")
def _recurrent(
    t: TorchCall, x: Variable, states: Any, weights: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool
) -> Any:
    given = list(states) if is_list(states) else [states]
    of = x.spec.known_dtype
    if of not in (FP32, FP64):  # computed in single precision
        wide = [t.cast(one, FP32) for one in given], [t.cast(one, FP32) for one in weights]
        found = _recurrent(t, t.cast(x, FP32), *wide, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return [t.cast(one, of) for one in found]
    x = layer.transpose(x, [1, 0, 2]) if batch_first else x
    if len(weights) == (5 if has_biases else 3) * num_layers * (2 if bidirectional else 1):
        out, last = _projected(t, x, given, weights, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        return [layer.transpose(out, [1, 0, 2]) if batch_first else out, *last]
    attrs, ordered = recurrent_attributes(t.name, x, weights, has_biases, num_layers, dropout, train, bidirectional)
    out, _, last, _ = t.op("rnn", attrs, Input=x, PreState=given, WeightList=ordered)
    return [layer.transpose(out, [1, 0, 2]) if batch_first else out, *last]


def _projected(
    t: TorchCall, x: Variable, states: list[Variable], weights: list[Variable], biases: bool, layers: int, dropout: float, both: bool
) -> tuple[Variable, list[Variable]]:
    """Return results and last states of an LSTM whose hidden state is projected (Sak et al., 2014), step by step."""
    each, directions = 5 if biases else 3, 2 if both else 1
    hidden, cell = (layer.unstack(one, 0) for one in states)
    last: list[tuple[Variable, Variable]] = []
    for at in range(layers):
        outs: list[Variable] = []
        for unit in range(at * directions, (at + 1) * directions):
            into, within, *bias, onto = weights[each * unit : each * (unit + 1)]
            given = layer.flip(x, [0]) if unit % directions else x
            gates = t.op("matmul_v2", {"trans_y": True}, X=given, Y=into)
            gates = layer.add(gates, layer.add(bias[0], bias[1])) if bias else gates

            def step(state: Sequence[Variable], rows: Sequence[Variable], within: Variable = within, onto: Variable = onto) -> list[Variable]:
                h, c = state
                i, f, g, o = layer.split(layer.add(rows[0], t.op("matmul_v2", {"trans_y": True}, X=h, Y=within)), 4, 1)
                c = layer.add(layer.multiply(layer.sigmoid(f), c), layer.multiply(layer.sigmoid(i), layer.tanh(g)))
                h = t.op("matmul_v2", {"trans_y": True}, X=layer.multiply(layer.sigmoid(o), layer.tanh(c)), Y=onto)
                return [h, c, h]

            h, c, out = scanned(step, [hidden[unit], cell[unit]], [gates], 1)
            outs.append(layer.flip(out, [0]) if unit % directions else out)
            last.append((h, c))
        x = layer.concat(outs, 2) if both else outs[0]
        if dropout and at + 1 < layers:
            x = layer.dropout(x, float(dropout))
    return x, [layer.stack(list(column), 0) for column in zip(*last, strict=True)]


def recurrent_attributes(
    name: str, x: Variable, weights: list[Variable], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool
) -> tuple[dict[str, Any], list[Variable]]:
    """Return attributes and weights of an ``rnn`` op: all weights first, then all biases, layer by layer and direction by direction."""
    mode = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}[name]
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(weights) != each * num_layers * directions:
        raise Refused("recurrent layers with projections")
    if not has_biases:
        filled: list[Variable] = []
        for at in range(0, len(weights), 2):
            zeros = layer.fill_constant([weights[at].spec.known_dims[0]], x.dtype, 0.0)
            filled += [weights[at], weights[at + 1], zeros, zeros]
        weights = filled
    ordered = [weights[4 * k + j] for k in range(num_layers * directions) for j in (0, 1)] + [
        weights[4 * k + j] for k in range(num_layers * directions) for j in (2, 3)
    ]
    attrs = {"mode": mode, "hidden_size": int(weights[1].spec.known_dims[-1]), "num_layers": num_layers, "is_bidirec": bidirectional}
    attrs |= {"dropout_prob": float(dropout), "is_test": not train, "input_size": int(x.spec.known_dims[-1])}
    return attrs, ordered
