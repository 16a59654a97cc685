"""Training only: `in_training`, a change of a value in training, and not in a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.core.dims import equal
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.scopes import name_scope
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import assign, fill_constant
from foreshape.layer.math import cast
from foreshape.layer.normalization import dropout


@tells_line
def in_training(x: Variable | Sequence[Variable], function: Callable[..., Any], otherwise: Any = None) -> Any:
    """Return ``function(x)`` in training; in a test ``x`` itself.

    Examples:
        >>> x = layer.in_training(image, lambda image: image + layer.gaussian_random(image.shape, std=0.1))  # each image its own

    `foreshape.train`, ``minimize``, and a run of the program as described are training. `foreshape.predict`, `foreshape.evaluate`,
    the validation data of a training, a saved model for inference and `foreshape.transforms.passes.for_test` are tests. There ``x`` is read in its place, and
    ops needed only by the function are dropped. Random numbers within are drawn as for dropout: from the executor's generator, anew in each step, by the
    seed of the run. They continue after a resumption, and differ between ranks with examples of their own.

    In the program the choice is a ``select_input`` by a number from ``dropout``, so PaddlePaddle's clone for a test chooses in the same way.

    Args:
        x: a variable; or several, passed to the function one by one.
        function: takes as many variables, and returns as many.
        otherwise: replaces ``x`` in a test, if the function returns other dims: a variable, or as many.

    Returns:
        A variable; or a tuple for several.

    Raises:
        SchemaError, TypeMismatchError, ShapeError: the function's results do not fit their replacements in a test.
    """
    variables = _variables(x, "x")
    block = current_block()
    op_count = len(block.ops)
    results = _variables(function(*variables), "the function of in_training")
    learns = any(v.persistable for op in block.ops[op_count:] for v in op.input_variables())
    instead = variables if otherwise is None else _variables(otherwise, "otherwise")
    if not len(results) == len(instead) == len(variables):
        raise SchemaError(
            f"in_training gives as many variables as it takes, {len(variables)}; the function makes {len(results)}, and otherwise has {len(instead)}"
        )
    for new, old in zip(results, instead, strict=True):
        if new.dtype is not old.dtype:
            raise TypeMismatchError(f"in_training: the function must keep the element type; it makes {new} of {old}")
        if new.spec.rank != old.spec.rank or any(equal(a, b) is False for a, b in zip(new.spec.known_dims, old.spec.known_dims, strict=True)):
            raise ShapeError(f"in_training: the function must keep the dims, or otherwise= say what stands there in a test; it makes {new} of {old}")
    with name_scope("in_training"):
        testing = cast(dropout(fill_constant([1], "fp32", 1.0), 1.0), "int32")  # 0 in training, where all is dropped, and 1 in a test
        out = [block.apply("select_input", {"X": [new, _apart(old)], "Mask": testing}) for new, old in zip(results, instead, strict=True)]
    for chosen in out:  # nothing trainable is before it: no gradient needs to come here
        chosen.stop_gradient = not learns and all(v.stop_gradient for v in (*variables, *instead))
    return out[0] if isinstance(x, Variable) else tuple(out)


def _apart(x: Variable) -> Variable:
    """Return the same value without gradient flow: a value not chosen has no gradient."""
    if x.stop_gradient:
        return x
    out = assign(x)
    out.stop_gradient = True
    return out


def _variables(values: Any, source: str) -> list[Variable]:
    listed: list[Any] = [values] if isinstance(values, Variable) else list(values) if isinstance(values, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType]
    if not listed or not all(isinstance(value, Variable) for value in listed):
        raise SchemaError.must(source, "a variable, or several", f"{values!r}")
    return listed
