"""GRUs and LSTMs over ragged rows, with the input projection, as in programs rewritten for a CPU; for inference."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.language.operator import NOT_WRITTEN, AttrType, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.recurrent.gru import FLOATS, WEIGHT_DOC, ResetBeforeGru
from foreshape.language.ops.recurrent.lstm import BIAS_DOC, LstmSteps
from foreshape.language.ops.rules.ragged_rules import ragged
from foreshape.machine.kernels import lstm_steps as steps

NOT_MADE = "not made here"


def _projected(x: Spec, weight: Spec, slot: str = "WeightX") -> Spec:
    """Return the spec of ragged rows times a matrix."""
    ragged(x, "X")
    require_rank(2, x, "X")
    require_rank(2, weight, slot)
    require_equal(x.known_dims[1], weight.known_dims[0], f"{slot} must have as many rows as X has columns", X=1, **{slot: 0})
    return x.with_dims((x.known_dims[0], weight.known_dims[1]))


def _data_type() -> Any:
    return attribute(AttrType.STRING, "float32", choices=("float32",), doc="for oneDNN's kernels: int8 and bfloat16 are not supported")


class FusionGru(ResetBeforeGru):
    """`gru` of X WeightX + Bias."""

    type = "fusion_gru"
    examples = ("X", "H0")
    gradient = NOT_WRITTEN
    X = operand(FLOATS, doc="ragged rows [rows, width]")
    H0 = operand(FLOATS, optional=True, same_type_as="X", doc="the state before the first step, zeros where absent: [sequences, hidden]")
    WeightX = operand(FLOATS, same_type_as="X", doc="[width, 3 hidden]")
    WeightH = operand(FLOATS, same_type_as="X", doc=WEIGHT_DOC)
    Bias = operand(FLOATS, optional=True, same_type_as="X", doc="[1, 3 hidden]")
    ReorderedH0 = result(optional=True, doc=NOT_MADE)
    XX = result(optional=True, doc=NOT_MADE)
    BatchedInput = result(optional=True, doc=NOT_MADE)
    BatchedOut = result(optional=True, doc=NOT_MADE)
    Hidden = result(doc="[rows, hidden], with the offsets of X")
    activation = attribute(AttrType.STRING, "tanh", choices=steps.ACTIVATIONS)
    gate_activation = attribute(AttrType.STRING, "sigmoid", choices=steps.ACTIVATIONS)
    is_reverse = attribute(AttrType.BOOLEAN, False)
    use_seq = attribute(AttrType.BOOLEAN, True, doc="ignored")
    mkldnn_data_type = _data_type()

    def infer_shape(self, X: Spec, H0: Spec | None, WeightX: Spec, WeightH: Spec, Bias: Spec | None) -> Any:
        projected = _projected(X, WeightX)
        size = self._hidden(projected, H0, "H0", ragged(X, "X").counts[-1], WeightH, Bias)
        return None, None, None, None, X.with_dims((X.known_dims[0], size))

    def work(self, X: Spec, H0: Any, WeightX: Spec, WeightH: Spec, Bias: Any) -> Size:
        return X.known_dims[0] * (WeightX.elements + WeightH.elements)

    def expand(self, of: Composition, X: Any, H0: Any, WeightX: Any, WeightH: Any, Bias: Any) -> Any:
        return None, None, None, None, _gru(self, of, X, H0, WeightX, WeightH, Bias, self.is_reverse)

    samples = [
        sample(X=f32(9, 5).ragged([4, 2, 3]), WeightX=f32(5, 12), WeightH=f32(4, 12), Bias=f32(1, 12)),
        sample(X=f32(9, 5).ragged([4, 2, 3]), H0=f32(3, 4), WeightX=f32(5, 12), WeightH=f32(4, 12), is_reverse=True),
        sample(X=f32(9, 5).ragged([4, 2, 3]), WeightX=f32(5, 12), WeightH=f32(4, 12), origin_mode=True),
        sample(X=f32(7, 3).ragged([3, 4]), WeightX=f32(3, 6), WeightH=f32(2, 6), Bias=f32(1, 6), activation="relu", gate_activation="tanh", use_seq=False),
    ]
    rejects = [reject(X=f32(9, 5).ragged([4, 5]), WeightX=f32(5, 12), WeightH=f32(3, 12), says="Weight must be [4, 12]")]


def _gru(operator: Any, of: Composition, x: Any, h0: Any, weight: Any, recurrent: Any, bias: Any, backwards: bool) -> Any:
    """Return the states, row by row, of ``x weight + bias``."""
    attrs = {name: getattr(operator, name) for name in ("activation", "gate_activation", "origin_mode")}
    return of("gru", attrs | {"is_reverse": backwards}, Input=of("mul", X=x, Y=weight), H0=h0, Weight=recurrent, Bias=bias)[-1]


class MultiGru(ResetBeforeGru):
    """GRUs in both directions, layer over layer: Hidden = the last layer's states from the first step on, beside its states from the last on.

    A layer has two weights and two biases, one for each direction.
    """

    type = "multi_gru"
    examples = ("X",)
    gradient = NOT_WRITTEN
    X = operand(FLOATS, doc="ragged rows [rows, width]")
    WeightX = operand(FLOATS, many=True, doc="two for each layer, [width, 3 hidden] each; width is 2 hidden from the second layer on")
    WeightH = operand(FLOATS, many=True, doc="two for each layer, " + WEIGHT_DOC)
    Bias = operand(FLOATS, many=True, optional=True, doc="two for each layer, [1, 3 hidden]")
    Scale_weights = operand(many=True, optional=True, doc="for quantized weights: must be absent")
    Hidden = result(doc="[rows, 2 hidden], with the offsets of X")
    activation = attribute(AttrType.STRING, "tanh", choices=("tanh",))
    gate_activation = attribute(AttrType.STRING, "sigmoid", choices=("sigmoid",))
    layers = attribute(AttrType.INT, 1, low=1)
    mkldnn_data_type = _data_type()

    def infer_shape(self, X: Spec, WeightX: Any, WeightH: Any, Bias: Any, Scale_weights: Any) -> Spec:
        require(not Scale_weights, "Scale_weights must not be there: quantized weights are not supported", Scale_weights=None)
        count = 2 * self.layers
        for slot, tensors in (("WeightX", WeightX), ("WeightH", WeightH), ("Bias", Bias)):
            require(
                len(tensors) == count or (slot == "Bias" and not tensors), f"{slot} must have two for each layer, {count}, not {len(tensors)}", **{slot: None}
            )
        out = X
        for index in range(0, count, 2):
            sizes = [self._direction_size(out, WeightX[k], WeightH[k], Bias[k] if Bias else None) for k in (index, index + 1)]
            require_equal(sizes[0], sizes[1], "both directions of a layer must have as many hidden units", WeightX=None)
            out = X.with_dims((X.known_dims[0], sizes[0] + sizes[1]))
        return out

    def _direction_size(self, x: Spec, weight: Spec, recurrent: Spec, bias: Spec | None) -> Size:
        require(weight.dtype is x.dtype and recurrent.dtype is x.dtype, "X and all weights must be of one element type", X=None, WeightX=None, WeightH=None)
        return self._hidden(_projected(x, weight), None, "H0", ragged(x, "X").counts[-1], recurrent, bias)

    def work(self, X: Spec, WeightX: Any, WeightH: Any, Bias: Any, Scale_weights: Any) -> Size:
        return X.known_dims[0] * sum((w.elements for w in (*WeightX, *WeightH)), 0)

    def expand(self, of: Composition, X: Any, WeightX: Any, WeightH: Any, Bias: Any, Scale_weights: Any) -> Any:
        out = X
        for index in range(0, 2 * self.layers, 2):
            parts = [_gru(self, of, out, None, WeightX[k], WeightH[k], Bias[k] if Bias else None, k > index) for k in (index, index + 1)]
            out = of("concat", {"axis": 1}, X=parts)
        return out

    samples = [
        sample(X=f32(7, 3).ragged([4, 3]), WeightX=[f32(3, 6), f32(3, 6)], WeightH=[f32(2, 6), f32(2, 6)], Bias=[f32(1, 6), f32(1, 6)]),
        sample(X=f32(7, 3).ragged([4, 3]), WeightX=[f32(3, 6), f32(3, 6), f32(4, 9), f32(4, 9)], Bias=[f32(1, 6), f32(1, 6), f32(1, 9), f32(1, 9)],
               WeightH=[f32(2, 6), f32(2, 6), f32(3, 9), f32(3, 9)], layers=2, origin_mode=True),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(7, 3).ragged([4, 3]), WeightX=[f32(3, 6)], WeightH=[f32(2, 6), f32(2, 6)], says="two for each layer, 2, not 1"),
        reject(X=f32(7, 3).ragged([4, 3]), WeightX=[f32(3, 6), f32(3, 9)], WeightH=[f32(2, 6), f32(3, 9)], says="as many hidden units"),
        reject(X=f32(7, 3).ragged([4, 3]), WeightX=[f32(3, 6), f32(3, 6)], WeightH=[f32(2, 6), f32(2, 6)], Scale_weights=[f32(1)], says="quantized weights"),
    ]


class FusedLstm(LstmSteps):
    """The base of LSTMs with their own input projection: the results."""

    abstract = True
    gradient = NOT_WRITTEN
    Hidden = result(doc="[rows, hidden], with the offsets of the ragged rows")
    Cell = result(doc="likewise")
    XX = result(optional=True, doc=NOT_MADE)
    BatchedInput = result(optional=True, doc=NOT_MADE)
    BatchedHidden = result(optional=True, doc=NOT_MADE)
    BatchedCell = result(optional=True, doc=NOT_MADE)
    ReorderedH0 = result(optional=True, doc=NOT_MADE)
    ReorderedC0 = result(optional=True, doc=NOT_MADE)
    use_seq = attribute(AttrType.BOOLEAN, True, doc="ignored")


class FusionLstm(FusedLstm):
    """`lstm` of X WeightX, with Bias."""

    type = "fusion_lstm"
    examples = ("X", "H0", "C0")
    X = operand(FLOATS, doc="ragged rows [rows, width]")
    WeightX = operand(FLOATS, same_type_as="X", doc="[width, 4 hidden]")
    WeightH = operand(FLOATS, same_type_as="X", doc="[hidden, 4 hidden]")
    Bias = operand(FLOATS, same_type_as="X", doc=BIAS_DOC)
    H0 = operand(FLOATS, optional=True, same_type_as="X", doc="the state before the first step, zeros where absent: [sequences, hidden]")
    C0 = operand(FLOATS, optional=True, same_type_as="X", doc="the cell before the first step, likewise; given with H0")
    CheckedCell = result(optional=True, doc=NOT_MADE)
    mkldnn_data_type = _data_type()

    def infer_shape(self, X: Spec, WeightX: Spec, WeightH: Spec, Bias: Spec, H0: Spec | None, C0: Spec | None) -> Any:
        size = self._hidden(_projected(X, WeightX), H0, C0, WeightH, Bias, None)
        out = X.with_dims((X.known_dims[0], size))
        return (out, out, *[None] * 7)

    def work(self, X: Spec, WeightX: Spec, WeightH: Spec, *operands: Any) -> Size:
        return X.known_dims[0] * (WeightX.elements + WeightH.elements)

    def expand(self, of: Composition, X: Any, WeightX: Any, WeightH: Any, Bias: Any, H0: Any, C0: Any) -> Any:
        attrs = {name: getattr(self, name) for name in ("use_peepholes", "is_reverse", "gate_activation", "cell_activation", "candidate_activation")}
        hidden, cell, *_ = of("lstm", attrs, Input=of("mul", X=X, Y=WeightX), Weight=WeightH, Bias=Bias, H0=H0, C0=C0)
        return (hidden, cell, *[None] * 7)

    samples = [
        sample(X=f32(9, 5).ragged([4, 2, 3]), WeightX=f32(5, 12), WeightH=f32(3, 12), Bias=f32(1, 21)),
        sample(X=f32(9, 5).ragged([4, 2, 3]), WeightX=f32(5, 12), WeightH=f32(3, 12), Bias=f32(1, 12), H0=f32(3, 3), C0=f32(3, 3), use_peepholes=False,
               is_reverse=True),
        sample(X=f32(9, 5).ragged([4, 5]), WeightX=f32(5, 12), WeightH=f32(3, 12), Bias=f32(1, 12), use_peepholes=False, use_seq=False,
               candidate_activation="relu"),
    ]  # fmt: skip
