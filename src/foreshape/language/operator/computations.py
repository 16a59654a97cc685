"""The computations of operators, in the vocabulary of a step's rewrites.

A rewrite does not know operators by their types: it asks each for its computation. An operator with `Operator.computes` takes part in every rewrite of
such ops. The computation must be complete for these attributes: its kernel may never be called. Its gradient operator is known by itself as the
computation's backward; it takes part if its slots are ``inputs`` and ``gives`` of the computation. One with its own class has `backward_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator.computation import Computation, ForwardOnly


@data_class(frozen=True)
class Constant(Computation):
    """A value equal in every run, by the attributes alone; ``number``: the number in every element, if equal in all."""

    operands: ClassVar[int] = 0
    number: float | None = None


@data_class(frozen=True)
class Filled(Constant):
    """A constant of a shape possibly set by X0 and X1."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class Expansion(ForwardOnly):
    """X0 repeated as a whole along axes, and along new ones before them, to dims from attributes, or from X1 and X2."""

    operands: ClassVar[int] = 3


@data_class(frozen=True)
class Reshape(ForwardOnly):
    """The elements of X0 in row-major order, in dims from attributes, or from the tensors X1 and X2. Other results serve only gradients."""

    operands: ClassVar[int] = 3


@data_class(frozen=True)
class Triangle(ForwardOnly):
    """The elements of X0 with zeros above (``lower``) or below a diagonal of its last two dims, counted from the main one, upwards."""

    lower: bool
    diagonal: int


@data_class(frozen=True)
class Identity(ForwardOnly):
    """X0, copied."""


@data_class(frozen=True)
class Cast(ForwardOnly):
    """X0 in another element type."""


@data_class(frozen=True)
class Selection(ForwardOnly):
    """One of the tensors X0, chosen by X1, one number."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class Scaling(Computation):
    """``by * X0``."""

    by: float


@data_class(frozen=True)
class Affine(ForwardOnly):
    """``by * X0 + shift``."""

    by: float
    shift: float


@data_class(frozen=True)
class Power(ForwardOnly):
    """Each element of X0 to this power."""

    of: float


@data_class(frozen=True)
class Function(ForwardOnly):
    """A function of each element of X0, by its name: the sine and the cosine, in radians, log(1 + X0), e to the power X0, magnitudes, signs, whole numbers
    up to X0 and from it on, and True where X0 is 0."""

    name: Literal["sin", "cos", "log1p", "exp", "abs", "sign", "floor", "ceil", "logical_not"]


@data_class(frozen=True)
class RunningSum(ForwardOnly):
    """The sums along an axis of X0, possibly negative, of the elements up to each, or before it."""

    axis: int
    exclusive: bool


@data_class(frozen=True)
class Numbers(ForwardOnly):
    """Numbers from attributes, in row-major order."""

    operands: ClassVar[int] = 0
    numbers: tuple[Any, ...]


@data_class(frozen=True)
class ErrorFunction(ForwardOnly):
    """The error function of each element of X0."""


@data_class(frozen=True)
class Relu(Computation):
    """``max(X0, 0)``."""

    inputs: ClassVar[tuple[str, ...]] = ("Out0", "Out0@GRAD")


@data_class(frozen=True)
class Activation(ForwardOnly):
    """A function of each element of X0, by the name and the numbers of oneDNN.

    "relu", "sigmoid", "tanh", "swish" (X0 sigmoid(X0)), "hardswish" (Howard et al., 2019: cut off at -3 and 3); with numbers "leaky_relu" (slope),
    "hardtanh" (lowest, highest), "hardsigmoid" (slope, offset: slope X0 + offset, cut off at 0 and 1); "gelu" with the ``form`` "none" or "tanh".
    """

    name: str
    numbers: tuple[float, ...] = ()
    form: str = ""


@data_class(frozen=True)
class FrozenBatchNorm(ForwardOnly):
    """Out0 = X1 (X0 - X3) / sqrt(X4 + epsilon) + X2 for each channel, dim 1 of X0. Nothing else changes."""

    operands: ClassVar[int] = 5
    epsilon: float


@data_class(frozen=True)
class LayerNorm(Computation):
    """Out0 = X1 (X0 - mean) / sqrt(variance + epsilon) + X2, over the dims from ``begin`` on; the mean and the variance; X1 and X2 may be absent."""

    operands: ClassVar[int] = 3
    inputs: ClassVar[tuple[str, ...]] = ("X0", "Out1", "Out2", "X1", "X2", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD", "X2@GRAD")
    begin: int
    epsilon: float


@data_class(frozen=True)
class Product(Computation):
    """``X0 * X1``, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD")
    axis: int


