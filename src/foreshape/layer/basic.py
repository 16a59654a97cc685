"""Inputs, fully connected layers and means: the ends of most networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.hints import did_you_mean
from foreshape.core.spec import LOD_TENSOR, SELECTED_ROWS, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.registry import all_operators, find
from foreshape.language.program.call_site import here, tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable, dims_of
from foreshape.layer.parameter import check_count, create_parameter, param_attr

Activation = str | Callable[[Variable], Variable] | None
_NONE = ("", "none", "linear", "identity")
"""Names of other libraries for no activation."""
_ALONG = ("softmax", "log_softmax", "maxout")
"""Activations over more than one element."""


@tells_line
def data(
    name: str, shape: Sequence[Any] | int | None = None, dtype: Any = "fp32", lod_level: int = 0, *, dims: Sequence[Any] | int | None = None,
    input_size: int | None = None, data_type: Any = None, stop_gradient: bool = True, kind: Any = LOD_TENSOR,
) -> Variable:  # fmt: skip
    """Return an input of the network.

    Examples:
        >>> layer.data("pixels", ["batch", 3, 32, 32])  # [batch, 3, 32, 32]
        >>> layer.data("label", ["batch", 1], "int64")  # [batch, 1]
        >>> texts = layer.data("words", ["words"], "int64", lod_level=1)  # ragged: sequences of words

    Args:
        name: its name in feeds.
        shape: all sizes, the batch first: ints, -1 or UNK where unknown, a string for a named symbol. One int (or
            ``input_size``, or ``dims``) is the size of one example: the batch is put before it. Of ragged data the shape of the
            packed rows, as ``["words", 64]``: ``batch`` is there the number of sequences.
        dtype: its element type. Also ``data_type=``.
        lod_level: the number of levels of sequences in its rows; 0 if dense.
        dims, input_size: other names of ``shape``, as in the design documents; one of the three is given.
        data_type: another name of ``dtype``.
        stop_gradient: no gradient of it is computed; False lets `foreshape.append_backward` compute one.
        kind: ``fs.SELECTED_ROWS`` for some rows of a table of this shape, fed as `foreshape.SelectedRows`.

    Raises:
        ShapeError, TypeMismatchError: an invalid dim or element type. SchemaError: a taken name.
    """
    from foreshape.core.spec import dtype as dtype_of
    from foreshape.core.spec import kind as kind_of

    shapes = [x for x in (shape, dims, input_size) if x is not None]
    if len(shapes) != 1:
        raise SchemaError(f'data("{name}") takes one of shape, dims and input_size; seen {len(shapes)}')
    if isinstance(shapes[0], (str, bytes)):  # a sequence of letters
        raise ShapeError.must(f'data("{name}"): shape', 'a list of its sizes, as in ["batch", 8]', f"{shapes[0]!r}")
    sizes: Sequence[Any] = [-1, shapes[0]] if isinstance(shapes[0], int) else shapes[0]
    packed, lod = dims_of(name, sizes, lod_level)
    if lod is not None and packed[0] is lod.counts[0]:
        raise ShapeError(
            f'data("{name}") is ragged: the first dim of its shape counts its rows, and batch is how many sequences these make; '
            f"name it otherwise, as in {['words', *sizes[1:]]}"
        )
    tensor_kind = kind_of(kind)
    if tensor_kind not in (LOD_TENSOR, SELECTED_ROWS) or (tensor_kind is SELECTED_ROWS and (lod is not None or not packed)):
        raise SchemaError(f'data("{name}") is LOD_TENSOR, or SELECTED_ROWS of at least one dim without sequences; seen {tensor_kind.name}, {list(sizes)}')
    spec = Spec(tensor_kind, dtype_of(data_type if data_type is not None else dtype), packed, lod)
    block = current_block().program.global_block
    return block.create_variable(name, spec, site=here(), need_check_feed=True, stop_gradient=stop_gradient)


def activate(x: Variable, activation: Activation, prefix: str | None = None) -> Variable:
    """Apply an activation to ``x``, given by its operator's type or as a function of a variable.

    Args:
        x: the operand.
        activation: None for ``x`` itself; an operator's type, as "relu"; or a function of a variable, as `layer.relu`.
        prefix: the prefix of the result's name; by default the operator's type.
    """
    if activation is None:
        return x
    if isinstance(activation, str):
        operator = find(activation)
        if operator is None or not {"X"} <= operator.schema.operand_names:
            raise SchemaError(_no_activation(activation)).told(slot="activation", seen=repr(activation))
        out = current_block().apply(activation, {"X": x}, prefix=prefix)
        return out if isinstance(out, Variable) else out[0]
    out: Any = activation(x)
    if not isinstance(out, Variable):  # as a class of torch's, which is no activation yet
        raise SchemaError.must("activation", "a name, as 'relu', or a function from variable to variable, as layer.relu", f"{activation!r:.100}")
    return out


def _no_activation(name: str) -> str:
    """Return the words for no activation of a name, with the nearest."""
    if name.lower() in _NONE:
        return f"there is no activation {name!r}: None, the default, is none"
    activations = [
        t
        for t, operator in all_operators().items()
        if operator.forward_class is None and set(operator.schema.operand_names) == {"X"} and (operator.per_element or t in _ALONG)
    ]
    meant = did_you_mean(name, activations) or ": it is a name, as 'relu' or 'softmax', or a function, as layer.gelu"
    return f"there is no activation {name!r}{meant}"


@tells_line
def fc(
    x: Variable | Sequence[Variable], output_size: int, activation: Activation = None, flatten_last: int | None = None, *,
    weight: Any = None, bias: Any = None, name: str | None = None, split: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a fully connected layer, activation(x W + b), to features counted from the end: the last ``flatten_last`` dims.

    Examples:
        >>> x = layer.data("x", ["batch", 8])
        >>> layer.fc(x, 16, "relu")  # [batch, 16]
        >>> layer.fc(layer.data("vectors", ["batch", 5, 8]), 16, flatten_last=1)  # [batch, 5, 16]

    Args:
        x: ``[..., features]``; several inputs have a weight each, and their products are summed.
        output_size: the output features.
        activation: an operator's name ("relu") or a layer function (``layer.softmax``).
        flatten_last: the number of feature dims at the end, as in the design document; by default all but the first. PaddlePaddle's num_flatten_dims
            counts the first dims, of the rows.
        weight, bias: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves the bias out.
        name: the prefix of the parameters' names.
        split: the division of W over the ranks of a group by `foreshape.split_layers`. With "columns" each rank computes the results of its columns.
            With "rows" it has the rows for its part of the input, such as the columns of the layer before. Without that strategy it changes nothing,
            and it is not saved.

    Returns:
        ``[*row dims, output_size]``. W is ``[features, output_size]``, b is ``[output_size]``.

    Raises:
        ShapeError: unknown features, or ``flatten_last`` is out of range. SchemaError: another ``split``.
    """
    check_count("fc: output_size", output_size)
    block = current_block()
    prefix = block.program.layer_name("fc", name)
    if split is not None:
        weight = replace(param_attr(weight), split=split)
    parts: list[Variable] = []
    columns = 1
    for operand in (x,) if isinstance(x, Variable) else tuple(x):
        spec = operand.spec
        dims = spec.known_dims
        if len(dims) < 2:
            raise ShapeError(f"fc({operand.name}): the input must be [..., features], of at least 2 dims; it is {spec.text()}")
        flat = len(dims) - 1 if flatten_last is None else flatten_last
        if not 1 <= flat < len(dims):
            from_paddle = "; PaddlePaddle's -1, the last dim alone as features, is 1 here" if flat == -1 else ""
            raise ShapeError.must(f"fc({operand.name}): flatten_last", f"in [1, {len(dims)}), since the input is {spec.text()}", f"{flat}{from_paddle}")
        columns = len(dims) - flat
        features = product(dims[columns:])
        if not isinstance(features, int):
            raise ShapeError(
                f"fc({operand.name}): the features must be known to make a weight; the input is {spec.text()}, and the features are the last "
                f"{_dims(flat)}{_other_meaning(dims, flatten_last)}"
            )
        if flatten_last is not None:
            _check_shared(operand, features, weight, flatten_last)
        w = create_parameter((features, output_size), spec.known_dtype, weight, prefix=prefix)
        parts.append(block.apply("mul", {"X": operand, "Y": w}, {"x_num_col_dims": columns, "y_num_col_dims": 1}, prefix))
    out = parts[0] if len(parts) == 1 else block.apply("sum", {"X": parts}, prefix=prefix)
    if bias is not False:
        b = create_parameter((output_size,), out.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
        out = block.apply("elementwise_add", {"X": out, "Y": b}, {"axis": columns}, prefix)
    return activate(out, activation, prefix)


def _dims(count: int) -> str:
    return "dim" if count == 1 else f"{count} dims"


def _other_meaning(dims: Sequence[Size], flatten_last: int | None) -> str:
    """Say how to write it where features are not known: as PaddlePaddle would read it, or with the known dims at the end."""
    if flatten_last is not None and isinstance(product(dims[flatten_last:]), int):
        return f"; PaddlePaddle's num_flatten_dims={flatten_last} counts the first dims, as rows: that is flatten_last={len(dims) - flatten_last} here"
    known_count = next((index for index, size in enumerate(reversed(dims)) if not isinstance(size, int)), len(dims))
    return f"; flatten_last={known_count} takes those that are known" if 1 <= known_count < len(dims) else ""


def _check_shared(x: Variable, features: int, weight: Any, flatten_last: int) -> None:
    """Refuse a shared weight that fits only PaddlePaddle's ``num_flatten_dims``, with the code to write."""
    name = param_attr(weight).name
    shared = x.block.program.global_block.vars.get(name) if name is not None else None
    if shared is None or shared.spec.rank != 2 or shared.spec.known_dims[0] == features:
        return
    dims = x.spec.known_dims
    if product(dims[flatten_last:]) == shared.spec.known_dims[0]:
        raise ShapeError(
            f"fc({x.name}): the last {_dims(flatten_last)} of {x.spec.text()} are {features} features, and the shared weight {name} is "
            f"{shared.spec.text()}; PaddlePaddle's num_flatten_dims={flatten_last} counts the first dims, as rows: that is "
            f"flatten_last={len(dims) - flatten_last} here"
        )


def mean(x: Variable) -> Variable:
    """Return the mean of all elements, a tensor without dims.

    Args:
        x: floats, of any shape.
    """
    return current_block().apply("mean", {"X": x})


def bilinear(
    x: Variable, y: Variable, output_size: int, activation: Activation = None, *, weight: Any = None, bias: Any = None, name: str | None = None
) -> Variable:
    """Multiply each row of x by a matrix and the same row of y, once for each output feature: ``[batch, output_size]``.

    Args:
        x: ``[batch, m]``, floats; m is known.
        y: ``[batch, n]``, of the element type of x; n is known.
        output_size: the output features.
        activation: the activation, as for `activate`.
        weight, bias: of ``[output_size, m, n]`` and ``[1, output_size]``: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves it out.
        name: the prefix of the parameters' names.
    """
    block = current_block()
    prefix = block.program.layer_name("bilinear", name)
    dtype = x.spec.known_dtype
    inputs = {"X": x, "Y": y, "Weight": create_parameter((output_size, x.spec.known_dims[-1], y.spec.known_dims[-1]), dtype, weight, prefix=prefix)}
    if bias is not False:
        inputs["Bias"] = create_parameter((1, output_size), dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    return activate(block.apply("bilinear_tensor_product", inputs, prefix=prefix), activation, prefix)
