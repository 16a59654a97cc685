"""Writing of losses and measures, as networks that are asked give them too."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, constant, count_to, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.spec import BOOL, FP16, FP32, INT64

_LOG_BOUND = 1e20


def _picked(x: Term, label: Term, axis: int, ignored: int, rank: int) -> tuple[Term, Term]:
    """Return the numbers at the labels (the first's where ignored), with a dim of 1 at the axis, and the mask of the ignored ones."""
    label = label.cast(INT64)
    label = label.with_dims(axis) if len(label.w.spec("Label").known_dims) < rank else label
    mask = label.same(ignored)
    return x.node("GatherElements", mask.where(0, label).value, axis=axis), mask


@writes("cross_entropy", "cross_entropy2")
def _cross_entropy(w: WrittenOp) -> Any:
    x, label, rank = term(w, "X"), term(w, "Label"), w.rank("X")
    bound = 65504.0 if x.of is FP16 else _LOG_BOUND
    if w.op.attributes.values.get("soft_label", False):
        return (-((x.node("Log").most(-bound) * label).total(rank - 1, keep=True))).value
    picked, mask = _picked(x, label, rank - 1, int(w.of.ignore_index), rank)
    picked = mask.where(1.0, picked)
    loss = (-picked.node("Log")).least(bound)
    loss = loss if w.rank("Label") == rank else loss.without(rank - 1)
    return (loss.value, picked.value, None) if w.op.type == "cross_entropy2" else loss.value


@writes("softmax_with_cross_entropy")
def _softmax_cross_entropy(w: WrittenOp) -> Any:
    logits, rank = term(w, "Logits"), w.rank("Logits")
    axis = int(w.of.axis) % rank
    logs = logits.node("LogSoftmax", axis=axis) if w.of.use_softmax else logits.node("Log")
    softmax = logits.node("Softmax", axis=axis) if w.of.use_softmax else logits.node("Identity")
    if w.of.soft_label:
        return softmax.value, (-((term(w, "Label") * logs).total(axis, keep=True))).value
    picked, mask = _picked(logs, term(w, "Label"), axis, int(w.of.ignore_index), rank)
    return softmax.value, (-mask.where(0.0, picked)).value


@writes("nll_loss")
def _nll_loss(w: WrittenOp) -> Any:
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


@writes("label_smooth")
def _label_smooth(w: WrittenOp) -> Any:
    x, epsilon = term(w, "X"), float(w.of.epsilon)
    prior = term(w, "PriorDist").shaped(-1) * epsilon if w.has("PriorDist") else epsilon / x.size(w.rank("X") - 1).cast(x.of)
    return (x * (1.0 - epsilon) + prior).value


@writes("sigmoid_focal_loss")
def _focal_loss(w: WrittenOp) -> Any:
    x, label, of = term(w, "X"), term(w, "Label"), w.dtype("X")
    number = term(w, "FgNum").shaped(-1).most(1).cast(of)
    own = label.same((count_to(x.size(1)) + 1).cast(label.of))
    other = ~label.same(-1) & ~own
    p = x.node("Sigmoid")
    least = {"fp64": 2.2250738585072014e-308}.get(of.name, 1.1754943508222875e-38)
    mine = own.cast(of) * (float(w.of.alpha) / number) * (1.0 - p) ** float(w.of.gamma) * p.most(least).node("Log")
    others = other.cast(of) * ((1.0 - float(w.of.alpha)) / number) * p ** float(w.of.gamma) * -x.node("Softplus")
    return (-(mine + others)).value


@writes("smooth_l1_loss")
def _smooth_l1(w: WrittenOp) -> Any:
    difference = term(w, "X") - term(w, "Y")
    if w.has("InsideWeight"):
        difference = difference * term(w, "InsideWeight")
    square, size = float(w.of.sigma) ** 2, abs(difference)
    inside = size.least(1.0 / square)
    loss = (size - inside * 0.5) * inside * square
    if w.has("OutsideWeight"):
        loss = loss * term(w, "OutsideWeight")
    return difference.value, loss.node("Flatten", axis=1).total(1, keep=True).value


@writes("huber_loss")
def _huber_loss(w: WrittenOp) -> Any:
    residual = term(w, "Y") - term(w, "X")
    size = abs(residual)
    inside = size.least(float(w.of.delta))
    return residual.value, ((size - inside * 0.5) * inside).value


@writes("bce_loss")
def _binary_cross_entropy(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    return (-(label * x.node("Log").most(-100.0) + (1.0 - label) * (1.0 - x).node("Log").most(-100.0))).value


@writes("kldiv_loss")
def _kldiv_loss(w: WrittenOp) -> Any:
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


@writes("log_loss")
def _log_loss(w: WrittenOp) -> Any:
    p, label, epsilon = term(w, "Predicted"), term(w, "Labels"), float(w.of.epsilon)
    return (-(label * (p + epsilon).node("Log") + (1.0 - label) * (1.0 + epsilon - p).node("Log"))).value


@writes("sigmoid_cross_entropy_with_logits")
def _sigmoid_cross_entropy(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    logarithm = ((-abs(x)).node("Exp") + 1.0).node("Log")
    logarithm = logarithm * term(w, "pos_weight") if w.has("pos_weight") else logarithm
    ignored = label.same(float(w.of.ignore_index))
    loss = ignored.where(0.0, x.most(0.0) - x * label + logarithm)
    if w.of.normalize:
        loss = loss / (~ignored).cast(x.of).node("ReduceSum", keepdims=0).most(1.0)
    return loss.value


@writes("hinge_loss")
def _hinge_loss(w: WrittenOp) -> Any:
    return (1.0 - (term(w, "Labels") * 2.0 - 1.0) * term(w, "Logits")).most(0.0).value


@writes("margin_rank_loss")
def _margin_rank_loss(w: WrittenOp) -> Any:
    out = ((term(w, "X2") - term(w, "X1")) * term(w, "Label") + float(w.of.margin)).most(0.0)
    return (out > 0.0).cast(out.of).value, out.value


@writes("rank_loss")
def _rank_loss(w: WrittenOp) -> Any:
    difference = term(w, "Left") - term(w, "Right")
    return (difference.node("Softplus") - difference * term(w, "Label")).value


@writes("bpr_loss")
def _bpr_loss(w: WrittenOp) -> Any:
    x, label, rank = term(w, "X"), term(w, "Label").cast(INT64), w.rank("X")
    label = label.with_dims(rank - 1) if w.rank("Label") < rank else label
    own = x.node("GatherElements", label.value, axis=rank - 1)
    mine = count_to(x.size(rank - 1)).same(label)
    return (mine.where(0.0, (x - own).node("Softplus")).total(rank - 1, keep=True) / (x.size(rank - 1) - 1).cast(x.of)).value


@writes("teacher_student_sigmoid_loss")
def _teacher_student_loss(w: WrittenOp) -> Any:
    x, label = term(w, "X"), term(w, "Label")
    count = (label >= 0.0).cast(x.of) + 1.0
    click = (label >= -1.0).cast(x.of)
    return (x.node("Softplus") * count - (label < 0.0).where(click, label) * x).value


@writes("accuracy")
def _accuracy(w: WrittenOp) -> Any:
    of, indices = w.dtype("Out"), term(w, "Indices")
    label = term(w, "Label").cast(indices.of)
    rows = indices.size(0).without(0)
    right = indices.same(label).some(1) & ~term(w, "Out").node("IsNaN", to=BOOL).some(1)
    correct = right.cast(FP32).total(0).cast(of)
    return (correct / rows.most(1).cast(of)).value, correct.value, rows.cast(of).value


@writes("equal_all")
def _equal_all(w: WrittenOp) -> Any:
    x, y = term(w, "X"), term(w, "Y")
    mine, others = w.spec("X").known_dims, w.spec("Y").known_dims
    if len(mine) != len(others) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(mine, others, strict=True)):
        return constant(w, False, BOOL).value
    same = x.same(y) | (abs(x - y) < 1e-8) if x.of.is_floating else x.same(y)
    return _all(same)


def _all(mask: Term) -> Any:
    w = mask.w
    return Term(w, w.node("ReduceSum", (~mask).cast(INT64).value, keepdims=0), INT64).same(0).value


def _close(w: WrittenOp) -> Term:
    x, y = term(w, "Input"), term(w, "Other")
    rtol, atol = (term(w, s).shaped(1).cast(x.of) if w.has(s) else constant(w, [float(getattr(w.of, s.lower()))], x.of) for s in ("Rtol", "Atol"))
    close = (abs(x - y) <= atol + rtol * abs(y)) & ~_infinite(y) | x.same(y)
    return close | (x.node("IsNaN", to=BOOL) & y.node("IsNaN", to=BOOL)) if w.of.equal_nan else close


def _infinite(x: Term) -> Term:
    return x.node("IsInf", to=BOOL)


@writes("isclose")
def _is_close(w: WrittenOp) -> Any:
    return _close(w).value


@writes("allclose")
def _all_close(w: WrittenOp) -> Any:
    return _all(_close(w))