@data_class(frozen=True)
class Subtraction(ForwardOnly):
    """``X0 - X1``, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    axis: int


@data_class(frozen=True)
class Quotient(ForwardOnly):
    """``X0 / X1``, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    axis: int


@data_class(frozen=True)
class Softmax(Computation):
    """``exp(X0) / sum(exp(X0))`` along an axis, possibly negative."""

    inputs: ClassVar[tuple[str, ...]] = ("Out0", "Out0@GRAD")
    axis: int


@data_class(frozen=True)
class Logarithm(Computation):
    """The natural logarithm of each element of X0."""

    inputs: ClassVar[tuple[str, ...]] = ("X0", "Out0@GRAD")


@data_class(frozen=True)
class CrossEntropy(Computation):
    """Minus the logarithm of the probabilities X0 along the last axis, at the class numbers X1, zero for ``ignored`` ones; or for a distribution X1."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    soft: bool
    """True for a distribution X1: the sum of its products with the logarithms."""
    ignored: int


@data_class(frozen=True)
class Dropout(Computation):
    """``by * X0 * Out1``, where Out1, uint8, is drawn: 1 where an element is kept."""

    inputs: ClassVar[tuple[str, ...]] = ("Out1", "Out0@GRAD")
    by: float
    draw: Callable[[Sequence[int], Any], Tensor] = field(compare=False)  # from a shape and a device to the kept elements


@data_class(frozen=True)
class Sum(Computation):
    """``X0 + X1``, broadcast: dim 0 of X1 stands at ``axis`` of X0; -1 lines up the last dims."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD")
    axis: int


@data_class(frozen=True)
class MatrixProduct(Computation):
    """The product of the matrices in the last two dims, swapped first if ``x_transposed``, ``y_transposed``; the dims before are a batch, and broadcast."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD")
    x_transposed: bool = False
    y_transposed: bool = False


@data_class(frozen=True)
class FlattenedProduct(Computation):
    """The product of two tensors seen as matrices, whose first ``x_rows`` and ``y_rows`` dims are the rows, and the others the columns."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD")
    x_rows: int
    y_rows: int


@data_class(frozen=True)
class ImageConvolution(Computation):
    """Images ``[batch, channels, height, width]`` X0 convolved with filters X1, padded by zeros alike at both ends, as torch's conv2d does it."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X0", "X1", "Out0@GRAD")
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD", "X1@GRAD")
    besides: ClassVar[tuple[str, ...]] = ("X2",)
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def is_spread(self) -> bool:
        """Tell whether the windows, or their pixels, are apart."""
        return max(*self.strides, *self.dilations) > 1


@data_class(frozen=True)
class PaddedWindows(ForwardOnly):
    """Images X0 convolved with filters X1, with paddings different at the ends, or derived from sizes: the base of its orders of axes."""

    operands: ClassVar[int] = 2
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    pads: Callable[[Sequence[Size], Sequence[Size]], tuple[tuple[Size, Size], ...]] = field(compare=False)
    """From the sizes of the images and of the windows to the zeros before and behind, for each axis."""


@data_class(frozen=True)
class PaddedImageConvolution(PaddedWindows):
    """A convolution of images ``[batch, channels, height, width]``."""


@data_class(frozen=True)
class ChannelsLastConvolution(PaddedWindows):
    """A convolution of images ``[batch, height, width, channels]``."""


@data_class(frozen=True)
class Border(ForwardOnly):
    """X0, if it is the only operand, with a number before and behind it along each axis.

    Attributes:
        sizes: for each axis of X0 the entries before and behind; below 0 some are cut off.
    """

    sizes: tuple[tuple[int, int], ...]
    number: float


@data_class(frozen=True)
class LogOfExponentials(ForwardOnly):
    """``log(sum(exp(X0)))`` along ``axes``, possibly negative, or along all; a 1 stays in their place if it ``keeps`` them."""

    axes: tuple[int, ...] | None
    keeps: bool


@data_class(frozen=True)
class ImageTransposedConvolution(ForwardOnly):
    """The effect of an `ImageConvolution`'s gradient with the filters X1 on images X0, with ``more`` rows and columns behind."""

    operands: ClassVar[int] = 2
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    more: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int


