"""Ragged data: poolings, context and repetitions of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import Activation, activate
from foreshape.layer.functions import several_tensors
from foreshape.layer.parameter import create_parameter


def sequence_pool(x: Variable, pool_type: str = "average", pad_value: float = 0.0) -> Variable:
    """Return one row of every innermost sequence.

    Args:
        x: ragged rows, floating-point.
        pool_type: "sum", "average" or "mean", "sqrt" (the sum over the root of the length), "max", "min", "first" or "last".
        pad_value: the result for an empty sequence.

    Returns:
        ``[sequences, *row]``; of data with more than one level, ragged as its outer levels are.

    Raises:
        SchemaError: another pool_type. TypeMismatchError: an input that is not ragged.
    """
    kind = "AVERAGE" if pool_type.lower() == "mean" else pool_type.upper()
    out, _ = current_block().apply("sequence_pool", {"X": x}, {"pooltype": kind, "pad_value": pad_value})
    return out


def sequence_first_step(x: Variable) -> Variable:
    """Return the first row of every innermost sequence, ``[sequences, *row]``; zeros of an empty one.

    Args:
        x: ragged rows.
    """
    return sequence_pool(x, "first")


def sequence_last_step(x: Variable) -> Variable:
    """Return the last row of every innermost sequence, ``[sequences, *row]``; zeros of an empty one.

    Args:
        x: ragged rows.
    """
    return sequence_pool(x, "last")


def sequence_softmax(x: Variable) -> Variable:
    """Return the softmax over each innermost sequence of ``[rows]`` or ``[rows, 1]``.

    Args:
        x: ragged floats.
    """
    return current_block().apply("sequence_softmax", {"X": x})


@tells_line
def sequence_conv(
    x: Variable, num_filters: int, kernel_size: int = 3, padding_start: int | None = None, activation: Activation = None, *,
    trainable_padding: bool = False, weight: Any = None, bias: Any = None, padding_weight: Any = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a convolutional layer along sequences: activation(W times each row with its neighbours + b).

    Args:
        x: ragged rows ``[rows, width]``. Where the neighbours of a row are outside of its sequence, there are zeros.
        num_filters: the output width.
        kernel_size: the number of rows multiplied together.
        padding_start: their begin, from the row itself; by default ``-(kernel_size // 2)``, the row in their middle.
        activation: the activation, as for `activate`.
        trainable_padding: instead of zeros there are rows of a parameter outside, zeros at first.
        weight, bias, padding_weight: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves the bias out.
        name: the prefix of the parameters' names.

    Returns:
        ``[rows, num_filters]``, ragged as x. W is ``[kernel_size * width, num_filters]``, b is ``[num_filters]``.

    Raises:
        ShapeError: an input that is not ``[rows, width]`` with a known width. SchemaError: a kernel_size below 1.
    """
    dims = x.spec.known_dims
    if len(dims) != 2 or not isinstance(dims[1], int):
        raise ShapeError(f"sequence_conv({x.name}): the input must be [rows, width] with a known width to make a weight; it is {x.spec.text()}")
    if kernel_size < 1:
        raise SchemaError.must(f"sequence_conv({x.name}): kernel_size", "at least 1", kernel_size)
    width, dtype = dims[1], x.spec.known_dtype
    block = current_block()
    prefix = block.program.layer_name("sequence_conv", name)
    start = -(kernel_size // 2) if padding_start is None else padding_start
    outside = max(0, -start) + max(0, start + kernel_size - 1)
    inputs = {"X": x, "Filter": create_parameter((kernel_size * width, num_filters), dtype, weight, prefix=prefix)}
    if trainable_padding and outside:
        inputs["PaddingData"] = create_parameter((outside, width), dtype, padding_weight, prefix=prefix, is_bias=True, called="padding")
    attrs = {"contextLength": kernel_size, "contextStart": start, "contextStride": 1, "paddingTrainable": "PaddingData" in inputs}
    out = block.apply("sequence_conv", inputs, attrs, prefix)
    if bias is not False:
        b = create_parameter((num_filters,), dtype, bias, prefix=prefix, suffix="b", is_bias=True)
        out = block.apply("elementwise_add", {"X": out, "Y": b}, {"axis": 1}, prefix)
    return activate(out, activation, prefix)


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1) -> Variable:
    """Return each row (or, of a ragged x, each sequence) of ``x`` as often as a sequence of ``y`` has parts.

    Args:
        x: dense rows, one for each sequence of y, or rows with one level of as many sequences.
        y: ragged; its numbers are not read.
        ref_level: the level of y's sequences, 0 the outermost, -1 the last. Their parts are sequences of the next
            level, of the last level rows.

    Returns:
        The repetitions one after the other: dense where x is, otherwise with one level of the repeated sequences.

    Raises:
        ShapeError: another number of rows or sequences, or a ref_level missing in y.
    """
    return current_block().apply("sequence_expand", {"X": x, "Y": y}, {"ref_level": ref_level})


def sequence_expand_as(x: Variable, y: Variable) -> Variable:
    """Repeat row ``i`` of ``x`` for each row of the innermost sequence ``i`` of ``y``: ``[rows of y, *row of x]``, ragged as y.

    Args:
        x: ``[sequences, ...]``.
        y: ragged; its numbers are not read.
    """
    return current_block().apply("sequence_expand_as", {"X": x, "Y": y})


def sequence_concat(xs: Sequence[Variable]) -> Variable:
    """Return the outermost sequences of several ragged inputs joined end to end, first with first, second with second.

    Args:
        xs: ragged rows of the same dims, with equally many levels and outermost sequences.

    Returns:
        As many outermost sequences, each with the parts of all inputs in their order.

    Raises:
        ShapeError: another number of sequences or levels, or other dims of a row.
    """
    return current_block().apply("sequence_concat", {"X": several_tensors("sequence_concat", xs)})


def sequence_reverse(x: Variable) -> Variable:
    """Return the rows of each innermost sequence, the last one first; ragged as ``x``."""
    return current_block().apply("sequence_reverse", {"X": x})


def row_conv(x: Variable, future_context_size: int, activation: Activation = None, *, weight: Any = None, name: str | None = None) -> Variable:
    """Sum each row with the rows after it, each column by weights of its own (Amodei et al., "Deep Speech 2", 2016).

    Args:
        x: ragged rows ``[rows, width]``, or dense ``[sequences, steps, width]``; the width is known.
        future_context_size: the number of rows after it.
        activation: the activation, as for `activate`.
        weight: of ``[future_context_size + 1, width]``: a name, an initializer or a `ParamAttr`.
        name: the prefix of the weight's name.
    """
    block = current_block()
    prefix = block.program.layer_name("row_conv", name)
    width = x.spec.known_dims[-1]
    w = create_parameter((future_context_size + 1, width), x.spec.known_dtype, weight, prefix=prefix)
    return activate(block.apply("row_conv", {"X": x, "Filter": w}, prefix=prefix), activation, prefix)
