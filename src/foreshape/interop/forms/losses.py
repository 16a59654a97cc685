"""Losses and measures, in the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import BOOL, FP16, FP32, INT32, INT64
from foreshape.interop.forms.arithmetic import change
from foreshape.interop.forms.functions import x_log_y
from foreshape.interop.forms.reductions import from_onnx_reduce
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, constant, count_to, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("NegativeLogLikelihoodLoss")
def negative_log_likelihood(c: Call) -> Any:
    return _loss(c, c.x(0), c.x(1), c.optional(2))


@from_onnx("SoftmaxCrossEntropyLoss")
def from_onnx_softmax_cross_entropy(c: Call) -> Any:
    logarithms = layer.log_softmax(c.x(0), 1)
    return _loss(c, logarithms, c.x(1), c.optional(2)), logarithms


def _loss(c: Call, x: Variable, target: Variable, weight: Variable | None) -> Variable:
    """Return the loss of logarithms [N, C, ...] for classes [N, ...], each weighted by its class; elements of ``ignore_index`` count nothing."""
    ignored, kind = c.attribute("ignore_index"), c.attribute("reduction", "mean")
    target = c.cast(target, INT64)
    place, mask = target, None
    if ignored is not None:
        mask = layer.not_equal(target, c.like(int(ignored), target))
        place = layer.where(mask, target, layer.fill_like(target, 0.0))
    score = c.squeeze(layer.take_along_axis(x, c.unsqueeze(place, 1), 1), 1)
    loss = layer.scale(score, -1.0)
    if weight is not None:
        flat = layer.gather(weight, c.reshape(place, [-1]), 0)
        factor = c.reshape_to(flat, c.shape_of(place))
    else:
        factor = layer.fill_like(loss, 1.0)
    if mask is not None:
        factor = layer.where(mask, factor, layer.fill_like(factor, 0.0))
        loss = layer.where(mask, loss, layer.fill_like(loss, 0.0))
    loss = loss * factor if weight is not None else loss
    if kind == "none":
        return loss
    total = from_onnx_reduce(c, "Sum", loss, None, False)
    return total if kind == "sum" else layer.divide(total, from_onnx_reduce(c, "Sum", factor, None, False))


# --- to ONNX


_LOG_BOUND = 1e20


def _label_scores(x: Term, label: Term, axis: int, ignored: int, rank: int) -> tuple[Term, Term]:
    """Return the numbers at the labels (the first's where ignored), with a dim of 1 at the axis, and the mask of the ignored ones."""
    label = label.cast(INT64)
    label = label.with_dims(axis) if len(label.w.spec("Label").known_dims) < rank else label
    mask = label.same(ignored)
    return x.node("GatherElements", mask.where(0, label).value, axis=axis), mask


@to_onnx("cross_entropy", "cross_entropy2")
def _to_onnx_cross_entropy(w: WrittenOp) -> Any:
    x, label, rank = term(w, "X"), term(w, "Label"), w.rank("X")
    bound = 65504.0 if x.of is FP16 else _LOG_BOUND
    if w.op.attributes.values.get("soft_label", False):
        return (-((x.node("Log").most(-bound) * label).total(rank - 1, keep=True))).value
    scores, mask = _label_scores(x, label, rank - 1, int(w.of.ignore_index), rank)
    scores = mask.where(1.0, scores)
    loss = (-scores.node("Log")).least(bound)
    loss = loss if w.rank("Label") == rank else loss.without(rank - 1)
    return (loss.value, scores.value, None) if w.op.type == "cross_entropy2" else loss.value


@to_onnx()
def _to_onnx_softmax_with_cross_entropy(w: WrittenOp) -> Any:
    logits, rank = term(w, "Logits"), w.rank("Logits")
    axis = int(w.of.axis) % rank
    logs = logits.node("LogSoftmax", axis=axis) if w.of.use_softmax else logits.node("Log")
    softmax = logits.node("Softmax", axis=axis) if w.of.use_softmax else logits.node("Identity")
    if w.of.soft_label:
        return softmax.value, (-((term(w, "Label") * logs).total(axis, keep=True))).value
    scores, mask = _label_scores(logs, term(w, "Label"), axis, int(w.of.ignore_index), rank)
    return softmax.value, (-mask.where(0.0, scores)).value


@to_onnx()
def _to_onnx_nll_loss(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label").cast(INT64)
    mask = label.same(int(w.of.ignore_index))
    index = mask.where(0, label)
    weights = term(w, "Weight").taken(index) if w.has("Weight") else constant(w, 1.0, x.of).spread(label.dims())
    weights = mask.where(0.0, weights)
    losses = weights.same(0.0).where(0.0, -(x.node("GatherElements", index.with_dims(1).value, axis=1).without(1) * weights))
    nothing = constant(w, 0.0, x.of)
    if w.of.reduction == "none":
        return losses.value, nothing.value
    total, of_all = losses.node("ReduceSum", keepdims=0), weights.node("ReduceSum", keepdims=0)
    if w.of.reduction == "sum":
        return total.value, of_all.value
    return of_all.same(0.0).where(0.0, total / of_all).value, of_all.value


@to_onnx()
def _to_onnx_label_smooth(w: WrittenOp) -> Any:
    x, epsilon = term(w, "X"), float(w.of.epsilon)
    prior = term(w, "PriorDist").shaped(-1) * epsilon if w.has("PriorDist") else epsilon / x.size(w.rank("X") - 1).cast(x.of)
    return (x * (1.0 - epsilon) + prior).value


@to_onnx()
def _to_onnx_sigmoid_focal_loss(w: WrittenOp) -> Any:
    x, label, dtype = term(w, "X"), term(w, "Label"), w.dtype("X")
    number = term(w, "FgNum").shaped(-1).most(1).cast(dtype)
    hit = label.same((count_to(x.size(1)) + 1).cast(label.of))
    miss = ~label.same(-1) & ~hit
    p = x.node("Sigmoid")
    least = {"fp64": 2.2250738585072014e-308}.get(dtype.name, 1.1754943508222875e-38)
    hit_loss = hit.cast(dtype) * (float(w.of.alpha) / number) * (1.0 - p) ** float(w.of.gamma) * p.most(least).node("Log")
    miss_loss = miss.cast(dtype) * ((1.0 - float(w.of.alpha)) / number) * p ** float(w.of.gamma) * -x.node("Softplus")
    return (-(hit_loss + miss_loss)).value


@to_onnx()
def _to_onnx_smooth_l1_loss(w: WrittenOp) -> Any:
    difference = term(w, "X") - term(w, "Y")
    if w.has("InsideWeight"):
        difference = difference * term(w, "InsideWeight")
    square, size = float(w.of.sigma) ** 2, abs(difference)
    inside = size.least(1.0 / square)
    loss = (size - inside * 0.5) * inside * square
    if w.has("OutsideWeight"):
        loss = loss * term(w, "OutsideWeight")
    return difference.value, loss.node("Flatten", axis=1).total(1, keep=True).value


@to_onnx()
def _to_onnx_huber_loss(w: WrittenOp) -> Any:
    residual = term(w, "Y") - term(w, "X")
    size = abs(residual)
    inside = size.least(float(w.of.delta))
    return residual.value, ((size - inside * 0.5) * inside).value


@to_onnx()
def _to_onnx_bce_loss(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    return (-(label * x.node("Log").most(-100.0) + (1.0 - label) * (1.0 - x).node("Log").most(-100.0))).value


@to_onnx()
def _to_onnx_kldiv_loss(w: WrittenOp) -> Any:
    x, target = term(w, "X"), term(w, "Target")
    if w.of.log_target:
        loss = target.node("Exp") * (target - x)
    else:
        loss = (target <= 0.0).where(0.0, target * (target.node("Log") - x))
    if w.of.reduction == "none":
        return loss.value
    total = loss.node("ReduceSum", keepdims=0)
    if w.of.reduction == "sum":
        return total.value
    count = Term(w, w.node("Size", x.value), INT64) if w.of.reduction == "mean" else x.size(0).without(0)
    return (total / count.cast(x.of)).value


@to_onnx()
def _to_onnx_log_loss(w: WrittenOp) -> Any:
    p, label, epsilon = term(w, "Predicted"), term(w, "Labels"), float(w.of.epsilon)
    return (-(label * (p + epsilon).node("Log") + (1.0 - label) * (1.0 + epsilon - p).node("Log"))).value


@to_onnx()
def _to_onnx_sigmoid_cross_entropy_with_logits(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    logarithm = ((-abs(x)).node("Exp") + 1.0).node("Log")
    logarithm = logarithm * term(w, "pos_weight") if w.has("pos_weight") else logarithm
    ignored = label.same(float(w.of.ignore_index))
    loss = ignored.where(0.0, x.most(0.0) - x * label + logarithm)
    if w.of.normalize:
        loss = loss / (~ignored).cast(x.of).node("ReduceSum", keepdims=0).most(1.0)
    return loss.value


@to_onnx()
def _to_onnx_hinge_loss(w: WrittenOp) -> Any:
    return (1.0 - (term(w, "Labels") * 2.0 - 1.0) * term(w, "Logits")).most(0.0).value


@to_onnx()
def _to_onnx_margin_rank_loss(w: WrittenOp) -> Any:
    out = ((term(w, "X2") - term(w, "X1")) * term(w, "Label") + float(w.of.margin)).most(0.0)
    return (out > 0.0).cast(out.of).value, out.value


@to_onnx()
def _to_onnx_rank_loss(w: WrittenOp) -> Any:
    difference = term(w, "Left") - term(w, "Right")
    return (difference.node("Softplus") - difference * term(w, "Label")).value


@to_onnx()
def _to_onnx_bpr_loss(w: WrittenOp) -> Any:
    x, label, rank = term(w, "X"), term(w, "Label").cast(INT64), w.rank("X")
    label = label.with_dims(rank - 1) if w.rank("Label") < rank else label
    score = x.node("GatherElements", label.value, axis=rank - 1)
    mine = count_to(x.size(rank - 1)).same(label)
    return (mine.where(0.0, (x - score).node("Softplus")).total(rank - 1, keep=True) / (x.size(rank - 1) - 1).cast(x.of)).value


@to_onnx()
def _to_onnx_teacher_student_sigmoid_loss(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    count = (label >= 0.0).cast(x.of) + 1.0
    click = (label >= -1.0).cast(x.of)
    return (x.node("Softplus") * count - (label < 0.0).where(click, label) * x).value


@to_onnx()
def _to_onnx_accuracy(w: WrittenOp) -> Any:
    dtype, indices = w.dtype("Out"), term(w, "Indices")
    label = term(w, "Label").cast(indices.of)
    rows = indices.size(0).without(0)
    right = indices.same(label).some(1) & ~term(w, "Out").node("IsNaN", to=BOOL).some(1)
    correct = right.cast(FP32).total(0).cast(dtype)
    return (correct / rows.most(1).cast(dtype)).value, correct.value, rows.cast(dtype).value


# --- from PaddlePaddle 3


@from_pir("sigmoid_cross_entropy_with_logits")
def _from_pir_sigmoid_cross_entropy(p: PirCall) -> Any:
    """Return a weighted loss as PaddlePaddle 3 computes it: (1 - Label) * X + pos_weight * log(1 + exp(-X)).

    In 2.x pos_weight multiplies another part of the sum. So 2.x has (pos_weight - 1) * log(1 + exp(-X)) added to the plain loss.
    """
    weight = p.optional(2)
    if weight is None:
        return p.by_row()
    if p.attribute("normalize", False) or p.attribute("ignore_index", -100) != -100:
        raise Refused("a weighted loss that ignores labels has no counterpart")
    plain = p.apply(p.name, X=p.x(), Label=p.x(1))
    return plain + layer.softplus(-p.x()) * (weight - 1.0)


# --- from torch


def _reduced(x: Variable, reduction: int) -> Variable:
    return x if reduction == 0 else layer.reduce_mean(x) if reduction == 1 else layer.reduce_sum(x)


@from_torch()
def _from_torch_mse_loss(t: TorchCall, x: Variable, y: Variable, reduction: int = 1) -> Any:
    return _reduced(layer.square(layer.subtract(x, y)), reduction)


@from_torch()
def _from_torch_multi_margin_loss(t: TorchCall, x: Variable, target: Variable, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1) -> Any:
    single = t.rank(x) == 1
    x, target = (layer.unsqueeze(x, [0]), layer.reshape(target, [1])) if single else (x, target)
    label = layer.unsqueeze(target, [1])
    excess = layer.relu(t.scale(layer.subtract(x, layer.take_along_axis(x, label, 1)), 1.0, float(margin)))
    excess = layer.square(excess) if p == 2 else excess
    excess = excess if weight is None else layer.multiply(excess, layer.unsqueeze(layer.gather(weight, target), [1]))
    classes = layer.range(0, as_variable(size_of(x, 1)), 1, dtype=INT64)
    mask = t.cast(layer.not_equal(label, layer.unsqueeze(classes, [0])), t.dtype)
    loss = _reduced(layer.reduce_mean(layer.multiply(excess, mask), [1]), reduction)
    return layer.reshape(loss, []) if single else loss


@from_torch("multilabel_margin_loss", "multilabel_margin_loss_forward")
def _multilabel_margin(t: TorchCall, x: Variable, target: Variable, reduction: int = 1) -> Any:
    single = t.rank(x) == 1
    x, target = (layer.unsqueeze(x, [0]), layer.unsqueeze(target, [0])) if single else (x, target)
    label_mask = layer.less_equal(layer.cumsum(t.cast(layer.less_than(target, 0), INT64), 1), 0)  # the labels before the first one below 0
    label = t.where(label_mask, target, layer.fill_like(target, 0))
    classes = layer.unsqueeze(layer.range(0, as_variable(size_of(x, 1)), 1, dtype=INT64), [0, 1])
    hits = layer.logical_and(layer.equal(layer.unsqueeze(label, [2]), classes), layer.unsqueeze(label_mask, [2]))
    mask = layer.logical_not(layer.reduce_any(hits, [1], True))
    excess = layer.subtract(layer.unsqueeze(x, [1]), layer.unsqueeze(layer.take_along_axis(x, label, 1), [2]))
    counted = t.cast(layer.logical_and(mask, layer.unsqueeze(label_mask, [2])), t.dtype)
    losses = layer.reduce_mean(layer.reduce_sum(layer.multiply(layer.relu(t.scale(excess, 1.0, 1.0)), counted), [1]), [1])
    loss = _reduced(losses, reduction)
    loss = layer.reshape(loss, []) if single else loss
    return [loss, None] if "forward" in t.name else loss


@from_torch()
def _from_torch_l1_loss(t: TorchCall, x: Variable, y: Variable, reduction: int = 1) -> Any:
    return _reduced(layer.abs(layer.subtract(x, y)), reduction)


@from_torch("smooth_l1_loss", "huber_loss")
def _huber(t: TorchCall, x: Variable, y: Variable, reduction: int = 1, beta: float = 1.0) -> Any:
    distance = layer.abs(layer.subtract(x, y))
    smooth = "smooth" in t.name
    if smooth and beta == 0:
        return _reduced(distance, reduction)
    quadratic = t.scale(layer.square(distance), 0.5 / beta if smooth else 0.5)
    linear = t.scale(distance, 1.0, -0.5 * beta) if smooth else t.scale(distance, beta, -0.5 * beta * beta)
    return _reduced(layer.where(layer.less_than(distance, t.tensor(float(beta), t.dtype)), quadratic, linear), reduction)


@from_torch()
def _from_torch_binary_cross_entropy(t: TorchCall, x: Variable, y: Variable, weight: Any = None, reduction: int = 1) -> Any:
    loss = t.op("bce_loss", None, X=x, Label=y)
    if not y.stop_gradient:  # ours has no gradient of it
        slope = layer.subtract(layer.log1p(layer.scale(x, -1.0)), layer.log(x))
        slope.stop_gradient = True
        loss = layer.add(loss, layer.multiply(change(y), slope))
    return _reduced(loss if weight is None else layer.multiply(loss, weight), reduction)


@from_torch()
def _from_torch_binary_cross_entropy_with_logits(t: TorchCall, x: Variable, y: Variable, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    if pos_weight is None:
        loss = layer.subtract(layer.softplus(x, 1.0, 1e4), layer.multiply(x, y))
    else:  # (1 - y) x + (1 + (p - 1) y) log(1 + e^-x)
        factor = layer.scale(layer.multiply(layer.scale(pos_weight, 1.0, -1.0), y), 1.0, 1.0)
        loss = layer.add(layer.multiply(layer.scale(y, -1.0, 1.0), x), layer.multiply(factor, layer.softplus(layer.scale(x, -1.0), 1.0, 1e4)))
    return _reduced(loss if weight is None else layer.multiply(loss, weight), reduction)


@from_torch("nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
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
        loss = t.op("nll_loss", attrs, X=x, Label=target, Weight=weight)[0]
        return t.reshape(loss, sizes) if reduction == 0 else loss
    loss, total = t.op("nll_loss", attrs, X=x, Label=target, Weight=weight)
    return [loss, total] if "forward" in t.name else loss


@from_torch()
def _from_torch_cross_entropy_loss(
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
        loss = layer.multiply(logs, target if column is None else layer.multiply(target, column))
        loss = layer.scale(layer.reduce_sum(loss, axis), -1.0)
        if reduction == 1 and t.rank(loss) > 1:
            return layer.divide(layer.reduce_sum(loss), layer.reshape(layer.cast(layer.slice(layer.shape(x), [0], [0], [1]), x.dtype), []))
        return _reduced(loss, reduction)
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


@from_torch("foreshape.ctc")
def _ctc(t: TorchCall, x: Variable, target: Variable, steps: Variable, lengths: Variable, blank: int, zero_infinity: bool) -> Any:
    """Return each sequence's loss of connectionist temporal classification, of logarithms ``[time, batch, classes]`` and labels ``[batch, labels]``."""
    steps, lengths = t.cast(steps, INT64), t.cast(lengths, INT64)
    loss = layer.reshape(layer.warpctc(x, t.cast(target, INT32), blank, input_length=steps, label_length=lengths), [-1])
    if not zero_infinity:  # labels too long for the steps, where ours is 0: each needs a step, and one more where it repeats the last
        later, previous = layer.slice(target, [1], [1], [2**31 - 1]), layer.slice(target, [1], [0], [-1])
        place = layer.add(layer.cumsum(layer.fill_like(later, 1.0, INT64), 1), layer.fill_constant([], INT64, 0))
        repeats = layer.logical_and(layer.equal(later, previous), layer.less_than(place, layer.unsqueeze(lengths, [1])))
        needed = layer.add(lengths, layer.reduce_sum(layer.cast(repeats, INT64), [1]))
        loss = t.where(layer.greater_than(needed, steps), t.tensor(float("inf"), x.spec.known_dtype), loss)
    return loss


@from_torch()
def _from_torch_kl_div(t: TorchCall, x: Variable, y: Variable, reduction: int = 1, log_target: bool = False) -> Any:
    if y.stop_gradient:
        loss = t.op("kldiv_loss", {"reduction": "none", "log_target": log_target}, X=x, Target=y)
    elif log_target:
        loss = layer.multiply(layer.exp(y), layer.subtract(y, x))
    else:
        loss = layer.subtract(x_log_y(t, y, y), layer.multiply(y, x))
    return _reduced(loss, reduction)


# --- to torch's code


@to_torch()
def _to_torch_softmax_with_cross_entropy(w: PlainOp) -> Any:
    x, axis = w.x("Logits"), w.of.axis
    log_p = w.let(f"torch.log_softmax({x}, {axis})" if w.of.use_softmax else f"torch.log({x})")
    loss = w.call(helpers.class_costs.cross_entropy, log_p, w.x("Label"), axis, w.of.ignore_index, w.of.soft_label)
    return f"torch.exp({log_p})" if w.of.use_softmax else x, loss


@to_torch()
def _to_torch_accuracy(w: PlainOp) -> Any:
    return Several(w.call(helpers.label_costs.accuracy, w.x("Out"), w.x("Indices"), w.x("Label")))


@to_torch()
def _to_torch_cross_entropy(w: PlainOp) -> str:
    if w.of.soft_label:
        return w.call(helpers.label_costs.soft_loss, w.x("X"), w.x("Label"))
    return f"{w.call(helpers.label_costs.picked_loss, w.x('X'), w.x('Label'), w.of.ignore_index)}[0]"


@to_torch()
def _to_torch_cross_entropy2(w: PlainOp) -> Any:
    x = w.x("X")
    loss, picked = w.several(w.call(helpers.label_costs.picked_loss, x, w.x("Label"), w.of.ignore_index), 2)
    return loss, picked, f"{x}.new_empty((*{x}.shape, 0))"


@to_torch()
def _to_torch_bpr_loss(w: PlainOp) -> str:
    return w.call(helpers.label_costs.personalized_ranking_loss, w.x("X"), w.x("Label"))


@to_torch()
def _to_torch_nll_loss(w: PlainOp) -> Any:
    arguments = w.x("X"), w.x("Label"), w.optional("Weight"), w.of.ignore_index, repr(w.of.reduction)
    return Several(w.call(helpers.label_costs.weighted_nll, *arguments))


@to_torch()
def _to_torch_sigmoid_cross_entropy_with_logits(w: PlainOp) -> str:
    arguments = w.x("X"), w.x("Label"), w.optional("pos_weight"), w.of.ignore_index, w.of.normalize
    return w.call(helpers.label_costs.sigmoid_cross_entropy, *arguments)


@to_torch()
def _to_torch_center_loss(w: PlainOp) -> Any:
    if w.of.need_update:
        return Several(w.call(helpers.label_costs.moved_centers, *(w.x(slot) for slot in ("X", "Label", "Centers", "CenterUpdateRate"))))
    centers = w.x("Centers")
    difference, loss = w.several(w.call(helpers.label_costs.center_loss, w.x("X"), w.x("Label"), centers), 2)
    return difference, loss, None if w.op.output("CentersOut") == w.variable("Centers").name else centers


@to_torch()
def _to_torch_cos_sim(w: PlainOp) -> Any:
    return Several(w.call(helpers.label_costs.cosine, w.x("X"), w.x("Y")))


@to_torch()
def _to_torch_huber_loss(w: PlainOp) -> Any:
    x, y = w.x("X"), w.x("Y")
    if w.of.delta <= 0.0:  # torch's loss wants more
        return f"{y} - {x}", f"({x} - {y}).abs() * {number_code(w.of.delta)} - {number_code(w.of.delta**2 / 2)}"
    return f"{y} - {x}", f'F.huber_loss({x}, {y}, reduction="none", delta={number_code(w.of.delta)})'


@to_torch()
def _to_torch_kldiv_loss(w: PlainOp) -> str:
    x, target = w.x("X"), w.x("Target")
    if w.of.log_target:
        loss = f"torch.exp({target}) * ({target} - {x})"
    else:
        loss = f"torch.where({target} <= 0, 0.0, torch.xlogy({target}, {target}) - {target} * {x})"
    if w.of.reduction == "batchmean":
        return f"torch.sum({loss}) / {x}.shape[0]"
    return loss if w.of.reduction == "none" else f"torch.{w.of.reduction}({loss})"


@to_torch()
def _to_torch_margin_rank_loss(w: PlainOp) -> Any:
    out = w.let(f"F.relu(({w.x('X2')} - {w.x('X1')}) * {w.x('Label')} + {number_code(w.of.margin)})")
    return f"({out} > 0.0).to({out}.dtype)", out


@to_torch()
def _to_torch_label_smooth(w: PlainOp) -> str:
    x, epsilon = w.x("X"), number_code(w.of.epsilon)
    prior = f"{w.x('PriorDist')}.reshape(-1) * {epsilon}" if w.has("PriorDist") else f"{epsilon} / {x}.shape[-1]"
    return f"{x} * {number_code(1.0 - w.of.epsilon)} + {prior}"


@to_torch()
def _to_torch_smooth_l1_loss(w: PlainOp) -> Any:
    inside, outside = (f" * {w.x(slot)}" if w.has(slot) else "" for slot in ("InsideWeight", "OutsideWeight"))
    difference = w.let(f"({w.x('X')} - {w.x('Y')}){inside}")
    loss = f'F.smooth_l1_loss({difference}, torch.zeros_like({difference}), reduction="none", beta={number_code(w.of.sigma**-2)})'
    return difference, f"({loss}{outside}).flatten(1).sum(1, keepdim=True)"


@to_torch()
def _to_torch_sigmoid_focal_loss(w: PlainOp) -> str:
    operands = w.x("X"), w.x("Label"), w.x("FgNum")
    return w.call(helpers.label_costs.focal_loss, *operands, number_code(w.of.gamma), number_code(w.of.alpha))


@to_torch()
def _to_torch_teacher_student_sigmoid_loss(w: PlainOp) -> str:
    bounds = number_code(w.of.soft_max_lower_bound), number_code(w.of.soft_max_up_bound)
    return w.call(helpers.label_costs.teacher_student_loss, w.x("X"), w.x("Label"), *bounds)


@to_torch()
def _to_torch_cross_entropy_grad2(w: PlainOp) -> str:
    operands = w.x("Label"), w.x("MatchX"), f"{w.x('XShape')}.shape[:-1]", w.x("Y@GRAD")
    return w.call(helpers.label_costs.cross_entropy_gradient, *operands, w.of.ignore_index)


@to_torch()
def _to_torch_auc(w: PlainOp) -> Several:
    operands = [w.x(slot) for slot in ("Predict", "Label", "StatPos", "StatNeg")]
    return Several(w.call(helpers.measures.area_under_curve, *operands, w.of.num_thresholds, w.of.slide_steps))


@to_torch()
def _to_torch_precision_recall(w: PlainOp) -> Several:
    operands = w.x("MaxProbs"), w.x("Indices"), w.x("Labels"), w.optional("Weights"), w.optional("StatesInfo")
    return Several(w.call(helpers.measures.precision_recall, *operands, w.of.class_number))


@to_torch()
def _to_torch_hierarchical_sigmoid(w: PlainOp) -> Any:
    if w.has("PathTable") and w.has("PathCode"):
        path = w.let(w.call(helpers.class_trees.own_paths, w.x("PathTable"), w.x("PathCode"), f"{w.x('W')}.shape[0]"))
    else:
        path = w.let(w.call(helpers.class_trees.paths_of_classes, w.x("Label"), w.of.num_classes))
    out, pre = w.several(w.call(helpers.class_trees.hierarchical_loss, w.x("X"), w.x("W"), w.optional("Bias"), f"*{path}"), 2)
    return out, pre, w.x("W") if w.is_read("W_Out") else None