@data_class(frozen=True)
class ImagePooling(ForwardOnly):
    """The maximum ("max") or the mean of each window of images ``[batch, channels, height, width]`` X0.

    A "mean" covers only the pixels inside of the image, a "mean with padding" also the zeros around. ``window``: None for the whole image.
    ``before`` and ``behind`` are rows and columns of padding; ``rounds_up``: the last window may reach beyond them.
    """

    how: Literal["max", "mean", "mean with padding"]
    window: tuple[int, ...] | None = None
    strides: tuple[int, ...] = (1, 1)
    before: tuple[int, ...] = (0, 0)
    behind: tuple[int, ...] = (0, 0)
    rounds_up: bool = False


@data_class(frozen=True)
class NearestUpsample(ForwardOnly):
    """Images ``[batch, channels, height, width]`` X0 with each pixel ``by`` times along each axis."""

    by: tuple[int, ...]


@data_class(frozen=True)
class Concat(ForwardOnly):
    """The tensors X0 behind one another along an axis, possibly negative."""

    axis: int


@data_class(frozen=True)
class Slicing(ForwardOnly):
    """The entries of X0 along some axes: for each axis its number, begin and end; all may be negative."""

    cuts: tuple[tuple[int, int, int], ...]
    dropped: tuple[int, ...] = ()
    """Dims dropped from Out0: of each one entry is taken."""


@data_class(frozen=True)
class SteppedSlicing(ForwardOnly):
    """Every step-th entry of X0 along some axes: for each axis its number, begin, end and step; all may be negative. ``dropped`` as in `Slicing`."""

    cuts: tuple[tuple[int, int, int, int], ...]
    dropped: tuple[int, ...] = ()


@data_class(frozen=True)
class PickingAlong(ForwardOnly):
    """For each place of the whole numbers X1 the entry of X0 at this place, but along an axis, possibly negative, at its number."""

    operands: ClassVar[int] = 2
    axis: int


@data_class(frozen=True)
class Picking(ForwardOnly):
    """The entries of an axis of X0, possibly negative, at the whole numbers X1; without the axis, if X1 is one number without dims."""

    operands: ClassVar[int] = 2
    axis: int


@data_class(frozen=True)
class PlacePicking(ForwardOnly):
    """The parts of X0 at the places in the rows of X1: a row of k whole numbers is a place in the first k axes."""

    operands: ClassVar[int] = 2


@data_class(frozen=True)
class Counting(ForwardOnly):
    """The numbers X0, X0 + X2, X0 + 2 X2, ..., before X1."""

    operands: ClassVar[int] = 3


