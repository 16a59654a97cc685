"""The computations of operators over the sequences of ragged values (see `foreshape.language.operator.computations`)."""

from __future__ import annotations

from typing import ClassVar

from foreshape.core.data_class import data_class
from foreshape.language.operator.computation import Computation, ForwardOnly
from foreshape.language.operator.computations import Pooled


@data_class(frozen=True)
class SequencePooling(Computation):
    """The rows of each innermost sequence of X0 pooled; an empty sequence gives zeros."""

    inputs: ClassVar[tuple[str, ...]] = ("X0", "Out0@GRAD")
    how: Pooled


@data_class(frozen=True)
class SequenceEnd(ForwardOnly):
    """The first or the last row of each innermost sequence of X0; an empty sequence gives zeros."""

    last: bool


@data_class(frozen=True)
class SequenceMaximum(ForwardOnly):
    """The largest row of each innermost sequence of X0, elementwise; an empty sequence gives zeros."""


@data_class(frozen=True)
class SequenceSpreading(ForwardOnly):
    """Row ``i`` of X0 once for each row of the innermost sequence ``i`` of X1."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class SoftmaxInSequences(ForwardOnly):
    """exp(X0) / the sum of exp(X0) over its innermost sequence; X0 has one number in a row."""


@data_class(frozen=True)
class SequencePadding(ForwardOnly):
    """Out0 ``[sequences, length, *row]``: the innermost sequences of X0, each filled up with X1. Out1: the rows of each, int64."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class SequenceUnpadding(ForwardOnly):
    """The first X1[i] rows of each entry X0[i], one after the other, as ragged rows; of an X0 of two dims as rows of one number."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class PlacesBelow(ForwardOnly):
    """1 at the places along a new last axis less than the numbers X0, else 0; the size of the axis is of attributes, or of X1."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class Regrouping(ForwardOnly):
    """X0 with the sequences of a ragged X1."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class AttentionInSequences(ForwardOnly):
    """Out0 = softmax(X0 X1' * scale) X2 within each innermost sequence, for each of ``heads`` equal parts of the columns; with ``causal`` of rows before.

    ``scale`` 0: one over the root of the columns of a part. An op with a Bias adds it to the scores.
    """

    operands: ClassVar[int] = 3
    heads: int
    causal: bool
    scale: float


@data_class(frozen=True)
class RecurrentLayers(ForwardOnly):
    """Stacked recurrent layers over X0 [time, batch, features], from the states X1 on, with the weights X2, and the lengths X3 or none; without dropout.

    Out0: of the last layer; Out2: the last states. The settings are those of `foreshape.machine.kernels.recurrent_net.RecurrentNet`.
    """

    operands: ClassVar[int] = 4
    mode: str
    layers: int
    directions: int
    hidden: int
