"""The workspaces of ``lstm``, ``lstmp`` and ``gru``, in bytes, for the plan of a step.

Their kernels work at places, one for each step of a sequence (`StepSchedule`), so rows are copied there and back. The bytes held at once are counted for each
stage of a kernel, less the results, which the plan counts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from foreshape.core.dims import Size, maximum
from foreshape.core.spec import FP32, Spec
from foreshape.machine.kernels import products

_NUMBER = 8
"""Bytes of a number in a table of places."""
_SMALL = 1024
"""Bytes of small things: sums, shapes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """``rows`` in ``sequences``, of ``hidden`` columns to each gate."""

    rows: Size
    sequences: Size
    hidden: Size
    single: bool
    item: int

    @staticmethod
    def of(Input: Spec, gates: int) -> Packed:
        """Return the memory for ragged rows ``[rows, gates * hidden]``."""
        count = Input.lod.counts[-1] if Input.lod is not None else Input.known_dims[0]
        rows, columns = Input.known_dims
        return Packed(rows, count, columns // gates, Input.dtype is FP32, Input.known_dtype.itemsize)

    @property
    def _tables(self) -> Size:
        """Return the bytes of the tables: the row of each place, the place of each row and the place before each, and the ordered sequences with their
        lengths.

        They stay with the offsets, so the tables of the other direction may be there too.
        """
        return _NUMBER * (6 * self.rows + 3 * self.sequences) + _SMALL

    def _bytes(self, at_rows: Size, at_sequences: Size = 0) -> Size:
        """Return the bytes of so many numbers for each row, and for each sequence."""
        return self.item * (at_rows * self.rows + at_sequences * self.sequences)

    def _most(self, made: Size, *stages: Size) -> Size:
        """Return the largest stage beside the bytes already ``made``. To find the places takes some numbers for each, before there is anything else."""
        finding = _NUMBER * (8 * self.rows + 2 * self.sequences)
        return maximum(finding - made, *(s - made for s in stages), 0) + self._tables

    def _weight_gradient(self, state: Size, columns: Size) -> Size:
        """Return the workspace of the product ``[rows, state]' [rows, columns]``."""
        return products.workspace(state, self.rows, columns, turned=True) if self.single else 0

    # --- LSTM

    def lstm(self, projected: Size | None) -> Size:
        """Return the workspace of the steps. ``projected``: the size of the state, if it is a projection."""
        h = self.hidden
        state = h if projected is None else projected
        nbytes = self._bytes(6 * h + state + (0 if projected is None else h))
        steps = self._bytes(7 * h + (0 if projected is None else state), h + state)
        return self._most(nbytes, steps, nbytes + self._bytes(h + state))

    def lstm_gradient(self, projected: Size | None, peepholes: bool, clipped: bool, made: Size, dropped: Size) -> Size:
        """Return the workspace of the gradient beside the results already ``made``; ``dropped``: bytes of unrequested weights' gradients."""
        h = self.hidden
        state = h if projected is None else projected
        columns = (7 + clipped) * h + (2 if projected is None else 3) * state  # cells, theirs before, gradients of cells and of gates
        states = 2 * (h + state) + (0 if projected is None else 2 * h)
        weights = self.item * 4 * h * state + (0 if projected is None else self.item * h * state)
        loop = self._bytes(columns + 5 * h, states)
        product = self._weight_gradient(state, 4 * h)
        product_stage = self._bytes(columns + state, states) + maximum(self._bytes(state if not peepholes else maximum(state, h)), weights + product)
        if projected is not None:
            product_stage = maximum(product_stage, self._bytes(columns + state, states) + weights + self._weight_gradient(h, state))
        return self._most(made, loop, product_stage, made + dropped + self._bytes(5 * h + 2 * state, 2 * (h + state)))

    # --- GRU

    def gru(self) -> Size:
        """Return the workspace of the steps."""
        h = self.hidden
        return self._most(self._bytes(6 * h), self._bytes(5 * h, h))

    def gru_gradient(self, origin: bool, made: Size) -> Size:
        """Return the workspace of the gradient beside the results already ``made``."""
        h = self.hidden
        columns = (8 if origin else 9) * h  # gradients of states and gates, the states before, and the factors between them
        weights = self.item * 3 * h * h
        loop = self._bytes(columns, 4 * h)
        product = self._bytes(columns, 3 * h) + weights + self._weight_gradient(h, 2 * h)
        return self._most(made, loop, self._bytes(columns + h, 2 * h), product, made + self._bytes(3 * h, h) + weights)


def gru_unit(HiddenPrev: Spec) -> Size:
    """Return the workspace of one step of a GRU: tables of places, most of them before there is a state."""
    batch, hidden = HiddenPrev.known_dims
    return batch * maximum(9 * _NUMBER - 2 * hidden * HiddenPrev.known_dtype.itemsize, 2 * _NUMBER) + _SMALL


def gru_unit_gradient(HiddenPrev: Spec, origin: bool, made: Size) -> Size:
    """Return the workspace of its gradient, with all results but the ``made`` ones unrequested."""
    batch, hidden = HiddenPrev.known_dims
    item = HiddenPrev.known_dtype.itemsize
    weights = 3 * hidden * hidden * item
    every = 4 * HiddenPrev.nbytes + weights + 3 * hidden * item
    product = products.workspace(hidden, batch, 2 * hidden, turned=True) if HiddenPrev.dtype is FP32 else 0
    return maximum((5 if origin else 6) * HiddenPrev.nbytes + product, weights) + every - made + gru_unit(HiddenPrev)


def of_requested(requested: tuple[bool, ...], *specs: Spec | None) -> tuple[Size, Size]:
    """Return the bytes of gradients of these operands: of requested ones, and of the others."""
    totals: list[Size] = [0, 0]
    for is_requested, spec in zip(requested, specs, strict=True):
        if spec is not None:
            totals[not is_requested] = totals[not is_requested] + spec.nbytes
    return totals[0], totals[1]
