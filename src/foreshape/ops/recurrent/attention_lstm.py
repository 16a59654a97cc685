"""An LSTM whose every step sees a weighted mean of the whole sequence: attention_lstm."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.operator import (
    NOT_WRITTEN,
    AttrType,
    Offsets,
    Operator,
    attribute,
    f32,
    f64,
    operand,
    reject,
    require,
    require_divides,
    require_equal,
    require_rank,
    result,
    sample,
    torch,
)
from foreshape.ops.rules.ragged_rules import ragged
from foreshape.spec import FP32, FP64

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = (FP32, FP64)
_ACTIVATIONS = ("sigmoid", "tanh", "relu", "identity")
_INNER = "not made here"


def _activation(default: str, doc: str) -> Any:
    return attribute(AttrType.STRING, default, choices=_ACTIVATIONS, doc=doc)


def _activated(x: Tensor, name: str) -> Tensor:
    return x if name == "identity" else {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu}[name](x)


class AttentionLstm(Operator):
    """Hidden and Cell = the states of an LSTM over each sequence x of X, whose input in step t is sum_k a[k] x[k].

    a = softmax(e), e[k] = max(0, [x[k], c] AttentionWeight + AttentionBias) with the cell c before the step; with AttentionScalar s it is max(0, s e[k] +
    AttentionScalarBias) instead. Of the gates [input, forget, output, candidate] the columns of LSTMWeight, whose first rows are for the state
    and the others for the input, and of LSTMBias are in the order forget, input, output, candidate.
    """

    type = "attention_lstm"
    gradient = NOT_WRITTEN
    X = operand(_FLOATS, doc="ragged rows [rows, width], of one level")
    C0 = operand(_FLOATS, same_type_as="X", doc="the cell before the first step: [sequences, hidden]")
    H0 = operand(_FLOATS, optional=True, same_type_as="X", doc="the state before it, zeros where absent: [sequences, hidden]")
    AttentionWeight = operand(_FLOATS, same_type_as="X", doc="[width + hidden, 1]")
    AttentionBias = operand(_FLOATS, optional=True, same_type_as="X", doc="[1, 1]")
    AttentionScalar = operand(_FLOATS, optional=True, same_type_as="X", doc="[1, 1]")
    AttentionScalarBias = operand(_FLOATS, optional=True, same_type_as="X", doc="[1, 1]; where AttentionScalar is")
    LSTMWeight = operand(_FLOATS, same_type_as="X", doc="[hidden + width, 4 hidden]")
    LSTMBias = operand(_FLOATS, same_type_as="X", doc="[1, 4 hidden]")
    Hidden = result(layout="row", doc="[rows, hidden], with the offsets of X")
    Cell = result(layout="row", doc="likewise")
    AttentionedX = result(optional=True, doc=_INNER)
    AttentionFCOut = result(optional=True, doc=_INNER)
    LSTMX = result(optional=True, doc=_INNER)
    LSTMOUT = result(optional=True, doc=_INNER)
    gate_activation = _activation("sigmoid", "of the three gates")
    cell_activation = _activation("tanh", "of the cell, before the output gate")
    candidate_activation = _activation("tanh", "of what may come into the cell")

    def infer_shape(self, *specs: Any) -> Any:
        X, C0, H0, weight, bias, scalar, scalar_bias, lstm, lstm_bias = specs
        lod = ragged(X, "X", 1)
        for slot, spec in (("X", X), ("C0", C0), ("AttentionWeight", weight), ("LSTMWeight", lstm), ("LSTMBias", lstm_bias)):
            require_rank(2, spec, slot)
        width = X.known_dims[1]
        hidden = require_divides(4, lstm.known_dims[1], "the columns of LSTMWeight must be four for each hidden unit", LSTMWeight=1)
        require_equal(lstm.known_dims[0], width + hidden, "LSTMWeight must have a row for each hidden unit and each column of X", LSTMWeight=0, X=1)
        require_equal(weight.known_dims[0], width + hidden, "AttentionWeight must have a row for each column of X and each hidden unit",
                      AttentionWeight=0, X=1)  # fmt: skip
        require_equal(weight.known_dims[1], 1, "AttentionWeight must have 1 column", AttentionWeight=1)
        require_equal(lstm_bias.known_dims[0], 1, "LSTMBias must have 1 row", LSTMBias=0)
        require_equal(lstm_bias.known_dims[1], 4 * hidden, "LSTMBias must have as many columns as LSTMWeight", LSTMBias=1, LSTMWeight=1)
        for slot, spec in (("C0", C0), ("H0", H0)):
            if spec is not None:
                require_rank(2, spec, slot)
                require_equal(spec.known_dims[0], lod.counts[0], f"{slot} must have a row for each sequence of X", **{slot: 0})
                require_equal(spec.known_dims[1], hidden, f"{slot} must have a column for each hidden unit", **{slot: 1})
        for slot, spec in (("AttentionBias", bias), ("AttentionScalar", scalar), ("AttentionScalarBias", scalar_bias)):
            if spec is not None:
                require_rank(2, spec, slot)
                require_equal(spec.elements, 1, f"{slot} must be [1, 1]", **{slot: None})
        require(scalar is not None or scalar_bias is None, "AttentionScalarBias needs AttentionScalar", AttentionScalarBias=None)
        out = X.with_dims((X.known_dims[0], hidden))
        return (out, out, *[None] * 4)

    def work(self, *specs: Any) -> Size:
        return specs[0].known_dims[0] * specs[7].elements

    def workspace(self, *specs: Any, strided: frozenset[str]) -> Size:
        X, lstm = specs[0], specs[7]
        item = X.known_dtype.itemsize
        return 12 * X.known_dims[0] * item + 16 * (X.known_dims[1] + lstm.known_dims[1]) * item + 4096 + (2 * X.nbytes + 2 * lstm.nbytes if strided else 0)

    def kernel(self, *tensors: Any, offsets: list[Offsets]) -> tuple[Any, ...]:
        X, C0, H0, weight, bias, scalar, scalar_bias, lstm, lstm_bias = tensors
        width, hidden = X.shape[1], lstm.shape[1] // 4
        of_x = (X @ weight[:width]).view(-1)
        if bias is not None:
            of_x += bias.view(())
        states, cells = X.new_empty(X.shape[0], hidden), X.new_empty(X.shape[0], hidden)
        host = offsets[0].host
        if len(host) - 1 != C0.shape[0]:
            raise ExecutionError(f"attention_lstm: C0 must have a row for each of the {len(host) - 1} sequences of X; seen {C0.shape[0]}")
        of_cell, of_state, of_input = weight[width:, 0], lstm[:hidden], lstm[hidden:]
        for sequence, (begin, end) in enumerate(pairwise(host)):
            cell = C0[sequence]
            state = None if H0 is None else H0[sequence]
            for row in range(begin, end):
                scores = (of_x[begin:end] + cell @ of_cell).relu_()
                if scalar is not None:
                    scores.mul_(scalar.view(()))
                    scores = (scores if scalar_bias is None else scores.add_(scalar_bias.view(()))).relu_()
                seen = scores.softmax(0) @ X[begin:end]
                gates = (seen @ of_input).add_(lstm_bias.view(-1))
                if state is not None:
                    gates += state @ of_state
                forget, take, give = _activated(gates[: 3 * hidden], self.gate_activation).view(3, hidden)
                cells[row] = forget * cell + take * _activated(gates[3 * hidden :], self.candidate_activation)
                cell = cells[row]
                states[row] = give * _activated(cell, self.cell_activation)
                state = states[row]
        return (states, cells, *[None] * 4)

    samples = [
        sample(X=f32(9, 5).ragged([4, 2, 3]), C0=f32(3, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8)),
        sample(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 3), H0=f32(2, 3), AttentionWeight=f32(8, 1), AttentionBias=f32(1, 1), AttentionScalar=f32(1, 1),
               AttentionScalarBias=f32(1, 1), LSTMWeight=f32(8, 12), LSTMBias=f32(1, 12)),
        sample(X=f32(7, 2).ragged([3, 4]), C0=f32(2, 3), AttentionWeight=f32(5, 1), AttentionScalar=f32(1, 1, data=[[2.0]]), LSTMWeight=f32(5, 12),
               LSTMBias=f32(1, 12), gate_activation="tanh", cell_activation="sigmoid", candidate_activation="relu"),
        sample(X=f32(5, 2).ragged([2, 3]), C0=f32(2, 3), AttentionWeight=f32(5, 1), LSTMWeight=f32(5, 12), LSTMBias=f32(1, 12), cell_activation="identity"),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(9, 5), C0=f32(3, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8), says="X must be ragged",
               error=TypeMismatchError),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(3, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8),
               says="C0 must have a row for each sequence"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(6, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8),
               says="AttentionWeight must have a row"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(6, 8), LSTMBias=f32(1, 8),
               says="LSTMWeight must have a row"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 9), LSTMBias=f32(1, 8), says="four for each hidden"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 4), says="LSTMBias must have"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(7, 1), AttentionScalarBias=f32(1, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8),
               says="AttentionScalarBias needs AttentionScalar"),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f64(2, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8),
               says="C0 must have the element type of X", error=TypeMismatchError),
        reject(X=f32(9, 5).ragged([4, 5]), C0=f32(2, 2), AttentionWeight=f32(7, 1), LSTMWeight=f32(7, 8), LSTMBias=f32(1, 8), gate_activation="gelu",
               says="one of", error=SchemaError),
    ]  # fmt: skip