Relation = Literal["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]


@data_class(frozen=True)
class ComparedElements(ForwardOnly):
    """True where X0 is less than X1, equal to it, and so on, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    how: Relation
    axis: int


@data_class(frozen=True)
class Connective(ForwardOnly):
    """The logic of the truth values X0 and X1, broadcast at their last dims; numbers other than 0 are true."""

    operands: ClassVar[int] = 2
    how: Literal["and", "or"]


@data_class(frozen=True)
class PowerElements(ForwardOnly):
    """X0 to the power X1, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    axis: int


@data_class(frozen=True)
class ExtremeElements(ForwardOnly):
    """The larger ("max") or the smaller of X0 and X1, broadcast as in `Sum`."""

    operands: ClassVar[int] = 2
    how: Literal["max", "min"]
    axis: int


@data_class(frozen=True)
class ChosenElements(ForwardOnly):
    """X1 where X0 holds, else X2, all broadcast."""

    operands: ClassVar[int] = 3


@data_class(frozen=True)
class NanTest(ForwardOnly):
    """True where X0 is NaN."""


@data_class(frozen=True)
class Split(ForwardOnly):
    """The inverse of `Concat`: X0 cut along an axis, possibly negative, into Out0, parts behind one another."""

    axis: int


@data_class(frozen=True)
class Stacking(ForwardOnly):
    """The tensors X0 as the entries of a new axis, possibly negative."""

    axis: int


@data_class(frozen=True)
class Unstacking(ForwardOnly):
    """The entries of an axis of X0, possibly negative, each a result without this axis."""

    axis: int


@data_class(frozen=True)
class Transposition(ForwardOnly):
    """X0 with its axes in another order: axis ``k`` of Out0 is axis ``axes[k]`` of X0, possibly negative."""

    axes: tuple[int, ...]


@data_class(frozen=True)
class DenseAttention(ForwardOnly):
    """Attention ``softmax(scale X0 X1' + X3) X2`` over ``[batch, heads, time, width]``, or without heads. ``turned``: X1 is given transposed.

    ``later``: the number added to the scores of later rows; 0 for none. ``blanks``: a row whose weights are NaN, for it sees no key, gets weights of 0.
    """

    scale: float
    turned: bool
    later: float
    blanks: bool = False


@data_class(frozen=True)
class AttentionOverRows(ForwardOnly):
    """The same over rows ``[batch, time, heads * columns]``, for each head, and a last operand ``[batch, 1, time, keys]``.

    ``parts``: for each of X0, X1 and X2 the number of the operand in which it lies, its first column and the number of its columns.
    """

    heads: int
    scale: float
    parts: tuple[tuple[int, int, int], ...]
    blanks: bool = False


@data_class(frozen=True)
class ChannelShuffling(ForwardOnly):
    """Images ``[batch, channels, height, width]`` X0 with their channels, in groups one after the other, taken from each group in turn."""

    groups: int


Pooled = Literal["SUM", "AVERAGE", "SQRT"]
"""A sum, undivided, or divided by the number of elements, or by its root."""


@data_class(frozen=True)
class Reduction(Computation):
    """A sum or mean of X0 over ``axes``, possibly negative (None: over all), in its own element type; ``keeps`` a dim of 1 for each."""

    inputs: ClassVar[tuple[str, ...]] = ("X0", "Out0@GRAD")
    how: Pooled
    axes: tuple[int, ...] | None = None
    keeps: bool = False


@data_class(frozen=True)
class ExtremeReduction(ForwardOnly):
    """The largest ("max") or the smallest of X0 over ``axes``, possibly negative (None: over all), in its own element type; ``keeps`` as in `Reduction`."""

    how: Literal["max", "min"]
    axes: tuple[int, ...] | None = None
    keeps: bool = False


@data_class(frozen=True)
class VectorNorm(ForwardOnly):
    """The root ``of`` of the sum of the powers ``of`` of the magnitudes of X0 over ``axes``, in its own element type; axes and ``keeps`` as in `Reduction`.

    Of infinity it is the largest magnitude, of 0 the count of numbers other than 0.
    """

    of: float
    axes: tuple[int, ...] | None = None
    keeps: bool = False


@data_class(frozen=True)
class Embedding(Computation):
    """The rows of the table X0 at the ids X1. Row ``padding`` gives zeros: -1 for none, other negative numbers count from the end.

    ``sparse``: True if the table's gradient is sparse rows.
    """

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X1", "Out0@GRAD", "X0")
    padding: int = -1
    sparse: bool = False


@data_class(frozen=True)
class SoftmaxCrossEntropy(Computation):
    """The cross entropy of Out0 = softmax of X0 along ``axis``; Out1 = -log(Out0) at the class numbers X1, zero for ``ignored`` ones."""

    operands: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("X1", "Out0", "Out1@GRAD")
    axis: int
    ignored: int


@data_class(frozen=True)
class SgdUpdate(Computation):
    """The parameter X0 less X2, one number, times its gradient X1; in place."""

    operands: ClassVar[int] = 3
