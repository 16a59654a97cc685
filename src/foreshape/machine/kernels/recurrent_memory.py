"""The bytes that ``rnn`` and ``sequence_rnn`` keep for their gradients, and their workspaces, for the plan of a step.

A place is a sequence's step. The steps of a unit leave, by its kind:

- an LSTM on oneDNN: see `lstm_memory`; its workspace and states, where the sequences are whole;
- an LSTM of fp64: gates (4 hidden sizes), cells, cells after tanh, and states;
- a GRU: gates (3), the state's share of them (3), and states;
- the others: states.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, maximum
from foreshape.core.spec import FP32, DType
from foreshape.machine.kernels import lstm_memory, onednn, products
from foreshape.machine.kernels.cudnn_recurrence import RESERVED
from foreshape.machine.kernels.lstm_memory import EXTRA, CallMemory, LstmMemory
from foreshape.machine.kernels.lstm_pieces import PieceCutter
from foreshape.machine.targets import Feature, current_target

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""The columns of a form's weights, in hidden sizes."""
LEFT = {"LSTM": 7, "GRU": 7, "RNN_TANH": 1, "RNN_RELU": 1}
"""The hidden sizes left by steps at each place."""
UNDONE = {"LSTM": 12, "GRU": 9, "RNN_TANH": 3, "RNN_RELU": 3}
"""The hidden sizes of their gradient at each place, before their own gradient is used."""
AFTER = {"LSTM": 12 - LEFT["LSTM"], "GRU": 9 - LEFT["GRU"], "RNN_TANH": 2 - LEFT["RNN_TANH"], "RNN_RELU": 2 - LEFT["RNN_RELU"]}
"""The hidden sizes at each place, beyond `LEFT`, for products with their gradient: the gradient as it was, and in rows of its own."""
ORDER = 3 * 8
"""The bytes of a sequence in the tables of a schedule: its length, its place in the order, and its last step's place."""
PLACES = 2 * 8
"""The bytes of a place in them, where rows are not at the places of their own numbers: its row, and the place of a row."""
FINDING = 6 * 8
"""The bytes of a place while these are found, before the states are there."""
_lengths: ContextVar[Mapping[Size, Sequence[int]] | None] = ContextVar("lengths", default=None)


@contextmanager
def of_lengths(known: Mapping[Size, Sequence[int]]) -> Generator[None]:
    """Count for sequences of these lengths, in place of a bound over all lengths. ``known``: number of rows -> the lengths of the sequences of so many rows."""
    token = _lengths.set(known)
    try:
        yield
    finally:
        _lengths.reset(token)


