"""Recurrent layers: LSTM, GRU and the plain recurrence, over ragged rows or dense sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Constant, Uniform
from foreshape.layer.manipulation import transpose
from foreshape.layer.parameter import ParamAttr, create_parameter
from foreshape.machine.kernels.recurrent_memory import GATES

_ZERO = ParamAttr(initializer=Constant(0.0), trainable=False)


@tells_line
def lstm(
    x: Variable, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, initial_states: Sequence[Variable] | None = None,
    length: Variable | None = None, dropout: float = 0.0, *, time_major: bool = False, is_test: bool = False, seed: int = 0,
    input_weight: Any = None, hidden_weight: Any = None, bias: Any = None, hidden_bias: Any = False, name: str | None = None,
) -> tuple[Variable, tuple[Variable, Variable]]:  # fmt: skip
    """Run a long short-term memory over sequences.

    With i, f, g, o = x W + b + h V (V's columns in this order), c = sigmoid(f) c + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c), step by step.

    Args:
        x: ragged rows ``[rows, features]``, each innermost sequence a sequence, without padding; or dense
            ``[batch, time, features]`` (``[time, batch, features]`` with ``time_major``).
        hidden_size: the features of the hidden state.
        num_layers: layers on top of each other, the first over the input, each other one over the results of the one before.
        bidirectional: each layer runs from both ends, and gives both results side by side; a unit is one direction of one layer.
        initial_states: the hidden state and the cell before the first step, each ``[units, batch, hidden_size]``; by default zeros.
        length: of dense input, the number of steps of each sequence: ``[batch]`` integers.
        dropout: the probability of a zero for each element between two layers, in training.
        time_major: dense input has the time first.
        is_test: no dropout.
        seed: not 0 draws the same in every run.
        input_weight, hidden_weight, bias: a name, an initializer or a `ParamAttr` for each unit, in a list for several; one
            without a name does for all. ``bias=False`` leaves it out. Weights are ``[4 hidden_size, features]`` and
            ``[4 hidden_size, hidden_size]``, biases ``[4 hidden_size]``, all by default uniform in +-1/sqrt(hidden_size).
        hidden_bias: a second bias, added as the first is; by default none.
        name: the prefix of the parameters' names.

    Returns:
        (out, (hidden, cell)): the hidden states of the last layer, as the input with ``hidden_size`` (twice, if bidirectional)
        features, ragged as it; and the states after each sequence's last step, ``[units, batch, hidden_size]``.

    Raises:
        ShapeError: an input of other dims, unknown features, or mismatched states. SchemaError: a name for several units.
    """
    layers = _Layers("LSTM", hidden_size, num_layers, bidirectional, dropout, is_test, seed, current_block().program.layer_name("lstm", name))
    weights = layers.weights(x, input_weight, hidden_weight, bias, hidden_bias)
    out, states = layers.run(x, weights, initial_states, length, time_major)
    return out, (states[0], states[1])


@tells_line
def gru(
    x: Variable, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, initial_states: Variable | None = None,
    length: Variable | None = None, dropout: float = 0.0, *, time_major: bool = False, is_test: bool = False, seed: int = 0,
    input_weight: Any = None, hidden_weight: Any = None, bias: Any = None, hidden_bias: Any = None, name: str | None = None,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Run a gated recurrent unit: r, z = sigmoid(x W + b + h V + d), n = tanh(x W_n + b_n + r (h V_n + d_n)), h = (1 - z) n + z h, step by step.

    As `lstm`, with weights of 3 hidden sizes (the columns r, z, n) and ``hidden_bias`` d trained beside ``bias`` b.

    Examples:
        >>> x = layer.data("x", ["batch", 20, 8])
        >>> states, last = layer.gru(x, 16)

    Args:
        x, hidden_size, num_layers, bidirectional, length, dropout, time_major, is_test, seed, name: as for `lstm`.
        initial_states: the hidden state before the first step, ``[units, batch, hidden_size]``.
        input_weight, hidden_weight, bias, hidden_bias: as for `lstm`.

    Returns:
        (out, hidden): as for `lstm`.
    """
    layers = _Layers("GRU", hidden_size, num_layers, bidirectional, dropout, is_test, seed, current_block().program.layer_name("gru", name))
    weights = layers.weights(x, input_weight, hidden_weight, bias, hidden_bias)
    out, states = layers.run(x, weights, initial_states, length, time_major)
    return out, states[0]


@tells_line
def simple_rnn(
    x: Variable, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, initial_states: Variable | None = None,
    length: Variable | None = None, dropout: float = 0.0, activation: str = "tanh", *, time_major: bool = False, is_test: bool = False,
    seed: int = 0, input_weight: Any = None, hidden_weight: Any = None, bias: Any = None, hidden_bias: Any = False, name: str | None = None,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Return the plain recurrence h = activation(x W + b + h V), step by step; ``activation`` is "tanh" or "relu". Otherwise as `lstm`.

    Args:
        x, hidden_size, num_layers, bidirectional, length, dropout, time_major, is_test, seed, name: as for `lstm`.
        initial_states: the hidden state before the first step, ``[units, batch, hidden_size]``.
        activation: "tanh" or "relu".
        input_weight, hidden_weight, bias, hidden_bias: as for `lstm`, of one hidden size.

    Returns:
        (out, hidden): as for `lstm`.
    """
    if activation not in ("tanh", "relu"):
        raise SchemaError.one_of("simple_rnn: activation", ("tanh", "relu"), activation)
    prefix = current_block().program.layer_name("simple_rnn", name)
    layers = _Layers(f"RNN_{activation.upper()}", hidden_size, num_layers, bidirectional, dropout, is_test, seed, prefix)
    weights = layers.weights(x, input_weight, hidden_weight, bias, hidden_bias)
    out, states = layers.run(x, weights, initial_states, length, time_major)
    return out, states[0]


class _Layers:
    """The common part of the three recurrent layers."""

    def __init__(self, mode: str, hidden: int, layers: int, bidirectional: bool, dropout: float, is_test: bool, seed: int, prefix: str) -> None:
        if hidden < 1 or layers < 1:
            raise ShapeError.must(f"{prefix}: hidden_size and num_layers", "at least 1", f"{hidden} and {layers}")
        self.mode, self.hidden, self.prefix = mode, hidden, prefix
        self.directions = 2 if bidirectional else 1
        self.units = layers * self.directions
        self.states = 2 if mode == "LSTM" else 1
        self.attributes = {
            "mode": mode, "hidden_size": hidden, "num_layers": layers, "is_bidirec": bidirectional, "dropout_prob": dropout, "is_test": is_test,
            "seed": seed,
        }  # fmt: skip

    def weights(self, input: Variable, input_weight: Any, hidden_weight: Any, bias: Any, hidden_bias: Any) -> list[Variable]:
        spec = input.spec
        features = spec.known_dims[-1] if spec.rank else 0
        if not isinstance(features, int) or not features:
            raise ShapeError(f"{self.prefix}: the features must be known to make weights, and at least 1; the input is {spec.text()}")
        gates = GATES[self.mode] * self.hidden
        inner = [features if u < self.directions else self.directions * self.hidden for u in range(self.units)]
        parameters: list[Variable] = []
        for u in range(self.units):
            parameters.append(self._parameter(input, (gates, inner[u]), input_weight, u, "input_weight"))
            parameters.append(self._parameter(input, (gates, self.hidden), hidden_weight, u, "hidden_weight"))
        for u in range(self.units):
            parameters.append(self._parameter(input, (gates,), bias, u, "bias"))
            parameters.append(self._parameter(input, (gates,), hidden_bias, u, "hidden_bias"))
        return parameters

    def _parameter(self, input: Variable, shape: Sequence[int], setting: Any, unit: int, role: str) -> Variable:
        if isinstance(setting, (list, tuple)):
            several: list[Any] = list(setting)  # pyright: ignore[reportUnknownArgumentType]
            if len(several) != self.units:
                raise SchemaError(f"{self.prefix}: {role} must have one entry for each of the {self.units} units; seen {len(several)}")
            setting = several[unit]
        elif self.units > 1 and (isinstance(setting, str) or (isinstance(setting, ParamAttr) and setting.name is not None)):
            raise SchemaError(f"{self.prefix}: {role} is named, and there are {self.units} units: give a list with a name for each")
        bound = 1.0 / math.sqrt(self.hidden)
        attr: Any = _ZERO if setting is False else setting
        suffix, called = "b" if "bias" in role else "w", role if self.units == 1 else f"{role}_{unit}"
        dtype, start = input.spec.known_dtype, Uniform(-bound, bound)
        return create_parameter(shape, dtype, attr, prefix=self.prefix, suffix=suffix, initializer=start, called=called)

    def run(
        self, input: Variable, weights: list[Variable], initial: Variable | Sequence[Variable] | None, lengths: Variable | None, time_major: bool
    ) -> tuple[Variable, list[Variable]]:
        initial_states = [] if initial is None else [initial] if isinstance(initial, Variable) else list(initial)
        if initial_states and len(initial_states) != self.states:
            raise SchemaError(
                f"{self.prefix}: initial_states must be {'the hidden state and the cell' if self.states == 2 else 'the hidden state'}; "
                f"seen {len(initial_states)} variables"
            )
        block = current_block()
        if input.spec.lod is not None:
            if lengths is not None:
                raise TypeMismatchError(f"{self.prefix}: length is for dense input, and the input is ragged, {input.spec.text()}")
            inputs: dict[str, Any] = {"Input": input, "WeightList": weights} | dict(zip(("InitHidden", "InitCell"), initial_states, strict=False))
            cell = {"LastCell": block.program.unique_name(f"{self.prefix}.tmp")} if self.states == 2 else {}
            op = block.append_op("sequence_rnn", inputs, cell, self.attributes, prefix=self.prefix)
            out, *states = block.apply_names([op.outputs[slot][0] for slot in ("Out", "LastHidden", *cell)])
            return out, states
        if input.spec.rank != 3:
            axes = "[time, batch, features]" if time_major else "[batch, time, features]"
            raise ShapeError.must(f"{self.prefix}: the input", f"ragged, or dense {axes}", f"{input.spec.text()}")
        if not initial_states:
            initial_states = [self._zeros(input, 1 if time_major else 0)] * self.states
        steps = input if time_major else transpose(input, [1, 0, 2])
        inputs = {"Input": steps, "PreState": initial_states, "WeightList": weights} | ({} if lengths is None else {"SequenceLength": lengths})
        features: Size = input.spec.known_dims[-1]
        results = block.apply("rnn", inputs, self.attributes | {"input_size": features}, self.prefix)
        return results[0] if time_major else transpose(results[0], [1, 0, 2]), list(results[2])

    def _zeros(self, input: Variable, batch_axis: int) -> Variable:
        attrs = {"shape": [self.units, -1, self.hidden], "dtype": input.spec.known_dtype.code, "value": 0.0, "input_dim_idx": batch_axis, "output_dim_idx": 1}
        return current_block().apply("fill_constant_batch_size_like", {"Input": input}, attrs, self.prefix)
