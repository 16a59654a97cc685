"""Parameters: made in the main program, initialised by the startup program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from foreshape.core.dims import Dim, Size
from foreshape.core.spec import LOD_TENSOR, Spec, sizes_of
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import DescriptionError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.registry import get
from foreshape.language.program.call_site import Site, here, placed_error, warn_user
from foreshape.language.program.current import current_block, default_startup_program
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import current_scope, scoped_parameter
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Constant, Initializer, Xavier, key_of


@dataclass(frozen=True, slots=True)
class ParamAttr:
    """The name of a layer's parameter, its first values, and its training.

    An equal name in two layers shares the parameter. ``split`` is the division of a weight over ranks by `foreshape.split_layers`: by "columns" or by
    "rows"; it is not saved with a program.

    Args:
        name: of the parameter; by default made up.
        initializer: its first values; by default as the layer says.
        trainable: False if optimizers may not change it.
        learning_rate: the factor of the optimizer's learning rate for it.
        need_decay: False: no weight decay.
        split: by "columns", by "rows", or None.
    """

    name: str | None = None
    initializer: Initializer | None = None
    trainable: bool = True
    learning_rate: float = 1.0
    need_decay: bool = True
    split: str | None = None

    def __post_init__(self) -> None:
        if self.split not in (None, *SPLITS):
            raise SchemaError.one_of("split", SPLITS, self.split)


SPLITS = ("columns", "rows")
_MOST_KEPT = 4096
_WEIGHT = Xavier()
_BIAS = Constant(0.0)


def param_attr(given: Any) -> ParamAttr:
    """Return the `ParamAttr` of a layer's argument: None, a name, an initializer, or a `ParamAttr`."""
    if given is None:
        return _DEFAULT
    if isinstance(given, ParamAttr):
        return given
    if isinstance(given, str):
        return ParamAttr(name=given)
    if isinstance(given, Initializer):
        return ParamAttr(initializer=given)
    raise SchemaError(f"a parameter is given by a name, an initializer or a ParamAttr; seen {given!r}")


_DEFAULT = ParamAttr()


def part_of(argument: Any, called: str, initialised: bool = True) -> Any:
    """Return the attributes of one of a layer's several parameters: a common name gets ``called`` behind a dot.

    Args:
        argument: as for `param_attr`, or False.
        called: the parameter among the others.
        initialised: True to start as the others.
    """
    if argument is None or argument is False:
        return argument
    attr = param_attr(argument)
    name = None if attr.name is None else f"{attr.name}.{called}"
    return replace(attr, name=name, initializer=attr.initializer if initialised else None)


def create_parameter(
    shape: Sequence[Size], dtype: Any, attr: Any = None, *, prefix: str | None = None, suffix: str = "w", is_bias: bool = False,
    initializer: Initializer | None = None, trainable: bool = True, is_parameter: bool = True, called: str | None = None,
) -> Variable:  # fmt: skip
    """Make a parameter of this shape and element type ("fp32", `FP32`, ...) in the main program, and the op that initialises it in the startup program.

    Without a name in ``attr`` it is called ``prefix.w_0``, with another number or ``suffix``; in a `name_scope` ``prefix.weight`` (of a bias
    ``prefix.bias``), or ``prefix.called``, if given.

    Args:
        shape: its sizes: ints or symbols.
        dtype: its element type, of floats.
        attr: None, a name, an initializer or a `ParamAttr`, before the further arguments.
        prefix, suffix, called: the parts of the name.
        is_bias: it starts by default at 0, otherwise as `Xavier`.
        initializer: its first values, unless set by ``attr``.
        trainable: False if optimizers may not change it.
        is_parameter: False makes a value saved and not trained, as a moving mean.

    Raises:
        SchemaError: a shared name with another shape. TypeMismatchError: an invalid element type, or none of floats.
    """
    attributes = param_attr(attr)
    element_type = dtype_of(dtype)
    if not element_type.is_floating:
        of_what = prefix or "create_parameter"
        raise TypeMismatchError(f"{of_what}: a parameter is floating-point, and its input is {element_type.name}; see layer.cast and layer.embedding")
    block = current_block().program.blocks[0]
    name = attributes.name or _name(block.program, prefix, suffix, called or ("bias" if is_bias else None))
    site = here()
    spec = Spec(LOD_TENSOR, element_type, sizes_of(tuple(shape)))  # also if 4.0 would find the entry of 4
    shared = block.vars.get(name)
    if shared is not None:
        if shared.spec is not spec:
            call_site = shared.call_site
            place = "" if call_site is None else f", made at {call_site.short()}"
            raise SchemaError(f"the parameter {name} is shared, and is {shared.spec.text()}{place}, not {spec.text()}")
        previous = settings(block.program).get(name)
        if attributes.split is not None and (previous is None or previous.split != attributes.split):
            was = "not divided" if previous is None or previous.split is None else f"split by {previous.split}"
            raise SchemaError(f"the parameter {name} is shared, and is {was}, not split by {attributes.split}")
        return shared
    variable = Variable.make(name, block, spec, site)
    variable.persistable = True
    variable.is_parameter = is_parameter
    variable.trainable = trainable and attributes.trainable
    variable.stop_gradient = not variable.trainable
    initialise(variable, attributes.initializer or initializer or (_BIAS if is_bias else _WEIGHT))
    block.vars[name] = variable
    block.program.touch()
    if attributes.learning_rate != 1.0 or not attributes.need_decay or attributes.split is not None:
        settings(block.program)[name] = attributes
    return variable