@data_class(frozen=True)
class Layers:
    """Stacked layers over ``rows`` places of ``sequences``; ``steps``: of dense sequences, all of the full length if ``full``."""

    mode: str
    layers: int
    directions: int
    hidden: int
    dropout: bool
    features: Size
    rows: Size
    sequences: Size
    dtype: DType
    steps: Size | None = None
    full: bool = False
    cell: bool = False
    """True if somebody needs the last cells."""

    @property
    def _item(self) -> int:
        return self.dtype.itemsize

    @property
    def _width(self) -> int:
        return self.directions * self.hidden

    def _columns(self, layer: int) -> Size:
        return self._width if layer else self.features

    @property
    def _pieces(self) -> bool:
        return self.mode == "LSTM" and self.dtype is FP32

    @property
    def whole(self) -> bool:
        """Return True for an LSTM by one kernel call for each unit."""
        return self.full and self._pieces

    @property
    def straight(self) -> bool:
        """Return True if each row is at the place of its own number, so that no unit copies rows."""
        return self.full and self.directions == 1 and not self._pieces

    @property
    def _tables(self) -> Size:
        """Return the bytes of the schedules kept with dense sequences. Those of ragged rows stay with the offsets."""
        if self.steps is None or self.whole:
            return 0
        return self.directions * ORDER * self.sequences + (self.directions - self.full) * PLACES * self.rows

    def _call(self, layer: int) -> tuple[Size, Size, Size, int]:
        """Return the sizes of a unit's one kernel call."""
        assert self.steps is not None
        return self.steps, self.sequences, self._columns(layer), self.hidden

    @property
    def _states(self) -> Size:
        """Return the bytes of a unit's states."""
        return self.sequences * self.hidden * self._item * (2 if self.mode == "LSTM" else 1)

    def _room(self, layer: int) -> CallMemory:
        columns = self._columns(layer)
        if self.steps is None:
            lengths = (_lengths.get() or {}).get(self.rows)
            if lengths is not None:
                return self._room_of(lengths, columns)
            return lstm_memory.of_ragged(self.rows, self.sequences, columns + EXTRA * self.cell, self.hidden)
        return lstm_memory.of_dense(self.steps, self.sequences, columns + EXTRA, self.hidden)

    def _room_of(self, lengths: Sequence[int], columns: Size) -> CallMemory:
        """Return the room of the pieces of sequences of these lengths."""
        assert isinstance(columns, int)
        ends = sorted({0, *lengths})
        runs = [(end - begin, sum(n >= end for n in lengths)) for begin, end in pairwise(ends)]
        if not runs:
            return CallMemory(0, lstm_memory.SMALL)
        form = LstmMemory.of(columns + (EXTRA if self.cell and len(runs) > 1 else 0), self.hidden)
        saved, peak, _ = form.needs(PieceCutter(columns, self.hidden, self.cell)(runs))
        return CallMemory(saved, peak - saved)

    @property
    def kept(self) -> Size:
        """Return the bytes kept until the gradient."""
        if current_target().has(Feature.CUDNN):
            return self._kept_by_cudnn
        total = self._tables
        for layer in range(self.layers):
            if self.whole:
                left = lstm_memory.workspace(*self._call(layer)) + self.rows * self.hidden * self._item
            else:
                left = self._room(layer).kept if self._pieces else LEFT[self.mode] * self.hidden * self._item * self.rows
            total = total + (left + self._states) * self.directions
            if layer:
                total = total + self.rows * self._width * (self._item + self.dropout)
        if self.full and self.directions == 1:  # states lie at their places, the rows of the result
            total = total - (1 if self.dropout else self.layers) * self.rows * self.hidden * self._item
        return total

    def forward(self, train: bool) -> Size:
        """Return the workspace of the kernel; ``train``: a gradient will be computed."""
        if current_target().has(Feature.CUDNN):
            return self._forward_by_cudnn(train)
        last = self.layers - 1
        columns = self._columns(last)
        if train and self.whole:
            undone = self._states * self.layers * self.directions + (self.rows * self._width * self._item if self.directions == 2 else 0)  # of the results
            return maximum(lstm_memory.whole_taken(*self._call(last)) - undone, 0)
        if self._pieces:
            room = self._room(last)
            if train:
                workspace = room.taken + lstm_memory.weights_taken(columns, self.hidden)
            else:
                workspace = lstm_memory.taken_without_gradient(self.rows, self.sequences, columns, self.hidden)
        else:
            gates = GATES[self.mode] * self.hidden
            copied = (0 if self.straight else self._item * columns * self.rows) + self._product(columns, gates)
            later = (LEFT[self.mode] * self.hidden - gates) * self._item * self.rows
            workspace = maximum(copied - later, 0) + (2 * self._weights(last) if self.mode == "LSTM" else 0)
            if not train:
                workspace = workspace + LEFT[self.mode] * self.hidden * self._item * self.rows
        units = self._states * self.layers * self.directions
        if self.straight:
            return workspace + units
        states = units + 2 * self._states
        return maximum(workspace, 2 * self.rows * self.hidden * self._item) + states if self.directions == 2 else workspace + states

    def _product(self, k: Size, n: Size) -> Size:
        return products.workspace(self.rows, k, n) if self.dtype is FP32 else 0

    @property
    def _packed(self) -> Size:
        """Return the workspace of a product of weights' gradients."""
        return onednn.product_of_rows(self.rows) if self.dtype is FP32 and products.prefers_onednn() else 0

    def _weights(self, layer: int) -> Size:
        """Return the bytes of a unit's two weights and two biases."""
        return GATES[self.mode] * self.hidden * (self._columns(layer) + self.hidden + 2) * self._item

    def backward(self, wanted: bool, of_rows: bool = True) -> Size:
        """Return the workspace of the gradient besides kept values and results. ``wanted``: the gradient of the rows is one of the results; ``of_rows``: it
        comes from one of the resulting rows.
        """
        if current_target().has(Feature.CUDNN):
            return self._backward_by_cudnn(wanted, of_rows)
        last = self.layers - 1
        columns, h, item = self._columns(last), self.hidden, self._item
        weights = sum((self._weights(k) * self.directions for k in range(self.layers)), start=0 * self.rows)
        if self.whole:
            rows = columns - (self.features if wanted else 0) + (h if self.directions == 2 else 0)  # of a half of the results' gradient
            return maximum(lstm_memory.whole_gradient_taken(*self._call(last)) + self._states + rows * self.rows * item - (weights - self._weights(last)), 0)
        states = (2 if self.straight else 4) * self.sequences * h * item
        features = self.features if wanted else 0  # of the result, not made yet
        columns_copied = (columns if wanted or last else 0) - features
        if self._pieces:
            workspace = self._room(last).taken + lstm_memory.weight_gradients_taken(columns, h)
            return maximum(workspace + item * self.rows * columns_copied + states - (weights - self._weights(last)), 0)
        peak: Size = 0
        freed: Size = 0  # of the units of later layers; the state of a straight one is a result or the rows of the next layer
        for layer in range(last, -1, -1):
            weights = weights - self._weights(layer) * self.directions  # not made yet, once this layer's are
            columns = self._columns(layer)
            rows = columns if wanted or layer else 0
            first = (UNDONE[self.mode] * h - features) * item * self.rows - weights - self._weights(layer) * self.directions
            late = (AFTER[self.mode] * h + (0 if self.straight else columns) + rows - features) * item * self.rows - weights
            if self.directions == 2:  # at the second direction there is a gradient of the rows already, and one unit less
                late = maximum(late, late + (rows - LEFT[self.mode] * h) * item * self.rows)
            peak = maximum(peak, first - freed, late - freed)
            freed = freed + (LEFT[self.mode] - self.straight) * h * item * self.rows * self.directions
        return peak + states + (self._packed if self.mode.startswith("RNN") else 0)

    # --- by cuDNN, less the scratch memory within its calls

    def _in_rows(self, columns: Size) -> Size:
        return self.rows * columns * self._item

    def _in_places(self, columns: Size) -> Size:
        """Return the bytes of a copy of rows at their places."""
        return 0 if self.full else self._in_rows(columns)

    @property
    def _kept_by_cudnn(self) -> Size:
        """Return cuDNN's reserves, the states at the places, the weights in one tensor, and the rows between layers."""
        reserves = self._in_rows(RESERVED[GATES[self.mode]] * self._width * self.layers)
        states = self._in_places(self._width * self.layers) + self._states * self.directions * self.layers
        between = (self.layers - 1) * (self._in_rows(self._width) * (2 if self.full and self.dropout else 1) + self.rows * self._width * self.dropout)
        return self._tables + reserves + states + between + self._all_weights

    @property
    def _all_weights(self) -> Size:
        return sum((self._weights(k) * self.directions for k in range(self.layers)), start=0 * self.rows)

    def _forward_by_cudnn(self, train: bool) -> Size:
        last = self.layers - 1
        columns = self._columns(last)
        workspace = self._in_places(columns) + self._states * self.directions * (self.layers + 2)
        if train:
            return workspace + (self._in_places(self._width) if last and self.dropout else 0)  # the rows before dropout
        between = self._in_rows(self._width) * (1 + self.dropout) + self.rows * self._width * self.dropout * last
        return workspace + self._weights(last) * self.directions + self._in_places(self._width) + (between if last else 0)

    def _backward_by_cudnn(self, wanted: bool, of_rows: bool) -> Size:
        """Return the most bytes at a layer, or of all gradients of weights: cuDNN gives those of a layer in one tensor, and each gets one of its own."""
        weights, reserve = self._all_weights, self._in_rows(RESERVED[GATES[self.mode]] * self._width)
        result = self._in_rows(self.features) if wanted else 0
        peak: Size = 0
        made: Size = -weights
        for layer in range(self.layers - 1, -1, -1):
            columns = self._columns(layer)
            made = made + self._weights(layer) * self.directions
            is_last = layer == self.layers - 1
            of_result = (0 if is_last else self._in_rows(self._width)) + (self._in_places(self._width) if of_rows or not is_last else 0)
            within = of_result + self._in_places(columns) + self._in_rows(columns)
            after = (0 if is_last else self._in_rows(self._width)) + self._in_places(columns) + self._in_rows(columns) - reserve
            peak = maximum(peak, maximum(within, after) - result + made - (self.layers - 1 - layer) * reserve)
        return maximum(peak, weights - self.layers * reserve) + 4 * self._states * self.directions