def check_count(called: str, count: object) -> None:
    """Raise `ShapeError` for a number of features or filters, the argument ``called``, that is no size."""
    if not (isinstance(count, Dim) or (hasattr(count, "__index__") and index(count) >= 0)):  # pyright: ignore[reportArgumentType]
        raise ShapeError.must(called, "a whole number, at least 0", repr(count))


def _name(program: Program, prefix: str | None, suffix: str, called: str | None) -> str:
    if current_scope():
        return scoped_parameter(program, prefix, called or suffix)
    return program.unique_name(f"{prefix or 'create_parameter_0'}.{suffix}")


def initialise(variable: Variable, initializer: Initializer) -> None:
    """Let the startup program make the first value of a persistable variable.

    Two programs may have one startup program, as for training and test. If it makes another value of this name already, a warning tells it: a program
    merely looked at needs none.
    """
    startup = default_startup_program().blocks[0]
    name, spec = variable.name, variable.spec
    startup_variable = startup.vars.get(name)
    if startup_variable is not None:
        _warn_of_another(startup_variable, variable, initializer)
        return
    copy = Variable.make(name, startup, spec, variable.site)
    copy.persistable = True
    copy.is_parameter = variable.is_parameter
    copy.stop_gradient = variable.stop_gradient
    startup.vars[name] = copy
    copy.op = startup.append_described(_first_value(initializer, spec, variable.site), {}, {"Out": (name,)}, site=variable.site)


_first_values: dict[Any, Attributes] = {}
"""The startup op of a spec, by initializer: the parameters of a network are of few kinds."""


def _first_value(initializer: Initializer, spec: Spec, site: Site) -> Attributes:
    """Return the attributes of the op for a parameter's first value, at the user's line."""
    key = key_of(initializer)
    attributes = _first_values.get((key, spec)) if key is not None else None
    if attributes is None:
        type, attrs = initializer.op(spec.known_dims, spec.known_dtype)
        try:
            attributes = get(type).describe(attrs)
        except DescriptionError as error:
            raise placed_error(error, type, site) from None
        if key is not None:
            if len(_first_values) >= _MOST_KEPT:
                _first_values.clear()
            _first_values[key, spec] = attributes
    return attributes


def _warn_of_another(startup_variable: Variable, variable: Variable, initializer: Initializer) -> None:
    type, attrs = initializer.op(variable.spec.known_dims, variable.spec.known_dtype)
    differs = startup_variable.spec.dims != variable.spec.dims or startup_variable.dtype is not variable.dtype
    if startup_variable.op is not None and not differs:
        operator = startup_variable.op.operator
        values = operator.describe(attrs).values if operator is not None and startup_variable.op.type == type else None
        differs = values is None or any(startup_variable.op.attributes.values.get(n) != v for n, v in values.items())
    if differs:
        site = startup_variable.call_site
        place = f", described at {site.short()}" if site is not None else ""
        warn_user(
            f"the startup program makes {startup_variable} already{place}, of other dims or in another way than {variable} here: give this network a "
            "startup program of its own, with fs.program() or fs.program_guard(main, startup), or another name"
        )


def settings(program: Any) -> dict[str, ParamAttr]:
    """Return the parameters with a learning rate or a decay of their own."""
    return program.parameter_settings
